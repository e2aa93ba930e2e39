//! Schedules and what they are called.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::heads::{Grid, grids};
use crate::layout::LayoutKind;
use crate::problem::Shape;

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
    /// Double ring (LoongTrain, arXiv 2406.18485): a zigzag ring in windows.
    DoubleRing {
        /// Ranks of a window; `None` for as many as a node has, or the largest part of them that divides the ranks.
        window: Option<u32>,
        /// Whether windows smaller than a node are visited in an order in which keys leave a node only for the same
        /// place of another.
        rail: bool,
    },
    /// Megatron's tensor and sequence parallelism, arXiv 2205.05198: heads divided, around it collectives of whole tokens.
    MegatronSp,
    /// Ring Self-Attention, arXiv 2105.13120: rings of keys and then of values, whole rows of scores in memory.
    RingSelfAttention,
    /// A ring with BurstAttention's backward, arXiv 2403.09347: queries travel instead of keys.
    Burst {
        /// Whether it is a zigzag ring.
        zigzag: bool,
    },
    /// USP (arXiv 2405.07719): Ulysses inside groups, a zigzag ring over them.
    Usp {
        /// Ranks that divide the heads, and ranks of a ring; `None` for the most that divide the heads without copies of
        /// kv heads, inside a node and leaving a ring.
        grid: Option<(u32, u32)>,
        /// Whether it is rings that are neighbours, and groups that are spread across nodes.
        across: bool,
    },
}

/// All schedules as a user names them, with the default options.
pub const ALL: [Schedule; 13] = [
    Schedule::Ring,
    Schedule::Zigzag,
    Schedule::Striped { block: 1 },
    Schedule::DistFlash,
    Schedule::AllGather { zigzag: false },
    Schedule::AllGather { zigzag: true },
    Schedule::DoubleRing { window: None, rail: false },
    Schedule::Ulysses,
    Schedule::Usp { grid: None, across: false },
    Schedule::MegatronSp,
    Schedule::Burst { zigzag: false },
    Schedule::Burst { zigzag: true },
    Schedule::RingSelfAttention,
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
            Self::DoubleRing { window, rail } => {
                write!(f, "double-ring")?;
                window.map_or(Ok(()), |w| write!(f, ":{w}"))?;
                if *rail { write!(f, ":rail") } else { Ok(()) }
            }
            Self::MegatronSp => write!(f, "megatron-sp"),
            Self::RingSelfAttention => write!(f, "ring-self-attention"),
            Self::Burst { zigzag: false } => write!(f, "ring-burst"),
            Self::Burst { zigzag: true } => write!(f, "zigzag-burst"),
            Self::Usp { grid, across } => {
                write!(f, "usp")?;
                grid.map_or(Ok(()), |(u, r)| write!(f, ":{u}x{r}"))?;
                if *across { write!(f, ":across") } else { Ok(()) }
            }
        }
    }
}

/// A schedule name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "there is no schedule {name:?}; choose from ring, zigzag, striped, striped:BLOCK, dist-flash, all-gather, \
     all-gather-zigzag, double-ring, double-ring:WINDOW, double-ring:WINDOW:rail, ulysses, usp, \
     usp:ULYSSESxRING, usp:ULYSSESxRING:across, megatron-sp, ring-burst, zigzag-burst, \
     ring-self-attention"
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
            ("double-ring", options) => double_ring(options),
            ("ring-burst", None) => Some(Self::Burst { zigzag: false }),
            ("zigzag-burst", None) => Some(Self::Burst { zigzag: true }),
            ("megatron-sp", None) => Some(Self::MegatronSp),
            ("ring-self-attention", None) => Some(Self::RingSelfAttention),
            ("usp", options) => usp(options),
            _ => None,
        };
        schedule.ok_or_else(unknown)
    }
}

fn positive<N: FromStr + PartialOrd + Default>(text: &str) -> Option<N> {
    text.parse().ok().filter(|n| *n > N::default())
}

