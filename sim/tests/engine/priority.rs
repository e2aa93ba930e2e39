//! Transfers on streams of normal and of high priority beside attention calls, by hand.
//!
//! Two ranks of ten SMs do the same: two calls in a row, 100 us each on all SMs, and an exchange that takes 20 us of latency
//! and 40 us to move, and holds four SMs: a call beside it goes on at 6/10.

use ringlab_sim::config::cluster::{Cluster, Grid, HighPriority, NcclLimit, NcclSettings, Priority};
use ringlab_sim::engine::{SimOptions, simulate};
use ringlab_sim::layout::{Layout, LayoutKind};
use ringlab_sim::mask::{Documents, Pattern};
use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{Lane, MaskId, OpKind, Plan, Tensor, Transport};
use ringlab_sim::problem::{Pass, Problem};
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::units::{BytesPerSec, SimTime};

use crate::support;

const US: u64 = 1_000_000;
const BOTH: [Priority; 2] = [Priority::Normal, Priority::High];

/// Start and end of the exchange and of both calls, in picoseconds.
type Diagram = [(u64, u64); 3];

fn cluster(grid: Grid, priority: Priority) -> Cluster {
    let mut cluster = support::ideal(2);
    cluster.device.sms = 10;
    for row in &mut cluster.kernels {
        // A query against a key takes 10 us of one SM.
        row.rate.0 *= 1e-6;
        row.grid = grid;
    }
    let nccl = &mut cluster.fabric.nccl;
    (nccl.bandwidth, nccl.latency, nccl.sms) = (BytesPerSec(64e6), SimTime(20 * US), 4);
    cluster.set_nccl_priority(priority);
    cluster
}

/// Ten queries a rank, one an SM, twice over ten keys; `first` is launched first.
fn plan(first: First) -> Plan {
    let problem =
        Problem { shape: support::shape(1, support::HEAD_DIM), pattern: Pattern::Full, documents: vec![20] };
    let layout = Layout::new(LayoutKind::Contiguous, 2, Documents::single(20)).unwrap();
    let mut b = PlanBuilder::new("priority".into(), Pass::Forward, &problem, layout, Transport::Nccl);
    let own: Vec<_> = (0..2).map(|r| (b.block(&[b.shard(r)], false), b.block(&[b.shard(r)], true))).collect();
    let messages = [b.message(0, 1, Tensor::KeyValue, own[0].1), b.message(1, 0, Tensor::KeyValue, own[1].1)];
    for (rank, &(q_block, kv_block)) in (0..2).zip(&own) {
        let (q, kv) = (b.input(rank, Tensor::Query, q_block), b.input(rank, Tensor::KeyValue, kv_block));
        let state = b.scratch(rank, Tensor::State, q_block);
        let calls = |b: &mut PlanBuilder| {
            for init in [true, false] {
                let (q, kv, mask) = (q.into(), kv.into(), MaskId::NONE);
                b.compute(rank, 0, OpKind::Attend { q, kv, state, q_block, kv_block, mask, init });
            }
        };
        let exchange = |b: &mut PlanBuilder| {
            let (mine, other) = (messages[rank as usize], messages[1 - rank as usize]);
            let (into, group) = (b.scratch(rank, Tensor::KeyValue, own[1 - rank as usize].1), b.group());
            b.push(rank, Lane::comm(0), 0, group, OpKind::Send { message: mine, buffer: kv.into() });
            b.push(rank, Lane::comm(0), 0, group, OpKind::Recv { message: other, buffer: into });
        };
        match first {
            First::Calls => {
                calls(&mut b);
                exchange(&mut b);
            }
            First::Exchange => {
                exchange(&mut b);
                calls(&mut b);
            }
        }
    }
    b.finish()
}

#[derive(Clone, Copy)]
enum First {
    Calls,
    Exchange,
}

/// What both ranks do.
fn diagram(plan: &Plan, cluster: &Cluster) -> Diagram {
    let timeline = simulate(plan, cluster, &SimOptions::default()).unwrap();
    let of = |rank: u32| {
        let spans = |kind| timeline.spans.iter().filter(move |s| s.rank == rank && s.kind == kind);
        let found = spans(SpanKind::Recv).chain(spans(SpanKind::Attend)).map(|s| (s.start.0, s.end.0));
        Diagram::try_from(found.collect::<Vec<_>>()).unwrap()
    };
    assert_eq!(of(0), of(1));
    of(0)
}

