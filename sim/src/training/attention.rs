//! Attention of one layer: the context-parallel plan simulated, with Ulysses' exchanges around it.

use serde::Serialize;

use super::TrainingError;
use super::collective::{Group, Links};
use super::exchange;
use super::materialised::Materialised;
use super::setup::{AttentionKernel, Training};
use super::work::padded_heads;
use crate::config::cluster::{Cluster, Dtype, FabricTopology};
use crate::config::model::Model;
use crate::engine::{self, SimOptions};
use crate::mask::Pattern;
use crate::metrics::Metrics;
use crate::plan::{Plan, Role};
use crate::problem::{Pass, Problem, Shape};
use crate::schedule::{self, Options};
use crate::units::{Bytes, SimTime};

/// Time of attention in one pass of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct AttentionTime {
    /// Kernels of the busiest rank.
    pub compute: SimTime,
    /// The rest of the slowest rank's time: communication that nothing hides, and waiting.
    pub exposed: SimTime,
    /// Scratch buffers of the plan at their peak.
    pub buffers: Bytes,
}

impl AttentionTime {
    /// Compute and what is exposed.
    pub fn total(&self) -> SimTime {
        self.compute + self.exposed
    }
}

/// Heads and sizes of one rank's attention.
pub fn shape(model: &Model, training: &Training) -> Shape {
    let parts = training.grid.tp * training.grid.ulysses;
    let heads = padded_heads(model, training) / parts;
    // Fewer kv heads than ranks are repeated; padded query heads that they do not divide get their own.
    let kv = model.kv_heads.div_ceil(parts);
    let kv_heads = if heads.is_multiple_of(kv) { kv } else { heads };
    Shape {
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: model.head_dim as u32,
        dtype: if training.element_bytes == 4 { Dtype::Tf32 } else { Dtype::Bf16 },
        batch: training.micro_batch as u32,
    }
}

/// One pass of one layer.
///
/// # Errors
/// What the schedule, the engine or the kernel table refuses.
pub fn time(
    model: &Model,
    cluster: &Cluster,
    training: &Training,
    pass: Pass,
) -> Result<AttentionTime, TrainingError> {
    let mut found = ring_time(model, cluster, training, pass)?;
    found.exposed += exchange_heads(model, cluster, training);
    Ok(found)
}

/// As [`time`], without Ulysses' exchanges: what the heads and the ring of a rank decide, whoever divides the heads.
///
/// # Errors
/// As [`time`].
pub fn ring_time(
    model: &Model,
    cluster: &Cluster,
    training: &Training,
    pass: Pass,
) -> Result<AttentionTime, TrainingError> {
    let shape = shape(model, training);
    match training.context.kernel {
        AttentionKernel::Tiled => simulated(cluster, training, shape, pass),
        AttentionKernel::Materialised(kernel) => Ok(materialised(cluster, training, &kernel, shape, pass)),
    }
}

/// The plan of the ring ranks.
///
/// # Errors
/// What the schedule refuses.
pub fn plan(training: &Training, shape: Shape, pass: Pass) -> Result<Plan, TrainingError> {
    let pattern = if training.context.causal { Pattern::Causal } else { Pattern::Full };
    let problem = Problem { shape, pattern, documents: vec![training.seq] };
    let options = Options {
        transport: training.context.transport,
        prefetch: training.context.prefetch,
        partials: training.context.partials,
        chunks: training.context.chunks,
        pad: true,
        ..Options::new(pass)
    };
    Ok(schedule::build(training.context.schedule, &problem, training.grid.ring as u32, &options)?)
}

fn simulated(
    cluster: &Cluster,
    training: &Training,
    shape: Shape,
    pass: Pass,
) -> Result<AttentionTime, TrainingError> {
    let plan = plan(training, shape, pass)?;
    let part = part_of(cluster, training.grid.ring_group());
    let timeline = engine::simulate(&plan, &part, &SimOptions::default())?;
    let metrics = Metrics::of(&plan, &timeline);
    let compute = metrics.ranks.iter().map(|r| r.busy).max().unwrap_or(SimTime::ZERO);
    Ok(AttentionTime { compute, exposed: metrics.makespan.saturating_sub(compute), buffers: buffers(&plan) })
}

