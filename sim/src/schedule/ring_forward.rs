//! The forward ring: at step t rank r computes with the keys and values of rank `s = (r - t) mod P` while those of step
//! t + 1 arrive, from its neighbour or straight from their owner.

use super::Options;
use super::kv_ring::KvRing;
use super::step::{Travel, classify, clip, owner, shards};
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, MaskId, OpId, OpKind, Plan, Rank, Tensor};

/// The queries and keys that rank r attends when it holds the keys of rank s.
pub(super) type StepRule<'a> = dyn Fn(Rank, Rank) -> (BlockId, BlockId) + 'a;

/// A rank's buffers on the query side.
struct Queries {
    q: Buf,
    state: Buf,
    out: Buf,
}

pub(super) fn build(mut b: PlanBuilder, options: &Options, rule: &StepRule) -> Plan {
    let ranks = b.ranks();
    let travel = Travel::new(&b, options, false, |r, s| rule(r, s).0);
    let queries = allocate(&mut b);
    let mut ring = KvRing::new(&mut b, options, travel);
    let mut done: Vec<Option<OpId>> = vec![None; ranks as usize];
    for t in 0..ranks {
        let next = (t + 1 < ranks).then_some(t + 1);
        if let Some(next) = next {
            ring.prepare(&mut b, next);
        }
        for r in 0..ranks {
            if let Some(next) = next.filter(|_| options.prefetch > 0) {
                ring.exchange(&mut b, r, next, None);
            }
            let op = attend(&mut b, &ring, &queries[r as usize], r, t, rule);
            done[r as usize] = op.or(done[r as usize]);
            if let Some(next) = next.filter(|_| options.prefetch == 0) {
                ring.exchange(&mut b, r, next, done[r as usize]);
            }
        }
    }
    for (r, q) in queries.iter().enumerate() {
        b.compute(r as Rank, ranks - 1, OpKind::Finish { state: q.state, out: q.out });
    }
    b.finish()
}

fn allocate(b: &mut PlanBuilder) -> Vec<Queries> {
    let blocks = shards(b, false);
    let queries = (0..b.ranks()).zip(blocks).map(|(r, block)| Queries {
        q: b.input(r, Tensor::Query, block),
        state: b.scratch(r, Tensor::State, block),
        out: b.output(r, Tensor::Output, block),
    });
    queries.collect()
}

/// Step t of rank r, if it has anything to attend; step 0 always runs, as it starts the state.
fn attend(b: &mut PlanBuilder, ring: &KvRing, q: &Queries, r: Rank, t: u32, rule: &StepRule) -> Option<OpId> {
    let (q_block, kv_block, mask) = step_attention(b, ring, r, t, rule)?;
    let kv = ring.holding(b, r, t, kv_block);
    let kind = OpKind::Attend { q: q.q.into(), kv, state: q.state, q_block, kv_block, mask, init: t == 0 };
    Some(b.compute(r, t, kind))
}

/// Queries, keys and mask of step t on rank r, cut to the keys that travelled there.
pub(super) fn step_attention(
    b: &mut PlanBuilder,
    ring: &KvRing,
    r: Rank,
    t: u32,
    rule: &StepRule,
) -> Option<(BlockId, BlockId, MaskId)> {
    let s = owner(r, t, b.ranks());
    let (q, mut kv) = rule(r, s);
    if t > 0 && !ring.travel().is_everything() {
        kv = clip(b, kv, ring.travel().range(t, s));
    }
    let mask = classify(b, q, kv);
    if t == 0 { Some((q, kv, mask.unwrap_or(MaskId::PROBLEM))) } else { mask.map(|m| (q, kv, m)) }
}
