//! Tile classes: how many (query tile, key tile) pairs of a kernel are full, partial or empty for two token sets.
//!
//! A tile is a run of slots. As positions increase with the slot, a key tile is *empty* for a query tile if it lies
//! outside the hull of the queries' intervals, *full* if it lies inside all of them and is a whole tile, and *partial*
//! otherwise. Kernels skip empty tiles, and run the mask only on partial ones.

use crate::mask::{Mask, Piece};
use crate::tokens::TokenSet;

/// A kernel's tile: queries x keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TileShape {
    /// Queries in a tile.
    pub q: u64,
    /// Keys in a tile.
    pub kv: u64,
}

/// Key tiles that one query tile has to visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RowTiles {
    /// Tiles without any masked pair.
    pub full: u64,
    /// Tiles that need the mask.
    pub partial: u64,
}

/// Tile counts of one attention call for one head, with what the schedule of rows over SMs depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TileProfile {
    /// Query tiles with at least one tile to visit: the kernel's work items for one head.
    pub rows: u64,
    /// Query tiles with none: not work, but launched all the same.
    pub blank: u64,
    /// Sum over the rows.
    pub total: RowTiles,
    /// Tiles skipped.
    pub empty: u64,
    /// The row with most tiles.
    pub heaviest: RowTiles,
    /// The non-empty row with fewest tiles.
    pub lightest: RowTiles,
}

/// Classifies all tiles of `q` x `kv`.
pub fn profile(mask: &Mask, q: &TokenSet, kv: &TokenSet, tile: TileShape) -> TileProfile {
    let mut out = TileProfile::default();
    if q.is_empty() || kv.is_empty() {
        return out;
    }
    let columns = kv.len().div_ceil(tile.kv);
    if all_full(mask, q, kv) {
        return uniform(q.len().div_ceil(tile.q), kv.len(), tile);
    }
    for row in 0..q.len().div_ceil(tile.q) {
        out.add(row_tiles(mask, q, kv, tile, row), columns);
    }
    out
}

/// As [`profile`], by key tiles: a row of the result is a key tile against all query tiles that visit it, the work item of
/// a backward.
pub fn key_profile(mask: &Mask, q: &TokenSet, kv: &TokenSet, tile: TileShape) -> TileProfile {
    let (rows, columns) = (q.len().div_ceil(tile.q), kv.len().div_ceil(tile.kv) as usize);
    // Differences from one key tile to the next: how many query tiles visit it, and how many of them in full.
    let (mut visits, mut full) = (vec![0i64; columns + 1], vec![0i64; columns + 1]);
    for row in 0..rows {
        let Some(range) = row_range(mask, q, kv, tile, row) else { continue };
        visits[range.first as usize] += 1;
        visits[range.last as usize] -= 1;
        full[range.full_first as usize] += 1;
        full[range.full_last as usize] -= 1;
    }
    let mut out = TileProfile::default();
    let (mut visiting, mut in_full) = (0, 0);
    for column in 0..columns {
        visiting += visits[column];
        in_full += full[column];
        let (visited, full) = (visiting as u64, in_full as u64);
        out.add(RowTiles { full, partial: visited - full }, rows);
    }
    out
}

impl TileProfile {
    /// Counts one more row, of at most `columns` tiles.
    fn add(&mut self, tiles: RowTiles, columns: u64) {
        let visited = tiles.full + tiles.partial;
        self.empty += columns - visited;
        if visited == 0 {
            self.blank += 1;
            return;
        }
        let heavier = visited > self.heaviest.full + self.heaviest.partial;
        let lighter = self.rows == 0 || visited < self.lightest.full + self.lightest.partial;
        self.rows += 1;
        self.total.full += tiles.full;
        self.total.partial += tiles.partial;
        if heavier {
            self.heaviest = tiles;
        }
        if lighter {
            self.lightest = tiles;
        }
    }
}

/// Key tiles of one query tile: `[first, last)` are visited, `[full_first, full_last)` of them have no masked pair.
struct RowRange {
    first: u64,
    full_first: u64,
    full_last: u64,
    last: u64,
}

/// The tiles that query tile `row` visits.
pub fn row_tiles(mask: &Mask, q: &TokenSet, kv: &TokenSet, tile: TileShape, row: u64) -> RowTiles {
    let Some(range) = row_range(mask, q, kv, tile, row) else { return RowTiles::default() };
    let full = range.full_last - range.full_first;
    RowTiles { full, partial: range.last - range.first - full }
}

