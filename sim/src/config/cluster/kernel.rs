//! The table of attention kernels, and the names of its columns.

use serde::Serialize;

use crate::config::field::{Keyword, text_is_name};
use crate::units::{Bytes, FlopsPerSec, SimTime};

/// What one attention kernel reaches.
///
/// A call takes `call` and the time of its work items. A work item ([`Items`]) runs on one SM and takes `prologue + epilogue` and, for each tile that is
/// not skipped, the time of a full tile at `rate / sms`, times `partial_tile_cost` when the mask cuts through the
/// tile. A tile that merely reaches past the end of the sequence costs as much as a full one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelRow {
    /// Implementation, for messages.
    pub name: String,
    /// Head dimension the kernel is built for; smaller heads are padded to it.
    pub head_dim: u32,
    /// Type of Q, K and V.
    pub dtype: Dtype,
    /// Forward or backward.
    pub pass: Pass,
    /// Query rows of a tile.
    pub tile_q: u32,
    /// Keys of a tile.
    pub tile_kv: u32,
    /// Rate of the whole device inside full tiles; a backward counts 2.5 forwards.
    pub rate: FlopsPerSec,
    /// Time of a partly masked tile over that of a full one.
    pub partial_tile_cost: f64,
    /// Time of a work item before its first tile.
    pub prologue: SimTime,
    /// Time of a work item after its last tile.
    pub epilogue: SimTime,
    /// Time of a call before its first item and after its last, whatever its size.
    #[serde(skip_serializing_if = "is_zero")]
    pub call: SimTime,
    /// What reading a state that an earlier call left adds to a work item, and what leaving one for the next adds.
    #[serde(skip_serializing_if = "is_zero")]
    pub carry: SimTime,
    /// Rate after a rest over that of sustained load, at most; the device's where it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boost: Option<f64>,
    /// Time of a call on a rank that exchanges messages with other GPUs in the run, whenever they move, over that of the same
    /// call on one that does not; the same where it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linked: Option<f64>,
    /// What a work item is.
    #[serde(skip_serializing_if = "is_default")]
    pub items: Items,
    /// How work items reach the SMs.
    pub grid: Grid,
    /// Where these figures come from.
    pub source: String,
    /// The calls that the kernel is used for; a row without it is for all others.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub used_for: Option<KernelUse>,
    /// The order in which a queue of query tiles is handed out; longest first without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sections: Option<Sections>,
}

/// A queue that hands out the query tiles of some heads, longest first, before those of the next, so that the keys and values
/// that are read at a time stay in the cache. Sections have as many heads as follow, but are of equal size, the last one aside,
/// and of whole groups of heads that share keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sections {
    /// As many heads as have keys and values of so many bytes...
    pub cache: Bytes,
    /// ...or, if those are more, as many as have so many work items an SM.
    pub items_an_sm: u32,
}

/// Which calls of a pass, element type and head dimension a kernel is used for: those over many keys, and those of middling
/// length whose tiles are nearly all visited.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KernelUse {
    /// Calls over at least so many keys.
    pub min_keys: u64,
    /// Calls that visit at least this share of their tiles, from 0 to 1, counted in tiles of the row without a condition...
    pub or_visited: f64,
    /// ...and have more keys than this.
    pub above_keys: u64,
}

impl KernelUse {
    /// Whether a call over `keys` keys, of whose `tiles` tiles the mask leaves `visited`, is one of them.
    pub fn takes(&self, keys: u64, visited: u64, tiles: u64) -> bool {
        self.takes_by_keys(keys).unwrap_or(visited as f64 >= self.or_visited * tiles as f64)
    }

    /// As [`KernelUse::takes`], where the number of keys decides; `None` where the visited tiles do.
    pub fn takes_by_keys(&self, keys: u64) -> Option<bool> {
        match keys {
            _ if keys >= self.min_keys => Some(true),
            _ if keys <= self.above_keys => Some(false),
            _ => None,
        }
    }
}

/// What one work item of a kernel covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Items {
    /// A query tile of one query head against all of its key tiles.
    #[default]
    QueryTiles,
    /// A key tile of one kv head against all query tiles of all query heads that share it.
    KeyTiles,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_default(items: &Items) -> bool {
    *items == Items::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) fn is_zero(time: &SimTime) -> bool {
    *time == SimTime::ZERO
}