/// `WINDOW`, `WINDOW:rail` or `rail`.
fn double_ring(options: Option<&str>) -> Option<Schedule> {
    let (window, rail) = flag(options, "rail");
    let window = window.map_or(Some(None), |w| positive(w).map(Some))?;
    Some(Schedule::DoubleRing { window, rail })
}

/// `ULYSSESxRING`, `ULYSSESxRING:across` or `across`.
fn usp(options: Option<&str>) -> Option<Schedule> {
    let (grid, across) = flag(options, "across");
    let grid = match grid {
        None => None,
        Some(grid) => {
            let (u, r) = grid.split_once('x')?;
            Some((positive(u)?, positive(r)?))
        }
    };
    Some(Schedule::Usp { grid, across })
}

/// The options before a last one that is `flag`, and whether it is there.
fn flag<'a>(options: Option<&'a str>, flag: &str) -> (Option<&'a str>, bool) {
    match options {
        Some(only) if only == flag => (None, true),
        Some(text) => match text.rsplit_once(':') {
            Some((rest, last)) if last == flag => (Some(rest), true),
            _ => (Some(text), false),
        },
        None => (None, false),
    }
}

impl Schedule {
    /// The schedule with what was left open chosen for so many ranks.
    pub fn on(self, shape: &Shape, ranks: u32, gpus_per_node: u32) -> Self {
        match self {
            Self::DoubleRing { window: None, rail } => {
                Self::DoubleRing { window: Some(common_divisor(ranks, gpus_per_node)), rail }
            }
            Self::Usp { grid: None, across } => {
                let fits =
                    |g: &Grid| g.kv_copies == 1 && g.ulysses <= gpus_per_node && (g.ring > 1 || ranks == 1);
                let best = grids(shape, ranks).into_iter().rev().find(fits);
                Self::Usp { grid: Some(best.map_or((1, ranks), |g| (g.ulysses, g.ring))), across }
            }
            _ => self,
        }
    }

    /// How the schedule deals out the sequence.
    pub fn layout(self) -> LayoutKind {
        match self {
            Self::Ring
            | Self::DistFlash
            | Self::Ulysses
            | Self::AllGather { zigzag: false }
            | Self::Burst { zigzag: false }
            | Self::MegatronSp
            | Self::RingSelfAttention => LayoutKind::Contiguous,
            Self::Zigzag
            | Self::AllGather { zigzag: true }
            | Self::Burst { zigzag: true }
            | Self::DoubleRing { .. } => LayoutKind::Zigzag,
            Self::Striped { block } => LayoutKind::Striped { block },
            Self::Usp { grid, across } => {
                LayoutKind::Grouped { members: grid.map_or(1, |(ulysses, _)| ulysses), across }
            }
        }
    }
}

fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let grids = [None, Some((2, 4))];
        let others = [false, true].into_iter().flat_map(|flag| {
            let rings = [None, Some(4)].map(|window| Schedule::DoubleRing { window, rail: flag });
            rings.into_iter().chain(grids.map(|grid| Schedule::Usp { grid, across: flag }))
        });
        for schedule in ALL.into_iter().chain(others).chain([Schedule::Striped { block: 64 }]) {
            assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
        for text in [
            "",
            "rings",
            "ring:2",
            "striped:0",
            "double-ring:0",
            "double-ring:x",
            "usp:4",
            "usp:0x2",
            "usp:2x4:up",
        ] {
            assert!(text.parse::<Schedule>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_left_open_goes_by_the_node() {
        use crate::problem::Dtype;
        let shape = Shape { heads: 32, kv_heads: 8, head_dim: 128, dtype: Dtype::Bf16, batch: 1 };
        let on =
            |text: &str, ranks, node| text.parse::<Schedule>().unwrap().on(&shape, ranks, node).to_string();
        assert_eq!(on("double-ring", 64, 8), "double-ring:8");
        assert_eq!(on("double-ring:rail", 12, 8), "double-ring:4:rail");
        assert_eq!(on("usp", 8, 8), "usp:4x2");
        assert_eq!(on("usp:across", 128, 8), "usp:8x16:across");
        assert_eq!(on("usp", 7, 8), "usp:1x7");
        assert_eq!(on("usp", 1, 8), "usp:1x1");
    }
}
