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

/// What the time of a call in sections depends on, on the devices of one cluster: its items are query tiles, which no last round cuts.
type CallKey = (TileProfile, Heads, u32, KernelKey);

/// Calls whose heads go in sections, which take longer to price than to look up. The latest one is kept aside: calls of one shape
/// follow each other.
#[derive(Debug, Clone)]
pub(super) struct Priced {
    known: HashMap<CallKey, Call, BuildHasherDefault<DefaultHasher>>,
    latest: Option<(CallKey, Call)>,
    enabled: bool,
}

impl Priced {
    pub fn new(enabled: bool) -> Self {
        Self { known: HashMap::default(), latest: None, enabled }
    }

    /// [`Kernel::call`].
    pub fn call(&mut self, kernel: &Kernel, profile: &TileProfile, heads: Heads, carries: u32) -> Call {
        if !self.enabled || heads.section.is_none() || profile.lightest == profile.heaviest {
            return kernel.call(profile, heads, carries);
        }
        let key = (*profile, heads, carries, kernel.key());
        if let Some((_, call)) = self.latest.filter(|(latest, _)| *latest == key) {
            return call;
        }
        if self.known.len() >= MOST_ENTRIES {
            self.known.clear();
        }
        let call = *self.known.entry(key).or_insert_with(|| kernel.call(profile, heads, carries));
        self.latest = Some((key, call));
        call
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
    use crate::config::cluster::{Cluster, Dtype, KernelRow, Pass, test_text};
    use crate::mask::{Documents, Pattern};
    use crate::tiles::TileShape;
    use crate::units::SimTime;
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
    fn remembered_calls_are_what_their_kernel_makes_of_them() {
        let cluster = Cluster::parse("test", &test_text("")).unwrap();
        let mut row = cluster.kernel(128, Dtype::Bf16, Pass::Forward).unwrap().clone();
        row.carry = SimTime(500_000);
        let slower = KernelRow { prologue: row.prologue + SimTime(1_000_000), ..row.clone() };
        let kernels = [&row, &slower].map(|row| Kernel::new(row, 132));
        let mut priced = Priced::new(true);
        for _ in 0..2 {
            for (i, len) in (0..).zip([3000, 6000, 6000, 24_576, 6000]) {
                let set = TokenSet::new([Progression::contiguous(0, len)]);
                let mask = Mask::new(Pattern::Causal, &Documents::single(len));
                for (section, carries) in [(None, 0), (Some(16), 0), (Some(3), 0), (Some(3), 2), (Some(3), 1)]
                {
                    let kernel = &kernels[i % 2];
                    let profile = tiles::profile(&mask, &set, &set, kernel.tile());
                    let heads = Heads { section, ..Heads::separate(16) };
                    let call = priced.call(kernel, &profile, heads, carries);
                    assert_eq!(call, kernel.call(&profile, heads, carries), "{len}, {section:?}, {carries}");
                }
            }
        }
        // Lengths with a kernel: four; with sections and carries: four each.
        assert_eq!(priced.known.len(), 4 * 4);
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
