//! A message from one rank to another beside a call of either, by hand: its two sides are not in the same state.
//!
//! Ten SMs a rank. A call takes 100 us on all of them; the message takes 40 us to move, by NCCL after 20 us of latency.

use ringlab_sim::config::cluster::{Cluster, Grid, Ramp};
use ringlab_sim::engine::{SimOptions, simulate};
use ringlab_sim::layout::{Layout, LayoutKind};
use ringlab_sim::mask::{Documents, Pattern};
use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{Lane, MaskId, OpKind, Plan, Slots, Tensor, Transport};
use ringlab_sim::problem::{Pass, Problem};
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::units::{Bytes, BytesPerSec, SimTime};

use crate::support;

const US: u64 = 1_000_000;
/// Ten keys and values.
const BYTES: Bytes = Bytes(10 * support::TOKEN);

fn cluster() -> Cluster {
    let mut cluster = support::ideal(2);
    cluster.device.sms = 10;
    for row in &mut cluster.kernels {
        // A query against a key takes 10 us of one SM.
        row.rate.0 *= 1e-6;
        row.grid = Grid::PersistentQueue;
    }
    let bandwidth = BytesPerSec(64e6);
    cluster.fabric.copy.bandwidth = bandwidth;
    let nccl = &mut cluster.fabric.nccl;
    (nccl.bandwidth, nccl.latency, nccl.sms) = (bandwidth, SimTime(20 * US), 4);
    cluster
}

/// Of ranks 0 and 1: the keys of a call of ten queries, none for no call, and whether a step that takes no time is launched
/// before it. Rank 0's keys go to rank 1, sent before its call and received after the other one.
type Ranks = [(u64, bool); 2];

fn plan(ranks: Ranks, over: Transport) -> Plan {
    let problem =
        Problem { shape: support::shape(1, support::HEAD_DIM), pattern: Pattern::Full, documents: vec![20] };
    let layout = Layout::new(LayoutKind::Contiguous, 2, Documents::single(20)).unwrap();
    let mut b = PlanBuilder::new("one way".into(), Pass::Forward, &problem, layout, over);
    let sent = b.block(&[b.shard(0)], true);
    let message = b.message(0, 1, Tensor::KeyValue, sent);
    for (rank, (keys, after)) in (0..2).zip(ranks) {
        let q_block = b.block(&[b.shard(rank)], false);
        let (q, state) = (b.input(rank, Tensor::Query, q_block), b.scratch(rank, Tensor::State, q_block));
        if rank == 0 {
            let buffer = b.input(0, Tensor::KeyValue, sent).into();
            b.push(0, Lane::comm(0), 0, 0, OpKind::Send { message, buffer });
        }
        if after {
            let into = b.scratch(rank, Tensor::State, q_block);
            b.compute(rank, 0, OpKind::Merge { from: state, into });
        }
        if keys > 0 {
            let kv_block = b.block(&[Slots { rank, from: 0, to: keys }], true);
            let kv = b.input(rank, Tensor::KeyValue, kv_block).into();
            let (q, mask) = (q.into(), MaskId::NONE);
            b.compute(rank, 0, OpKind::Attend { q, kv, state, q_block, kv_block, mask, init: true });
        }
        if rank == 1 {
            let buffer = b.scratch(1, Tensor::KeyValue, sent);
            b.push(1, Lane::comm(0), 0, 0, OpKind::Recv { message, buffer });
        }
    }
    b.finish()
}

/// Start and end of the message, and of the calls there are, in microseconds.
fn spans(plan: &Plan, cluster: &Cluster) -> Vec<(u64, u64)> {
    let timeline = simulate(plan, cluster, &SimOptions::default()).unwrap();
    let of = |kind| {
        let mut found: Vec<_> = timeline.spans.iter().filter(|s| s.kind == kind).collect();
        found.sort_by_key(|s| s.rank);
        found.into_iter().map(|s| (s.start.0 / US, s.end.0 / US))
    };
    of(SpanKind::Recv).chain(of(SpanKind::Attend)).collect()
}

/// A call of rank 1 from 30 us on keeps its SMs until 130. The message is posted at 30 as well and ready at 50, when rank 0 is
/// free: there it takes four SMs, which it keeps, so that rank 0's call, launched at 60, has six of ten. Both begin to move at
/// 130 until 170, and by then that call has done 6/10 of 110 us.
#[test]
fn a_side_that_has_its_sms_keeps_them_while_the_other_one_waits() {
    let mut cluster = cluster();
    cluster.host.kernel_launch = SimTime(30 * US);
    let plan = plan([(10, true), (10, false)], Transport::Nccl);
    assert_eq!(spans(&plan, &cluster), [(30, 170), (60, 204), (30, 130)]);
    // A pipeline that fills for 15 us does so when the message begins to move, not while it waits.
    cluster.fabric.nccl.ramp = Some(Ramp { time: SimTime(30 * US), bytes: BYTES });
    assert_eq!(spans(&plan, &cluster), [(30, 185), (60, 210), (30, 130)]);
}

/// A copy that loses half its bandwidth beside a call on either of its ranks: all of its 40 us, or 20 us of them.
#[test]
fn a_call_on_either_side_slows_a_copy_down() {
    let mut cluster = cluster();
    cluster.fabric.copy.slowed_by_calls = 0.5;
    let copy = |keys: [u64; 2]| {
        let ranks = keys.map(|keys| (keys, false));
        spans(&plan(ranks, Transport::CopyEngine), &cluster)[0]
    };
    assert_eq!(copy([0, 0]), (0, 40));
    for keys in [[10, 0], [0, 10], [10, 10]] {
        assert_eq!(copy(keys), (0, 80), "{keys:?}");
    }
    for keys in [[2, 0], [0, 2], [2, 2], [1, 2]] {
        assert_eq!(copy(keys), (0, 50), "{keys:?}");
    }
}
