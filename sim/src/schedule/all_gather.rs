//! All-gather of keys and values: contiguous, one call a rank; or zigzag as in Llama 3 (arXiv 2407.21783), for each of
//! a rank's two chunks one call of its queries over all keys up to the chunk's end, bottom-right causal. The backward
//! gathers again, and reduce-scatters dk and dv in fp32.

use super::collective::{Collective, allocate};
use super::step::{Channel, classify, shards};
use super::unused::Unused;
use super::zigzag::{Half, half_slots};
use super::{Options, Schedule};
use crate::layout::Layout;
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, MaskId, OpKind, Plan, Rank, Slots, Tensor};
use crate::problem::{Pass, Problem};
use crate::tiles;
use crate::tokens::{Progression, TokenSet};

pub(super) fn build(schedule: Schedule, problem: &Problem, layout: Layout, options: &Options) -> Plan {
    let mut b = options.builder(schedule.to_string(), problem, layout);
    Unused { route: false, ..Unused::ALL }.note(&mut b, options);
    let calls: Vec<Vec<Call>> =
        (0..b.ranks()).map(|r| calls(&mut b, r, schedule == Schedule::AllGather { zigzag: true })).collect();
    match options.pass {
        Pass::Forward => forward(&mut b, options, &calls),
        Pass::Backward => backward(&mut b, options, &calls),
    }
    b.finish()
}

/// One attention call: queries, the keys that any of them sees, and which pairs.
struct Call {
    q: BlockId,
    kv: BlockId,
    mask: MaskId,
}

/// What rank r computes once it has all keys.
fn calls(b: &mut PlanBuilder, r: Rank, zigzag: bool) -> Vec<Call> {
    let chunks: Vec<Vec<Slots>> = if zigzag {
        [Half::First, Half::Second].map(|half| half_slots(b.layout(), r, half)).into()
    } else {
        vec![vec![b.shard(r)]]
    };
    let call = |slots: Vec<Slots>| {
        let q = b.block(&slots, false);
        let kv = visible(b, q);
        Call { q, kv, mask: classify(b, q, kv).unwrap_or(MaskId::PROBLEM) }
    };
    chunks.into_iter().map(call).collect()
}

/// The keys that any query of a block sees, document by document; the queries' own where that is none.
fn visible(b: &mut PlanBuilder, q: BlockId) -> BlockId {
    let documents = b.layout().documents();
    let all = TokenSet::new([Progression::contiguous(0, documents.tokens())]);
    let in_document = |start: u64, len: u64| {
        let (from, to) =
            (b.tokens(q).count_before(start as i64), b.tokens(q).count_before((start + len) as i64));
        tiles::visible_slots(b.mask(), &b.tokens(q).slice(from, to), &all)
    };
    let ranges = documents.iter().map(|d| in_document(d.start, d.padded));
    let ranges: Vec<(u64, u64)> = ranges.filter(|(from, to)| from < to).collect();
    let heads = b.all_heads(true);
    if ranges.is_empty() {
        let own = b.slots(q).to_vec();
        return b.block_of_heads(&own, heads);
    }
    b.span(&ranges, heads)
}

/// All keys on every rank.
fn gather(b: &mut PlanBuilder, options: &Options) -> Vec<Bufs> {
    let shares = shards(b, true);
    let bufs: Vec<Bufs> = (0..b.ranks()).map(|r| allocate(b, r, Tensor::KeyValue, &shares)).collect();
    let channel = Channel::new(options.transport, 0);
    Collective { channel, route: options.route, tensor: Tensor::KeyValue }.gather(b, &shares, &bufs);
    bufs
}

fn forward(b: &mut PlanBuilder, options: &Options, calls: &[Vec<Call>]) {
    let (q_blocks, step) = (shards(b, false), b.ranks());
    let kv = gather(b, options);
    for (r, calls) in (0..).zip(calls) {
        let q: Bufs = b.input(r, Tensor::Query, q_blocks[r as usize]).into();
        for &Call { q: q_block, kv: kv_block, mask } in calls {
            let state = b.scratch(r, Tensor::State, q_block);
            let out = b.output(r, Tensor::Output, q_block);
            let kv = kv[r as usize];
            b.compute(r, step, OpKind::Attend { q, kv, state, q_block, kv_block, mask, init: true });
            b.compute(r, step, OpKind::Finish { state, out });
        }
    }
}

fn backward(b: &mut PlanBuilder, options: &Options, calls: &[Vec<Call>]) {
    let (q_blocks, shares, step) = (shards(b, false), shards(b, true), b.ranks());
    let kv = gather(b, options);
    let mut gradients = Vec::new();
    for (r, calls) in (0..).zip(calls) {
        let block = q_blocks[r as usize];
        let q: Bufs = b.input(r, Tensor::QuerySide, block).into();
        let delta = b.scratch(r, Tensor::Delta, block);
        b.compute(r, 0, OpKind::Preprocess { q, delta, block });
        let dkv = key_gradients(b, r, &shares);
        let every_key = everyone(b);
        for (i, &Call { q: q_block, kv: kv_block, mask }) in calls.iter().enumerate() {
            let call = OpKind::AttendBackward {
                q,
                delta,
                kv: kv[r as usize],
                dq: b.output(r, Tensor::QueryGrad, q_block),
                dkv,
                q_block,
                kv_block,
                dkv_block: every_key,
                mask,
                init_dq: true,
                init_dkv: i == 0,
            };
            b.compute(r, step, call);
        }
        gradients.push(dkv);
    }
    let channel = Channel::new(options.transport, 1);
    let sum = Collective { channel, route: options.route, tensor: Tensor::KeyValueGrad };
    sum.reduce_scatter(b, step, &shares, &gradients);
}

/// Room for dk and dv of every rank's keys, in order of rank; the own ones stay.
fn key_gradients(b: &mut PlanBuilder, r: Rank, shares: &[BlockId]) -> Bufs {
    let bufs = (0..).zip(shares).map(|(s, &share)| match s == r {
        true => b.output(r, Tensor::KeyValueGrad, share),
        false => b.scratch(r, Tensor::KeyValueGrad, share),
    });
    let bufs: Vec<Buf> = bufs.collect();
    Bufs { first: bufs[0], count: bufs.len() as u16 }
}

/// The block of all keys.
fn everyone(b: &mut PlanBuilder) -> BlockId {
    let (tokens, heads) = (b.layout().documents().tokens(), b.all_heads(true));
    b.span(&[(0, tokens)], heads)
}
