//! Schedules and what they are called.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::layout::LayoutKind;

/// Which algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Schedule {
    /// Ring Attention, arXiv 2310.01889: contiguous tokens, KV passed around.
    Ring,
    /// Zigzag ring: chunks r and 2P-1-r (ring-flash-attention, Llama 3's layout).
    Zigzag,
    /// Striped Attention, arXiv 2311.09431, with stripes of `block` tokens; the paper's is 1.
    Striped {
        /// Tokens in a stripe.
        block: u64,
    },
    /// DistFlashAttn, arXiv 2310.03294: contiguous tokens, idle ranks help.
    DistFlash,
    /// DeepSpeed-Ulysses, arXiv 2309.14509: all tokens and a share of the heads, by all-to-all.
    Ulysses,
    /// All-gather of keys and values, then one call over all of them.
    AllGather {
        /// Llama 3's, arXiv 2407.21783: a call for each of a rank's two zigzag chunks. Else contiguous.
        zigzag: bool,
    },
}

/// All schedules as a user names them, with the default options.
pub const ALL: [Schedule; 7] = [
    Schedule::Ring,
    Schedule::Zigzag,
    Schedule::Striped { block: 1 },
    Schedule::DistFlash,
    Schedule::AllGather { zigzag: false },
    Schedule::AllGather { zigzag: true },
    Schedule::Ulysses,
];

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring => write!(f, "ring"),
            Self::Zigzag => write!(f, "zigzag"),
            Self::Striped { block: 1 } => write!(f, "striped"),
            Self::Striped { block } => write!(f, "striped:{block}"),
            Self::DistFlash => write!(f, "dist-flash"),
            Self::Ulysses => write!(f, "ulysses"),
            Self::AllGather { zigzag: false } => write!(f, "all-gather"),
            Self::AllGather { zigzag: true } => write!(f, "all-gather-zigzag"),
        }
    }
}

/// A schedule name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "there is no schedule {name:?}; choose from ring, zigzag, striped, striped:BLOCK, dist-flash, all-gather, \
     all-gather-zigzag, ulysses"
)]
pub struct UnknownSchedule {
    /// What was written.
    pub name: String,
}

impl FromStr for Schedule {
    type Err = UnknownSchedule;

    fn from_str(text: &str) -> Result<Self, UnknownSchedule> {
        let unknown = || UnknownSchedule { name: text.to_owned() };
        let (name, options) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let schedule = match (name, options) {
            ("ring", None) => Some(Self::Ring),
            ("zigzag", None) => Some(Self::Zigzag),
            ("striped", None) => Some(Self::Striped { block: 1 }),
            ("striped", Some(block)) => positive(block).map(|block| Self::Striped { block }),
            ("dist-flash", None) => Some(Self::DistFlash),
            ("ulysses", None) => Some(Self::Ulysses),
            ("all-gather", None) => Some(Self::AllGather { zigzag: false }),
            ("all-gather-zigzag", None) => Some(Self::AllGather { zigzag: true }),
            _ => None,
        };
        schedule.ok_or_else(unknown)
    }
}

fn positive(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&n| n > 0)
}

impl Schedule {
    /// How the schedule deals out the sequence.
    pub fn layout(self) -> LayoutKind {
        match self {
            Self::Ring | Self::DistFlash | Self::Ulysses | Self::AllGather { zigzag: false } => {
                LayoutKind::Contiguous
            }
            Self::Zigzag | Self::AllGather { zigzag: true } => LayoutKind::Zigzag,
            Self::Striped { block } => LayoutKind::Striped { block },
        }
    }
}
