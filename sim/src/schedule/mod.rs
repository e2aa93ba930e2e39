//! Schedules: each builds the plan of one published algorithm. A new schedule is one file here and one line in
//! [`Schedule`].

mod all_gather;
mod burst;
mod collective;
mod dist_flash;
mod double_ring;
mod heads;
mod kv_ring;
mod megatron_sp;
mod name;
mod ring;
mod ring_backward;
mod ring_forward;
mod ring_self_attention;
mod saved;
mod step;
mod striped;
mod tour;
mod ulysses;
mod unused;
mod usp;
mod zigzag;

pub use heads::{Grid, grids, kv_copies};
pub use name::{ALL, Schedule, UnknownSchedule};
use thiserror::Error;

use crate::layout::{Layout, LayoutError};
use crate::mask::{Documents, Pattern};
use crate::plan::builder::PlanBuilder;
use crate::plan::{Partials, Plan, Transport};
use crate::problem::{Pass, Problem, Shape, ShapeError};

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
    /// GPUs a node, `>= 1`: what windows and head groups go by.
    pub gpus_per_node: u32,
    /// What partial results and gradients are while they travel.
    pub partials: Partials,
    /// Pad a sequence that the layout does not divide, instead of refusing it.
    pub pad: bool,
}

impl Options {
    /// Double-buffered neighbour ring over copy engines, everything sent, partial results in fp32, nodes of 8 GPUs, nothing
    /// padded.
    pub fn new(pass: Pass) -> Self {
        Self {
            pass,
            transport: Transport::CopyEngine,
            route: Route::Neighbour,
            chunks: 1,
            prefetch: 1,
            needed_only: false,
            gpus_per_node: 8,
            partials: Partials::Fp32,
            pad: false,
        }
    }

    /// A plan in the making.
    fn builder(&self, name: String, problem: &Problem, layout: Layout) -> PlanBuilder {
        PlanBuilder::new(name, self.pass, problem, layout, self.transport).travelling(self.partials)
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
    /// Heads that cannot be shared out among so many ranks.
    #[error("{}", heads_message(*schedule, shape, *degree, *ranks))]
    Heads {
        /// The schedule.
        schedule: Schedule,
        /// Heads and sizes.
        shape: Shape,
        /// Ranks that would divide the heads.
        degree: u32,
        /// All ranks.
        ranks: u32,
    },
    /// Fewer heads than ranks that divide them.
    #[error("{schedule} gives every rank a head; {heads} heads serve at most {heads} ranks, not {ranks}")]
    FewHeads {
        /// The schedule.
        schedule: Schedule,
        /// Query heads.
        heads: u32,
        /// All ranks.
        ranks: u32,
    },
    /// A window that does not divide the ranks.
    #[error("windows of {window} ranks do not divide {ranks} ranks; windows that do: {}", divisors(*ranks))]
    Window {
        /// Ranks of a window.
        window: u32,
        /// All ranks.
        ranks: u32,
    },
    /// A grid of another number of ranks.
    #[error("a grid of {ulysses} x {ring} ranks is for {}, not for {ranks}", ulysses * ring)]
    Grid {
        /// Ranks that divide the heads.
        ulysses: u32,
        /// Ranks that divide the tokens.
        ring: u32,
        /// All ranks.
        ranks: u32,
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

fn heads_message(schedule: Schedule, shape: &Shape, degree: u32, ranks: u32) -> String {
    let Shape { heads, kv_heads, .. } = *shape;
    let legal = grids(shape, ranks).into_iter().map(|g| {
        let copies = if g.kv_copies > 1 {
            format!(" ({} copies of each kv head)", g.kv_copies)
        } else {
            String::new()
        };
        format!("{} x {}{copies}", g.ulysses, g.ring)
    });
    format!(
        "{schedule} cannot share {heads} query heads on {kv_heads} kv heads out among {degree} ranks: their number must \
         divide {heads}, and divide {kv_heads} or be a multiple of it; (ulysses x ring) grids of {ranks} ranks that \
         can: {}",
        legal.collect::<Vec<_>>().join(", ")
    )
}

fn divisors(n: u32) -> String {
    let all = (1..=n).filter(|d| n.is_multiple_of(*d)).map(|d| d.to_string());
    all.collect::<Vec<_>>().join(", ")
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
    let schedule = schedule.on(&problem.shape, ranks, options.gpus_per_node);
    check_ranks(schedule, ranks)?;
    check_heads(schedule, &problem.shape, ranks)?;
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
        Schedule::Ulysses => Ok(ulysses::build(problem, layout, options)),
        Schedule::DoubleRing { window, rail } => {
            let window = window.unwrap_or(ranks);
            Ok(double_ring::build(problem, layout, options, (schedule, window, rail)))
        }
        Schedule::Usp { across, .. } => Ok(usp::build(problem, layout, options, (schedule, across))),
        Schedule::Burst { zigzag } => Ok(burst::build(problem, layout, options, zigzag)),
        Schedule::MegatronSp => Ok(megatron_sp::build(problem, layout, options)),
        Schedule::RingSelfAttention => Ok(ring_self_attention::build(problem, layout, options)),
        Schedule::AllGather { .. } => Ok(all_gather::build(schedule, problem, layout, options)),
    }
}

/// Whether windows and grids fit the number of ranks.
fn check_ranks(schedule: Schedule, ranks: u32) -> Result<(), BuildError> {
    match schedule {
        Schedule::DoubleRing { window: Some(window), .. } if window == 0 || !ranks.is_multiple_of(window) => {
            Err(BuildError::Window { window, ranks })
        }
        Schedule::Usp { grid: Some((ulysses, ring)), .. } if ulysses.saturating_mul(ring) != ranks => {
            Err(BuildError::Grid { ulysses, ring, ranks })
        }
        _ => Ok(()),
    }
}

/// Whether the heads can be shared out among the ranks that divide them.
fn check_heads(schedule: Schedule, shape: &Shape, ranks: u32) -> Result<(), BuildError> {
    let degree = match schedule {
        Schedule::MegatronSp if shape.heads < ranks => {
            return Err(BuildError::FewHeads { schedule, heads: shape.heads, ranks });
        }
        Schedule::Ulysses => ranks,
        Schedule::Usp { grid: Some((ulysses, _)), .. } => ulysses,
        _ => return Ok(()),
    };
    if ranks > 0 && kv_copies(shape, degree).is_none() {
        return Err(BuildError::Heads { schedule, shape: *shape, degree, ranks });
    }
    Ok(())
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
