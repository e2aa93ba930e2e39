//! The time of an iteration, part by part.

use serde::Serialize;

use super::TrainingError;
use super::attention::{self, AttentionTime};
use super::collective::Links;
use super::exchange;
use super::setup::{AttentionKernel, Checkpointing, Sharding, Training};
use super::work::{self, LayerWork};
use crate::config::cluster::Cluster;
use crate::config::model::Model;
use crate::problem::Pass;
use crate::units::{Bytes, SimTime};

/// Times of one layer, one micro-batch, one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct LayerTime {
    /// Matrix products.
    pub matmul: SimTime,
    /// Element-wise kernels.
    pub elementwise: SimTime,
    /// Attention kernels.
    pub attention: SimTime,
    /// What context parallelism exposes: communication, imbalance, waiting.
    pub context: SimTime,
    /// Exposed collectives of the tensor group.
    pub tensor: SimTime,
    /// Exchanges of the expert group.
    pub experts: SimTime,
    /// Host time that launches take beyond the device's.
    pub host: SimTime,
}

impl LayerTime {
    /// The sum of the parts.
    pub fn total(&self) -> SimTime {
        self.matmul
            + self.elementwise
            + self.attention
            + self.context
            + self.tensor
            + self.experts
            + self.host
    }

    fn plus(&self, other: &Self) -> Self {
        Self {
            matmul: self.matmul + other.matmul,
            elementwise: self.elementwise + other.elementwise,
            attention: self.attention + other.attention,
            context: self.context + other.context,
            tensor: self.tensor + other.tensor,
            experts: self.experts + other.experts,
            host: self.host + other.host,
        }
    }

    fn times(&self, n: u64) -> Self {
        Self {
            matmul: self.matmul * n,
            elementwise: self.elementwise * n,
            attention: self.attention * n,
            context: self.context * n,
            tensor: self.tensor * n,
            experts: self.experts * n,
            host: self.host * n,
        }
    }
}

/// Forward, backward and what the backward computes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LayerTimes {
    /// Forward.
    pub forward: LayerTime,
    /// Backward, without recomputation.
    pub backward: LayerTime,
    /// Computed again before the backward.
    pub recompute: LayerTime,
    /// Scratch of attention, the larger of both passes.
    pub attention_buffers: Bytes,
}

/// Where the time of an iteration goes; the parts add up to `total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Breakdown {
    /// Matrix products, forward and backward.
    pub matmul: SimTime,
    /// Element-wise kernels.
    pub elementwise: SimTime,
    /// Attention kernels of the busiest rank, forward and backward.
    pub attention: SimTime,
    /// Context parallelism beyond them: exposed communication, imbalance, waiting.
    pub exposed_context: SimTime,
    /// Exposed tensor-parallel collectives.
    pub exposed_tensor: SimTime,
    /// Exposed expert exchanges.
    pub exposed_experts: SimTime,
    /// Exposed weight gathering and gradient reduction.
    pub exposed_data: SimTime,
    /// Transfers between pipeline stages.
    pub exposed_pipeline: SimTime,
    /// Everything computed or communicated again.
    pub recompute: SimTime,
    /// Host launches that the device waits for, and the fixed time of an iteration.
    pub host: SimTime,
    /// The optimiser's step.
    pub optimizer: SimTime,
    /// Stages that wait for the pipeline to fill and drain.
    pub bubble: SimTime,
    /// The iteration.
    pub total: SimTime,
}

/// The layer on one rank.
///
/// # Errors
/// What the schedule, the engine or the kernel table refuses.
pub fn layer(model: &Model, cluster: &Cluster, training: &Training) -> Result<LayerTimes, TrainingError> {
    let forward = attention::time(model, cluster, training, Pass::Forward)?;
    let backward = if training.forward_only() {
        AttentionTime::default()
    } else {
        attention::time(model, cluster, training, Pass::Backward)?
    };
    Ok(layer_with(model, cluster, training, [forward, backward]))
}

