//! How a backward launch is cut into work items, by the rules of this project's kernels.

use crate::config::cluster::{Grid, Items};
use crate::tiles::TileProfile;

use super::Heads;

/// Items an SM from which each takes all query heads of its kv head, though it adds to gradients that others add to as well.
const ENOUGH: u64 = 4;
/// Parts that an item of the last round is cut into, at most, and what a part costs besides, in query tiles.
const MOST_PARTS: u64 = 16;
const PART_OVERHEAD: u64 = 6;

/// Heads of a call over `kv_heads` kv heads (times sequences) of `group` query heads each: items go through a whole group
/// where they are enough or write gradients that nothing was added to before.
pub fn heads(
    items: Items,
    profile: &TileProfile,
    (kv_heads, group): (u64, u64),
    sms: u32,
    writes: bool,
) -> Heads {
    let are_enough = (profile.rows + profile.blank) * kv_heads >= ENOUGH * u64::from(sms.max(1));
    match items {
        Items::KeyTiles if writes || are_enough => Heads { separate: kv_heads, shared: group, section: None },
        Items::KeyTiles | Items::QueryTiles => Heads::separate(kv_heads * group),
    }
}

/// The last round of a launch of equal items, of which those beyond whole rounds are cut into parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastRound {
    /// Items that are cut.
    pub items: u64,
    /// Rounds of their parts.
    pub rounds: u64,
    /// Tiles of a part, of one head.
    pub tiles: u64,
}

impl LastRound {
    /// That of a call; `None` where nothing is cut: in other grids, where items differ, or where it does not pay.
    pub fn of(items: Items, grid: Grid, profile: &TileProfile, heads: Heads, sms: u32) -> Option<Self> {
        let tiles = profile.heaviest.full + profile.heaviest.partial;
        let is_cut = (items, grid) == (Items::KeyTiles, Grid::PersistentQueue);
        let are_equal = profile.lightest == profile.heaviest && profile.blank == 0;
        if !is_cut || !are_equal || tiles == 0 {
            return None;
        }
        let sms = u64::from(sms.max(1));
        let last = profile.rows * heads.separate % sms;
        let rounds = |parts: u64| (last * parts).div_ceil(sms);
        let time = |parts: u64| rounds(parts) * (tiles.div_ceil(parts) * heads.shared + PART_OVERHEAD);
        let parts = (1..=tiles.min(MOST_PARTS)).min_by_key(|&parts| time(parts))?;
        let pays = last > 0 && 10 * time(parts) <= 9 * time(1);
        pays.then(|| Self { items: last, rounds: rounds(parts), tiles: tiles.div_ceil(parts) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::{Documents, Mask, Pattern};
    use crate::tiles::{RowTiles, TileShape, key_profile};
    use crate::tokens::{Progression, TokenSet};

    fn full(rows: u64, tiles: u64) -> TileProfile {
        let each = RowTiles { full: tiles, partial: 0 };
        TileProfile {
            rows,
            blank: 0,
            total: RowTiles { full: rows * tiles, partial: 0 },
            empty: 0,
            heaviest: each,
            lightest: each,
        }
    }

    fn last(profile: &TileProfile, heads: Heads) -> Option<LastRound> {
        LastRound::of(Items::KeyTiles, Grid::PersistentQueue, profile, heads, 132)
    }

    #[test]
    fn items_take_whole_groups_where_they_are_enough_or_first() {
        let of = |rows, writes| heads(Items::KeyTiles, &full(rows, 8), (16, 2), 132, writes);
        // 528 items are four an SM, 512 are not.
        assert_eq!(of(33, false), Heads { separate: 16, shared: 2, section: None });
        assert_eq!(of(32, false), Heads::separate(32));
        assert_eq!(of(32, true), Heads { separate: 16, shared: 2, section: None });
        assert_eq!(heads(Items::QueryTiles, &full(32, 8), (16, 2), 132, true), Heads::separate(32));
    }

    #[test]
    fn keys_that_no_query_sees_have_items_that_are_shorter() {
        // Queries of chunks 1 and 2, of 16Ki each, see the keys of chunk 0 and none of chunk 3.
        let chunk = |i: u64| Progression::contiguous(i << 14, 1 << 14);
        let mask = Mask::new(Pattern::Causal, &Documents::single(4 << 14));
        let of = |queries, keys| {
            let [q, kv] = [queries, keys].map(|chunks: [u64; 2]| TokenSet::new(chunks.map(chunk)));
            key_profile(&mask, &q, &kv, TileShape { q: 64, kv: 128 })
        };
        let half = of([1, 2], [0, 3]);
        assert_eq!((half.rows, half.blank, half.heaviest), (128, 128, RowTiles { full: 512, partial: 0 }));
        assert_eq!(last(&half, Heads::separate(16)), None);
        // The same items without the others: 2048 = 15 x 132 + 68; nine parts take 5 x (57 + 6), seven 4 x (74 + 6).
        let first = TileProfile { blank: 0, ..half };
        assert_eq!(last(&first, Heads::separate(16)), Some(LastRound { items: 68, rounds: 5, tiles: 57 }));
        // Those of chunk 3 see all keys of chunks 1 and 2.
        let all = of([0, 3], [1, 2]);
        assert_eq!((all.rows, all.blank), (256, 0));
        // 4 x 132 items are enough for whole groups, 16 of 33 rows of which nobody sees.
        let few = TileProfile { rows: 17, blank: 16, ..full(17, 8) };
        let separate = heads(Items::KeyTiles, &few, (16, 2), 132, false);
        assert_eq!(separate, Heads { separate: 16, shared: 2, section: None });
    }

    #[test]
    fn the_last_round_is_cut_as_the_kernels_do() {
        // The launches of kernels/src/items.rs: 2048 = 15 x 132 + 68 items of 128 tiles in five parts, three rounds of 26.
        let found = last(&full(64, 128), Heads::separate(32));
        assert_eq!(found, Some(LastRound { items: 68, rounds: 3, tiles: 26 }));
        // 12 items of two heads: 11 parts of three tiles fill all SMs.
        let few = last(&full(12, 32), Heads { separate: 1, shared: 2, section: None });
        assert_eq!(few, Some(LastRound { items: 12, rounds: 1, tiles: 3 }));
        // 1024 = 7 x 132 + 100: of 128 + 6, the best is four rounds of 26 + 6.
        assert_eq!(last(&full(64, 128), Heads::separate(16)), None);
        let mut unequal = full(64, 128);
        unequal.lightest.full = 127;
        assert_eq!(last(&unequal, Heads::separate(32)), None);
        assert_eq!(
            LastRound::of(Items::KeyTiles, Grid::PerItem, &full(64, 128), Heads::separate(32), 132),
            None
        );
        assert_eq!(last(&full(0, 128), Heads::separate(32)), None);
    }
}
