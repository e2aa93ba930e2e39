//! Tile and pair counts by relative geometry, and calls by their counts: the steps of a ring differ in position but seldom in
//! shape.
//!
//! Counts depend on the queries' positions relative to the first query, the keys' relative to the first key, and the
//! mask between them in the same coordinates. A bound of the mask that lies before all keys, or behind them all, for
//! every query of its piece is the same wherever it lies. Equal keys therefore mean equal counts. Keys are only looked
//! up, never walked, so the order of a hash table shows nowhere.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

use super::attention::KernelKey;
use super::{By, Call, Heads, Kernel};
use crate::config::cluster::Items;
use crate::mask::{Bound, Mask};
use crate::tiles::TileProfile;
use crate::tokens::{Progression, TokenSet};

/// Entries after which a table starts anew, so that a long sweep does not fill the memory.
const MOST_ENTRIES: usize = 1 << 16;

/// What is counted of one (queries, keys, mask), for one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub profile: TileProfile,
    /// Unmasked pairs.
    pub pairs: u128,
}

/// Counts by relative geometry.
#[derive(Debug, Clone)]
pub(super) struct Geometries {
    known: HashMap<Box<[i64]>, Geometry, BuildHasherDefault<DefaultHasher>>,
    key: Vec<i64>,
    enabled: bool,
}

impl Geometries {
    pub fn new(enabled: bool) -> Self {
        Self { known: HashMap::default(), key: Vec::new(), enabled }
    }

    /// The counts of `q` and `kv` under `mask`, from `count` if they are not known.
    pub fn get_or_insert(
        &mut self,
        mask: &Mask,
        q: &TokenSet,
        kv: &TokenSet,
        by: By,
        count: impl FnOnce() -> Geometry,
    ) -> Geometry {
        if !self.enabled {
            return count();
        }
        write_key(mask, q, kv, by, &mut self.key);
        if let Some(known) = self.known.get(self.key.as_slice()) {
            return *known;
        }
        if self.known.len() >= MOST_ENTRIES {
            self.known.clear();
        }
        let counted = count();
        self.known.insert(self.key.as_slice().into(), counted);
        counted
    }
}

/// Calls whose heads go in sections, which take longer to price than to look up.
#[derive(Debug, Clone)]
pub(super) struct Priced {
    known: HashMap<(KernelKey, TileProfile, Heads, u32), Call, BuildHasherDefault<DefaultHasher>>,
    enabled: bool,
}

impl Priced {
    pub fn new(enabled: bool) -> Self {
        Self { known: HashMap::default(), enabled }
    }

    /// [`Kernel::call`].
    pub fn call(&mut self, kernel: &Kernel, profile: &TileProfile, heads: Heads, carries: u32) -> Call {
        if !self.enabled || heads.section.is_none() || profile.lightest == profile.heaviest {
            return kernel.call(profile, heads, carries);
        }
        if self.known.len() >= MOST_ENTRIES {
            self.known.clear();
        }
        let key = (kernel.key(), *profile, heads, carries);
        *self.known.entry(key).or_insert_with(|| kernel.call(profile, heads, carries))
    }
}

/// The relative geometry as numbers, every list preceded by its length.
fn write_key(mask: &Mask, q: &TokenSet, kv: &TokenSet, by: By, out: &mut Vec<i64>) {
    out.clear();
    out.extend([by.tile.q.cast_signed(), by.tile.kv.cast_signed(), i64::from(by.items == Items::KeyTiles)]);
    let (Some(q_first), Some(q_last), Some(k_first), Some(k_last)) =
        (q.first(), q.last(), kv.first(), kv.last())
    else {
        return;
    };
    write_runs(q.runs(), q_first, out);
    write_runs(kv.runs(), k_first, out);
    let keys =
        Hull { first: k_first.cast_signed(), end: k_last.cast_signed() + 1, q_first: q_first.cast_signed() };
    for piece in mask.pieces_in(q_first, q_last + 1) {
        let (from, to) = (piece.q_start.max(q_first), piece.q_end.min(q_last + 1));
        out.extend([(from - q_first).cast_signed(), (to - q_first).cast_signed()]);
        out.extend(keys.relative(piece.lo, from, to - 1));
        out.extend(keys.relative(piece.end, from, to - 1));
    }
}