/// All ready at 0: calls and exchange.
fn together(grid: Grid, priority: Priority) -> Diagram {
    diagram(&plan(First::Calls), &cluster(grid, priority))
}

/// Both calls are launched at 0, the exchange is posted at `at`.
fn later(grid: Grid, priority: Priority, at: u64) -> Diagram {
    let mut cluster = cluster(grid, priority);
    cluster.host.nccl_launch = SimTime(at);
    diagram(&plan(First::Calls), &cluster)
}

/// The exchange is posted at 0, the first call launched at 10 us, the second one at 20.
fn before_the_calls(priority: Priority) -> Diagram {
    let mut cluster = cluster(Grid::PersistentQueue, priority);
    cluster.host.kernel_launch = SimTime(10 * US);
    diagram(&plan(First::Exchange), &cluster)
}

fn us(spans: [(u64, u64); 3]) -> Diagram {
    spans.map(|(start, end)| (start * US, end * US))
}

/// At normal priority the exchange is ready when its latency has passed, and then the call has all SMs: it moves beside the
/// second one, which loses 4/10 of 40 us. At high priority it takes its SMs at once, and the first call loses 4/10 of 60.
#[test]
fn ready_together_the_exchange_goes_first_at_high_priority() {
    let grid = Grid::PersistentQueue;
    assert_eq!(together(grid, Priority::Normal), us([(0, 140), (0, 100), (100, 216)]));
    assert_eq!(together(grid, Priority::High), us([(0, 60), (0, 124), (124, 224)]));
}

/// Without a latency it is ready at once, at any priority, and calls of the same instant come after it: the first call loses
/// 4/10 of 40 us.
#[test]
fn without_a_latency_the_exchange_goes_first() {
    for priority in BOTH {
        let mut cluster = cluster(Grid::PersistentQueue, priority);
        cluster.fabric.nccl.latency = SimTime::ZERO;
        let found = diagram(&plan(First::Calls), &cluster);
        assert_eq!(found, us([(0, 40), (0, 116), (116, 216)]), "{priority:?}");
    }
}

/// Ten work items on twenty SMs leave ten free: a pair takes 20 us of one of them, and the calls lose 4/20 of the exchange's
/// 60 us.
#[test]
fn a_grid_that_does_not_fill_the_device_keeps_no_sms() {
    let mut cluster = cluster(Grid::PersistentQueue, Priority::Normal);
    cluster.device.sms = 20;
    assert_eq!(diagram(&plan(First::Calls), &cluster), us([(0, 60), (0, 212), (212, 412)]));
}

/// Likewise beside a call that starts within the exchange's latency: 100 us on all SMs, or 4/10 of 50 us longer.
#[test]
fn a_call_that_still_waits_to_start_comes_after_an_exchange_of_high_priority() {
    assert_eq!(before_the_calls(Priority::Normal), us([(0, 150), (10, 110), (110, 226)]));
    assert_eq!(before_the_calls(Priority::High), us([(0, 60), (10, 130), (130, 230)]));
}

/// Posted at 88, the exchange is ready at 108: at normal priority the second call, ready at 100, goes first and it waits for
/// that one's end as well. At high priority it takes its SMs at 100, when the first call leaves them, and moves from 108 to
/// 148: the second call loses 4/10 of 48 us.
#[test]
fn beside_a_running_call_it_waits_and_goes_before_the_next() {
    let grid = Grid::PersistentQueue;
    assert_eq!(later(grid, Priority::Normal, 88 * US), us([(88, 240), (0, 100), (100, 200)]));
    let [exchange, first, (start, end)] = later(grid, Priority::High, 88 * US);
    assert_eq!([exchange, first], [(88 * US, 148 * US), (0, 100 * US)]);
    assert_eq!((start, end), (100 * US, 219_200_000));
    // Posted as the first call ends: it is ready together with the second one.
    assert_eq!(later(grid, Priority::Normal, 100 * US), us([(100, 240), (0, 100), (100, 200)]));
    assert_eq!(later(grid, Priority::High, 100 * US), us([(100, 160), (0, 100), (100, 224)]));
}

/// Ready at 70, it is the first to wait at any priority, and nothing takes SMs from a call that runs.
#[test]
fn no_call_that_runs_is_preempted() {
    for priority in BOTH {
        let found = later(Grid::PersistentQueue, priority, 50 * US);
        assert_eq!(found, us([(50, 140), (0, 100), (100, 216)]), "{priority:?}");
    }
}

