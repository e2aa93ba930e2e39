//! The kernels' argument layout: `cuda/interface.cuh`, field by field.
//!
//! Pointers are device addresses (`u64`, 0 where a pointer is null). Meanings are documented in the header, against
//! which a test holds these structs by size, name and offset.

#[cfg(test)]
mod tests;

/// Key tiles `[first, last)` of one query tile hold unmasked pairs, `[full_first, full_last)` of them need no mask;
/// in a backward pass, query tiles of one key tile.
///
/// `first <= full_first <= full_last <= last`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct TileRange {
    pub first: i32,
    pub full_first: i32,
    pub full_last: i32,
    pub last: i32,
}

/// Distances in elements; the head dimension is dense.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Strides {
    pub batch: i64,
    pub token: i64,
    pub head: i64,
}

impl Strides {
    /// A dense `[batch][tokens][heads][head_dim]` tensor.
    pub fn dense(tokens: usize, heads: usize, head_dim: usize) -> Self {
        let [tokens, heads, head] = [tokens, heads, head_dim].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        let token = heads.saturating_mul(head);
        Self { batch: tokens.saturating_mul(token), token, head }
    }
}

/// One run of keys and values.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Segment {
    pub k: u64,
    pub v: u64,
    pub pos: u64,
    pub ranges: u64,
    pub ready: u64,
    pub ready_value: u32,
    pub len: i32,
    pub kv: Strides,
    pub k_map: u64,
    pub v_map: u64,
}

/// What a forward kernel is launched with.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[allow(missing_docs)]
pub struct ForwardArgs {
    pub q: u64,
    pub q_stride: Strides,
    pub q_map: u64,
    pub q_lo: u64,
    pub q_hi: u64,
    pub order: u64,
    pub segments: u64,
    pub segment_count: i32,
    pub batch: i32,
    pub q_len: i32,
    pub heads: i32,
    pub kv_heads: i32,
    pub scale: f32,
    pub acc_o: u64,
    pub acc_stride: Strides,
    pub acc_m: u64,
    pub acc_l: u64,
    pub carry_in: i32,
    pub carry_out: i32,
    pub o: u64,
    pub o_stride: Strides,
    pub lse: u64,
    pub error: u64,
    pub spin_limit: u64,
    pub work_counter: u64,
    pub segment_major: i32,
    pub head_section: i32,
}

/// What a backward kernel is launched with.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[allow(missing_docs)]
pub struct BackwardArgs {
    pub q: u64,
    pub q_stride: Strides,
    pub q_map: u64,
    pub d_o: u64,
    pub do_stride: Strides,
    pub do_map: u64,
    pub lse: u64,
    pub delta: u64,
    pub q_lo: u64,
    pub q_hi: u64,
    pub segments: u64,
    pub segment_count: i32,
    pub q_ranges: u64,
    pub order: u64,
    pub batch: i32,
    pub q_len: i32,
    pub heads: i32,
    pub kv_heads: i32,
    pub scale: f32,
    pub dq: u64,
    pub dq_stride: Strides,
    pub dk: u64,
    pub dv: u64,
    pub dkv_stride: Strides,
    pub deterministic: i32,
    pub start_dkv: i32,
    pub heads_per_item: i32,
    pub whole_items: i32,
    pub last_parts: i32,
    pub started: u64,
    pub dq_turn: u64,
    pub work_counter: u64,
    pub error: u64,
    pub spin_limit: u64,
    pub dq_map: u64,
}

/// What the kernel that sums `o * do` over each row is launched with.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct PreprocessArgs {
    pub o: u64,
    pub o_stride: Strides,
    pub d_o: u64,
    pub do_stride: Strides,
    pub delta: u64,
    pub batch: i32,
    pub q_len: i32,
    pub heads: i32,
    pub dq: u64,
    pub dq_stride: Strides,
}

/// What the kernel that rounds fp32 accumulators is launched with.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[allow(missing_docs)]
pub struct ConvertArgs {
    pub from: u64,
    pub from_stride: Strides,
    pub to: u64,
    pub to_stride: Strides,
    pub batch: i32,
    pub tokens: i32,
    pub heads: i32,
    pub scale: f32,
}

/// What the kernels that add rows to rows are launched with.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct AddArgs {
    pub to: u64,
    pub from: u64,
    pub to_pitch: i64,
    pub from_pitch: i64,
    pub rows: i32,
    pub columns: i32,
    pub aligned: i32,
}

/// An unfinished softmax, as a kernel is handed it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct StateArgs {
    pub o: u64,
    pub o_stride: Strides,
    pub m: u64,
    pub l: u64,
}

/// What the kernel that merges two states is launched with.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct MergeArgs {
    pub a: StateArgs,
    pub b: StateArgs,
    pub batch: i32,
    pub q_len: i32,
    pub heads: i32,
}

/// What the kernel that finishes a state is launched with.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct FinaliseArgs {
    pub state: StateArgs,
    pub o: u64,
    pub o_stride: Strides,
    pub lse: u64,
    pub batch: i32,
    pub q_len: i32,
    pub heads: i32,
}