/// Peak of what is neither input nor result, on the rank that has most of it.
pub fn buffers(plan: &Plan) -> Bytes {
    let of_rank = |p: &crate::plan::Program| {
        let kept = p.buffers.iter().filter(|b| b.role != Role::Scratch).map(|b| b.bytes.0).sum::<u64>();
        p.peak_memory().0.saturating_sub(kept)
    };
    Bytes(plan.programs.iter().map(of_rank).max().unwrap_or(0))
}

/// Scores in memory: Ring Self-Attention passes K and then V around, and nothing overlaps.
fn materialised(
    cluster: &Cluster,
    training: &Training,
    kernel: &Materialised,
    shape: Shape,
    pass: Pass,
) -> AttentionTime {
    let ring = training.grid.ring;
    let queries = training.seq / ring;
    let links = Links::new(cluster);
    let tensor = u64::from(shape.heads * shape.head_dim * shape.batch) * training.element_bytes * queries;
    let group = training.grid.ring_group();
    let hop = links.border_hop(group, Bytes(tensor));
    // Backward, K and V go around again and the gradients of both are reduced over all ranks.
    let reduced = match pass {
        Pass::Forward => SimTime::ZERO,
        Pass::Backward => links.all_reduce(group, Bytes(tensor * ring)) * 2,
    };
    AttentionTime {
        compute: kernel.time(&cluster.device, &shape, queries, training.seq, pass),
        exposed: hop * (2 * (ring - 1)) + reduced,
        buffers: kernel.live_bytes(&shape, queries, training.seq),
    }
}

/// Ulysses: q, k and v to all tokens of fewer heads, and o back; the backward moves as much.
pub fn exchange_heads(model: &Model, cluster: &Cluster, training: &Training) -> SimTime {
    let group = training.grid.ulysses_group();
    let tp = training.grid.tp;
    let token = model.head_dim * training.element_bytes;
    let q = padded_heads(model, training) / tp * token;
    let kv = 2 * (model.kv_heads.max(tp * group.size)).min(padded_heads(model, training)) / tp * token;
    let tokens = training.tokens_per_rank();
    let exchange = |bytes| exchange::all_to_all(cluster, group, Bytes(bytes * tokens));
    exchange(q + kv) + exchange(q)
}

/// The part of the cluster that one group of ranks sees: every `stride`-th GPU with its share of the NICs.
pub fn part_of(cluster: &Cluster, group: Group) -> Cluster {
    let mut part = cluster.clone();
    let stride = group.stride.max(1) as u32;
    if stride == 1 {
        return part;
    }
    let per_node = cluster.gpus_per_node;
    part.gpus_per_node = (per_node / stride).max(1);
    part.nodes = if stride <= per_node { cluster.nodes } else { cluster.gpus().div_ceil(stride) };
    if let Some(network) = &mut part.network {
        let rate = f64::from(network.nics_per_node) * f64::from(part.gpus_per_node) / f64::from(per_node);
        network.nics_per_node = part.gpus_per_node;
        let each = rate / f64::from(part.gpus_per_node);
        network.nic_bandwidth = network.nic_bandwidth * each;
        network.transport.bandwidth = network.transport.bandwidth * each;
    }
    match &mut part.fabric.topology {
        FabricTopology::Torus { dims, wraparound, .. } => {
            *dims = vec![part.gpus_per_node];
            *wraparound = false;
        }
        FabricTopology::Pcie { gpus_per_switch, .. } => *gpus_per_switch = (*gpus_per_switch / stride).max(1),
        FabricTopology::Nvswitch { .. } => {}
    }
    part
}
