//! The work of a layer outside attention: FLOPs of its matrix products and bytes of its element-wise kernels.

use super::setup::Training;
use crate::config::cluster::Cluster;
use crate::config::model::Model;
use crate::units::{Bytes, Flops, SimTime};

/// FLOPs and bytes of one layer forward on one rank, for one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerWork {
    /// Projections, feed-forward and router.
    pub flops: Flops,
    /// Of [`LayerWork::flops`], those whose input is gathered over the tensor group: QKV and the first feed-forward
    /// products.
    pub gathered_flops: Flops,
    /// Element-wise kernels.
    pub elementwise: Bytes,
    /// Weights, activations in and out of the matrix products.
    pub streamed: Bytes,
}

/// Weights of one layer on one tensor-parallel rank, with padded heads and the rank's share of experts.
pub fn layer_weights(model: &Model, training: &Training) -> u64 {
    let experts = model.experts.map_or(1, |moe| moe.count / training.grid.experts);
    let router = model.experts.map_or(0, |moe| moe.count * model.hidden);
    (attention_weights(model, training) + experts * model.mlp_weights()) / training.grid.tp
        + router
        + 2 * model.hidden
}

/// Query heads with the padding that the grid needs.
pub fn padded_heads(model: &Model, training: &Training) -> u64 {
    let tp = training.grid.tp * training.grid.ulysses;
    training.grid.heads_per_rank(model.heads) * tp
}

/// Weights of the projections; only tensor-parallel padding grows them, Ulysses pads activations.
fn attention_weights(model: &Model, training: &Training) -> u64 {
    let heads = model.heads.next_multiple_of(training.grid.tp);
    let kv = if model.kv_heads == model.heads { heads } else { model.kv_heads.max(training.grid.tp) };
    2 * model.hidden * model.head_dim * (heads + kv)
}

/// The layer's work for `tokens` tokens of a context-parallel rank.
pub fn layer(model: &Model, training: &Training, tokens: u64) -> LayerWork {
    let (t, tp) = (tokens as f64, training.grid.tp as f64);
    let active = model.experts.map_or(1, |moe| moe.active) as f64;
    let router = model.experts.map_or(0, |moe| moe.count * model.hidden) as f64;
    let attention = attention_weights(model, training) as f64;
    let mlp = model.mlp_weights() as f64 * active;
    let matrices = if model.gated_mlp { 3.0 } else { 2.0 };
    let out = (model.hidden * model.head_dim * padded_heads(model, training)) as f64;
    let gathered = attention - out.min(attention) + mlp * (matrices - 1.0) / matrices;
    let (h, f) = (model.hidden as f64, model.intermediate as f64 * active);
    let qkv = ((model.heads + 2 * model.kv_heads) * model.head_dim) as f64;
    let stack = &training.stack;
    let residual = stack.residual * h / if training.sequence_parallel { tp } else { 1.0 };
    let weights = layer_weights(model, training) as f64;
    let e = training.element_bytes as f64;
    Work { t, tp }.layer(
        attention + mlp,
        gathered,
        router,
        residual,
        (stack.qkv * qkv + stack.mlp * f) / tp,
        e * (weights + t * (2.0 * h + (2.0 * qkv + 2.0 * f) / tp)),
    )
}

struct Work {
    t: f64,
    tp: f64,
}

impl Work {
    fn layer(
        &self,
        dense: f64,
        gathered: f64,
        router: f64,
        residual: f64,
        cut: f64,
        streamed: f64,
    ) -> LayerWork {
        LayerWork {
            flops: Flops(2.0 * self.t * (dense / self.tp + router)),
            gathered_flops: Flops(2.0 * self.t * gathered / self.tp),
            elementwise: Bytes((self.t * (residual + cut)) as u64),
            streamed: Bytes(streamed as u64),
        }
    }
}

/// FLOPs of the output head and bytes of its loss, forward, for `tokens` tokens.
pub fn head(model: &Model, training: &Training, tokens: u64) -> (Flops, Bytes) {
    let (t, v) = (tokens as f64, model.vocab as f64 / training.grid.tp as f64);
    (Flops(2.0 * t * v * model.hidden as f64), Bytes((t * v * training.stack.logits) as u64))
}

/// Matrix products: their FLOPs at the reached rate, or their bytes where those take longer.
pub fn matmul_time(cluster: &Cluster, flops: Flops, streamed: Bytes) -> SimTime {
    let reached = &cluster.device.reached;
    (flops / reached.matmul).max(streamed / reached.hbm)
}

/// Bytes that an Adam step moves for each weight: the gradient zeroed, read for its norm, clipped in place and read
/// again; master weight and both moments in and out; weight out.
pub fn adam_bytes(training: &Training, weights: u64) -> Bytes {
    Bytes(weights * (5 * training.gradient_bytes + 6 * 4 + training.element_bytes))
}
