//! The plans that a calibration measures: attention calls of ranks that have nothing to do with each other, and single
//! messages between two. None of them is a schedule.

use ringlab_sim::layout::{Layout, LayoutKind};
use ringlab_sim::mask::{Documents, Pattern};
use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{Lane, MaskId, OpKind, Plan, Slots, Tensor, Transport};
use ringlab_sim::problem::{Pass, Problem, Shape};

/// What every probe's name begins with.
pub const PREFIX: &str = "probe:";

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ways {
    /// Rank 0 to rank 1.
    One,
    /// Both at once.
    Both,
}

fn builder(
    name: &str,
    pass: Pass,
    problem: &Problem,
    ranks: u32,
    transport: Transport,
) -> Option<PlanBuilder> {
    let documents = Documents::padded(&problem.documents, 1);
    let layout = Layout::new(LayoutKind::Contiguous, ranks, documents).ok()?;
    Some(PlanBuilder::new(format!("{PREFIX}{name}"), pass, problem, layout, transport))
}

fn problem(shape: Shape, pattern: Pattern, tokens: u64) -> Problem {
    Problem { shape, pattern, documents: vec![tokens] }
}

/// One attention call of `tokens` queries over as many keys on each of `ranks` ranks at the same time.
pub fn call(shape: Shape, pass: Pass, pattern: Pattern, tokens: u64, ranks: u32) -> Option<Plan> {
    let problem = problem(shape, pattern, tokens * u64::from(ranks));
    let mut b = builder(&format!("call {pattern}"), pass, &problem, ranks, Transport::CopyEngine)?;
    let mask = if pattern == Pattern::Full { MaskId::NONE } else { MaskId::PROBLEM };
    for rank in 0..ranks {
        match pass {
            Pass::Forward => {
                let shard = b.shard(rank);
                forward_call(&mut b, (shard, shard), mask);
            }
            Pass::Backward => backward_call(&mut b, rank, mask),
        }
    }
    Some(b.finish())
}

/// One call of a rank's queries over its own keys.
fn forward_call(b: &mut PlanBuilder, (queries, keys): (Slots, Slots), mask: MaskId) {
    let rank = queries.rank;
    let (q_block, kv_block) = (b.block(&[queries], false), b.block(&[keys], true));
    let q = b.input(rank, Tensor::Query, q_block).into();
    let kv = b.input(rank, Tensor::KeyValue, kv_block).into();
    let state = b.scratch(rank, Tensor::State, q_block);
    let out = b.output(rank, Tensor::Output, q_block);
    b.compute(rank, 0, OpKind::Attend { q, kv, state, q_block, kv_block, mask, init: true });
    b.compute(rank, 0, OpKind::Finish { state, out });
}

fn backward_call(b: &mut PlanBuilder, rank: u32, mask: MaskId) {
    let shard = b.shard(rank);
    let (q_block, kv_block) = (b.block(&[shard], false), b.block(&[shard], true));
    let q = b.input(rank, Tensor::QuerySide, q_block).into();
    let kv = b.input(rank, Tensor::KeyValue, kv_block).into();
    let delta = b.scratch(rank, Tensor::Delta, q_block);
    let dq = b.output(rank, Tensor::QueryGrad, q_block);
    let dkv = b.output(rank, Tensor::KeyValueGrad, kv_block).into();
    let (init_dq, init_dkv, dkv_block) = (true, true, kv_block);
    b.compute(rank, 0, OpKind::Preprocess { q, delta, block: q_block });
    let kind = OpKind::AttendBackward {
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
    };
    b.compute(rank, 0, kind);
}

/// Full attention of `tokens` queries over the first `keys` of as many keys: many work items of few tiles.
pub fn rectangle(shape: Shape, tokens: u64, keys: u64) -> Option<Plan> {
    let problem = problem(shape, Pattern::Full, tokens);
    let mut b = builder("rectangle", Pass::Forward, &problem, 1, Transport::CopyEngine)?;
    let part = |to| Slots { rank: 0, from: 0, to };
    forward_call(&mut b, (part(tokens), part(keys)), MaskId::NONE);
    Some(b.finish())
}

/// Full attention of `tokens / calls` queries over `calls` equal blocks of keys, one call each: all but the first take
/// up a carried state, all but the last leave one.
pub fn carried(shape: Shape, tokens: u64, calls: u64) -> Option<Plan> {
    let problem = problem(shape, Pattern::Full, tokens);
    let mut b = builder("carried state", Pass::Forward, &problem, 1, Transport::CopyEngine)?;
    let part = |i: u64| Slots { rank: 0, from: tokens * i / calls, to: tokens * (i + 1) / calls };
    let q_block = b.block(&[part(0)], false);
    let q = b.input(0, Tensor::Query, q_block);
    let state = b.scratch(0, Tensor::State, q_block);
    let out = b.output(0, Tensor::Output, q_block);
    for i in 0..calls {
        let kv_block = b.block(&[part(i)], true);
        let kv = b.input(0, Tensor::KeyValue, kv_block);
        let (q, kv, mask, init) = (q.into(), kv.into(), MaskId::NONE, i == 0);
        b.compute(0, i as u32, OpKind::Attend { q, kv, state, q_block, kv_block, mask, init });
    }
    b.compute(0, calls as u32, OpKind::Finish { state, out });
    Some(b.finish())
}

/// Keys and values of `tokens` tokens sent between two ranks.
pub fn message(shape: Shape, tokens: u64, ways: Ways, transport: Transport) -> Option<Plan> {
    let problem = problem(shape, Pattern::Full, 2 * tokens);
    let mut b = builder(&format!("message {ways:?}").to_lowercase(), Pass::Forward, &problem, 2, transport)?;
    let senders: &[u32] = if ways == Ways::One { &[0] } else { &[0, 1] };
    let group = b.group();
    for &from in senders {
        let (to, shard) = (1 - from, b.shard(from));
        let block = b.block(&[shard], true);
        let (source, target) =
            (b.input(from, Tensor::KeyValue, block), b.scratch(to, Tensor::KeyValue, block));
        let message = b.message(from, to, Tensor::KeyValue, block);
        let receives = Lane::comm(u8::from(transport == Transport::CopyEngine));
        b.push(from, Lane::comm(0), 0, group, OpKind::Send { message, buffer: source.into() });
        b.push(to, receives, 0, group, OpKind::Recv { message, buffer: target });
    }
    Some(b.finish())
}