/// Short thread blocks end all the time, so that the exchange takes its SMs when it is posted, at any priority.
#[test]
fn beside_short_thread_blocks_priority_changes_nothing() {
    for priority in BOTH {
        assert_eq!(together(Grid::PerItem, priority), us([(0, 60), (0, 124), (124, 224)]), "{priority:?}");
        // The first call has 12 us left at 88, the second one 76 at 148.
        let found = later(Grid::PerItem, priority, 88 * US);
        assert_eq!(found, us([(88, 148), (0, 108), (108, 224)]), "{priority:?}");
    }
}

/// Fixed shares: what is ready together with the exchange comes after it at any priority, and so does the call that starts
/// beside it. One that runs already is slowed down.
#[test]
fn beside_fixed_shares_priority_changes_nothing() {
    for priority in BOTH {
        let found = together(Grid::Persistent, priority);
        assert_eq!(found, us([(0, 60), (0, 160), (160, 260)]), "{priority:?}");
        let found = later(Grid::Persistent, priority, 88 * US);
        assert_eq!(found, us([(88, 148), (0, 108), (108, 248)]), "{priority:?}");
    }
}

/// Between nodes the network's priority decides.
#[test]
fn each_transport_has_a_priority() {
    for (inside, between) in [(Priority::Normal, Priority::High), (Priority::High, Priority::Normal)] {
        let near = cluster(Grid::PersistentQueue, inside);
        let mut far = near.clone();
        (far.nodes, far.gpus_per_node) = (2, 1);
        let mut network = support::rails(1);
        network.transport = near.fabric.nccl.clone();
        network.transport.priority = between;
        far.network = Some(network);
        for (cluster, priority) in [(near, inside), (far, between)] {
            let exchange = if priority == Priority::High { (0, 60) } else { (0, 140) };
            assert_eq!(diagram(&plan(First::Calls), &cluster)[0], us([exchange; 3])[0]);
        }
    }
}

/// At most one CTA: half the bandwidth, so 80 us to move, one SM, and a third of the bandwidth is lost beside a call. The
/// second call goes on at 9/10 and ends at 100 + 100 / 0.9; by then 2/3 of that time's bytes have moved, and the others follow
/// at full speed. At most two: as fast as without a limit, but with two SMs.
#[test]
fn a_limit_takes_fewer_sms_for_longer() {
    let mut cluster = cluster(Grid::PersistentQueue, Priority::Normal);
    let limit = |ctas, bandwidth, sms, slowed_by_calls| NcclLimit {
        ctas,
        bandwidth: BytesPerSec(bandwidth),
        sms,
        slowed_by_calls,
        source: "test".into(),
    };
    cluster.fabric.nccl.limits = vec![limit(1, 32e6, 1, 1.0 / 3.0), limit(2, 64e6, 2, 0.0)];
    let limited = |ctas, priority| {
        let cluster = cluster.with_nccl(NcclSettings { ctas: Some(ctas), priority }).unwrap();
        diagram(&plan(First::Calls), &cluster)
    };
    let [exchange, first, second] = limited(1, Priority::Normal);
    let end = 100.0 + 100.0 / 0.9;
    let moved = 2.0 / 3.0 * (end - 100.0);
    assert_eq!((exchange.0, first, second.0), (0, (0, 100 * US), 100 * US));
    assert!((second.1 as f64 / US as f64 - end).abs() < 1e-3, "{second:?}");
    assert!((exchange.1 as f64 / US as f64 - (end + 80.0 - moved)).abs() < 1e-3, "{exchange:?}");
    assert_eq!(limited(2, Priority::Normal), us([(0, 140), (0, 100), (100, 208)]));
    assert_eq!(limited(2, Priority::High), us([(0, 60), (0, 112), (112, 212)]));
}

/// Two SMs instead of four at high priority: the first call loses 2/10 of 60 us. At normal priority nothing changes.
#[test]
fn figures_of_high_priority_count_at_high_priority_only() {
    let with = |priority| {
        let mut cluster = cluster(Grid::PersistentQueue, priority);
        let high = HighPriority { sms: 2, slowed_by_calls: 0.0, source: "test".into() };
        cluster.fabric.nccl.high_priority = Some(high);
        diagram(&plan(First::Calls), &cluster)
    };
    assert_eq!(with(Priority::Normal), us([(0, 140), (0, 100), (100, 216)]));
    assert_eq!(with(Priority::High), us([(0, 60), (0, 112), (112, 212)]));
}
