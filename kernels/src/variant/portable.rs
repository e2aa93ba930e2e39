//! The portable attention kernels.

use super::{Kernel, SharedMemory};
use crate::spec::{Dtype, HeadDim};

/// Four warps of 32 queries, so that each key fragment read from shared memory feeds two products; two CTAs share a
/// multiprocessor. At D = 64 its shared memory holds two stages of keys and values, and registers suffice for 96 keys.
pub(super) fn forward(dtype: Dtype, head_dim: HeadDim, large_shared_memory: bool) -> Kernel {
    let tile_q = 128;
    let (tile_kv, stages) = match head_dim {
        HeadDim::D64 if large_shared_memory => (96, 2),
        HeadDim::D64 => (64, 2),
        HeadDim::D128 => (64, 1),
    };
    let mut kernel = Kernel::base("portable-forward", dtype, head_dim);
    kernel.defines.extend([format!("TILE_KV={tile_kv}"), format!("STAGES={stages}")]);
    Kernel {
        source: "portable/forward.cu",
        entry: "portable_forward",
        tile_q,
        tile_kv,
        threads: 128,
        shared: SharedMemory::Bytes(2 * ((tile_q + 2 * stages * tile_kv) * head_dim.elements()) as u32),
        ..kernel
    }
}

/// Eight warps; two stages of `q` and `do` beside 128 keys where shared memory allows it.
pub(super) fn backward(dtype: Dtype, head_dim: HeadDim, large_shared_memory: bool) -> Kernel {
    let (tile_kv, stages) = if large_shared_memory { (128, 2) } else { (64, 1) };
    let tile_q = match head_dim {
        HeadDim::D64 => 128,
        HeadDim::D128 => 64,
    };
    // Two tensors of each kind in 16 bits, and two fp32 numbers a query.
    let elements = (tile_kv + stages * tile_q) * head_dim.elements() + tile_q * tile_kv;
    let bytes = 2 * 2 * elements + 2 * 4 * stages * tile_q;
    let mut kernel = Kernel::base("portable-backward", dtype, head_dim);
    kernel.name = format!("{}-{tile_q}x{tile_kv}", kernel.name);
    kernel.defines.extend([format!("TILE_KV={tile_kv}"), format!("STAGES={stages}")]);
    Kernel {
        source: "portable/backward.cu",
        entry: "portable_backward",
        tile_q,
        tile_kv,
        threads: 256,
        shared: SharedMemory::Bytes(bytes as u32),
        ..kernel
    }
}