/// The layer with attention that takes so long, forward and backward.
fn layer_with(
    model: &Model,
    cluster: &Cluster,
    training: &Training,
    [forward, backward]: [AttentionTime; 2],
) -> LayerTimes {
    let tokens = training.tokens_per_rank();
    let work = work::layer(model, training, tokens);
    let parts = Parts { model, cluster, training, work, tokens };
    let there = parts.direction(&forward, 1);
    let mut times = LayerTimes {
        forward: there,
        backward: LayerTime::default(),
        recompute: LayerTime::default(),
        attention_buffers: forward.buffers.max(backward.buffers),
    };
    if !training.forward_only() {
        times.backward = parts.direction(&backward, 2);
        times.recompute = recomputed(training, &there);
    }
    times
}

/// What of a forward runs again.
fn recomputed(training: &Training, forward: &LayerTime) -> LayerTime {
    let core = LayerTime { attention: forward.attention, ..LayerTime::default() };
    match (training.checkpointing, training.context.kernel) {
        (Checkpointing::None, _) | (Checkpointing::Selective, AttentionKernel::Tiled) => LayerTime::default(),
        (Checkpointing::Selective, AttentionKernel::Materialised(_)) => core,
        (Checkpointing::FullLayer, _) => *forward,
        (Checkpointing::RematAware, _) => {
            LayerTime { attention: SimTime::ZERO, context: SimTime::ZERO, ..*forward }
        }
    }
}

struct Parts<'a> {
    model: &'a Model,
    cluster: &'a Cluster,
    training: &'a Training,
    work: LayerWork,
    tokens: u64,
}

impl Parts<'_> {
    /// One direction: 1 forward, 2 backward, which has twice the products and traffic.
    fn direction(&self, attention: &AttentionTime, weight: u64) -> LayerTime {
        let matmul = work::matmul_time(self.cluster, self.work.flops, self.work.streamed) * weight;
        let elementwise = (self.work.elementwise / self.cluster.device.reached.hbm) * weight;
        let device = matmul + elementwise + attention.compute;
        let stack = &self.training.stack;
        LayerTime {
            matmul,
            elementwise,
            attention: attention.compute,
            context: attention.exposed,
            tensor: self.tensor_collectives(weight),
            experts: self.expert_exchanges(),
            host: (stack.launch * (stack.kernels * weight)).saturating_sub(device),
        }
    }

    /// Without sequence parallelism two all-reduces each way. With it two all-gathers and two reduce-scatters each way;
    /// the backward gathers the inputs of two more products, hidden behind those products (arXiv 2205.05198, s4.2.2).
    fn tensor_collectives(&self, weight: u64) -> SimTime {
        let (links, group) = (Links::new(self.cluster), self.training.grid.tensor_group());
        let payload = Bytes(self.tokens * self.model.hidden * self.training.element_bytes);
        if !self.training.sequence_parallel {
            return links.all_reduce(group, payload) * 2;
        }
        let gather = links.all_gather(group, payload);
        let exposed = (gather + links.reduce_scatter(group, payload)) * 2;
        if weight == 1 {
            return exposed;
        }
        let products = self.work.gathered_flops / self.cluster.device.reached.matmul;
        exposed + (gather * 2).saturating_sub(products)
    }

    /// Tokens to their experts and back.
    fn expert_exchanges(&self) -> SimTime {
        let Some(moe) = self.model.experts else { return SimTime::ZERO };
        let each = self.tokens * moe.active * self.model.hidden * self.training.element_bytes;
        exchange::all_to_all(self.cluster, self.training.grid.expert_group(), Bytes(each)) * 2
    }
}

/// The iteration.
///
/// # Errors
/// As [`layer`].
pub fn iteration(model: &Model, cluster: &Cluster, training: &Training) -> Result<Breakdown, TrainingError> {
    let times = layer(model, cluster, training)?;
    Ok(assemble(model, cluster, training, &times))
}

/// The iteration with attention that is known, forward and backward, Ulysses' exchanges included. It never gets shorter
/// when attention takes longer, so a lower bound of attention gives one of the iteration.
pub fn iteration_with(
    model: &Model,
    cluster: &Cluster,
    training: &Training,
    attention: [AttentionTime; 2],
) -> Breakdown {
    assemble(model, cluster, training, &layer_with(model, cluster, training, attention))
}

