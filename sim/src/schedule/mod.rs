//! Schedules: each builds the plan of one published algorithm. A new schedule is one file here and one line in
//! [`Schedule`].

mod dist_flash;
mod kv_ring;
mod ring;
mod ring_backward;
mod ring_forward;
mod step;
mod striped;
mod zigzag;

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::layout::{Layout, LayoutError, LayoutKind};
use crate::mask::{Documents, Pattern};
use crate::plan::{Plan, Transport};
use crate::problem::{Pass, Problem, ShapeError};

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
}

/// All schedules as a user names them, with the default options.
pub const ALL: [Schedule; 4] =
    [Schedule::Ring, Schedule::Zigzag, Schedule::Striped { block: 1 }, Schedule::DistFlash];

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring => write!(f, "ring"),
            Self::Zigzag => write!(f, "zigzag"),
            Self::Striped { block: 1 } => write!(f, "striped"),
            Self::Striped { block } => write!(f, "striped:{block}"),
            Self::DistFlash => write!(f, "dist-flash"),
        }
    }
}

/// A schedule name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no schedule {name:?}; choose from ring, zigzag, striped, striped:BLOCK, dist-flash")]
pub struct UnknownSchedule {
    /// What was written.
    pub name: String,
}

impl FromStr for Schedule {
    type Err = UnknownSchedule;

    fn from_str(text: &str) -> Result<Self, UnknownSchedule> {
        let unknown = || UnknownSchedule { name: text.to_owned() };
        match text.split_once(':') {
            None => match text {
                "ring" => Ok(Self::Ring),
                "zigzag" => Ok(Self::Zigzag),
                "striped" => Ok(Self::Striped { block: 1 }),
                "dist-flash" => Ok(Self::DistFlash),
                _ => Err(unknown()),
            },
            Some(("striped", block)) => {
                let block = block.parse().ok().filter(|&b| b > 0).ok_or_else(unknown)?;
                Ok(Self::Striped { block })
            }
            Some(_) => Err(unknown()),
        }
    }
}

impl Schedule {
    /// How the schedule deals out the sequence.
    pub fn layout(self) -> LayoutKind {
        match self {
            Self::Ring | Self::DistFlash => LayoutKind::Contiguous,
            Self::Zigzag => LayoutKind::Zigzag,
            Self::Striped { block } => LayoutKind::Striped { block },
        }
    }
}

/// From whom a rank gets another rank's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// From its neighbour, hop by hop around the ring.
    Neighbour,
    /// From the owner.
    Direct,
}

/// Options that every schedule understands; one that has no effect is noted in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Options {
    /// Forward or backward.
    pub pass: Pass,
    /// How messages travel.
    pub transport: Transport,
    /// From whom keys and values come.
    pub route: Route,
    /// Messages a transfer is cut into, `>= 1`.
    pub chunks: u32,
    /// Steps that transfers may run ahead of computing; 0 does not overlap at all, 1 is double buffering.
    pub prefetch: u32,
    /// Only send keys and values that some later rank's mask needs.
    pub needed_only: bool,
    /// Pad a sequence that the layout does not divide, instead of refusing it.
    pub pad: bool,
}

impl Options {
    /// Double-buffered neighbour ring over copy engines, everything sent, nothing padded.
    pub fn new(pass: Pass) -> Self {
        Self {
            pass,
            transport: Transport::CopyEngine,
            route: Route::Neighbour,
            chunks: 1,
            prefetch: 1,
            needed_only: false,
            pad: false,
        }
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BuildError {
    /// The sequence cannot be dealt out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The heads do not fit each other.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A mask that the schedule does not cover.
    #[error("{schedule} is defined for causal masks only, not for {pattern}; use ring, zigzag or striped")]
    Mask {
        /// The schedule.
        schedule: Schedule,
        /// The mask.
        pattern: Pattern,
    },
    /// Transfers cut into nothing, or into more parts than there are tokens.
    #[error("transfers of {tokens} tokens cannot be cut into {chunks} chunks; use 1 to {tokens}")]
    Chunks {
        /// Chunks asked for.
        chunks: u32,
        /// Tokens in a transfer.
        tokens: u64,
    },
    /// A plan that would not fit in memory.
    #[error(
        "{ranks} ranks with {chunks} chunks a step make about {transfers} transfers, more than the {limit} that a plan \
         may have; use fewer ranks or chunks"
    )]
    TooLarge {
        /// Ranks asked for.
        ranks: u32,
        /// Chunks asked for.
        chunks: u32,
        /// P * P * chunks.
        transfers: u64,
        /// The most that are planned.
        limit: u64,
    },
    /// A plan that needs more buffers on a rank than can be numbered.
    #[error(
        "{chunks} chunks with a prefetch of {prefetch} steps need more than {limit} buffers a rank; use fewer"
    )]
    Buffers {
        /// Chunks asked for.
        chunks: u32,
        /// Prefetch asked for.
        prefetch: u32,
        /// The most that fit.
        limit: u64,
    },
}

const BUFFER_LIMIT: u64 = 30_000;
/// A plan of this size takes about a gigabyte.
const TRANSFER_LIMIT: u64 = 8_000_000;

/// Builds the plan of `schedule` for `problem` on `ranks` ranks.
///
/// # Errors
/// [`BuildError`] if the sequence, the heads, the mask or the options do not fit the schedule.
pub fn build(
    schedule: Schedule,
    problem: &Problem,
    ranks: u32,
    options: &Options,
) -> Result<Plan, BuildError> {
    problem.shape.validate()?;
    let kind = schedule.layout();
    let documents = if options.pad && ranks > 0 && kind.multiple(ranks) > 0 {
        kind.pad(&problem.documents, ranks)
    } else {
        Documents::padded(&problem.documents, 1)
    };
    let layout = Layout::new(kind, ranks, documents)?;
    check_options(&layout, options)?;
    match schedule {
        Schedule::Ring => Ok(ring::build(problem, layout, options)),
        Schedule::Zigzag => Ok(zigzag::build(problem, layout, options)),
        Schedule::Striped { .. } => Ok(striped::build(schedule, problem, layout, options)),
        Schedule::DistFlash if problem.pattern == Pattern::Full => {
            Err(BuildError::Mask { schedule, pattern: problem.pattern })
        }
        Schedule::DistFlash => Ok(dist_flash::build(problem, layout, options)),
    }
}

fn check_options(layout: &Layout, options: &Options) -> Result<(), BuildError> {
    let (chunks, prefetch, tokens) = (options.chunks, options.prefetch, layout.tokens_per_rank());
    if chunks == 0 || u64::from(chunks) > tokens {
        return Err(BuildError::Chunks { chunks, tokens });
    }
    let depth = u64::from(prefetch.min(layout.ranks())) + 1;
    let transfers = u64::from(layout.ranks()).pow(2).saturating_mul(u64::from(chunks));
    if transfers > TRANSFER_LIMIT {
        return Err(BuildError::TooLarge { ranks: layout.ranks(), chunks, transfers, limit: TRANSFER_LIMIT });
    }
    if depth.saturating_mul(u64::from(chunks)) * 2 > BUFFER_LIMIT {
        return Err(BuildError::Buffers { chunks, prefetch, limit: BUFFER_LIMIT });
    }
    Ok(())
}
