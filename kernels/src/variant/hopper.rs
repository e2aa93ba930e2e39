//! The Hopper attention kernels.

use super::{Boxes, ForwardTiles, Grid, Kernel, MapAxes, SPLIT_LAST, SharedMemory};
use crate::spec::{Dtype, HeadDim};

/// 64 queries a warpgroup.
pub(super) fn forward(dtype: Dtype, head_dim: HeadDim, tiles: ForwardTiles) -> Kernel {
    let (tile_q, tile_kv) = match (head_dim, tiles) {
        (HeadDim::D64, ForwardTiles::General | ForwardTiles::Wide) => (192, 128),
        (HeadDim::D64, ForwardTiles::Short) => (256, 64),
        (HeadDim::D128, ForwardTiles::Wide) => (128, 176),
        (HeadDim::D64, ForwardTiles::ShortMasked) | (HeadDim::D128, _) => (128, 128),
    };
    let mut kernel = Kernel::base("hopper-forward", dtype, head_dim);
    kernel.name = format!("{}-{tile_q}x{tile_kv}", kernel.name);
    kernel.defines.extend([format!("TILE_Q={tile_q}"), format!("TILE_KV={tile_kv}")]);
    Kernel {
        source: "hopper/fwd_kernel.cu",
        entry: "attention_forward",
        tile_q,
        tile_kv,
        threads: 128 * (tile_q as u32 / 64 + 1),
        shared: SharedMemory::Symbol("forward_shared_bytes"),
        grid: Grid::Persistent,
        boxes: Some(Boxes { axes: MapAxes::TokenHead, q: tile_q as u32, kv: tile_kv as u32, dq: 0 }),
        ..kernel
    }
}

/// 128 keys a CTA, 64 a warpgroup; the accumulators of `dk` and `dv` leave registers for 64 queries at D = 128.
pub(super) fn backward(dtype: Dtype, head_dim: HeadDim) -> Kernel {
    let tile_q = match head_dim {
        HeadDim::D64 => 128,
        HeadDim::D128 => 64,
    };
    let mut kernel = Kernel::base("hopper-backward", dtype, head_dim);
    kernel.defines.push(SPLIT_LAST.into());
    Kernel {
        source: "hopper/bwd_kernel.cu",
        entry: "attention_backward",
        tile_q: tile_q as usize,
        tile_kv: 128,
        threads: 384,
        shared: SharedMemory::Symbol("backward_shared_bytes"),
        grid: Grid::Persistent,
        boxes: Some(Boxes { axes: MapAxes::HeadToken, q: tile_q, kv: 128, dq: 64 }),
        ..kernel
    }
}
