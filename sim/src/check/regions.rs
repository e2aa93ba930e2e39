//! Rectangles of slots and heads, interned: equal regions have equal ids.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::plan::{BlockId, Heads, Plan, Slots, part_of};

/// Index of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RegionId(u32);

/// Slots, sorted and joined, and heads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Region {
    /// Sorted, disjoint, never adjacent, none empty.
    pub slots: Vec<Slots>,
    /// Which heads.
    pub heads: Heads,
}

impl Region {
    fn new(mut slots: Vec<Slots>, heads: Heads) -> Self {
        slots.retain(|s| s.from < s.to);
        slots.sort_unstable();
        let mut joined: Vec<Slots> = Vec::with_capacity(slots.len());
        for s in slots {
            match joined.last_mut() {
                Some(last) if last.rank == s.rank && s.from <= last.to => last.to = last.to.max(s.to),
                _ => joined.push(s),
            }
        }
        Self { slots: joined, heads }
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() || self.heads.count == 0
    }

    fn tokens(&self) -> u64 {
        self.slots.iter().map(|s| s.to - s.from).sum()
    }

    fn contains(&self, other: &Self) -> bool {
        other.is_empty() || heads_contain(self.heads, other.heads) && slots_contain(&self.slots, &other.slots)
    }

    fn intersect(&self, other: &Self) -> Self {
        let (a, b) = (&self.slots, &other.slots);
        let (mut i, mut j, mut slots) = (0, 0, Vec::new());
        while i < a.len() && j < b.len() {
            let (from, to) = (a[i].from.max(b[j].from), a[i].to.min(b[j].to));
            if a[i].rank == b[j].rank && from < to {
                slots.push(Slots { rank: a[i].rank, from, to });
            }
            if (a[i].rank, a[i].to) <= (b[j].rank, b[j].to) { i += 1 } else { j += 1 }
        }
        Self { slots, heads: common_heads(self.heads, other.heads) }
    }
}

/// Whether sorted, joined slots hold others.
pub(super) fn slots_contain(outer: &[Slots], inner: &[Slots]) -> bool {
    let mut i = 0;
    inner.iter().all(|s| {
        while i < outer.len() && (outer[i].rank, outer[i].to) < (s.rank, s.to) {
            i += 1;
        }
        outer.get(i).is_some_and(|o| o.rank == s.rank && o.from <= s.from)
    })
}

/// The end of a range of heads.
pub(super) fn heads_end(heads: Heads) -> u32 {
    heads.first + heads.count
}

fn heads_contain(outer: Heads, inner: Heads) -> bool {
    outer.first <= inner.first && heads_end(inner) <= heads_end(outer)
}

/// The heads in both ranges.
pub(super) fn common_heads(a: Heads, b: Heads) -> Heads {
    let first = a.first.max(b.first);
    Heads { first, count: heads_end(a).min(heads_end(b)).saturating_sub(first) }
}

/// All regions that a proof speaks of.
#[derive(Default)]
pub(super) struct Regions {
    list: Vec<Region>,
    ids: BTreeMap<Region, RegionId>,
    of_block: Vec<RegionId>,
    parts: BTreeMap<(BlockId, u16, u16), RegionId>,
    /// Answers given before: packed documents make regions of thousands of ranges, and the same few are asked for at every
    /// step.
    known: Known,
}

#[derive(Default)]
struct Known {
    contained: RefCell<BTreeMap<(RegionId, RegionId), bool>>,
    covered: RefCell<BTreeMap<(Vec<RegionId>, RegionId), bool>>,
    common: BTreeMap<(RegionId, RegionId), RegionId>,
}

impl Regions {
    /// The regions of a plan's blocks.
    pub fn new(plan: &Plan) -> Self {
        let mut regions = Self::default();
        for block in &plan.blocks {
            let id = regions.intern(Region::new(block.slots.clone(), block.heads));
            regions.of_block.push(id);
        }
        regions
    }

    fn intern(&mut self, region: Region) -> RegionId {
        if let Some(&id) = self.ids.get(&region) {
            return id;
        }
        let id = RegionId(self.list.len() as u32);
        self.list.push(region.clone());
        self.ids.insert(region, id);
        id
    }

    /// The region of a block.
    pub fn of_block(&self, block: BlockId) -> RegionId {
        self.of_block[block as usize]
    }

    /// The region of part `i` of `n` of a block.
    pub fn part(&mut self, plan: &Plan, block: BlockId, i: u16, n: u16) -> RegionId {
        if n == 1 {
            return self.of_block(block);
        }
        if let Some(&id) = self.parts.get(&(block, i, n)) {
            return id;
        }
        let b = plan.block(block);
        let id = self.intern(Region::new(part_of(&b.slots, i.into(), n.into()), b.heads));
        self.parts.insert((block, i, n), id);
        id
    }

    /// The tokens of a region with other heads.
    pub fn with_heads(&mut self, id: RegionId, heads: Heads) -> RegionId {
        let slots = self.get(id).slots.clone();
        self.intern(Region { slots, heads })
    }

