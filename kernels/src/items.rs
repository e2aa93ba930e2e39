//! How a persistent backward launch cuts its work into items.

use crate::spec::Dims;

/// What a part of an item costs beside its query tiles, in query tiles: its keys and values come in, its `dk` and `dv` go
/// out, and the pipeline fills and drains.
const PART_OVERHEAD: usize = 6;
/// Parts that an item is cut into, at most.
const MOST_PARTS: usize = 16;

/// The items of a launch: a key tile with the query heads that a CTA runs through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Items {
    /// Query heads of an item: all that share a kv head, or one.
    pub heads: usize,
    /// All items.
    pub count: usize,
    /// Of them, those that are not cut; they come first.
    pub whole: usize,
    /// Parts that each of the others is cut into, by its query tiles.
    pub parts: usize,
}

/// What decides about the items of a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launched<'a> {
    pub dims: Dims,
    /// Query tiles of each key tile.
    pub work: &'a [i32],
    pub deterministic: bool,
    pub start_dkv: bool,
    pub multiprocessors: usize,
}

impl Items {
    /// Whole items only. An item takes all query heads of its kv head where there are four items a multiprocessor, the
    /// order of the sums matters or `dk` and `dv` are written.
    pub fn whole(launched: Launched<'_>) -> Self {
        let Dims { heads, kv_heads, batch, .. } = launched.dims;
        let of_groups = launched.work.len() * kv_heads * batch;
        let enough = of_groups >= 4 * launched.multiprocessors;
        let group = heads / kv_heads;
        let heads = if launched.deterministic || launched.start_dkv || enough { group } else { 1 };
        let count = of_groups * (group / heads);
        Self { heads, count, whole: count, parts: 1 }
    }

    /// The same, but where all items are as long, those beyond whole rounds of the multiprocessors are cut into parts if
    /// that ends the launch sooner: the last round would leave some idle. Not in a fixed order of sums.
    pub fn with_last_cut(launched: Launched<'_>) -> Self {
        let all = Self::whole(launched);
        let equal = launched.work.windows(2).all(|pair| pair[0] == pair[1]);
        let tiles = launched.work.first().map_or(0, |&tiles| usize::try_from(tiles).unwrap_or(0));
        let last = all.count % launched.multiprocessors;
        if launched.deterministic || !equal || last == 0 {
            return all;
        }
        let time = |parts: usize| {
            let rounds = (last * parts).div_ceil(launched.multiprocessors);
            rounds * (tiles.div_ceil(parts) * all.heads + PART_OVERHEAD)
        };
        let parts = (1..=tiles.clamp(1, MOST_PARTS)).min_by_key(|&parts| time(parts)).unwrap_or(1);
        // A tenth of a round is the least that is worth more reads of keys and additions to dk and dv.
        if 10 * time(parts) > 9 * time(1) {
            return all;
        }
        Self { whole: all.count - last, parts, ..all }
    }

    /// Pieces of work that a CTA takes at a time.
    pub fn pieces(&self) -> usize {
        self.whole + (self.count - self.whole) * self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Dtype, HeadDim};

    fn launched(heads: usize, kv_heads: usize, work: &[i32]) -> Launched<'_> {
        let dims = Dims { dtype: Dtype::Bf16, head_dim: HeadDim::D128, heads, kv_heads, batch: 1 };
        Launched { dims, work, deterministic: false, start_dkv: true, multiprocessors: 132 }
    }

    #[test]
    fn heads_of_a_group_stay_together_where_items_are_many_or_written() {
        let work = vec![32; 16];
        let [written, added] =
            [true, false].map(|start_dkv| Items::whole(Launched { start_dkv, ..launched(8, 2, &work) }));
        assert_eq!((written.heads, written.count, written.pieces()), (4, 32, 32));
        assert_eq!((added.heads, added.count), (1, 128));
        // 528 items are four a multiprocessor, 512 are not.
        let many = |tiles: usize| {
            let work = vec![32; tiles];
            Items::whole(Launched { start_dkv: false, ..launched(32, 16, &work) })
        };
        assert_eq!((many(33).heads, many(33).count), (2, 528));
        assert_eq!((many(32).heads, many(32).count), (1, 1024));
    }

    #[test]
    fn items_beyond_whole_rounds_are_cut() {
        // 8Ki, two sequences: 2048 = 15 x 132 + 68. In one piece these take 128 + 6; in five, three rounds of 26 + 6.
        let work = vec![128; 64];
        let two =
            Launched { dims: Dims { batch: 2, ..launched(16, 16, &work).dims }, ..launched(16, 16, &work) };
        let items = Items::with_last_cut(two);
        assert_eq!(items, Items { heads: 1, count: 2048, whole: 1980, parts: 5 });
        assert_eq!(items.pieces(), 1980 + 5 * 68);
        // Less than a round: 12 items of two heads, 11 parts of three tiles fill all 132.
        let work = vec![32; 12];
        let few = Items::with_last_cut(launched(2, 1, &work));
        assert_eq!(few, Items { heads: 2, count: 12, whole: 0, parts: 11 });
    }

    #[test]
    fn nothing_is_cut_where_it_does_not_pay_or_may_not_be() {
        let whole = |launched: Launched<'_>| {
            assert_eq!(Items::with_last_cut(launched), Items::whole(launched));
        };
        // 1024 = 7 x 132 + 100: of 128 + 6, the best is four rounds of 26 + 6.
        let one_sequence = vec![128; 64];
        whole(launched(16, 16, &one_sequence));
        // 1Ki: 16 query tiles, 68 items: two rounds of 8 + 6 are more than one of 16 + 6.
        let short = vec![16; 8];
        whole(Launched {
            dims: Dims { batch: 16, ..launched(16, 16, &short).dims },
            ..launched(16, 16, &short)
        });
        let long = vec![128; 65];
        assert_eq!(Items::whole(launched(16, 16, &long)).count % 132, 116);
        whole(Launched { deterministic: true, ..launched(16, 16, &long) });
        whole(launched(132, 132, &long));
        let mut causal = long.clone();
        causal[64] = 127;
        whole(launched(16, 16, &causal));
        // No queries at all: gradients are still written.
        whole(launched(16, 16, &vec![0; 65]));
    }
}
