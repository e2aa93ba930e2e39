//! Which tiles of the score matrix a kernel visits, and which of them it must mask.
//!
//! A mask gives every query one interval `[lo, hi]` of key positions. Over the queries that attend anything, `lo` and
//! `hi` never fall, and the positions of a segment's keys rise; so the key tiles that one query tile needs are one
//! range, the ones that need no mask are a range inside it, and binary searches find both ends. The same holds with
//! the sides exchanged.

#[cfg(test)]
mod tests;

use crate::abi::TileRange;

/// The mask: key positions `[lo[i], hi[i]]` of query `i`; `lo[i] > hi[i]` is a query without keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intervals<'a> {
    /// First attended position of each query.
    pub lo: &'a [i32],
    /// Last attended position of each query.
    pub hi: &'a [i32],
}

impl Intervals<'_> {
    /// Indices of the queries that attend something.
    fn rows(&self) -> Vec<usize> {
        (0..self.lo.len()).filter(|&row| self.lo[row] <= self.hi[row]).collect()
    }

    /// The first query whose bounds fall below those of an earlier one, if any.
    pub fn first_falling(&self) -> Option<usize> {
        let rows = self.rows();
        let falls =
            |pair: &&[usize]| self.lo[pair[1]] < self.lo[pair[0]] || self.hi[pair[1]] < self.hi[pair[0]];
        rows.windows(2).find(falls).map(|pair| pair[1])
    }
}

/// Key tiles of each query tile; `key_pos` rises strictly.
pub fn key_ranges(mask: Intervals<'_>, tile_q: usize, key_pos: &[i32], tile_kv: usize) -> Vec<TileRange> {
    let slots_below = |bound: i32| key_pos.partition_point(|&pos| pos < bound);
    let slots_through = |bound: i32| key_pos.partition_point(|&pos| pos <= bound);
    let range = |start: usize| {
        let end = mask.lo.len().min(start + tile_q);
        let rows: Vec<usize> = (start..end).filter(|&row| mask.lo[row] <= mask.hi[row]).collect();
        let (Some(&head), Some(&tail)) = (rows.first(), rows.last()) else { return TileRange::default() };
        let needed = (slots_below(mask.lo[head]), slots_through(mask.hi[tail]));
        let every = (slots_below(mask.lo[tail]), slots_through(mask.hi[head]));
        tile_range(needed, if rows.len() == end - start { every } else { (0, 0) }, tile_kv)
    };
    (0..mask.lo.len()).step_by(tile_q).map(range).collect()
}

/// Query tiles of each key tile; `key_pos` rises strictly.
///
/// A key tile that is not filled to its end has no full query tile, and neither is a query tile that is not filled:
/// the kernel masks what lies beyond the ends.
pub fn query_ranges(mask: Intervals<'_>, tile_q: usize, key_pos: &[i32], tile_kv: usize) -> Vec<TileRange> {
    let rows = mask.rows();
    let first_reaching = |pos: i32| rows.partition_point(|&row| mask.hi[row] < pos);
    let first_past = |pos: i32| rows.partition_point(|&row| mask.lo[row] <= pos);
    let range = |keys: &[i32]| {
        let (head, tail) = (keys[0], keys[keys.len() - 1]);
        let (from, to) = (first_reaching(head), first_past(tail));
        if from >= to {
            return TileRange::default();
        }
        let every = (first_reaching(tail), first_past(head));
        let full = keys.len() == tile_kv && every.0 < every.1 && {
            // Without a gap: no query between the two attends nothing.
            rows[every.1 - 1] - rows[every.0] == every.1 - 1 - every.0
        };
        let full = if full { (rows[every.0], rows[every.1 - 1] + 1) } else { (0, 0) };
        tile_range((rows[from], rows[to - 1] + 1), full, tile_q)
    };
    key_pos.chunks(tile_kv).map(range).collect()
}

/// Widens `ranges` so that the key tiles of every query tile follow one another without a gap.
///
/// Deterministic accumulation hands a query tile from key tile to key tile, each of which waits for the one before.
/// A query tile that spans two far parts of the sequence (two chunks of a window mask, say) would leave out the key
/// tiles between them; they take part here, fully masked.
pub fn fill_gaps(ranges: &mut [TileRange]) {
    let mut before: Option<usize> = None;
    for tile in 0..ranges.len() {
        if ranges[tile].first == ranges[tile].last {
            continue;
        }
        if let Some(before) = before {
            let (first, last) = (ranges[tile].first, ranges[before].last);
            if first < last {
                ranges[before + 1..tile].fill(TileRange { first, full_first: first, full_last: first, last });
            }
        }
        before = Some(tile);
    }
}

/// Tiles by falling work, ties by index; `work[t]` is the number of tiles that tile `t` visits.
pub fn longest_first(work: &[i32]) -> Vec<i32> {
    let mut order: Vec<i32> = (0..).take(work.len()).collect();
    order.sort_by_key(|&tile| std::cmp::Reverse(work[tile as usize]));
    order
}

/// Tiles of size `tile` that touch the slots `needed`, and the ones that lie within `full`.
fn tile_range(needed: (usize, usize), full: (usize, usize), tile: usize) -> TileRange {
    if needed.0 >= needed.1 {
        return TileRange::default();
    }
    let (first, last) = (index(needed.0 / tile), index(needed.1.div_ceil(tile)));
    let (full_first, full_last) = (index(full.0.div_ceil(tile)), index(full.1 / tile));
    if full_first < full_last {
        TileRange { first, full_first, full_last, last }
    } else {
        TileRange { first, full_first: first, full_last: first, last }
    }
}

fn index(tile: usize) -> i32 {
    i32::try_from(tile).expect("lengths are validated to fit i32")
}
