//! Sets of token positions as block-cyclic progressions: what a rank, a chunk or a block holds, in increasing order.

/// `count` blocks of `block` consecutive positions, the blocks' starts `stride` apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Progression {
    /// First position.
    pub first: u64,
    /// Consecutive positions in a block, `>= 1`.
    pub block: u64,
    /// Distance between the starts of two blocks, `>= block`.
    pub stride: u64,
    /// Number of blocks, `>= 1`.
    pub count: u64,
}

impl Progression {
    /// `len` consecutive positions from `first` on.
    pub fn contiguous(first: u64, len: u64) -> Self {
        Self { first, block: len, stride: len, count: 1 }
    }

    /// A block-cyclic progression, in the one form that equal sets share.
    pub fn new(first: u64, block: u64, stride: u64, count: u64) -> Self {
        if count == 1 || block == stride {
            Self::contiguous(first, block * count)
        } else {
            Self { first, block, stride, count }
        }
    }

    /// Number of positions.
    pub fn len(&self) -> u64 {
        self.block * self.count
    }

    /// Whether there is no position.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The position at index `i < len`.
    pub fn at(&self, i: u64) -> u64 {
        self.first + i / self.block * self.stride + i % self.block
    }

    /// The last position.
    pub fn last(&self) -> u64 {
        self.first + (self.count - 1) * self.stride + self.block - 1
    }

    /// How many positions lie before `x`.
    pub fn count_before(&self, x: i64) -> u64 {
        let d = x - self.first as i64;
        if d <= 0 {
            return 0;
        }
        let (full, rest) = (d as u64 / self.stride, d as u64 % self.stride);
        if full >= self.count { self.len() } else { full * self.block + rest.min(self.block) }
    }

    /// The positions with index in `[a, b)`, as at most three progressions.
    pub fn slice(&self, a: u64, b: u64, out: &mut Vec<Self>) {
        if a >= b {
            return;
        }
        let (head, tail) = (a.next_multiple_of(self.block).min(b), (b / self.block * self.block).max(a));
        if head > a {
            out.push(Self::contiguous(self.at(a), head - a));
        }
        if tail > head {
            out.push(Self::new(self.at(head), self.block, self.stride, (tail - head) / self.block));
        }
        if b > tail.max(head) {
            out.push(Self::contiguous(self.at(tail.max(head)), b - tail.max(head)));
        }
    }
}

/// Token positions in increasing order; the index of a position is its slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TokenSet {
    runs: Vec<Progression>,
    starts: Vec<u64>,
    len: u64,
}

impl TokenSet {
    /// The union of `runs`, each of which ends before the next begins.
    pub fn new(runs: impl IntoIterator<Item = Progression>) -> Self {
        let mut set = Self::default();
        for run in runs {
            set.push(run);
        }
        set
    }

    fn push(&mut self, run: Progression) {
        if run.is_empty() {
            return;
        }
        debug_assert!(self.runs.last().is_none_or(|r| r.last() < run.first), "positions must increase");
        match self.runs.last_mut() {
            Some(r) if r.count == 1 && run.count == 1 && r.first + r.block == run.first => {
                *r = Progression::contiguous(r.first, r.block + run.block);
            }
            _ => {
                self.runs.push(run);
                self.starts.push(self.len);
            }
        }
        self.len += run.len();
    }

    /// Number of positions.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The progressions, in order.
    pub fn runs(&self) -> &[Progression] {
        &self.runs
    }

    /// The first position.
    pub fn first(&self) -> Option<u64> {
        self.runs.first().map(|r| r.first)
    }

    /// The last position.
    pub fn last(&self) -> Option<u64> {
        self.runs.last().map(Progression::last)
    }

    /// The position in `slot`, which must be below [`TokenSet::len`].
    pub fn position(&self, slot: u64) -> u64 {
        let i = self.starts.partition_point(|&s| s <= slot) - 1;
        self.runs[i].at(slot - self.starts[i])
    }

    /// One past the last slot of the consecutive positions that `slot` is among.
    pub fn consecutive_until(&self, slot: u64) -> u64 {
        let i = self.starts.partition_point(|&s| s <= slot) - 1;
        let (run, index) = (&self.runs[i], slot - self.starts[i]);
        slot + run.block - index % run.block
    }

    /// How many positions lie before `x`: the slot of the first one at or after it.
    pub fn count_before(&self, x: i64) -> u64 {
        match self.runs.partition_point(|r| (r.first as i64) < x) {
            0 => 0,
            i => self.starts[i - 1] + self.runs[i - 1].count_before(x),
        }
    }

    /// The slot of `position`, if the set holds it.
    pub fn slot_of(&self, position: u64) -> Option<u64> {
        let slot = self.count_before(position as i64);
        (slot < self.len && self.position(slot) == position).then_some(slot)
    }

    /// The positions in slots `[from, to)`.
    pub fn slice(&self, from: u64, to: u64) -> Self {
        let mut runs = Vec::new();
        let first = self.starts.partition_point(|&s| s <= from).max(1) - 1;
        for (run, &start) in self.runs.iter().zip(&self.starts).skip(first) {
            if start >= to {
                break;
            }
            run.slice(from.max(start) - start, (to - start).min(run.len()), &mut runs);
        }
        Self::new(runs)
    }

    /// All positions in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().flat_map(|r| (0..r.len()).map(|i| r.at(i)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn progression() -> impl Strategy<Value = Progression> {
        (0u64..20, 1u64..5, 0u64..6, 1u64..6).prop_map(|(f, b, gap, n)| Progression::new(f, b, b + gap, n))
    }

    proptest! {
        #[test]
        fn lookups_agree_with_the_list(p in progression(), q in progression(), a in 0u64..30, b in 0u64..30) {
            let second = Progression { first: p.last() + 1 + q.first, ..q };
            let set = TokenSet::new([p, second]);
            let list: Vec<u64> = set.iter().collect();
            prop_assert_eq!(list.len() as u64, set.len());
            prop_assert!(list.windows(2).all(|w| w[0] < w[1]));
            for (slot, &x) in list.iter().enumerate() {
                prop_assert_eq!(set.position(slot as u64), x);
                prop_assert_eq!(set.slot_of(x), Some(slot as u64));
                let last = set.consecutive_until(slot as u64) as usize;
                prop_assert!(slot < last && list[slot..last].windows(2).all(|w| w[0] + 1 == w[1]));
            }
            for x in 0..list[list.len() - 1] + 3 {
                prop_assert_eq!(set.count_before(x as i64), list.iter().filter(|&&y| y < x).count() as u64);
            }
            let (a, b) = (a.min(set.len()), b.min(set.len()));
            let slice: Vec<u64> = set.slice(a, b).iter().collect();
            prop_assert_eq!(&slice[..], if a < b { &list[a as usize..b as usize] } else { &[] });
        }
    }
}