/// How the work items of a kernel reach the SMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// One thread block an SM, each with its share of the items, which keeps its SM to the end.
    Persistent,
    /// One thread block an SM; each takes items from a counter until none is left, and keeps its SM to the end. Blocks that
    /// find no room come later and find less to do, and a transfer that needs SMs waits until the grid has ended.
    PersistentQueue,
    /// One thread block an item; SMs come free between items.
    PerItem,
}

/// Element types of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    Fp16,
    /// 8-bit floats, either split.
    Fp8,
    /// fp32 in memory, TF32 in the product.
    Tf32,
    /// IEEE single precision.
    Fp32,
}

impl Dtype {
    /// Bytes of one element in memory.
    pub fn size(self) -> Bytes {
        Bytes(match self {
            Self::Fp8 => 1,
            Self::Bf16 | Self::Fp16 => 2,
            Self::Tf32 | Self::Fp32 => 4,
        })
    }

    /// Whether kernels for `self` and `other` run at one rate: bf16 and fp16 share their tensor-core rate.
    pub(super) fn shares_rate(self, other: Self) -> bool {
        self == other || (self.size() == Bytes(2) && other.size() == Bytes(2))
    }
}

/// Direction of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// O and its log-sum-exp from Q, K, V.
    Forward,
    /// dQ, dK, dV from dO and the forward's results.
    Backward,
}

/// No row of the kernel table covers what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cluster `{cluster}` has no {} attention kernel for {} heads of {head_dim}; it has: {rows}",
    pass.name(), dtype.name())]
pub struct NoKernel {
    /// Name of the cluster.
    pub cluster: String,
    /// Head dimension asked for.
    pub head_dim: u32,
    /// Element type asked for.
    pub dtype: Dtype,
    /// Pass asked for.
    pub pass: Pass,
    /// The rows that exist.
    pub rows: String,
}

impl KernelRow {
    /// The most that `linked` can be.
    pub const MOST_LINKED: f64 = 2.0;

    /// Lets every part of a call take `factor` times as long.
    pub fn slow_down(&mut self, factor: f64) {
        self.rate.0 /= factor;
        for time in [&mut self.prologue, &mut self.epilogue, &mut self.call, &mut self.carry] {
            *time = SimTime::from_secs_f64(time.as_secs_f64() * factor);
        }
    }

    /// What must be said where it stands for a kernel of heads of `head_dim` and elements of `dtype`; nothing where it is one.
    pub fn stands_for(&self, head_dim: u32, dtype: Dtype) -> Option<String> {
        let pass = self.pass;
        match (self.head_dim == head_dim, self.dtype == dtype) {
            (true, true) => None,
            (false, true) => {
                Some(format!("no {pass} kernel for heads of {head_dim}: that of {}", self.head_dim))
            }
            (true, false) => Some(format!("no {pass} kernel for {dtype}: that of {}", self.dtype)),
            (false, false) => Some(format!(
                "no {pass} kernel for heads of {head_dim} in {dtype}: that of {} in {}",
                self.head_dim, self.dtype
            )),
        }
    }

    /// Pass, type, head dimension and whether it has a condition, which no two rows share.
    pub fn title(&self) -> String {
        let condition = if self.used_for.is_some() { " (conditional)" } else { "" };
        format!("{} {} {}{condition}", self.pass.name(), self.dtype.name(), self.head_dim)
    }
}

impl Keyword for Dtype {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("bf16", Self::Bf16),
        ("fp16", Self::Fp16),
        ("fp8", Self::Fp8),
        ("tf32", Self::Tf32),
        ("fp32", Self::Fp32),
    ];
}

impl Keyword for Pass {
    const NAMES: &'static [(&'static str, Self)] =
        &[("forward", Self::Forward), ("backward", Self::Backward)];
}

impl Keyword for Items {
    const NAMES: &'static [(&'static str, Self)] =
        &[("query-tiles", Self::QueryTiles), ("key-tiles", Self::KeyTiles)];
}

impl Keyword for Grid {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("persistent", Self::Persistent),
        ("persistent-queue", Self::PersistentQueue),
        ("per-item", Self::PerItem),
    ];
}

text_is_name!(Dtype, Pass, Grid, Items);
