//! Which of the Hopper forwards for a head dimension answers a launch.

use crate::abi::TileRange;
use crate::spec::HeadDim;

/// What a forward launch is judged by: its keys, and how many of its tiles a mask leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Visits {
    /// Keys of all segments.
    pub keys: usize,
    /// Tiles of [`Visits::TILE`] queries and keys that are visited.
    pub visited: usize,
    /// All tiles of that size.
    pub all: usize,
}

impl Visits {
    /// Queries and keys of the tiles that are counted, whatever the kernel's own are.
    pub const TILE: usize = 128;

    /// Adds a segment of `keys` keys, of which each tile of queries visits one of `ranges`.
    pub fn add(&mut self, keys: usize, ranges: &[TileRange]) {
        self.keys += keys;
        self.visited += ranges.iter().map(|range| (range.last - range.first) as usize).sum::<usize>();
        self.all += ranges.len() * keys.div_ceil(Self::TILE);
    }

    /// Whether this share of the tiles, as numerator and denominator, or more, is visited.
    fn reaches(&self, (numerator, denominator): (usize, usize)) -> bool {
        self.visited * denominator >= self.all * numerator
    }
}

/// The shapes of tiles that a forward comes in; a target that has one shape uses it for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ForwardTiles {
    /// What most launches take: 128 x 128 at D = 128, 192 x 128 at D = 64.
    General,
    /// D = 128, 128 x 176: amortises what a tile costs, where little of the score matrix is masked or the sequence is long.
    Wide,
    /// D = 64, 256 x 64: four warpgroups, and tiles that divide a short sequence.
    Short,
    /// D = 64, 128 x 128: wastes least along the diagonal of a short sequence.
    ShortMasked,
}

impl ForwardTiles {
    /// Every shape.
    pub const ALL: [Self; 4] = [Self::General, Self::Wide, Self::Short, Self::ShortMasked];
    /// At D = 128, launches over at least so many keys are wide.
    pub const WIDE_MIN_KEYS: usize = 32 << 10;
    /// Launches with this share of their tiles visited, or more, are wide as well, as numerator and denominator...
    pub const WIDE_VISITED: (usize, usize) = (9, 10);
    /// ...if they have more keys than this: the last tile of 176 would be mostly padding.
    pub const WIDE_ABOVE_KEYS: usize = 2 << 10;
    /// At D = 64, launches over at most so many keys are short.
    pub const SHORT_MAX_KEYS: usize = 1 << 10;
    /// Of them, those with less than this share of their tiles visited are masked ones.
    pub const SHORT_VISITED: (usize, usize) = (3, 4);

    /// For a launch on heads of `head_dim`.
    pub fn choose(head_dim: HeadDim, visits: Visits) -> Self {
        match head_dim {
            HeadDim::D64 if visits.keys > Self::SHORT_MAX_KEYS => Self::General,
            HeadDim::D64 if visits.reaches(Self::SHORT_VISITED) => Self::Short,
            HeadDim::D64 => Self::ShortMasked,
            HeadDim::D128 => {
                let is_dense = visits.keys > Self::WIDE_ABOVE_KEYS && visits.reaches(Self::WIDE_VISITED);
                if visits.keys >= Self::WIDE_MIN_KEYS || is_dense { Self::Wide } else { Self::General }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_launches_for_heads_of_64_have_shapes_of_their_own() {
        let choose = |keys, visited| ForwardTiles::choose(HeadDim::D64, Visits { keys, visited, all: 100 });
        assert_eq!(choose(1024, 100), ForwardTiles::Short);
        assert_eq!(choose(1024, 75), ForwardTiles::Short);
        assert_eq!(choose(1024, 74), ForwardTiles::ShortMasked);
        assert_eq!(choose(1, 74), ForwardTiles::ShortMasked);
        assert_eq!([choose(1025, 100), choose(1025, 0), choose(1 << 20, 100)], [ForwardTiles::General; 3]);
    }

    #[test]
    fn long_and_dense_launches_for_heads_of_128_are_wide() {
        let choose = |keys, visited| ForwardTiles::choose(HeadDim::D128, Visits { keys, visited, all: 100 });
        assert_eq!([choose(1024, 0), choose(2048, 100), choose(2049, 89)], [ForwardTiles::General; 3]);
        assert_eq!([choose(2049, 90), choose(32768, 0)], [ForwardTiles::Wide; 2]);
    }

    #[test]
    fn segments_are_counted_together() {
        let range = |first, last| TileRange { first, last, ..TileRange::default() };
        let mut visits = Visits::default();
        visits.add(200, &[range(0, 1), range(0, 2)]);
        visits.add(100, &[range(0, 0), range(0, 1)]);
        // Two tiles of queries, two tiles of 200 keys and one of 100.
        assert_eq!(visits, Visits { keys: 300, visited: 4, all: 6 });
    }
}
