//! Which tokens and heads a piece of memory holds, and where inside another piece they lie.

use ringlab_sim::layout::Layout;
use ringlab_sim::plan::{Block, Heads, Slots};

/// Token positions in increasing order, and heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Region {
    pub tokens: Vec<u64>,
    pub heads: Heads,
}

/// Where one region lies inside another: the index of each of its tokens, and of its first head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placement {
    pub tokens: Vec<usize>,
    pub head: usize,
}

impl Region {
    pub fn of_block(block: &Block) -> Self {
        Self { tokens: block.tokens.iter().collect(), heads: block.heads }
    }

    pub fn of_slots(slots: &[Slots], heads: Heads, layout: &Layout) -> Self {
        let positions = slots.iter().flat_map(|s| {
            let tokens = layout.shard(s.rank).slice(s.from, s.to);
            tokens.iter().collect::<Vec<_>>()
        });
        Self { tokens: positions.collect(), heads }
    }

    pub fn heads(&self) -> usize {
        self.heads.count as usize
    }

    /// Index of every token and head.
    pub fn rows(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let heads = self.heads();
        (0..self.tokens.len()).flat_map(move |token| (0..heads).map(move |head| (token, head)))
    }

    /// Where `inner` lies in this region, `None` if a part of it does not.
    pub fn locate(&self, inner: &Self) -> Option<Placement> {
        let head = self.head_of(inner.heads)?;
        let mut at = 0;
        let tokens = inner.tokens.iter().map(|&position| {
            at = reach(&self.tokens, at, position);
            self.tokens.get(at).filter(|&&p| p == position).map(|_| at)
        });
        Some(Placement { tokens: tokens.collect::<Option<_>>()?, head })
    }

    /// Index of the first of `heads`, if all of them are here.
    fn head_of(&self, heads: Heads) -> Option<usize> {
        let first = heads.first.checked_sub(self.heads.first)?;
        (first + heads.count <= self.heads.count).then_some(first as usize)
    }
}

/// The first index from `at` on whose token is not before `position`: takes time with the logarithm of the distance.
fn reach(tokens: &[u64], at: usize, position: u64) -> usize {
    let rest = tokens.get(at..).unwrap_or_default();
    let mut step = 1;
    while rest.get(step - 1).is_some_and(|&token| token < position) {
        step *= 2;
    }
    let (from, to) = (step / 2, rest.len().min(step));
    at + from + rest[from..to].partition_point(|&token| token < position)
}

/// Where a region lies that is spread over several parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spread {
    /// Part, and index in it, of each token.
    pub at: Vec<(usize, usize)>,
    /// Index of the region's first head in each part.
    pub heads: Vec<usize>,
}

impl Spread {
    /// `None` if a token or head is missing, or if a token is in two parts.
    pub fn find(whole: &Region, parts: &[&Region]) -> Option<Self> {
        let mut found: Vec<Option<(usize, usize)>> = vec![None; whole.tokens.len()];
        for (i, part) in parts.iter().enumerate() {
            let (mut at, mut index) = (0, 0);
            while let (Some(&wanted), Some(&position)) = (whole.tokens.get(at), part.tokens.get(index)) {
                if position < wanted {
                    index = reach(&part.tokens, index, wanted);
                } else if wanted < position {
                    at = reach(&whole.tokens, at, position);
                } else {
                    if found[at].replace((i, index)).is_some() {
                        return None;
                    }
                    (at, index) = (at + 1, index + 1);
                }
            }
        }
        let heads = parts.iter().map(|part| part.head_of(whole.heads));
        Some(Self { heads: heads.collect::<Option<_>>()?, at: found.into_iter().collect::<Option<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(tokens: &[u64]) -> Region {
        Region { tokens: tokens.to_vec(), heads: Heads { first: 2, count: 4 } }
    }

    #[test]
    fn a_region_is_found_only_where_all_of_it_lies() {
        let outer = region(&[1, 4, 5, 9]);
        assert_eq!(outer.locate(&region(&[4, 9])).unwrap().tokens, [1, 3]);
        assert_eq!(outer.locate(&region(&[4, 6])), None);
        let heads = |first, count| Region { tokens: vec![5], heads: Heads { first, count } };
        assert_eq!(outer.locate(&heads(3, 3)), Some(Placement { tokens: vec![2], head: 1 }));
        assert_eq!(outer.locate(&heads(1, 2)), None);
        assert_eq!(outer.locate(&heads(4, 3)), None);
    }

    #[test]
    fn reaching_skips_what_lies_before() {
        let tokens: Vec<u64> = (0..50).map(|i| 3 * i).collect();
        for at in 0..=50 {
            for position in 0..160 {
                let expected = (at..50).find(|&i| tokens[i] >= position).unwrap_or(50.max(at));
                assert_eq!(reach(&tokens, at, position), expected, "{position} from {at}");
            }
        }
        assert_eq!(reach(&[], 0, 5), 0);
    }

    #[test]
    fn parts_must_hold_every_token_once() {
        let (a, b) = (region(&[0, 3, 4]), region(&[7, 8]));
        let find = |tokens, parts: &[&Region]| Spread::find(&region(tokens), parts).map(|s| s.at);
        assert_eq!(find(&[3, 4, 8], &[&a, &b]).unwrap(), [(0, 1), (0, 2), (1, 1)]);
        assert_eq!(find(&[3, 5], &[&a, &b]), None);
        assert_eq!(find(&[3], &[&a, &a]), None);
        assert_eq!(find(&[], &[]), Some(vec![]));
    }
}
