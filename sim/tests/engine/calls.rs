//! What else of a plan decides how long its steps take: states that are carried, gradients that are begun, bytes, by hand.

use ringlab_sim::config::cluster::{Cluster, Items};
use ringlab_sim::engine::{SimOptions, simulate};
use ringlab_sim::layout::{Layout, LayoutKind};
use ringlab_sim::mask::{Documents, Pattern};
use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{MaskId, OpKind, Plan, Tensor, Transport};
use ringlab_sim::problem::{Pass, Problem, Shape};
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::units::{BytesPerSec, SimTime};

use crate::support;

fn builder(pass: Pass, shape: Shape) -> PlanBuilder {
    let problem = Problem { shape, pattern: Pattern::Full, documents: vec![4] };
    let layout = Layout::new(LayoutKind::Contiguous, 1, Documents::single(4)).unwrap();
    PlanBuilder::new("calls".into(), pass, &problem, layout, Transport::CopyEngine)
}

/// In the order of their starts, in picoseconds.
fn durations(plan: &Plan, cluster: &Cluster, kind: SpanKind) -> Vec<u64> {
    let timeline = simulate(plan, cluster, &SimOptions::default()).unwrap();
    let mut spans: Vec<_> = timeline.spans.iter().filter(|s| s.kind == kind).collect();
    spans.sort_by_key(|s| s.start);
    spans.into_iter().map(|s| s.duration().0).collect()
}

/// Calls of four queries over four keys that hand a state on, finished after the last one.
fn forward(calls: usize) -> Plan {
    let mut b = builder(Pass::Forward, support::shape(1, support::HEAD_DIM));
    let (q_block, kv_block) = (b.block(&[b.shard(0)], false), b.block(&[b.shard(0)], true));
    let (q, kv) = (b.input(0, Tensor::Query, q_block), b.input(0, Tensor::KeyValue, kv_block));
    let (state, out) = (b.scratch(0, Tensor::State, q_block), b.output(0, Tensor::Output, q_block));
    for call in 0..calls {
        let (q, kv, mask, init) = (q.into(), kv.into(), MaskId::NONE, call == 0);
        b.compute(0, call as u32, OpKind::Attend { q, kv, state, q_block, kv_block, mask, init });
    }
    b.compute(0, 0, OpKind::Finish { state, out });
    b.finish()
}

/// 16 pairs, and 7 ps for every one of four work items that takes a state up, and that leaves one: what is finished next
/// leaves none.
#[test]
fn a_state_is_carried_between_calls_and_nowhere_else() {
    let mut cluster = support::ideal(1);
    cluster.kernels.iter_mut().for_each(|row| row.carry = SimTime(7));
    let calls = |n| durations(&forward(n), &cluster, SpanKind::Attend);
    assert_eq!(calls(1), [16]);
    assert_eq!(calls(2), [16 + 28, 16 + 28]);
    assert_eq!(calls(3), [16 + 28, 16 + 56, 16 + 28]);
}

/// Two query heads that share keys, on ten SMs, where a pair takes 10 ps of one: four key tiles of both heads take 80 ps of
/// an SM each, eight of one head 40. Only where nothing was added before is a tile's gradient written once for both.
#[test]
fn heads_that_share_keys_share_items_where_gradients_begin() {
    let mut cluster = support::ideal(1);
    cluster.device.sms = 10;
    cluster.kernels.iter_mut().for_each(|row| row.items = Items::KeyTiles);
    let mut b = builder(Pass::Backward, Shape { kv_heads: 1, ..support::shape(2, support::HEAD_DIM) });
    let (q_block, kv_block) = (b.block(&[b.shard(0)], false), b.block(&[b.shard(0)], true));
    let (q, kv) = (b.input(0, Tensor::QuerySide, q_block), b.input(0, Tensor::KeyValue, kv_block));
    let (delta, dq) = (b.scratch(0, Tensor::Delta, q_block), b.output(0, Tensor::QueryGrad, q_block));
    let dkv = b.output(0, Tensor::KeyValueGrad, kv_block);
    for begins in [true, false] {
        let (q, kv, dkv, mask, dkv_block) = (q.into(), kv.into(), dkv.into(), MaskId::NONE, kv_block);
        let (init_dq, init_dkv) = (begins, begins);
        b.compute(
            0,
            0,
            OpKind::AttendBackward {
                q,
                delta,
                kv,
                dq,
                dkv,
                q_block,
                kv_block,
                dkv_block,
                mask,
                init_dq,
                init_dkv,
            },
        );
    }
    assert_eq!(durations(&b.finish(), &cluster, SpanKind::AttendBackward), [80, 40]);
}

/// Gradients of four keys and values, of 64 elements of 4 bytes each, are read twice and written once, at a byte a
/// picosecond and 5 ps a step.
#[test]
fn steps_that_stream_memory_take_their_bytes_and_a_constant() {
    let mut cluster = support::ideal(1);
    (cluster.device.reached.hbm, cluster.device.reached.call) = (BytesPerSec(1e12), SimTime(5));
    let mut b = builder(Pass::Backward, support::shape(1, support::HEAD_DIM));
    let kv_block = b.block(&[b.shard(0)], true);
    let [from, into] = [0, 1].map(|_| b.scratch(0, Tensor::KeyValueGrad, kv_block));
    b.compute(0, 0, OpKind::Accumulate { from, into });
    let bytes = 3 * 4 * 2 * 64 * 4;
    assert_eq!(durations(&b.finish(), &cluster, SpanKind::Accumulate), [bytes + 5]);
}
