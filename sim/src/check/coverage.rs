//! Whether every unmasked pair counts exactly once in every result.
//!
//! For each pair of a query rank and a key rank the contributions cut the slots into cells, inside which the same calls
//! apply to every pair. A cell is proven by counting: each call's mask stays inside the problem's, the calls are
//! pairwise disjoint, and their pairs add up to the problem's. Counts are closed forms over progressions and mask
//! pieces, so the cost follows the number of cells, not of pairs.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::contents::Machine;
use super::contributions::{Contribution, collect, collect_rows};
use super::messages::at;
use super::regions::{RegionId, Regions, cuts};
use super::terms::{Fault, Pair};
use super::violation::{Findings, Violation};
use crate::mask::Mask;
use crate::plan::{Buffer, Heads, MaskId, Plan, Rank, Role, Slots, Tensor};
use crate::problem::Pass;
use crate::tokens::TokenSet;
use crate::work::pairs;

/// The results of a plan's pass; dk and dv are two if they come about apart.
fn results(plan: &Plan) -> &'static [Tensor] {
    let apart =
        |b: &Buffer| matches!((b.tensor, b.role), (Tensor::KeyGrad | Tensor::ValueGrad, Role::Output(_)));
    match plan.pass {
        Pass::Forward => &[Tensor::Output],
        Pass::Backward if plan.programs.iter().any(|p| p.buffers.iter().any(apart)) => {
            &[Tensor::QueryGrad, Tensor::KeyGrad, Tensor::ValueGrad]
        }
        Pass::Backward => &[Tensor::QueryGrad, Tensor::KeyValueGrad],
    }
}

/// Proves every result of the pass; the pairs of all query heads that each of them has.
pub(super) fn prove(plan: &Plan, machine: &mut Machine, found: &mut Findings) -> u128 {
    let mut proven = 0;
    if !machine.completed().is_empty() {
        let contributions = collect_rows(plan, machine);
        let rows = Tensor::Scores { keys: 0 };
        Coverage::new(plan, &machine.regions, &contributions, rows).prove(found);
    }
    for &result in results(plan) {
        outputs(plan, &machine.regions, result, found);
        let contributions = collect(plan, machine, result);
        proven = Coverage::new(plan, &machine.regions, &contributions, result).prove(found);
    }
    proven
}

/// Every token and head has its result in exactly one output.
fn outputs(plan: &Plan, regions: &Regions, result: Tensor, found: &mut Findings) {
    let all = Heads { first: 0, count: super::structure::heads_of(plan, result) };
    for (rank, program) in plan.programs.iter().enumerate() {
        let blocks = program.buffers.iter().filter(|b| b.tensor.holds(result)).filter_map(|b| match b.role {
            Role::Output(block) => {
                let region = regions.get(regions.of_block(block));
                let heads = if b.tensor == result { region.heads } else { all };
                Some((heads, region.slots.as_slice()))
            }
            _ => None,
        });
        let blocks: Vec<(Heads, &[Slots])> = blocks.collect();
        let len = plan.layout.shard(rank as Rank).len();
        for heads in cuts(all, blocks.iter().map(|b| b.0)) {
            let with: Vec<&[Slots]> = blocks.iter().filter(|b| common(b.0, heads)).map(|b| b.1).collect();
            for (members, ranges) in classes(&with, len) {
                if members.len() != 1 {
                    let (slots, heads) = (ranges[0], (heads.first, heads.first + heads.count));
                    let (rank, count) = (rank as Rank, members.len());
                    found.push(Violation::Outputs { tensor: result, rank, slots, heads, count });
                }
            }
        }
    }
}

fn common(a: Heads, b: Heads) -> bool {
    super::regions::common_heads(a, b).count > 0
}

/// Slots that the same sets have: the indices of the sets, and the ranges of slots.
type Class = (Vec<usize>, Vec<(u64, u64)>);

/// A rank's tokens by which contributions have them: indices of the contributions, and the tokens.
type TokenClasses = Vec<(Vec<usize>, TokenSet)>;

/// Slots `[0, len)` by which of `sets` have them.
fn classes(sets: &[&[Slots]], len: u64) -> Vec<Class> {
    if sets.iter().all(|set| matches!(set, [all] if (all.from, all.to) == (0, len))) {
        return vec![((0..sets.len()).collect(), vec![(0, len)])];
    }
    let mut changes: Vec<(u64, usize)> = vec![(0, usize::MAX), (len, usize::MAX)];
    for (i, set) in sets.iter().enumerate() {
        changes.extend(set.iter().flat_map(|s| [(s.from, i), (s.to, i)]));
    }
    changes.sort_unstable();
    let mut members: Vec<usize> = Vec::new();
    let mut out: BTreeMap<Vec<usize>, Vec<(u64, u64)>> = BTreeMap::new();
    let mut from = 0;
    for (slot, set) in changes {
        if slot > from {
            out.entry(members.clone()).or_default().push((from, slot));
            from = slot;
        }
        match members.binary_search(&set) {
            Ok(i) => drop(members.remove(i)),
            Err(i) if set != usize::MAX => members.insert(i, set),
            Err(_) => {}
        }
    }
    out.into_iter().collect()
}