    /// A region by id.
    pub fn get(&self, id: RegionId) -> &Region {
        &self.list[id.0 as usize]
    }

    /// Tokens times heads.
    pub fn size(&self, id: RegionId) -> (u64, u32) {
        let region = self.get(id);
        (region.tokens(), region.heads.count)
    }

    /// Whether `outer` has all of `inner`.
    pub fn contains(&self, outer: RegionId, inner: RegionId) -> bool {
        let ask = || self.get(outer).contains(self.get(inner));
        outer == inner || *self.known.contained.borrow_mut().entry((outer, inner)).or_insert_with(ask)
    }

    /// What two regions share.
    pub fn intersect(&mut self, a: RegionId, b: RegionId) -> RegionId {
        if self.contains(a, b) {
            return b;
        }
        if self.contains(b, a) {
            return a;
        }
        if let Some(&known) = self.known.common.get(&(a, b)) {
            return known;
        }
        let both = self.get(a).intersect(self.get(b));
        let both = self.intern(both);
        self.known.common.insert((a, b), both);
        both
    }

    /// Whether `parts` together have all of `whole`.
    pub fn cover(&self, parts: &[RegionId], whole: RegionId) -> bool {
        if let [one] = parts {
            return self.contains(*one, whole);
        }
        let question = (parts.to_vec(), whole);
        if let Some(&known) = self.known.covered.borrow().get(&question) {
            return known;
        }
        let answer = self.find_cover(parts, whole);
        self.known.covered.borrow_mut().insert(question, answer);
        answer
    }

    fn find_cover(&self, parts: &[RegionId], whole: RegionId) -> bool {
        let whole = self.get(whole);
        let parts: Vec<&Region> = parts.iter().map(|&p| self.get(p)).collect();
        cuts(whole.heads, parts.iter().map(|p| p.heads)).into_iter().all(|heads| {
            let with = parts.iter().filter(|p| heads_contain(p.heads, heads));
            let slots = with.flat_map(|p| p.slots.iter().copied()).collect();
            Region::new(slots, heads).contains(&Region { slots: whole.slots.clone(), heads })
        })
    }

    /// A region in words.
    pub fn describe(&self, id: RegionId) -> String {
        const SHOWN: usize = 3;
        let region = self.get(id);
        if region.is_empty() {
            return "no tokens".into();
        }
        let mut text: Vec<String> = region
            .slots
            .iter()
            .take(SHOWN)
            .map(|s| format!("rank {} slots {}..{}", s.rank, s.from, s.to))
            .collect();
        if region.slots.len() > SHOWN {
            text.push(format!("{} more ranges", region.slots.len() - SHOWN));
        }
        format!("{} heads {}..{}", text.join(", "), region.heads.first, heads_end(region.heads))
    }
}

/// `whole` cut wherever one of `parts` begins or ends.
pub(super) fn cuts(whole: Heads, parts: impl Iterator<Item = Heads>) -> Vec<Heads> {
    let inside = |&h: &u32| whole.first < h && h < heads_end(whole);
    let mut ends: Vec<u32> = parts.flat_map(|p| [p.first, heads_end(p)]).filter(inside).collect();
    ends.push(heads_end(whole));
    ends.sort_unstable();
    ends.dedup();
    let mut first = whole.first;
    let pieces = ends.into_iter().map(|end| {
        let heads = Heads { first, count: end - first };
        first = end;
        heads
    });
    pieces.filter(|h| h.count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn region() -> impl Strategy<Value = Region> {
        let slots = prop::collection::vec((0u32..3, 0u64..12, 0u64..6), 0..5);
        (slots, 0u32..4, 1u32..4).prop_map(|(slots, first, count)| {
            let slots = slots.into_iter().map(|(rank, from, n)| Slots { rank, from, to: from + n });
            Region::new(slots.collect(), Heads { first, count })
        })
    }

    /// Every (rank, slot, head).
    fn points(region: &Region) -> BTreeSet<(u32, u64, u32)> {
        let heads = region.heads.first..heads_end(region.heads);
        let slots = region.slots.iter().flat_map(|s| (s.from..s.to).map(move |slot| (s.rank, slot)));
        slots.flat_map(|(r, slot)| heads.clone().map(move |h| (r, slot, h))).collect()
    }

    proptest! {
        #[test]
        fn regions_are_sets(a in region(), b in region(), c in region()) {
            let (pa, pb, pc) = (points(&a), points(&b), points(&c));
            prop_assert_eq!(a.contains(&b), pa.is_superset(&pb));
            prop_assert_eq!(points(&a.intersect(&b)), &pa & &pb);
            let mut regions = Regions::default();
            let ids = [a, b, c].map(|r| regions.intern(r));
            prop_assert_eq!(regions.cover(&ids[..2], ids[2]), (&pa | &pb).is_superset(&pc));
            let both = regions.intersect(ids[0], ids[1]);
            prop_assert_eq!(points(regions.get(both)), &pa & &pb);
        }
    }
}