fn row_range(mask: &Mask, q: &TokenSet, kv: &TokenSet, tile: TileShape, row: u64) -> Option<RowRange> {
    let (from, to) = (row * tile.q, ((row + 1) * tile.q).min(q.len()));
    let hull = hull(mask, q, from, to)?;
    let first = kv.count_before(hull.lo_min) / tile.kv;
    let reach = kv.count_before(hull.end_max);
    if reach <= kv.count_before(hull.lo_min) {
        return None;
    }
    let last = reach.div_ceil(tile.kv);
    let full_first = kv.count_before(hull.lo_max).div_ceil(tile.kv);
    let full_last = kv.count_before(hull.end_min) / tile.kv;
    if !hull.every_query_valid || full_last <= full_first {
        return Some(RowRange { first, full_first: first, full_last: first, last });
    }
    Some(RowRange { first, full_first, full_last, last })
}

/// Ends of the key intervals over the queries of one tile.
struct Hull {
    lo_min: i64,
    lo_max: i64,
    end_min: i64,
    end_max: i64,
    every_query_valid: bool,
}

/// The hull of the intervals of the queries in slots `[from, to)`; `None` if none of them has a key.
fn hull(mask: &Mask, q: &TokenSet, from: u64, to: u64) -> Option<Hull> {
    let (first, last) = (q.position(from), q.position(to - 1));
    let mut covered = 0;
    let mut ends: Option<(u64, u64)> = None;
    for piece in mask.pieces_in(first, last + 1) {
        let a = q.count_before(piece.q_start as i64).max(from);
        let b = q.count_before(piece.q_end as i64).min(to);
        if a < b {
            covered += b - a;
            let (pa, pb) = (q.position(a), q.position(b - 1));
            ends = Some((ends.map_or(pa, |e| e.0), pb));
        }
    }
    let (first, last) = ends?;
    let ((lo_min, end_min), (lo_max, end_max)) = (mask.interval(first)?, mask.interval(last)?);
    Some(Hull {
        lo_min: lo_min as i64,
        lo_max: lo_max as i64,
        end_min: end_min as i64,
        end_max: end_max as i64,
        every_query_valid: covered == to - from,
    })
}

/// Whether no pair is masked.
pub fn all_full(mask: &Mask, q: &TokenSet, kv: &TokenSet) -> bool {
    let (Some(q0), Some(q1), Some(k0), Some(k1)) = (q.first(), q.last(), kv.first(), kv.last()) else {
        return false;
    };
    match mask.pieces_in(q0, q1 + 1) {
        [p] if p.q_start <= q0 && q1 < p.q_end => p.lo.at(q1) <= k0 as i64 && (k1 as i64) < p.end.at(q0),
        // Bounds grow with the query, so the first and the last one refuse most sets without a look at the others.
        _ => {
            let reaches = |(lo, end): (u64, u64)| lo <= k0 && k1 < end;
            mask.interval(q0).is_some_and(reaches)
                && mask.interval(q1).is_some_and(reaches)
                && hull(mask, q, 0, q.len()).is_some_and(|h| h.every_query_valid)
        }
    }
}

/// Whether every pair is masked, judged by the hull: no tile is visited.
pub fn all_empty(mask: &Mask, q: &TokenSet, kv: &TokenSet) -> bool {
    visible_slots(mask, q, kv) == (0, 0)
}

/// The slots `[from, to)` of `kv` outside which no query of `q` has a key; `(0, 0)` if it has none at all.
pub fn visible_slots(mask: &Mask, q: &TokenSet, kv: &TokenSet) -> (u64, u64) {
    if q.is_empty() {
        return (0, 0);
    }
    let Some((first, last)) = outermost(mask, q) else { return (0, 0) };
    let (Some((lo, _)), Some((_, end))) = (mask.interval(first), mask.interval(last)) else { return (0, 0) };
    let (from, to) = (kv.count_before(lo as i64), kv.count_before(end as i64));
    if from < to { (from, to) } else { (0, 0) }
}

/// The first and the last query that has a key.
fn outermost(mask: &Mask, q: &TokenSet) -> Option<(u64, u64)> {
    let pieces = mask.pieces_in(q.first()?, q.last()? + 1);
    let inside = |piece: &Piece| {
        let (a, b) = (q.count_before(piece.q_start as i64), q.count_before(piece.q_end as i64));
        (a < b).then(|| (q.position(a), q.position(b - 1)))
    };
    let first = pieces.iter().find_map(inside)?.0;
    let last = pieces.iter().rev().find_map(inside)?.1;
    Some((first, last))
}

