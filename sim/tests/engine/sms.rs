//! NCCL transfers beside attention calls, by hand.

use ringlab_sim::config::cluster::{Cluster, Grid};
use ringlab_sim::engine::{SimOptions, simulate};
use ringlab_sim::layout::{Layout, LayoutKind};
use ringlab_sim::mask::Documents;
use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{Buf, Lane, MaskId, OpKind, Tensor, Transport};
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{Options, Schedule};
use ringlab_sim::timeline::{SpanKind, Timeline};
use ringlab_sim::units::{BytesPerSec, SimTime};

use crate::support;

/// The other rank's keys: 16 tokens of 256 bytes.
const MOVE: u64 = 40_960_000;

/// Ten SMs, of which an NCCL transfer holds four.
fn cluster(grid: Grid) -> Cluster {
    let mut cluster = support::ideal(2);
    cluster.device.sms = 10;
    // A picosecond of the whole device becomes a microsecond.
    for row in &mut cluster.kernels {
        row.rate.0 *= 1e-6;
        row.grid = grid;
    }
    cluster.fabric.nccl.bandwidth = BytesPerSec(1e8);
    cluster.fabric.copy.bandwidth = BytesPerSec(1e8);
    cluster.fabric.nccl.sms = 4;
    cluster
}

fn two_steps(cluster: &Cluster, transport: Transport) -> Timeline {
    let options = Options { transport, ..Options::new(Pass::Forward) };
    let problem = support::causal(32, support::shape(1, support::HEAD_DIM));
    let plan = support::build(Schedule::Ring, &problem, 2, &options);
    simulate(&plan, cluster, &SimOptions::default()).unwrap()
}

/// The first call of rank 0, and the exchange beside it.
fn call_and_exchange(timeline: &Timeline) -> [(u64, u64); 2] {
    [SpanKind::Attend, SpanKind::Recv].map(|kind| {
        let span = timeline.spans.iter().find(|s| s.rank == 0 && s.kind == kind).unwrap();
        (span.start.0, span.end.0)
    })
}

#[test]
fn a_copy_engine_leaves_the_call_alone() {
    let [call, exchange] = call_and_exchange(&two_steps(&cluster(Grid::Persistent), Transport::CopyEngine));
    assert_eq!(exchange, (0, MOVE));
    assert_eq!(call.1 - call.0, undisturbed());
}

/// What the call takes alone.
fn undisturbed() -> u64 {
    let mut quiet = cluster(Grid::Persistent);
    quiet.fabric.nccl.sms = 0;
    let [(start, end), _] = call_and_exchange(&two_steps(&quiet, Transport::Nccl));
    assert!(end - start > MOVE);
    end - start
}

#[test]
fn short_thread_blocks_lose_the_share_that_is_held() {
    let [call, exchange] = call_and_exchange(&two_steps(&cluster(Grid::PerItem), Transport::Nccl));
    assert_eq!(exchange, (0, MOVE));
    // For the time of the exchange 4 of 10 SMs are missing.
    assert_eq!(call, (0, undisturbed() + MOVE * 4 / 10));
}

#[test]
fn a_persistent_call_beside_an_exchange_exposes_all_of_it() {
    let [call, exchange] = call_and_exchange(&two_steps(&cluster(Grid::Persistent), Transport::Nccl));
    assert_eq!(exchange, (0, MOVE));
    assert_eq!(call, (0, MOVE + undisturbed()));
}

#[test]
fn a_persistent_call_does_not_wait_for_an_exchange_that_outlasts_two_rounds() {
    let mut cluster = cluster(Grid::Persistent);
    cluster.fabric.nccl.bandwidth.0 /= 10.0;
    let timeline = two_steps(&cluster, Transport::Nccl);
    let [call, exchange] = call_and_exchange(&timeline);
    assert_eq!(exchange, (0, 10 * MOVE));
    // Six of ten blocks, then on the same SMs the other four.
    assert!(2 * undisturbed() < 10 * MOVE);
    assert_eq!(call, (0, 2 * undisturbed()));
    // Rank 1 has both calls. The second begins when its keys have come and nothing is held any more: 16 rows of 16 pairs of 10 us
    // each on ten SMs are two rounds.
    assert_eq!(timeline.makespan, SimTime(10 * MOVE + 2 * 16 * 10_000_000));
}

#[test]
fn a_persistent_call_that_was_first_loses_only_the_share() {
    let mut cluster = cluster(Grid::Persistent);
    cluster.host.nccl_launch = SimTime(10_000_000);
    // In this plan the calls are launched first, and the exchange 10 us later.
    let problem = support::causal(32, support::shape(1, support::HEAD_DIM));
    let layout = Layout::new(LayoutKind::Contiguous, 2, Documents::single(32)).unwrap();
    let mut b = PlanBuilder::new("late".into(), Pass::Forward, &problem, layout, Transport::Nccl);
    let own: Vec<_> = (0..2).map(|r| (b.block(&[b.shard(r)], false), b.block(&[b.shard(r)], true))).collect();
    for (rank, &(q_block, kv_block)) in (0..2).zip(&own) {
        let (q, kv) = (b.input(rank, Tensor::Query, q_block), b.input(rank, Tensor::KeyValue, kv_block));
        let state = b.scratch(rank, Tensor::State, q_block);
        let mask = MaskId::PROBLEM;
        let call = OpKind::Attend { q: q.into(), kv: kv.into(), state, q_block, kv_block, mask, init: true };
        b.compute(rank, 0, call);
    }
    let messages = [b.message(0, 1, Tensor::KeyValue, own[0].1), b.message(1, 0, Tensor::KeyValue, own[1].1)];
    for rank in 0..2 {
        let group = b.group();
        let (from, into) = (Buf(1), b.scratch(rank, Tensor::KeyValue, own[0].1));
        let (mine, other) = (messages[rank as usize], messages[1 - rank as usize]);
        b.push(rank, Lane::comm(0), 0, group, OpKind::Send { message: mine, buffer: from.into() });
        b.push(rank, Lane::comm(0), 0, group, OpKind::Recv { message: other, buffer: into });
    }
    let timeline = simulate(&b.finish(), &cluster, &SimOptions::default()).unwrap();
    let [call, exchange] = call_and_exchange(&timeline);
    assert_eq!(exchange, (10_000_000, 10_000_000 + MOVE));
    assert_eq!(call, (0, undisturbed() + MOVE * 4 / 10));
}
