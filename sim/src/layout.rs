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
    /// Each document is cut into 2R chunks for R = P/U rings' worth of groups; group g holds chunks g and 2R-1-g, one
    /// behind the other, and its U members equal consecutive parts of that (USP, arXiv 2405.07719).
    Grouped {
        /// Members of a group, U; it must divide P.
        members: u32,
        /// Whether a group's ranks are R apart instead of neighbours.
        across: bool,
    },
}

impl fmt::Display for LayoutKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contiguous => write!(f, "contiguous"),
            Self::Zigzag => write!(f, "zigzag"),
            Self::Striped { block } => write!(f, "striped:{block}"),
            Self::Grouped { members, across: false } => write!(f, "grouped:{members}"),
            Self::Grouped { members, across: true } => write!(f, "grouped:{members}:across"),
        }
    }
}

impl LayoutKind {
    /// Whether every document is dealt out by itself.
    fn by_document(self) -> bool {
        matches!(self, Self::Zigzag | Self::Grouped { .. })
    }

    /// What the sequence (for zigzag and groups: every document) must be a multiple of on `ranks` ranks.
    pub fn multiple(self, ranks: u32) -> u64 {
        let p = u64::from(ranks);
        match self {
            Self::Contiguous => p,
            Self::Zigzag => 2 * p,
            Self::Striped { block } => p.saturating_mul(block),
            Self::Grouped { members, .. } => p * if members.is_multiple_of(2) { 1 } else { 2 },
        }
    }

    /// Documents of these lengths, padded so that the layout fits: every document where each is dealt out by itself,
    /// else the last one.
    pub fn pad(self, lens: &[u64], ranks: u32) -> Documents {
        let multiple = self.multiple(ranks);
        if self.by_document() {
            Documents::padded(lens, multiple)
        } else {
            Documents::padded_at_end(lens, multiple)
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
    /// Groups that do not use up the ranks.
    #[error("{ranks} ranks cannot be divided into groups of {members}")]
    Groups {
        /// Ranks asked for.
        ranks: u32,
        /// Members of a group.
        members: u32,
    },
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
        if let LayoutKind::Grouped { members, .. } = kind
            && (members == 0 || !ranks.is_multiple_of(members))
        {
            return Err(LayoutError::Groups { ranks, members });
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
    if kind.by_document() && documents.count() > 1 {
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
        LayoutKind::Zigzag => zigzag(r, ranks, documents, (0, 1)),
        LayoutKind::Grouped { members, across } => {
            let u = u64::from(members);
            let groups = ranks / u;
            let (group, member) = if across { (r % groups, r / groups) } else { (r / u, r % u) };
            zigzag(group, groups, documents, (member, u))
        }
    }
}

/// Chunks `i` and `2n-1-i` of the 2n chunks of every document, of which part `part.0` of `part.1`.
fn zigzag(i: u64, n: u64, documents: &Documents, part: (u64, u64)) -> TokenSet {
    TokenSet::new(documents.iter().flat_map(|d| {
        let m = d.padded / (2 * n);
        let chunks = [i, 2 * n - 1 - i].map(|chunk| Progression::contiguous(d.start + chunk * m, m));
        let both = TokenSet::new(chunks);
        both.slice(2 * m * part.0 / part.1, 2 * m * (part.0 + 1) / part.1).runs().to_vec()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> impl Strategy<Value = LayoutKind> {
        prop_oneof![
            Just(LayoutKind::Contiguous),
            Just(LayoutKind::Zigzag),
            (1u64..5).prop_map(|block| LayoutKind::Striped { block }),
            (1u32..5, any::<bool>()).prop_map(|(members, across)| LayoutKind::Grouped { members, across })
        ]
    }

    #[test]
    fn groups_are_zigzag_rings_whose_ranks_split_their_tokens() {
        let tokens = |across, r| -> Vec<u64> {
            let kind = LayoutKind::Grouped { members: 2, across };
            Layout::new(kind, 4, Documents::single(16)).unwrap().shard(r).iter().collect()
        };
        assert_eq!(
            [0, 1, 2, 3].map(|r| tokens(false, r)),
            [vec![0, 1, 2, 3], vec![12, 13, 14, 15], vec![4, 5, 6, 7], vec![8, 9, 10, 11]]
        );
        assert_eq!([0, 2, 1, 3].map(|r| tokens(true, r)), [0, 1, 2, 3].map(|r| tokens(false, r)));
        let thirds = Layout::new(LayoutKind::Grouped { members: 3, across: false }, 3, Documents::single(6));
        assert_eq!(thirds.unwrap().shard(1).iter().collect::<Vec<_>>(), [2, 3]);
    }

    proptest! {
        #[test]
        fn every_token_has_one_rank_and_slot(
            kind in kinds(), ranks in 1u32..9, lens in prop::collection::vec(1u64..40, 1..4)
        ) {
            let ranks = if let LayoutKind::Grouped { members, .. } = kind { ranks * members } else { ranks };
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
            let (from, to) = (n / 3, n);
            let owners = layout.owners(from, to);
            let owned = owners.iter().flat_map(|&(r, a, z)| (a..z).map(move |slot| (r, slot)));
            let owned: Vec<u64> = owned.map(|(r, slot)| layout.shard(r).position(slot)).collect();
            prop_assert_eq!(owned, (from..to).collect::<Vec<_>>());
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