/// The contributions to one result, by query rank and key rank.
struct Coverage<'a> {
    plan: &'a Plan,
    regions: &'a Regions,
    contributions: &'a [Contribution],
    /// (query rank, key rank, contribution), sorted.
    by_ranks: Vec<(Rank, Rank, u32)>,
    /// Each mask's pairs that the problem has, too.
    allowed: Vec<Mask>,
    /// A rank's tokens by which of some regions have them: the same few regions meet again and again.
    classes: BTreeMap<(Rank, Vec<RegionId>), Rc<TokenClasses>>,
    result: Tensor,
}

impl<'a> Coverage<'a> {
    fn new(plan: &'a Plan, regions: &'a Regions, contributions: &'a [Contribution], result: Tensor) -> Self {
        let mut by_ranks = Vec::new();
        for (i, c) in contributions.iter().enumerate() {
            let (queries, keys) = (&regions.get(c.queries).slots, &regions.get(c.keys).slots);
            for q in queries.chunk_by(|a, b| a.rank == b.rank) {
                let key_ranks = keys.chunk_by(|a, b| a.rank == b.rank).map(|k| k[0].rank);
                by_ranks.extend(key_ranks.map(|k| (q[0].rank, k, i as u32)));
            }
        }
        by_ranks.sort_unstable();
        let problem = plan.mask(MaskId::PROBLEM);
        let allowed = plan.masks.iter().map(|m| m.intersect(problem)).collect();
        Self { plan, regions, contributions, by_ranks, allowed, classes: BTreeMap::new(), result }
    }

    fn prove(mut self, found: &mut Findings) -> u128 {
        let by_ranks = std::mem::take(&mut self.by_ranks);
        let mut rest = by_ranks.as_slice();
        let mut proven = 0;
        for q in 0..self.plan.ranks() {
            for k in 0..self.plan.ranks() {
                let count = rest.iter().take_while(|e| (e.0, e.1) == (q, k)).count();
                let (here, later) = rest.split_at(count);
                rest = later;
                proven += self.ranks(q, k, here, found);
                if found.is_full() {
                    return proven;
                }
            }
        }
        proven
    }

    /// All pairs of the queries of rank `q` and the keys of rank `k`.
    fn ranks(&mut self, q: Rank, k: Rank, here: &[(Rank, Rank, u32)], found: &mut Findings) -> u128 {
        let contributions = self.contributions;
        let here: Vec<&Contribution> = here.iter().map(|e| &contributions[e.2 as usize]).collect();
        let all = Heads { first: 0, count: self.plan.shape.heads };
        let mut proven = 0;
        for heads in cuts(all, here.iter().map(|c| c.heads)) {
            let with: Vec<&Contribution> = here.iter().copied().filter(|c| common(c.heads, heads)).collect();
            let key_classes = self.token_classes(k, with.iter().map(|c| c.keys).collect());
            let query_classes = self.token_classes(q, with.iter().map(|c| c.queries).collect());
            for (q_members, q_tokens) in &*query_classes {
                for (k_members, k_tokens) in &*key_classes {
                    let both = q_members.iter().filter(|i| k_members.contains(i)).map(|&i| with[i]).collect();
                    let cell = Cell { q: q_tokens, k: k_tokens, calls: both, head: heads.first };
                    proven += self.cell(&cell, (q, k), found) * u128::from(heads.count);
                }
            }
        }
        proven
    }