fn write_runs(runs: &[Progression], origin: u64, out: &mut Vec<i64>) {
    out.push((runs.len() as u64).cast_signed());
    for run in runs {
        out.extend([
            (run.first - origin).cast_signed(),
            run.block.cast_signed(),
            run.stride.cast_signed(),
            run.count.cast_signed(),
        ]);
    }
}

/// The keys' hull, and the origin of the queries.
struct Hull {
    first: i64,
    end: i64,
    q_first: i64,
}

impl Hull {
    /// `bound` over the queries `[from, last]`, as (whether it moves, offset from the first key).
    fn relative(&self, bound: Bound, from: u64, last: u64) -> [i64; 2] {
        let (low, high) = (bound.at(from), bound.at(last));
        match bound {
            _ if high <= self.first => [0, 0],
            _ if low >= self.end => [0, self.end - self.first],
            Bound::Const(c) => [0, c - self.first],
            Bound::Shift(s) => [1, s + self.q_first - self.first],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::{Documents, Pattern};
    use crate::tiles::TileShape;
    use crate::{tiles, work};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn counted(mask: &Mask, q: &TokenSet, kv: &TokenSet, tile: TileShape) -> Geometry {
        Geometry { profile: tiles::profile(mask, q, kv, tile), pairs: work::pairs(mask, q, kv) }
    }

    fn key(mask: &Mask, q: &TokenSet, kv: &TokenSet, tile: TileShape) -> Vec<i64> {
        let mut out = Vec::new();
        write_key(mask, q, kv, By { tile, items: Items::QueryTiles }, &mut out);
        out
    }

    proptest! {
        /// All blocks of small sequences against each other: whatever shares a key shares its counts.
        #[test]
        fn equal_keys_have_equal_counts(
            lens in prop::collection::vec(1u64..24, 1..4), w in 1u64..20, shape in 0usize..3,
            size in 1u64..9, stride in 1u64..5, tq in 1u64..4, tk in 1u64..4
        ) {
            let docs = Documents::padded(&lens, 3);
            let pattern = [Pattern::Full, Pattern::Causal, Pattern::Window(w)][shape];
            let mask = Mask::new(pattern, &docs);
            let tile = TileShape { q: tq, kv: tk };
            let set = |first| TokenSet::new([Progression::new(first, 1, stride, size)]);
            let last_first = docs.tokens().saturating_sub((size - 1) * stride);
            let mut seen: BTreeMap<Vec<i64>, Geometry> = BTreeMap::new();
            for (a, b) in (0..last_first).flat_map(|a| (0..last_first).map(move |b| (a, b))) {
                let (q, kv) = (set(a), set(b));
                let counts = counted(&mask, &q, &kv, tile);
                let first = *seen.entry(key(&mask, &q, &kv, tile)).or_insert(counts);
                prop_assert_eq!(first, counts, "queries from {}, keys from {}", a, b);
            }
        }
    }

    #[test]
    fn diagonals_share_a_key_and_so_do_blocks_far_below() {
        let mask = Mask::new(Pattern::Causal, &Documents::single(4096));
        let block = |i: u64| TokenSet::new([Progression::contiguous(i * 512, 512)]);
        let tile = TileShape { q: 128, kv: 64 };
        assert_eq!(key(&mask, &block(1), &block(1), tile), key(&mask, &block(6), &block(6), tile));
        assert_eq!(key(&mask, &block(3), &block(1), tile), key(&mask, &block(7), &block(0), tile));
        assert_ne!(key(&mask, &block(3), &block(3), tile), key(&mask, &block(3), &block(1), tile));
    }

    #[test]
    fn a_full_table_starts_anew_and_still_answers_right() {
        let mask = Mask::none(1 << 20);
        let mut cache = Geometries::new(true);
        let tile = TileShape { q: 1, kv: 1 };
        for len in 1..(MOST_ENTRIES as u64 + 10) {
            let set = TokenSet::new([Progression::contiguous(0, len)]);
            let got = cache.get_or_insert(&mask, &set, &set, By { tile, items: Items::QueryTiles }, || {
                counted(&mask, &set, &set, tile)
            });
            assert_eq!(got.pairs, u128::from(len) * u128::from(len));
        }
        assert!(cache.known.len() <= MOST_ENTRIES);
    }
}
