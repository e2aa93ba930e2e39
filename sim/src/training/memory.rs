//! Memory of one GPU, part by part.

use serde::Serialize;

use super::TrainingError;
use super::attention;
use super::setup::{AttentionKernel, Checkpointing, Sharding, Training};
use super::work;
use crate::config::cluster::Cluster;
use crate::config::model::Model;
use crate::problem::Pass;
use crate::units::Bytes;

/// Bytes of one GPU at the peak of an iteration; the parts add up to `total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Weights, as kept.
    pub weights: Bytes,
    /// Gradients.
    pub gradients: Bytes,
    /// Master weights and both moments of Adam.
    pub optimizer: Bytes,
    /// Activations kept for the backward, over the micro-batches in flight.
    pub activations: Bytes,
    /// Staging buffers of attention.
    pub attention: Bytes,
    /// Logits, their fp32 copy, its softmax, and their gradient.
    pub logits: Bytes,
    /// The layer at work: recomputed activations, gradients of activations, gathered weights.
    pub working: Bytes,
    /// What the runtime takes for itself.
    pub reserved: Bytes,
    /// The sum.
    pub total: Bytes,
    /// What the device has.
    pub capacity: Bytes,
    /// What is missing; `None` when it fits.
    pub over: Option<Bytes>,
}

/// Weights that stage `stage` keeps on one tensor-parallel rank, before sharding.
pub fn stage_weights(model: &Model, training: &Training, stage: u64) -> u64 {
    let (pp, tp) = (training.grid.pp, training.grid.tp);
    let embedding = model.vocab * model.hidden / tp;
    let first = u64::from(stage == 0);
    let last = u64::from(stage + 1 == pp && !(model.tied_embeddings && pp == 1));
    model.layers / pp * work::layer_weights(model, training) + (first + last) * embedding
}

/// Bytes of activations that one layer makes for the backward, `tokens` tokens on one rank.
///
/// With two plain matrices, dropout and materialised scores this is Megatron's `34 s b h + 5 a s^2 b`, or with tensor
/// and sequence parallelism that over t (arXiv 2205.05198, table 2).
pub fn layer_activations(model: &Model, training: &Training, tokens: u64) -> u64 {
    layer_linear(model, training, tokens) + scores_kept(model, training)
}

fn layer_linear(model: &Model, training: &Training, tokens: u64) -> u64 {
    let (e, tp) = (training.element_bytes, training.grid.tp);
    let active = model.experts.map_or(1, |moe| moe.active);
    let masks = if training.stack.dropout { 2 } else { 0 };
    // Inputs of both norms and of both blocks; the masks of both dropouts.
    let residual = (4 * e + masks) * model.hidden * tokens;
    let heads = work::padded_heads(model, training);
    let qkvo = e * model.head_dim * (2 * heads + 2 * model.kv_heads) * tokens;
    // Input and output of the activation; a gate adds its own input and the product.
    let mlp = e * if model.gated_mlp { 4 } else { 2 } * model.intermediate * active * tokens;
    let cut = if training.sequence_parallel { tp } else { 1 };
    residual / cut + (qkvo + mlp) / tp
}

fn scores_kept(model: &Model, training: &Training) -> u64 {
    let heads = work::padded_heads(model, training) / (training.grid.tp * training.grid.ulysses);
    let queries = training.seq / training.grid.ring;
    match training.context.kernel {
        AttentionKernel::Tiled => 4 * heads * queries * training.micro_batch,
        AttentionKernel::Materialised(kernel) => {
            (kernel.kept * heads as f64 * queries as f64 * training.seq as f64 * training.micro_batch as f64)
                as u64
        }
    }
}

/// Bytes that one layer keeps from its forward to its backward.
pub fn layer_kept(model: &Model, training: &Training) -> u64 {
    let (tokens, e, tp) = (training.tokens_per_rank(), training.element_bytes, training.grid.tp);
    let cut = if training.sequence_parallel { tp } else { 1 };
    let input = e * model.hidden * tokens / cut;
    match training.checkpointing {
        Checkpointing::None => layer_activations(model, training, tokens),
        Checkpointing::Selective => layer_linear(model, training, tokens),
        Checkpointing::FullLayer => input,
        Checkpointing::RematAware => {
            let heads = work::padded_heads(model, training);
            input + heads * (e * model.head_dim + 4) * tokens / tp
        }
    }
}

