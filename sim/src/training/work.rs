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
    let cut = attention_weights(model, training) + experts * model.mlp_weights();
    let norms = 2 * model.hidden;
    cut / training.grid.tp + router_weights(model) + norms
}

fn router_weights(model: &Model) -> u64 {
    model.experts.map_or(0, |moe| moe.count * model.hidden)
}

/// Query heads with the padding that the grid needs.
pub fn padded_heads(model: &Model, training: &Training) -> u64 {
    let parts = training.grid.tp * training.grid.ulysses;
    training.grid.heads_per_rank(model.heads) * parts
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
    let active = model.experts.map_or(1, |moe| moe.active);
    let attention = attention_weights(model, training) as f64;
    let mlp = (model.mlp_weights() * active) as f64;
    let last_matrices = (model.hidden * model.intermediate * active) as f64;
    let output = (model.hidden * model.head_dim * model.heads.next_multiple_of(training.grid.tp)) as f64;
    LayerWork {
        flops: Flops(2.0 * t * ((attention + mlp) / tp + router_weights(model) as f64)),
        gathered_flops: Flops(2.0 * t * (attention - output + mlp - last_matrices) / tp),
        elementwise: elementwise(model, training, tokens),
        streamed: streamed(model, training, tokens),
    }
}

fn qkv_width(model: &Model) -> f64 {
    ((model.heads + 2 * model.kv_heads) * model.head_dim) as f64
}

fn mlp_width(model: &Model) -> f64 {
    (model.intermediate * model.experts.map_or(1, |moe| moe.active)) as f64
}

/// Norms, residual additions and dropouts on all tokens, or with sequence parallelism on 1/tp of them; the inside of
/// the blocks on 1/tp of their width.
fn elementwise(model: &Model, training: &Training, tokens: u64) -> Bytes {
    let (stack, tp) = (&training.stack, training.grid.tp as f64);
    let cut = if training.sequence_parallel { tp } else { 1.0 };
    let inside = stack.qkv * qkv_width(model) + stack.mlp * mlp_width(model);
    Bytes((tokens as f64 * (stack.residual * model.hidden as f64 / cut + inside / tp)) as u64)
}

fn streamed(model: &Model, training: &Training, tokens: u64) -> Bytes {
    let inside = 2.0 * (qkv_width(model) + mlp_width(model)) / training.grid.tp as f64;
    let activations = tokens as f64 * (2.0 * model.hidden as f64 + inside);
    let elements = layer_weights(model, training) as f64 + activations;
    Bytes((training.element_bytes as f64 * elements) as u64)
}

/// FLOPs of the output head, forward, and bytes of its loss, both directions, for `tokens` tokens.
pub fn head(model: &Model, training: &Training, tokens: u64) -> (Flops, Bytes) {
    let (t, v) = (tokens as f64, model.vocab as f64 / training.grid.tp as f64);
    (Flops(2.0 * t * v * model.hidden as f64), Bytes((t * v * training.stack.logits) as u64))
}

/// FLOPs that an iteration of the whole model needs, on all GPUs together: two for each active weight and token, four D for
/// each head and unmasked pair, three times that with a backward. What is recomputed, padded or masked counts nothing.
pub fn model_flops(model: &Model, training: &Training) -> Flops {
    let sequences = training.micro_batch * training.micro_batches * training.grid.dp;
    let n = training.seq as f64;
    let active = model.experts.map_or(1, |moe| moe.active);
    let weights = model.attention_weights() + active * model.mlp_weights() + router_weights(model);
    let dense = 2.0 * n * (model.layers * weights + model.vocab * model.hidden) as f64;
    let pairs = if training.context.causal { n * (n + 1.0) / 2.0 } else { n * n };
    let attention = 4.0 * pairs * (model.layers * model.heads * model.head_dim) as f64;
    let passes = if training.forward_only() { 1.0 } else { 3.0 };
    Flops(passes * sequences as f64 * (dense + attention))
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
