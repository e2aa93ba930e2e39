//! What a launch is asked for, in types, and everything that can be wrong with it before it reaches a GPU.
//!
//! A spec holds device addresses but touches no device: [`ForwardSpec::validate`] and [`BackwardSpec::validate`] are
//! pure, and nothing is launched from a spec that fails them.

mod checks;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use crate::abi::Strides;
use crate::tiles::Intervals;

pub(crate) use checks::{check_address, check_size, check_tensor};
use checks::{check_common, check_disjoint, check_segment};

/// Bytes to which every tensor's base and rows are aligned: one 16-byte access per thread.
pub const ALIGNMENT: u64 = 16;

/// Element type of `q`, `k`, `v`, `o` and `do`; everything accumulated is fp32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bf16 => "bf16",
            Self::F16 => "fp16",
        })
    }
}

impl Dtype {
    /// Both element types.
    pub const ALL: [Self; 2] = [Self::Bf16, Self::F16];
    /// Bytes of one element.
    pub const BYTES: u64 = 2;
}

/// Elements of one head, of the sizes that have kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HeadDim {
    /// 64 elements.
    D64,
    /// 128 elements.
    D128,
}

impl HeadDim {
    /// Every head dimension that has kernels.
    pub const ALL: [Self; 2] = [Self::D64, Self::D128];

    /// Elements of one head.
    pub fn elements(self) -> usize {
        match self {
            Self::D64 => 64,
            Self::D128 => 128,
        }
    }
}

impl TryFrom<usize> for HeadDim {
    type Error = SpecError;

    fn try_from(elements: usize) -> Result<Self, SpecError> {
        match elements {
            64 => Ok(Self::D64),
            128 => Ok(Self::D128),
            other => Err(SpecError::HeadDim(other)),
        }
    }
}

/// Why a launch is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// There is no kernel for this head dimension.
    #[error("no kernel for head dimension {0}; 64 and 128 have kernels")]
    HeadDim(usize),
    /// The query heads do not fall into equal groups.
    #[error("{heads} query heads cannot share {kv_heads} kv heads; the second must divide the first")]
    Heads {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
    },
    /// A size is zero.
    #[error("`{0}` is zero; leave such a launch out")]
    Empty(&'static str),
    /// A size does not fit the kernels' 32-bit indices.
    #[error("`{name}` = {value} is above {limit}, the most a kernel indexes")]
    TooLarge {
        /// The size.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The largest value that works.
        limit: usize,
    },
    /// A device address is null.
    #[error("`{0}` is a null device address")]
    Null(&'static str),
    /// A device address or a row does not start on a 16-byte boundary.
    #[error("`{name}` starts or steps off a {ALIGNMENT}-byte boundary ({value} bytes)")]
    Misaligned {
        /// The tensor.
        name: &'static str,
        /// The address or the stride, in bytes.
        value: i128,
    },
    /// Rows of a tensor overlap, or its strides are negative.
    #[error("`{name}` has a {axis} stride of {value} elements; rows of {needed} elements would overlap")]
    Overlap {
        /// The tensor.
        name: &'static str,
        /// The axis.
        axis: &'static str,
        /// The stride given.
        value: i64,
        /// The least stride.
        needed: i64,
    },
    /// Two arrays that describe the same queries differ in length.
    #[error("`hi` has {hi} entries, `lo` has {lo}; both hold one per query")]
    MaskLength {
        /// Entries of `lo`.
        lo: usize,
        /// Entries of `hi`.
        hi: usize,
    },
    /// The mask intervals are not in order.
    #[error("the mask interval of query slot {0} falls behind an earlier one; order the slots by position")]
    MaskOrder(usize),
    /// The key positions of a segment are not in order.
    #[error("segment {segment}: the position of key slot {slot} is not above the one before it")]
    PositionOrder {
        /// Index of the segment.
        segment: usize,
        /// First slot out of order.
        slot: usize,
    },
    /// Two segments hold the same key, which would count twice.
    #[error("position {0} is in more than one segment; its key would count twice")]
    PositionTwice(i32),
    /// The scale is not a positive number.
    #[error("scale {0} is not a positive finite number")]
    Scale(String),
    /// A launch would throw its result away.
    #[error("the launch has neither an output nor a carried state to write")]
    NoResult,
    /// The launch carries a state, from another launch or from segment to segment, and names no memory for it.
    #[error("the launch carries a state but names no memory for it")]
    NoState,
}

/// Sizes that every tensor of a launch shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Element type.
    pub dtype: Dtype,
    /// Elements of one head.
    pub head_dim: HeadDim,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Independent sequences of equal length and mask.
    pub batch: usize,
}

