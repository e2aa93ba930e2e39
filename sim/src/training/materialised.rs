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
    /// Bytes of a score element alive at the peak of a backward, besides what is kept.
    pub live: f64,
}

impl Materialised {
    /// Megatron-LM of 2022 with its fused scale-mask-softmax and a dropout. Forward: scores written 2, softmax 2+2,
    /// dropout 2+2+1, read for the values 2. Backward: gradient written 2, dropout 2+1+2, softmax 2+2+2, gradient of the
    /// scores read twice 4, probabilities read 2. Kept: softmax 2, mask 1, dropout 2 (arXiv 2205.05198, section 4.1).
    pub const MEGATRON: Self = Self { forward: 13.0, backward: 19.0, kept: 5.0, live: 4.0 };

    /// The same without a dropout on the scores. Forward: written 2, softmax 2+2, read 2. Backward: gradient written 2,
    /// softmax 2+2+2, gradient of the scores read twice 4, probabilities read 2.
    pub const FUSED_SOFTMAX: Self = Self { forward: 8.0, backward: 14.0, kept: 2.0, live: 4.0 };

    /// Ring Self-Attention as released in ColossalAI (`parallel_sequence/_operation.py`), scores in fp32, no dropout.
    /// Forward: pieces of the product written 4 and copied 4+4, scale 4+4, mask 4+4, softmax 4+4, read for the values 4.
    /// Backward: zeros 4, pieces written 4 and added 4+4+4, read for dv 4, softmax 4+4+4, mask 4+4, scale 4+4, read for
    /// dk and dq 4+4.
    pub const RING_SELF_ATTENTION: Self = Self { forward: 40.0, backward: 60.0, kept: 4.0, live: 4.0 };

    /// The same memory with `factor` times the traffic.
    pub fn with_traffic(self, factor: f64) -> Self {
        Self { forward: self.forward * factor, backward: self.backward * factor, ..self }
    }

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