fn assemble(model: &Model, cluster: &Cluster, training: &Training, times: &LayerTimes) -> Breakdown {
    let (m, pp) = (training.micro_batches, training.grid.pp);
    let layers = model.layers / pp;
    let both = times.forward.plus(&times.backward).times(layers * m);
    let recompute = times.recompute.total() * (layers * m);
    let (head_matmul, head_elementwise) = head(model, cluster, training);
    let data = exposed_data(model, cluster, training, times);
    let stage = (times.forward.total() + times.backward.total() + times.recompute.total()) * layers;
    let bubble = SimTime((stage.0 as f64 * (pp - 1) as f64 / training.grid.interleave as f64) as u64);
    let mut parts = Breakdown {
        matmul: both.matmul + head_matmul * m,
        elementwise: both.elementwise + head_elementwise * m,
        attention: both.attention,
        exposed_context: both.context,
        exposed_tensor: both.tensor,
        exposed_experts: both.experts,
        exposed_data: data,
        exposed_pipeline: stage_transfers(model, cluster, training),
        recompute,
        host: both.host + training.fixed,
        optimizer: optimizer(model, cluster, training),
        bubble,
        total: SimTime::ZERO,
    };
    parts.total = parts.sum();
    parts
}

impl Breakdown {
    fn sum(&self) -> SimTime {
        let parts = [
            self.matmul,
            self.elementwise,
            self.attention,
            self.exposed_context,
            self.exposed_tensor,
            self.exposed_experts,
            self.exposed_data,
            self.exposed_pipeline,
            self.recompute,
            self.host,
            self.optimizer,
            self.bubble,
        ];
        parts.into_iter().sum()
    }
}

/// The output head and the loss of one micro-batch, both directions.
fn head(model: &Model, cluster: &Cluster, training: &Training) -> (SimTime, SimTime) {
    let (flops, bytes) = work::head(model, training, training.tokens_per_rank());
    let passes = if training.forward_only() { 1 } else { 3 };
    (work::matmul_time(cluster, flops, Bytes(0)) * passes, bytes / cluster.device.reached.hbm)
}

/// FSDP gathers each layer's weights in both directions and scatters its gradients, beside the layer's own work. Other
/// stages reduce all gradients once, beside the last backward if they may.
fn exposed_data(model: &Model, cluster: &Cluster, training: &Training, times: &LayerTimes) -> SimTime {
    let (links, group) = (Links::new(cluster), training.grid.replica_group());
    let layers = model.layers / training.grid.pp;
    let weights = work::layer_weights(model, training);
    let (gathered, reduced) =
        (Bytes(weights * training.element_bytes), Bytes(weights * training.gradient_bytes));
    let backward = times.backward.total() + times.recompute.total();
    if training.sharding == Sharding::Weights {
        let gather = links.all_gather(group, gathered);
        let there = gather.saturating_sub(times.forward.total());
        let back = (gather + links.reduce_scatter(group, reduced)).saturating_sub(backward);
        let back = if training.forward_only() { SimTime::ZERO } else { back };
        return (there + back) * (layers * training.micro_batches);
    }
    if training.forward_only() {
        return SimTime::ZERO;
    }
    let all = links.all_reduce(group, reduced * layers);
    if training.overlap_gradients { all.saturating_sub(backward * layers) } else { all }
}

/// Two transfers of the residual stream a micro-batch and stage boundary, each way, on the critical path of a stage.
fn stage_transfers(model: &Model, cluster: &Cluster, training: &Training) -> SimTime {
    let grid = &training.grid;
    if grid.pp == 1 {
        return SimTime::ZERO;
    }
    let cut = if training.sequence_parallel { grid.tp } else { 1 };
    let bytes = Bytes(training.tokens_per_rank() * model.hidden * training.element_bytes / cut);
    let once = Links::new(cluster).send(grid.gpus() / grid.pp, bytes);
    once * (2 * grid.interleave * training.micro_batches)
}

fn optimizer(model: &Model, cluster: &Cluster, training: &Training) -> SimTime {
    if training.forward_only() {
        return SimTime::ZERO;
    }
    let replicas = if training.sharding == Sharding::None { 1 } else { training.grid.replica_group().size };
    let weights = super::memory::stage_weights(model, training, 0) / replicas;
    work::adam_bytes(training, weights) / cluster.device.reached.hbm
}
