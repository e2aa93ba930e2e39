//! Attention with its scores in memory: matrix products plus passes over the score matrix.

use serde::Serialize;

use crate::config::cluster::Device;
use crate::problem::{Pass, Shape};
use crate::units::{Bytes, Flops, SimTime};

/// Bytes of device memory that one score element moves, and whether masked scores are skipped (they never are).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Materialised {
    /// Forward.
    pub forward: f64,
    /// Backward.
    pub backward: f64,
    /// Bytes of a score element kept for the backward.
    pub kept: f64,
    /// Bytes of a score element alive at the peak of a backward.
    pub live: f64,
}

impl Materialised {
    /// Megatron-LM of 2022 with its fused scale-mask-softmax and a dropout. Forward: scores written 2, softmax 2+2,
    /// dropout 2+2+1, read for the values 2. Backward: gradient written 2, dropout 2+1+2, softmax 2+2+2, gradient of the
    /// scores read twice 4, probabilities read 2. Kept: softmax 2, mask 1, dropout 2 (arXiv 2205.05198, section 4.1).
    pub const MEGATRON: Self = Self { forward: 13.0, backward: 19.0, kept: 5.0, live: 9.0 };

    /// Ring Self-Attention as released in ColossalAI: no fused softmax. Forward: ring product written in pieces and
    /// copied 2+2+2, scale 2+2, mask 2+2+2, softmax in fp32 2+4 4+4 4+2, dropout 2+2+1, pieces copied and read 2+2+2.
    /// Backward: gradient pieces 2+2+2, dropout 2+1+2, softmax 4+4+4 2+2, scale 2+2, pieces for dq, dk, dv 2+2+2 2.
    pub const RING_SELF_ATTENTION: Self = Self { forward: 47.0, backward: 41.0, kept: 5.0, live: 15.0 };

    /// Time of attention of `queries` x `keys` for all heads and sequences of `shape` on one device.
    pub fn time(&self, device: &Device, shape: &Shape, queries: u64, keys: u64, pass: Pass) -> SimTime {
        let elements = queries as f64 * keys as f64 * f64::from(shape.heads) * f64::from(shape.batch);
        // Nothing is computed twice: a backward has four products, not the five of a tiled kernel.
        let (products, bytes) = match pass {
            Pass::Forward => (2.0, self.forward),
            Pass::Backward => (4.0, self.backward),
        };
        let flops = Flops(products * 2.0 * f64::from(shape.head_dim) * elements);
        let moved = Bytes((bytes * elements) as u64);
        flops / device.reached.matmul + moved / device.reached.hbm
    }

    /// Bytes of scores at the peak.
    pub fn live_bytes(&self, shape: &Shape, queries: u64, keys: u64) -> Bytes {
        let elements = queries as f64 * keys as f64 * f64::from(shape.heads) * f64::from(shape.batch);
        Bytes((self.live * elements) as u64)
    }
}
