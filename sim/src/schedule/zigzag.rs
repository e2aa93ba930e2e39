//! Zigzag ring: rank r owns chunks r and 2P-1-r of 2P. Under a causal mask, t = 0 is causal over the concatenation,
//! `t <= r` is all queries against the first half of the keys of rank `s = (r - t) mod P`, and `t > r` the second half
//! of the queries against all its keys: the same work for every rank at every step. Packed documents are cut one by
//! one, so a "half" is that half of each document.

use super::step::shards;
use super::{Options, ring_backward, ring_forward};
use crate::layout::Layout;
use crate::mask::Pattern;
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Plan, Rank, Slots};
use crate::problem::{Pass, Problem};

pub(super) fn build(problem: &Problem, layout: Layout, options: &Options) -> Plan {
    let mut b = options.builder("zigzag".into(), problem, layout);
    let rule = rule_of_halves(&mut b, problem.pattern);
    match options.pass {
        Pass::Forward => ring_forward::build(b, options, &rule),
        Pass::Backward => ring_backward::build(b, options, &rule),
    }
}

/// What rank r attends of the keys of rank s: halves, unless every query sees every key.
pub(super) fn rule_of_halves(
    b: &mut PlanBuilder,
    pattern: Pattern,
) -> impl Fn(Rank, Rank) -> (BlockId, BlockId) + use<> {
    let (q, kv) = (shards(b, false), shards(b, true));
    let (second_q, first_kv) = (halves(b, Half::Second, false), halves(b, Half::First, true));
    let full = pattern == Pattern::Full;
    move |r, s| {
        let (i, j) = (r as usize, s as usize);
        match s {
            _ if full || s == r => (q[i], kv[j]),
            _ if s < r => (q[i], first_kv[j]),
            _ => (second_q[i], kv[j]),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Half {
    First,
    Second,
}

/// For every rank, the block of one half of each document.
fn halves(b: &mut PlanBuilder, half: Half, kv_side: bool) -> Vec<BlockId> {
    (0..b.ranks()).map(|r| b.block(&half_slots(b.layout(), r, half), kv_side)).collect()
}

/// The slots of `rank` that hold one half of each document.
pub(super) fn half_slots(layout: &Layout, rank: Rank, half: Half) -> Vec<Slots> {
    let mut start = 0;
    let documents = layout.documents().iter().map(|d| {
        let m = d.padded / (2 * u64::from(layout.ranks()));
        let from = start + if half == Half::First { 0 } else { m };
        start += 2 * m;
        Slots { rank, from, to: from + m }
    });
    documents.collect()
}