/// Layers whose activations stage `stage` holds at its peak: of `pp - stage` micro-batches in 1F1B, of Megatron's
/// warm-up `2 (pp - stage - 1) + (v - 1) pp + 1` pieces in an interleaved pipeline.
fn layers_in_flight(model: &Model, training: &Training, stage: u64) -> u64 {
    let (pp, v, m) = (training.grid.pp, training.grid.interleave, training.micro_batches);
    if v == 1 {
        return model.layers / pp * (pp - stage).min(m);
    }
    let pieces = (2 * (pp - stage - 1) + (v - 1) * pp + 1).min(m * v);
    model.layers / (pp * v) * pieces
}

/// Memory of the stage that needs most.
///
/// # Errors
/// What the schedule refuses.
pub fn memory(model: &Model, cluster: &Cluster, training: &Training) -> Result<Memory, TrainingError> {
    Ok(memory_with(model, cluster, training, attention_buffers(model, training)?))
}

/// As [`memory`], with staging buffers of attention that are known ([`super::attention::buffers`]); with none, a lower
/// bound.
pub fn memory_with(model: &Model, cluster: &Cluster, training: &Training, staging: Bytes) -> Memory {
    let stages = (0..training.grid.pp).map(|stage| stage_with(model, cluster, training, stage, staging));
    stages.max_by_key(|m| m.total).expect("a grid has at least one stage")
}

/// Memory of stage `stage`.
///
/// # Errors
/// What the schedule refuses.
pub fn stage_memory(
    model: &Model,
    cluster: &Cluster,
    training: &Training,
    stage: u64,
) -> Result<Memory, TrainingError> {
    Ok(stage_with(model, cluster, training, stage, attention_buffers(model, training)?))
}

fn stage_with(model: &Model, cluster: &Cluster, training: &Training, stage: u64, staging: Bytes) -> Memory {
    let weights = stage_weights(model, training, stage);
    let replicas = training.grid.replica_group().size;
    let sharded = |from: Sharding, bytes: u64| {
        let parts = if training.sharding >= from { replicas } else { 1 };
        Bytes(weights * bytes / parts)
    };
    let trains = u64::from(!training.forward_only());
    let last = stage + 1 == training.grid.pp;
    let mut m = Memory {
        weights: sharded(Sharding::Weights, training.element_bytes),
        gradients: sharded(Sharding::Gradients, training.gradient_bytes * trains),
        optimizer: sharded(Sharding::Optimizer, 12 * trains),
        activations: Bytes(layer_kept(model, training) * layers_in_flight(model, training, stage) * trains),
        attention: staging,
        logits: if last { logits(model, training) } else { Bytes(0) },
        working: Bytes(working(model, training)),
        reserved: training.reserved,
        total: Bytes(0),
        capacity: cluster.device.memory,
        over: None,
    };
    // Logits are gone before the deepest layer is at work again.
    let phase = Bytes(m.logits.0.max(m.working.0 + m.attention.0));
    m.total = m.weights + m.gradients + m.optimizer + m.activations + phase + m.reserved;
    m.over = m.total.0.checked_sub(m.capacity.0).filter(|&b| b > 0).map(Bytes);
    m
}

fn logits(model: &Model, training: &Training) -> Bytes {
    let e = training.element_bytes;
    let each = if training.forward_only() { e } else { e + 4 + 4 + e };
    Bytes(training.tokens_per_rank() * model.vocab / training.grid.tp * each)
}

/// Recomputed activations, the gradients of two feed-forward tensors and two of the residual stream, and with FSDP two
/// layers of gathered weights and one of their gradients. Sequence parallelism gathers one input.
fn working(model: &Model, training: &Training) -> u64 {
    let (tokens, e, tp) = (training.tokens_per_rank(), training.element_bytes, training.grid.tp);
    let again = match training.checkpointing {
        Checkpointing::None => 0,
        Checkpointing::Selective => scores_kept(model, training),
        _ => layer_activations(model, training, tokens),
    };
    let residual = e * model.hidden * tokens;
    let gradients = 2 * e * model.intermediate * tokens / tp + 2 * residual;
    let weights = work::layer_weights(model, training);
    let gathered = if training.sharding == Sharding::Weights && training.grid.replica_group().size > 1 {
        weights * (2 * e + training.gradient_bytes)
    } else {
        0
    };
    let input = if training.sequence_parallel && tp > 1 { residual } else { 0 };
    again + gradients + gathered + input
}

/// Scratch of the attention plan, of the backward unless there is none.
pub(super) fn attention_buffers(model: &Model, training: &Training) -> Result<Bytes, TrainingError> {
    let shape = attention::shape(model, training);
    if let AttentionKernel::Materialised(kernel) = training.context.kernel {
        let queries = training.seq / training.grid.ring;
        return Ok(kernel.live_bytes(&shape, queries, training.seq));
    }
    let pass = if training.forward_only() { Pass::Forward } else { Pass::Backward };
    Ok(attention::buffers(&attention::plan(training, shape, pass)?))
}
