use std::fmt;

/// Who holds which token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One run of tokens a rank.
    Contiguous,
    /// Of `2 P` runs, rank `r` holds runs `r` and `2 P - 1 - r`.
    Zigzag,
    /// Blocks of so many tokens are dealt out in turn.
    Striped(usize),
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contiguous => f.pad("contiguous"),
            Self::Zigzag => f.pad("zigzag"),
            Self::Striped(block) => f.pad(&format!("striped{block}")),
        }
    }
}

impl Layout {
    /// Tokens of each of `ranks` ranks, rising; `len` need not divide by anything.
    pub fn tokens(self, len: usize, ranks: usize) -> Vec<Vec<usize>> {
        let owner = |token: usize| match self {
            Self::Contiguous => token * ranks / len,
            Self::Zigzag => {
                let run = token * 2 * ranks / len;
                run.min(2 * ranks - 1 - run)
            }
            Self::Striped(block) => token / block % ranks,
        };
        let mut held = vec![Vec::new(); ranks];
        for token in 0..len {
            held[owner(token)].push(token);
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_by_hand() {
        assert_eq!(Layout::Contiguous.tokens(6, 2), [vec![0, 1, 2], vec![3, 4, 5]]);
        assert_eq!(Layout::Zigzag.tokens(8, 2), [vec![0, 1, 6, 7], vec![2, 3, 4, 5]]);
        assert_eq!(Layout::Striped(1).tokens(5, 2), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(Layout::Striped(2).tokens(8, 2), [vec![0, 1, 4, 5], vec![2, 3, 6, 7]]);
    }

    #[test]
    fn every_token_has_one_owner() {
        for layout in [Layout::Contiguous, Layout::Zigzag, Layout::Striped(1), Layout::Striped(64)] {
            for ranks in [1, 2, 3, 4, 8] {
                let mut all: Vec<usize> = layout.tokens(1003, ranks).concat();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..1003), "{layout} over {ranks}");
            }
        }
    }
}
