//! Calls of ranks that exchange messages take longer, by their kernel's factor; those of others do not.

use ringlab_sim::config::cluster::{Cluster, Power};
use ringlab_sim::engine::{SimOptions, simulate};
use ringlab_sim::layout::{Layout, LayoutKind};
use ringlab_sim::mask::{Documents, Pattern};
use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{Lane, MaskId, OpKind, Plan, Tensor, Transport};
use ringlab_sim::problem::{Pass, Problem};
use ringlab_sim::timeline::SpanKind;

use crate::support;

/// A call of four queries over four keys on each of three ranks, 16 ps each, and rank 0's keys sent `to` a rank, if to any.
fn plan(to: Option<u32>) -> Plan {
    let shape = support::shape(1, support::HEAD_DIM);
    let problem = Problem { shape, pattern: Pattern::Full, documents: vec![12] };
    let layout = Layout::new(LayoutKind::Contiguous, 3, Documents::single(12)).unwrap();
    let mut b = PlanBuilder::new("linked".into(), Pass::Forward, &problem, layout, Transport::CopyEngine);
    for rank in 0..3 {
        let (q_block, kv_block) = (b.block(&[b.shard(rank)], false), b.block(&[b.shard(rank)], true));
        let (q, kv) = (b.input(rank, Tensor::Query, q_block), b.input(rank, Tensor::KeyValue, kv_block));
        let (state, out) = (b.scratch(rank, Tensor::State, q_block), b.output(rank, Tensor::Output, q_block));
        let (q, kv, mask, init) = (q.into(), kv.into(), MaskId::NONE, true);
        b.compute(rank, 0, OpKind::Attend { q, kv, state, q_block, kv_block, mask, init });
        b.compute(rank, 0, OpKind::Finish { state, out });
    }
    if let Some(to) = to {
        let block = b.block(&[b.shard(0)], true);
        let message = b.message(0, to, Tensor::KeyValue, block);
        let (source, target) = (b.input(0, Tensor::KeyValue, block), b.scratch(to, Tensor::KeyValue, block));
        b.push(0, Lane::comm(0), 0, 0, OpKind::Send { message, buffer: source.into() });
        b.push(to, Lane::comm(1), 0, 0, OpKind::Recv { message, buffer: target });
    }
    b.finish()
}

/// Three GPUs, whose kernels, forward and backward, have these factors.
fn cluster(linked: [Option<f64>; 2]) -> Cluster {
    let mut cluster = support::ideal(3);
    for (row, linked) in cluster.kernels.iter_mut().zip(linked) {
        row.linked = linked;
    }
    cluster
}

/// Each rank's call, in picoseconds.
fn calls(to: Option<u32>, cluster: &Cluster) -> Vec<u64> {
    let timeline = simulate(&plan(to), cluster, &SimOptions::default()).unwrap();
    let calls = timeline.spans.iter().filter(|span| span.kind == SpanKind::Attend);
    let mut calls: Vec<_> = calls.map(|span| (span.rank, span.duration().0)).collect();
    calls.sort_unstable();
    calls.into_iter().map(|(_, time)| time).collect()
}

#[test]
fn only_ranks_that_exchange_messages_are_slower() {
    let forward = cluster([Some(1.5), None]);
    assert_eq!(calls(Some(1), &cluster([None, None])), [16, 16, 16]);
    assert_eq!(calls(Some(1), &forward), [24, 24, 16]);
    assert_eq!(calls(None, &forward), [16, 16, 16]);
    assert_eq!(calls(Some(0), &forward), [16, 16, 16], "a copy to itself is no exchange");
    let backward = cluster([None, Some(1.5)]);
    assert_eq!(calls(Some(1), &backward), [16, 16, 16], "the backward's kernel is another");
}

/// A call that takes half as long again multiplies no more: for two thirds of its time, which at an exponent of 1 and without
/// power at rest makes the clock half as fast again.
#[test]
fn what_makes_calls_longer_takes_no_power() {
    let mut limited = cluster([Some(1.5), None]);
    let (speeds, cold_speeds, source) = (Vec::new(), Vec::new(), "test".into());
    limited.device.power = Some(Power { boost: 2.0, idle: 0.0, exponent: 1.0, speeds, cold_speeds, source });
    assert_eq!(calls(Some(1), &limited)[..2], [16, 16]);
}