fn uniform(rows: u64, keys: u64, tile: TileShape) -> TileProfile {
    let row = RowTiles { full: keys / tile.kv, partial: u64::from(!keys.is_multiple_of(tile.kv)) };
    let total = RowTiles { full: row.full * rows, partial: row.partial * rows };
    TileProfile { rows, blank: 0, total, empty: 0, heaviest: row, lightest: row }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::{Documents, Pattern};
    use crate::tokens::Progression;
    use crate::tokens::tests::progression;
    use crate::work;
    use proptest::prelude::*;

    /// Tile by tile from the mask's pairs: (full, with any pair).
    fn brute(mask: &Mask, q: &TokenSet, kv: &TokenSet, tile: TileShape) -> (u64, u64) {
        let (qs, ks): (Vec<u64>, Vec<u64>) = (q.iter().collect(), kv.iter().collect());
        let (mut full, mut any) = (0, 0);
        for qt in qs.chunks(tile.q as usize) {
            for kt in ks.chunks(tile.kv as usize) {
                let allowed = qt.iter().flat_map(|&i| kt.iter().map(move |&k| mask.allows(i, k)));
                let n = allowed.filter(|&a| a).count();
                full += u64::from(n == qt.len() * kt.len() && kt.len() as u64 == tile.kv);
                any += u64::from(n > 0);
            }
        }
        (full, any)
    }

    proptest! {
        #[test]
        fn full_tiles_are_exact_and_no_pair_is_skipped(
            a in progression(), b in progression(), w in 1u64..30, lens in prop::collection::vec(1u64..30, 1..4),
            shape in 0usize..3, tq in 1u64..5, tk in 1u64..5
        ) {
            let pattern = [Pattern::Full, Pattern::Causal, Pattern::Window(w)][shape];
            let mask = Mask::new(pattern, &Documents::padded(&lens, 4));
            let (q, kv) = (TokenSet::new([a]), TokenSet::new([b]));
            let tile = TileShape { q: tq, kv: tk };
            let (full, any) = brute(&mask, &q, &kv, tile);
            let p = profile(&mask, &q, &kv, tile);
            prop_assert_eq!(p.total.full, full);
            prop_assert!(p.total.full + p.total.partial >= any);
            prop_assert_eq!(p.total.full + p.total.partial + p.empty, q.len().div_ceil(tq) * kv.len().div_ceil(tk));
            let by_keys = key_profile(&mask, &q, &kv, tile);
            prop_assert_eq!((by_keys.total, by_keys.empty), (p.total, p.empty));
            let visits = |row, column: u64| {
                let range = row_range(&mask, &q, &kv, tile, row);
                range.is_some_and(|r| (r.first..r.last).contains(&column))
            };
            let heaviest = (0..kv.len().div_ceil(tk)).map(|c| (0..q.len().div_ceil(tq)).filter(|&r| visits(r, c)).count());
            let most = heaviest.max().unwrap_or(0) as u64;
            prop_assert_eq!(by_keys.heaviest.full + by_keys.heaviest.partial, most);
            prop_assert_eq!(all_full(&mask, &q, &kv), work::pairs(&mask, &q, &kv) == u128::from(q.len() * kv.len()));
            if all_empty(&mask, &q, &kv) {
                prop_assert_eq!(work::pairs(&mask, &q, &kv), 0);
            }
        }
    }

    #[test]
    fn causal_square_has_the_triangle_of_full_tiles() {
        let set = TokenSet::new([Progression::contiguous(4096, 1024)]);
        let mask = Mask::new(Pattern::Causal, &Documents::single(1 << 20));
        let p = profile(&mask, &set, &set, TileShape { q: 128, kv: 128 });
        assert_eq!((p.total.full, p.total.partial, p.empty), (28, 8, 28));
        assert_eq!((p.heaviest.full, p.lightest.full), (7, 0));
    }

    #[test]
    fn token_stripes_visit_the_diagonal_whichever_side_leads() {
        let stripe = |r| TokenSet::new([Progression::new(r, 1, 8, 1024)]);
        let mask = Mask::new(Pattern::Causal, &Documents::single(8192));
        for (r, s) in [(3, 3), (3, 1), (1, 3)] {
            let p = profile(&mask, &stripe(r), &stripe(s), TileShape { q: 128, kv: 128 });
            assert_eq!((p.total.full, p.total.partial), (28, 8), "q stripe {r}, kv stripe {s}");
        }
    }
}