/// A tensor `[batch][tokens][heads][head_dim]` in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor {
    /// Device address of its first element.
    pub ptr: u64,
    /// Distances between its rows, in elements.
    pub strides: Strides,
}

/// A flag in device memory that a kernel waits for before it reads a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadyFlag {
    /// Device address of a `u32`.
    pub ptr: u64,
    /// The segment is readable once the flag has reached this value.
    pub value: u32,
    /// After this long the kernel gives up; the longest of a launch's segments counts.
    pub limit: Duration,
}

/// One run of keys and values, and the position of each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySegment<'a> {
    /// Device address of the keys, `[batch][positions.len()][kv_heads][head_dim]`.
    pub k: u64,
    /// Device address of the values, shaped like the keys.
    pub v: u64,
    /// Distances between the rows of both.
    pub strides: Strides,
    /// Position of each key, strictly rising.
    pub positions: &'a [i32],
    /// What to wait for before reading, if anything.
    pub ready: Option<ReadyFlag>,
}

/// The unfinished softmax of every query, carried from launch to launch in fp32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Unnormalised output, `[batch][q_len][heads][head_dim]`.
    pub o: Tensor,
    /// Device address of the running maximum score (scaled, natural-log units), `[batch][heads][q_len]`.
    pub m: u64,
    /// Device address of the running sum of `exp(score - m)`, shaped like `m`.
    pub l: u64,
}

impl State {
    /// Refuses addresses and strides that a kernel would read or write wrongly.
    pub fn validate(&self, dims: Dims) -> Result<(), SpecError> {
        check_tensor("state.o", self.o, dims.heads, dims.head_dim, 4)?;
        check_address("state.m", self.m, 4)?;
        check_address("state.l", self.l, 4)
    }
}

/// What a forward launch does with the carried state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carry {
    /// Start from the state instead of from nothing.
    pub read: bool,
    /// Leave the state for the next launch.
    pub write: bool,
    /// Where it is.
    pub state: Option<State>,
}

/// In which order a launch over several segments works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WorkOrder {
    /// Each query tile over all segments: the state stays in registers.
    #[default]
    QueryMajor,
    /// Every query tile over the first segment, then over the second: work starts before late segments are ready. The
    /// state passes through the memory that [`Carry::state`] names. The portable kernels go on tile by tile instead, to
    /// the same result.
    SegmentMajor,
}

/// Where the finished output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// Normalised output in the input dtype.
    pub o: Tensor,
    /// Device address of the fp32 log-sum-exp, `[batch][heads][q_len]`.
    pub lse: u64,
}

impl Finished {
    /// Refuses addresses and strides that a kernel would write wrongly.
    pub fn validate(&self, dims: Dims) -> Result<(), SpecError> {
        check_tensor("o", self.o, dims.heads, dims.head_dim, Dtype::BYTES)?;
        check_address("lse", self.lse, 4)
    }
}

