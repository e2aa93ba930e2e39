//! Which rank holds which tokens, and in which slot: contiguous, zigzag and striped layouts of one (packed) sequence.

use std::fmt;

use serde::Serialize;
use thiserror::Error;

use crate::mask::Documents;
use crate::tokens::{Progression, TokenSet};

/// How the sequence is dealt out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayoutKind {
    /// Rank r holds tokens `[r c, (r+1) c)` (Ring Attention, DistFlashAttn).
    Contiguous,
    /// Each document is cut into 2P chunks; rank r holds chunks r and 2P-1-r (Llama 3, ring-flash-attention).
    Zigzag,
    /// Blocks of `block` tokens are dealt out in turn; `block` 1 is Striped Attention, arXiv 2311.09431.
    Striped {
        /// Tokens in a stripe.
        block: u64,
    },
}

impl fmt::Display for LayoutKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contiguous => write!(f, "contiguous"),
            Self::Zigzag => write!(f, "zigzag"),
            Self::Striped { block } => write!(f, "striped:{block}"),
        }
    }
}

impl LayoutKind {
    /// What the sequence (for zigzag: every document) must be a multiple of on `ranks` ranks.
    pub fn multiple(self, ranks: u32) -> u64 {
        let p = u64::from(ranks);
        match self {
            Self::Contiguous => p,
            Self::Zigzag => 2 * p,
            Self::Striped { block } => p.saturating_mul(block),
        }
    }

    /// Documents of these lengths, padded so that the layout fits: every document for zigzag, the last one otherwise.
    pub fn pad(self, lens: &[u64], ranks: u32) -> Documents {
        let multiple = self.multiple(ranks);
        match self {
            Self::Zigzag => Documents::padded(lens, multiple),
            _ => Documents::padded_at_end(lens, multiple),
        }
    }
}

/// Why a sequence cannot be laid out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// No rank.
    #[error("a layout needs at least one rank")]
    NoRanks,
    /// A stripe of no tokens.
    #[error("a stripe needs at least one token")]
    EmptyStripe,
    /// No token at all.
    #[error("the sequence is empty")]
    EmptySequence,
    /// More ranks than tokens.
    #[error("{ranks} ranks cannot share {tokens} tokens; use at most {tokens} ranks")]
    MoreRanksThanTokens {
        /// Ranks asked for.
        ranks: u32,
        /// Tokens there are.
        tokens: u64,
    },
    /// A length that the layout cannot deal out evenly.
    #[error(
        "{what} has {tokens} tokens, which the {layout} layout on {ranks} ranks needs as a multiple of {multiple}; \
         nearest that fit: {}{above}", if *.below > 0 { format!("{below} or ") } else { String::new() }
    )]
    NotDivisible {
        /// "the sequence" or "document i".
        what: String,
        /// Its length.
        tokens: u64,
        /// The layout asked for.
        layout: LayoutKind,
        /// Ranks asked for.
        ranks: u32,
        /// The length must be a multiple of this.
        multiple: u64,
        /// Nearest length below that fits, 0 if none.
        below: u64,
        /// Nearest length above that fits.
        above: u64,
    },
}

/// A sequence dealt out over ranks. Within a rank slots are in order of position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    kind: LayoutKind,
    documents: Documents,
    shards: Vec<TokenSet>,
}

impl Layout {
    /// Deals `documents` out over `ranks` ranks.
    ///
    /// # Errors
    /// [`LayoutError`] with the nearest lengths that fit, if a length is not divisible.
    pub fn new(kind: LayoutKind, ranks: u32, documents: Documents) -> Result<Self, LayoutError> {
        let tokens = documents.tokens();
        if ranks == 0 {
            return Err(LayoutError::NoRanks);
        }
        if kind == (LayoutKind::Striped { block: 0 }) {
            return Err(LayoutError::EmptyStripe);
        }
        if tokens == 0 {
            return Err(LayoutError::EmptySequence);
        }
        if u64::from(ranks) > tokens {
            return Err(LayoutError::MoreRanksThanTokens { ranks, tokens });
        }
        check_divisible(kind, ranks, &documents)?;
        let shards = (0..u64::from(ranks)).map(|r| shard(kind, r, u64::from(ranks), &documents)).collect();
        Ok(Self { kind, documents, shards })
    }

    /// How the sequence is dealt out.
    pub fn kind(&self) -> LayoutKind {
        self.kind
    }

    /// Number of ranks P.
    pub fn ranks(&self) -> u32 {
        self.shards.len() as u32
    }

    /// The packed documents, with their padding.
    pub fn documents(&self) -> &Documents {
        &self.documents
    }

    /// The tokens of `rank`, by slot.
    pub fn shard(&self, rank: u32) -> &TokenSet {
        &self.shards[rank as usize]
    }

    /// Tokens that each rank holds, c.
    pub fn tokens_per_rank(&self) -> u64 {
        self.documents.tokens() / u64::from(self.ranks())
    }

    /// Rank and slot of the token at `position`.
    pub fn locate(&self, position: u64) -> Option<(u32, u64)> {
        (0..self.ranks()).find_map(|r| self.shard(r).slot_of(position).map(|slot| (r, slot)))
    }