    fn on_rank(&self, region: RegionId, rank: Rank) -> &'a [Slots] {
        let slots = &self.regions.get(region).slots;
        let from = slots.partition_point(|s| s.rank < rank);
        let to = slots.partition_point(|s| s.rank <= rank);
        &slots[from..to]
    }

    fn token_classes(&mut self, rank: Rank, regions: Vec<RegionId>) -> Rc<TokenClasses> {
        let key = (rank, regions);
        if let Some(known) = self.classes.get(&key) {
            return Rc::clone(known);
        }
        let sets: Vec<&[Slots]> = key.1.iter().map(|&region| self.on_rank(region, rank)).collect();
        let shard = self.plan.layout.shard(rank);
        let tokens = |ranges: &[(u64, u64)]| match ranges {
            [(from, to)] => shard.slice(*from, *to),
            _ => TokenSet::new(ranges.iter().flat_map(|r| shard.slice(r.0, r.1).runs().to_vec())),
        };
        let classes = classes(&sets, shard.len()).into_iter();
        let found: Rc<TokenClasses> =
            Rc::new(classes.map(|(members, ranges)| (members, tokens(&ranges))).collect());
        self.classes.insert(key, Rc::clone(&found));
        found
    }

    /// Proves a cell, or finds a pair in it that is wrong; the problem's pairs in it.
    fn cell(&self, cell: &Cell, ranks: (Rank, Rank), found: &mut Findings) -> u128 {
        let problem = self.plan.mask(MaskId::PROBLEM);
        let needed = pairs(problem, cell.q, cell.k);
        if matches!(cell.calls.as_slice(), [only] if only.mask == MaskId::PROBLEM) {
            return needed;
        }
        let wrong = self.masked(cell).or_else(|| self.doubled(cell)).or_else(|| self.missing(cell, needed));
        if let Some((fault, (query, key))) = wrong {
            let slot = |rank: Rank, x| self.plan.layout.shard(rank).slot_of(x).map(|slot| (rank, slot));
            if let (Some(query_at), Some(key_at)) = (slot(ranks.0, query), slot(ranks.1, key)) {
                let pair = Pair { query, query_at, key, key_at, head: cell.head };
                found.push(Violation::Coverage { result: self.result, pair, fault });
            }
        }
        needed
    }

    /// A pair that a call computes although the problem masks it.
    fn masked(&self, cell: &Cell) -> Option<(Fault, (u64, u64))> {
        cell.calls.iter().filter(|c| c.mask != MaskId::PROBLEM).find_map(|c| {
            let (mask, allowed) = (self.plan.mask(c.mask), &self.allowed[usize::from(c.mask.0)]);
            let pair = cell.find(|q, k| pairs(mask, q, k) - pairs(allowed, q, k))?;
            Some((Fault::Masked { at: at(self.plan, c.rank, c.op) }, pair))
        })
    }

    /// A pair that two calls compute.
    fn doubled(&self, cell: &Cell) -> Option<(Fault, (u64, u64))> {
        for (i, a) in cell.calls.iter().enumerate() {
            for b in &cell.calls[..i] {
                let both = if a.mask == b.mask {
                    self.plan.mask(a.mask).clone()
                } else {
                    self.plan.mask(a.mask).intersect(self.plan.mask(b.mask))
                };
                if let Some(pair) = cell.find(|q, k| pairs(&both, q, k)) {
                    let (first, second) = (at(self.plan, b.rank, b.op), at(self.plan, a.rank, a.op));
                    return Some((Fault::Doubled { first, second }, pair));
                }
            }
        }
        None
    }

    /// A pair that no call computes, where the calls are disjoint and inside the problem's mask.
    fn missing(&self, cell: &Cell, needed: u128) -> Option<(Fault, (u64, u64))> {
        let computed = |q: &TokenSet, k: &TokenSet| -> u128 {
            cell.calls.iter().map(|c| pairs(self.plan.mask(c.mask), q, k)).sum()
        };
        if needed == computed(cell.q, cell.k) {
            return None;
        }
        let pair = cell.find(|q, k| pairs(self.plan.mask(MaskId::PROBLEM), q, k) - computed(q, k))?;
        Some((Fault::Missing, pair))
    }
}

/// Queries and keys to whose pairs the same calls apply.
struct Cell<'a> {
    q: &'a TokenSet,
    k: &'a TokenSet,
    calls: Vec<&'a Contribution>,
    head: u32,
}

impl Cell<'_> {
    /// The first query, and its first key, that `count` counts; `count` adds up over disjoint parts of the cell.
    fn find(&self, count: impl Fn(&TokenSet, &TokenSet) -> u128) -> Option<(u64, u64)> {
        if count(self.q, self.k) == 0 {
            return None;
        }
        let query = halve(self.q, |part| count(part, self.k) > 0);
        let only = TokenSet::new([crate::tokens::Progression::contiguous(query, 1)]);
        let key = halve(self.k, |part| count(&only, part) > 0);
        Some((query, key))
    }
}

/// The first token of `set` for which `has` holds, where it holds for a part if it holds for one of its tokens.
fn halve(set: &TokenSet, has: impl Fn(&TokenSet) -> bool) -> u64 {
    let (mut from, mut to) = (0, set.len());
    while to - from > 1 {
        let middle = from + (to - from) / 2;
        if has(&set.slice(from, middle)) { to = middle } else { from = middle }
    }
    set.position(from)
}
