use super::*;
use proptest::prelude::*;

fn allowed(mask: Intervals<'_>, row: usize, pos: i32) -> bool {
    mask.lo[row] <= pos && pos <= mask.hi[row]
}

/// What a visit of a pair of tiles finds: (any pair unmasked, every pair unmasked and both tiles filled).
fn brute(
    mask: Intervals<'_>,
    tile_q: usize,
    pos: &[i32],
    tile_kv: usize,
    tile: (usize, usize),
) -> (bool, bool) {
    let queries: Vec<usize> = (0..mask.lo.len()).skip(tile.0 * tile_q).take(tile_q).collect();
    let keys: Vec<i32> = pos.iter().copied().skip(tile.1 * tile_kv).take(tile_kv).collect();
    let mut pairs = queries.iter().flat_map(|&row| keys.iter().map(move |&key| allowed(mask, row, key)));
    let any = pairs.clone().any(|open| open);
    (any, pairs.all(|open| open) && keys.len() == tile_kv)
}

fn hold(mask: Intervals<'_>, tile_q: usize, pos: &[i32], tile_kv: usize) {
    let keys = key_ranges(mask, tile_q, pos, tile_kv);
    let queries = query_ranges(mask, tile_q, pos, tile_kv);
    let mut filled = queries.clone();
    fill_gaps(&mut filled);
    for tile in 0..i32::try_from(keys.len()).unwrap() {
        let visits: Vec<bool> =
            filled.iter().map(|range| (range.first..range.last).contains(&tile)).collect();
        let turns = visits.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(
            turns <= 2 && (turns < 2 || !visits[0]),
            "query tile {tile} is visited with a gap: {visits:?}"
        );
    }
    assert_eq!(keys.len(), mask.lo.len().div_ceil(tile_q));
    assert_eq!(queries.len(), pos.len().div_ceil(tile_kv));
    for range in keys.iter().chain(&queries) {
        assert!(range.first <= range.full_first && range.full_first <= range.full_last);
        assert!(range.full_last <= range.last);
    }
    let within = |index: usize, first: i32, last: i32| (first..last).contains(&i32::try_from(index).unwrap());
    for (i, by_key) in keys.iter().enumerate() {
        for (j, by_query) in queries.iter().enumerate() {
            let (any, full) = brute(mask, tile_q, pos, tile_kv, (i, j));
            let filled = (i + 1) * tile_q <= mask.lo.len();
            assert!(!any || within(j, by_key.first, by_key.last), "query tile {i} misses key tile {j}");
            assert!(!any || within(i, by_query.first, by_query.last), "key tile {j} misses query tile {i}");
            assert!(full || !within(j, by_key.full_first, by_key.full_last), "({i}, {j}) is not full");
            let full = full && filled;
            assert!(full || !within(i, by_query.full_first, by_query.full_last), "({i}, {j}) is not full");
        }
    }
}

#[test]
fn causal_ranges_by_hand() {
    // 5 queries and keys, tiles of 2: query tile 1 (rows 2, 3) sees key tile 0 whole and key tile 1 in part.
    let (lo, hi, pos) = ([0; 5], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]);
    let mask = Intervals { lo: &lo, hi: &hi };
    let range = |first, full_first, full_last, last| TileRange { first, full_first, full_last, last };
    assert_eq!(key_ranges(mask, 2, &pos, 2), [range(0, 0, 0, 1), range(0, 0, 1, 2), range(0, 0, 2, 3)]);
    assert_eq!(query_ranges(mask, 2, &pos, 2), [range(0, 1, 2, 3), range(1, 1, 1, 3), range(2, 2, 2, 3)]);
}

#[test]
fn full_mask_needs_no_masked_tile_but_the_tail() {
    let (lo, hi) = ([i32::MIN; 8], [i32::MAX; 8]);
    let pos: Vec<i32> = (0..10).collect();
    let ranges = key_ranges(Intervals { lo: &lo, hi: &hi }, 4, &pos, 4);
    assert_eq!(ranges, [TileRange { first: 0, full_first: 0, full_last: 2, last: 3 }; 2]);
}

#[test]
fn queries_without_keys_visit_nothing() {
    let (lo, hi) = ([9, 9, 0, 9], [3, 3, 1, 3]);
    let mask = Intervals { lo: &lo, hi: &hi };
    let ranges = key_ranges(mask, 2, &[0, 1, 2, 3], 2);
    assert_eq!(ranges[0], TileRange::default());
    assert_eq!(ranges[1], TileRange { first: 0, full_first: 0, full_last: 0, last: 1 });
}

#[test]
fn falling_bounds_are_found_and_empty_rows_ignored() {
    assert_eq!(Intervals { lo: &[0, 9, 1], hi: &[5, 3, 6] }.first_falling(), None);
    assert_eq!(Intervals { lo: &[0, 2, 1], hi: &[5, 5, 6] }.first_falling(), Some(2));
    assert_eq!(Intervals { lo: &[0, 0], hi: &[5, 4] }.first_falling(), Some(1));
}

#[test]
fn gaps_are_filled_where_a_query_tile_spans_them() {
    let range = |first, last| TileRange { first, full_first: first, full_last: first, last };
    let mut spanned = [range(0, 3), range(0, 0), range(0, 0), range(2, 4), range(0, 0), range(4, 5)];
    fill_gaps(&mut spanned);
    assert_eq!(spanned, [range(0, 3), range(2, 3), range(2, 3), range(2, 4), range(0, 0), range(4, 5)]);
}

#[test]
fn order_is_by_work_then_index() {
    assert_eq!(longest_first(&[1, 3, 2, 3]), [1, 3, 2, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ranges_agree_with_every_pair(
        steps in prop::collection::vec((0..3i32, 0..4i32, prop::bool::weighted(0.1)), 1..60),
        gaps in prop::collection::vec(1..4i32, 1..60),
        tile_q in 1..9usize,
        tile_kv in 1..9usize,
    ) {
        let (mut lo, mut hi) = (Vec::new(), Vec::new());
        let mut bounds = (0, 0);
        for (rise_lo, rise_hi, empty) in steps {
            bounds = (bounds.0 + rise_lo, (bounds.1 + rise_hi).max(bounds.0 + rise_lo));
            lo.push(if empty { 1 } else { bounds.0 });
            hi.push(if empty { 0 } else { bounds.1 });
        }
        let pos: Vec<i32> = gaps.iter().scan(-1, |at, gap| { *at += gap; Some(*at) }).collect();
        hold(Intervals { lo: &lo, hi: &hi }, tile_q, &pos, tile_kv);
    }
}