    /// Who holds the tokens at positions `[from, to)`, in order of position: (rank, first slot, one past the last slot).
    pub fn owners(&self, from: u64, to: u64) -> Vec<(u32, u64, u64)> {
        let mut found = Vec::new();
        for (rank, shard) in (0..).zip(&self.shards) {
            let (mut slot, end) = (shard.count_before(from as i64), shard.count_before(to as i64));
            while slot < end {
                let last = shard.consecutive_until(slot).min(end);
                found.push((shard.position(slot), (rank, slot, last)));
                slot = last;
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, owner)| owner).collect()
    }

    /// The RoPE position of a token: its index inside its document. Padding counts on.
    pub fn rope_position(&self, position: u64) -> Option<u64> {
        self.documents.at(position).map(|(_, d)| position - d.start)
    }

    /// The position of the token to predict from `position`: the next one of the same document. `None` at a document's
    /// last token and on padding.
    pub fn label(&self, position: u64) -> Option<u64> {
        let (_, d) = self.documents.at(position)?;
        (position + 1 < d.start + d.len).then_some(position + 1)
    }
}

fn check_divisible(kind: LayoutKind, ranks: u32, documents: &Documents) -> Result<(), LayoutError> {
    let multiple = kind.multiple(ranks);
    let check = |what: String, tokens: u64| {
        let (below, above) = (tokens / multiple * multiple, tokens.next_multiple_of(multiple));
        if tokens == above {
            return Ok(());
        }
        Err(LayoutError::NotDivisible { what, tokens, layout: kind, ranks, multiple, below, above })
    };
    if kind == LayoutKind::Zigzag && documents.count() > 1 {
        return documents.iter().enumerate().try_for_each(|(i, d)| check(format!("document {i}"), d.padded));
    }
    check("the sequence".into(), documents.tokens())
}

fn shard(kind: LayoutKind, r: u64, ranks: u64, documents: &Documents) -> TokenSet {
    let tokens = documents.tokens();
    let c = tokens / ranks;
    match kind {
        LayoutKind::Contiguous => TokenSet::new([Progression::contiguous(r * c, c)]),
        LayoutKind::Striped { block } => {
            TokenSet::new([Progression::new(r * block, block, ranks * block, c / block)])
        }
        LayoutKind::Zigzag => TokenSet::new(documents.iter().flat_map(|d| {
            let m = d.padded / (2 * ranks);
            [r, 2 * ranks - 1 - r].map(|chunk| Progression::contiguous(d.start + chunk * m, m))
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> impl Strategy<Value = LayoutKind> {
        prop_oneof![
            Just(LayoutKind::Contiguous),
            Just(LayoutKind::Zigzag),
            (1u64..5).prop_map(|block| LayoutKind::Striped { block })
        ]
    }

    proptest! {
        #[test]
        fn every_token_has_one_rank_and_slot(
            kind in kinds(), ranks in 1u32..9, lens in prop::collection::vec(1u64..40, 1..4)
        ) {
            let docs = kind.pad(&lens, ranks);
            let layout = Layout::new(kind, ranks, docs).unwrap();
            let n = layout.documents().tokens();
            let mut seen = vec![0; n as usize];
            for r in 0..ranks {
                prop_assert_eq!(layout.shard(r).len(), layout.tokens_per_rank());
                layout.shard(r).iter().for_each(|x| seen[x as usize] += 1);
            }
            prop_assert!(seen.iter().all(|&s| s == 1));
            for x in 0..n {
                let (r, slot) = layout.locate(x).unwrap();
                prop_assert_eq!(layout.shard(r).position(slot), x);
            }
        }
    }

    #[test]
    fn packed_zigzag_deals_out_each_document() {
        let layout = Layout::new(LayoutKind::Zigzag, 2, Documents::padded(&[4, 4], 4)).unwrap();
        assert_eq!(layout.shard(0).iter().collect::<Vec<_>>(), [0, 3, 4, 7]);
        let rope: Vec<_> = layout.shard(0).iter().map(|x| layout.rope_position(x).unwrap()).collect();
        assert_eq!(rope, [0, 3, 0, 3]);
        let labels: Vec<_> = layout.shard(0).iter().map(|x| layout.label(x)).collect();
        assert_eq!(labels, [Some(1), None, Some(5), None]);
    }

    #[test]
    fn a_length_that_does_not_fit_names_the_nearest() {
        let error = Layout::new(LayoutKind::Zigzag, 2, Documents::single(7)).unwrap_err();
        assert!(error.to_string().contains("nearest that fit: 4 or 8"), "{error}");
        let error = Layout::new(LayoutKind::Contiguous, 8, Documents::single(8423)).unwrap_err();
        assert!(error.to_string().contains("nearest that fit: 8416 or 8424"), "{error}");
        let error = Layout::new(LayoutKind::Zigzag, 4, Documents::single(5)).unwrap_err();
        assert!(error.to_string().contains("nearest that fit: 8"), "{error}");
    }
}
