use std::fmt;

/// What a token attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Every token.
    Full,
    /// Itself and what is before it.
    Causal,
    /// Itself and the `n - 1` tokens before it.
    Window(usize),
    /// What is before it in its own document; the documents have unequal lengths.
    Documents,
    /// Its own document, before and after it.
    WholeDocuments,
    /// As causal, but the tokens of the third sixth of the sequence attend nothing.
    Gap,
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.pad("full"),
            Self::Causal => f.pad("causal"),
            Self::Window(width) => f.pad(&format!("window{width}")),
            Self::Documents => f.pad("documents"),
            Self::WholeDocuments => f.pad("whole-documents"),
            Self::Gap => f.pad("gap"),
        }
    }
}

impl Mask {
    /// Bounds of the attended positions of each of `len` tokens.
    pub fn intervals(self, len: usize) -> (Vec<i32>, Vec<i32>) {
        (0..len)
            .map(|token| {
                let (start, end) = document(token, len);
                match self {
                    Self::Full => (0, position(len) - 1),
                    Self::Window(width) => (position((token + 1).saturating_sub(width)), position(token)),
                    Self::Documents => (position(start), position(token)),
                    Self::WholeDocuments => (position(start), position(end) - 1),
                    Self::Gap if (len / 3..len / 2).contains(&token) => (1, 0),
                    Self::Causal | Self::Gap => (0, position(token)),
                }
            })
            .unzip()
    }

    /// Pairs of a query and a key that it attends, of one head.
    pub fn pairs(self, len: usize) -> u64 {
        let (lo, hi) = self.intervals(len);
        lo.iter().zip(&hi).map(|(&lo, &hi)| u64::from((hi - lo + 1).max(0).unsigned_abs())).sum()
    }
}

/// Start and end of a token's document: cuts at 2/15, 1/3, 6/15 and 11/15 of the sequence.
fn document(token: usize, len: usize) -> (usize, usize) {
    let cuts = [0, 2 * len / 15, len / 3, 6 * len / 15, 11 * len / 15, len];
    let next = cuts.partition_point(|&cut| cut <= token).clamp(1, cuts.len() - 1);
    (cuts[next - 1], cuts[next])
}

fn position(token: usize) -> i32 {
    i32::try_from(token).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_by_hand() {
        let of = |mask: Mask, token: usize| {
            let (lo, hi) = mask.intervals(15);
            (lo[token], hi[token])
        };
        assert_eq!(of(Mask::Full, 3), (0, 14));
        assert_eq!(of(Mask::Causal, 3), (0, 3));
        assert_eq!(of(Mask::Window(2), 3), (2, 3));
        // Documents [0, 2), [2, 5), [5, 6), [6, 11), [11, 15).
        assert_eq!(of(Mask::Documents, 4), (2, 4));
        assert_eq!(of(Mask::WholeDocuments, 2), (2, 4));
        assert_eq!(of(Mask::WholeDocuments, 14), (11, 14));
        assert_eq!(of(Mask::Gap, 5), (1, 0));
        assert_eq!(of(Mask::Gap, 7), (0, 7));
    }

    #[test]
    fn pairs_by_closed_form() {
        assert_eq!(Mask::Full.pairs(100), 100 * 100);
        assert_eq!(Mask::Causal.pairs(100), 100 * 101 / 2);
        assert_eq!(Mask::Window(10).pairs(100), 10 * 11 / 2 + 90 * 10);
    }
}