/// One attention forward of some queries over some key segments.
#[derive(Debug, Clone)]
pub struct ForwardSpec<'a> {
    /// Shared sizes.
    pub dims: Dims,
    /// Factor on the scores.
    pub scale: f32,
    /// Queries, one mask interval each.
    pub q: Tensor,
    /// The mask.
    pub mask: Intervals<'a>,
    /// Keys and values, attended one segment after the other.
    pub segments: Vec<KeySegment<'a>>,
    /// Order of the work where there are several segments.
    pub order: WorkOrder,
    /// State between launches.
    pub carry: Carry,
    /// Finished output, if wanted.
    pub output: Option<Finished>,
}

/// One attention backward of some queries over one key segment; gradients go to fp32 accumulators, added unless a
/// launch starts them.
#[derive(Debug, Clone)]
pub struct BackwardSpec<'a> {
    /// Shared sizes.
    pub dims: Dims,
    /// Factor on the scores.
    pub scale: f32,
    /// Queries, one mask interval each.
    pub q: Tensor,
    /// Gradient of the output, shaped like `q`.
    pub d_o: Tensor,
    /// Device address of the log-sum-exp of the whole softmax, fp32 `[batch][heads][q_len]`.
    pub lse: u64,
    /// Device address of the row sums of `o * do`, shaped like `lse`.
    pub delta: u64,
    /// The mask.
    pub mask: Intervals<'a>,
    /// Keys and values.
    pub segment: KeySegment<'a>,
    /// fp32 `dq`, shaped like `q`.
    pub dq: Tensor,
    /// fp32 `dk`, shaped like the segment's keys.
    pub dk: Tensor,
    /// Device address of the fp32 `dv`, strided like `dk`.
    pub dv: u64,
    /// Write `dk` and `dv` instead of adding to them: for the first launch that reaches these keys, whose accumulators
    /// then need no zeros. Keys that no query sees get zeros.
    pub start_dkv: bool,
    /// Add the contributions to `dq` in the order of the key tiles, so that equal inputs give equal bits.
    pub deterministic: bool,
}

impl ForwardSpec<'_> {
    /// Queries of one sequence.
    pub fn q_len(&self) -> usize {
        self.mask.lo.len()
    }

    /// Refuses what a kernel would read or write wrongly.
    pub fn validate(&self) -> Result<(), SpecError> {
        let heads = self.dims.heads;
        check_common(self.dims, self.scale, self.mask)?;
        check_tensor("q", self.q, heads, self.dims.head_dim, Dtype::BYTES)?;
        if self.segments.is_empty() {
            return Err(SpecError::Empty("segments"));
        }
        for (index, segment) in self.segments.iter().enumerate() {
            check_segment(index, segment, self.dims)?;
        }
        check_disjoint(&self.segments)?;
        self.output.map_or(Ok(()), |output| output.validate(self.dims))?;
        match self.carry {
            Carry { state: Some(state), .. } => state.validate(self.dims)?,
            Carry { read: false, write: false, state: None } if self.order == WorkOrder::QueryMajor => {}
            Carry { state: None, .. } => return Err(SpecError::NoState),
        }
        if self.output.is_none() && !self.carry.write { Err(SpecError::NoResult) } else { Ok(()) }
    }
}

impl BackwardSpec<'_> {
    /// Queries of one sequence.
    pub fn q_len(&self) -> usize {
        self.mask.lo.len()
    }

    /// Refuses what a kernel would read or write wrongly.
    pub fn validate(&self) -> Result<(), SpecError> {
        let Dims { heads, kv_heads, head_dim, .. } = self.dims;
        check_common(self.dims, self.scale, self.mask)?;
        check_tensor("q", self.q, heads, head_dim, Dtype::BYTES)?;
        check_tensor("do", self.d_o, heads, head_dim, Dtype::BYTES)?;
        check_address("lse", self.lse, 4)?;
        check_address("delta", self.delta, 4)?;
        check_segment(0, &self.segment, self.dims)?;
        check_tensor("dq", self.dq, heads, head_dim, 4)?;
        check_tensor("dk", self.dk, kv_heads, head_dim, 4)?;
        check_tensor("dv", Tensor { ptr: self.dv, ..self.dk }, kv_heads, head_dim, 4)
    }
}
