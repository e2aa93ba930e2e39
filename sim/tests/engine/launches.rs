//! The host's lane, groups, and what costs nothing.

use ringlab_sim::engine::{SimOptions, simulate};
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{Options, Schedule};
use ringlab_sim::timeline::{Span, SpanKind, Timeline};
use ringlab_sim::units::SimTime;

use crate::support;

const KERNEL: u64 = 1_000_000;
const COPY: u64 = 10_000_000;
const NCCL: u64 = 100_000_000;

/// A ring over three ranks, where only launches cost anything.
fn ring(transport: Transport, chunks: u32) -> Timeline {
    let mut cluster = support::ideal(3);
    cluster.kernels.iter_mut().for_each(|row| row.rate.0 = f64::INFINITY);
    cluster.host.kernel_launch = SimTime(KERNEL);
    cluster.host.copy_launch = SimTime(COPY);
    cluster.host.nccl_launch = SimTime(NCCL);
    let options = Options { transport, chunks, ..Options::new(Pass::Forward) };
    let problem = support::causal(36, support::shape(1, support::HEAD_DIM));
    simulate(&support::build(Schedule::Ring, &problem, 3, &options), &cluster, &SimOptions::default())
        .unwrap()
}

fn of(timeline: &Timeline, rank: u32, kind: SpanKind) -> Vec<&Span> {
    timeline.spans.iter().filter(|s| s.rank == rank && s.kind == kind).collect()
}

#[test]
fn copies_and_kernels_are_launched_in_program_order() {
    let timeline = ring(Transport::CopyEngine, 1);
    // Rank 2: send, (receive), attend, send, (receive), attend, attend, (finish).
    let starts = |kind| of(&timeline, 2, kind).iter().map(|s| s.start.0).collect::<Vec<_>>();
    assert_eq!(starts(SpanKind::Attend), [COPY + KERNEL, 2 * COPY + 2 * KERNEL, 2 * COPY + 3 * KERNEL]);
    assert_eq!(starts(SpanKind::Send), [COPY, 2 * COPY + KERNEL]);
    assert_eq!(timeline.makespan, SimTime(2 * COPY + 3 * KERNEL));
}

#[test]
fn finishing_takes_neither_a_launch_nor_time() {
    let timeline = ring(Transport::CopyEngine, 1);
    for rank in 0..3 {
        let finish = of(&timeline, rank, SpanKind::Finish);
        let last = of(&timeline, rank, SpanKind::Attend).pop().unwrap();
        assert_eq!((finish[0].start, finish[0].end), (finish[0].start, finish[0].start));
        assert!(finish[0].start >= last.end);
    }
}

#[test]
fn an_nccl_group_is_one_launch_and_ends_as_one() {
    let timeline = ring(Transport::Nccl, 1);
    let attends: Vec<u64> = of(&timeline, 2, SpanKind::Attend).iter().map(|s| s.start.0).collect();
    assert_eq!(attends, [NCCL + KERNEL, 2 * NCCL + 2 * KERNEL, 2 * NCCL + 3 * KERNEL]);
    // Chunk by chunk, each a group of a send and a receive.
    let in_chunks = ring(Transport::Nccl, 3);
    assert_eq!(of(&in_chunks, 2, SpanKind::Attend)[0].start, SimTime(3 * NCCL + KERNEL));
}

/// Neighbours exchange in one group; the lane goes on when both have ended.
#[test]
fn a_group_is_posted_together_and_waits_for_all_of_itself() {
    let mut cluster = support::nvswitch(1);
    cluster.host.nccl_launch = SimTime(NCCL);
    let options = Options { transport: Transport::Nccl, ..Options::new(Pass::Forward) };
    let problem = support::causal(24 << 10, support::shape(4, 128));
    let plan = support::build(Schedule::Ring, &problem, 3, &options);
    let timeline = simulate(&plan, &cluster, &SimOptions::default()).unwrap();
    for rank in 0..3 {
        let (sends, recvs) = (of(&timeline, rank, SpanKind::Send), of(&timeline, rank, SpanKind::Recv));
        let first_ends = sends[0].end.max(recvs[0].end);
        assert!(sends[1].start >= first_ends && recvs[1].start >= first_ends, "rank {rank}");
        assert!(sends[0].start.0 >= NCCL);
    }
}
