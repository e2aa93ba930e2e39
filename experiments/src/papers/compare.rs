//! The guides' comparison of systems, computed for a cluster and a model instead of claimed.

use anyhow::Result;
use ringlab_sim::bound;
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::config::model::Model;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::{
    Checkpointing, Context, Grid, Longest, Sharding, Training, TrainingError, legal_contexts, longest,
    predict,
};
use ringlab_sim::units::{Bytes, SimTime};
use serde::Serialize;

/// One system on all GPUs of the cluster.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct System {
    /// Its name.
    pub name: &'static str,
    /// How it communicates.
    pub pattern: &'static str,
    /// Mean attention work a rank over the busiest one's, causal.
    pub balance: f64,
    /// Share of attention's and the tensor group's communication that computing hides; none without any.
    pub hidden: Option<f64>,
    /// Staging buffers of attention.
    pub buffers_bytes: Option<u64>,
    /// Largest degree that the heads allow without padding; none for no limit.
    pub largest_degree: Option<u64>,
    /// Longest power of two that fits.
    pub longest_context: Option<u64>,
    /// Seconds of an iteration.
    pub iteration_s: Option<f64>,
    /// The ring's iteration over this one's.
    pub speedup_over_ring: Option<f64>,
    /// Why there are no figures.
    pub refused: Option<String>,
}

/// The comparison and what it was computed for.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Comparison {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the model.
    pub model: String,
    /// GPUs used, all of the cluster.
    pub gpus: u64,
    /// Tokens of the sequence.
    pub seq_len: u64,
    /// The systems.
    pub systems: Vec<System>,
}

enum Kind {
    Tensor,
    Ulysses,
    Ring(Schedule),
}

const SYSTEMS: [(&str, &str, Kind); 6] = [
    ("Megatron-LM SP", "all-gather and reduce-scatter around attention and feed-forward", Kind::Tensor),
    ("DeepSpeed-Ulysses", "all-to-all of q, k, v and o", Kind::Ulysses),
    ("Ring Attention", "ring of k and v", Kind::Ring(Schedule::Ring)),
    ("zigzag ring", "ring of k and v", Kind::Ring(Schedule::Zigzag)),
    ("Striped Attention", "ring of k and v", Kind::Ring(Schedule::Striped { block: 1 })),
    ("DistFlashAttn", "direct messages: k and v, or q and partial o", Kind::Ring(Schedule::DistFlash)),
];

/// Every system with all GPUs of `cluster` on one sequence of `seq` tokens.
///
/// # Errors
/// A schedule or kernel that the cluster refuses for reasons other than heads and lengths.
pub fn compare(cluster: &Cluster, model: &Model, seq: u64) -> Result<Comparison> {
    let gpus = u64::from(cluster.gpus());
    let mut systems: Vec<System> = SYSTEMS
        .iter()
        .map(|(name, pattern, kind)| {
            let training = training(kind, gpus, seq);
            match figures(cluster, model, kind, &training) {
                Ok(system) => System { name, pattern, ..system },
                Err(error) => System {
                    name,
                    pattern,
                    refused: Some(error.to_string()),
                    ..empty(model, kind, &training)
                },
            }
        })
        .collect();
    let ring = systems.iter().find(|s| s.name == "Ring Attention").and_then(|s| s.iteration_s);
    for system in &mut systems {
        system.speedup_over_ring = ring.zip(system.iteration_s).map(|(ring, own)| ring / own);
    }
    Ok(Comparison { cluster: cluster.name.clone(), model: model.name.clone(), gpus, seq_len: seq, systems })
}

/// All recompute as their papers do: whole layers, DistFlashAttn all but attention.
fn training(kind: &Kind, gpus: u64, seq: u64) -> Training {
    let full = |grid, schedule| Training {
        checkpointing: Checkpointing::FullLayer,
        context: Context::new(schedule),
        ..Training::new(grid, seq, schedule)
    };
    match kind {
        Kind::Tensor => Training { sharding: Sharding::None, ..full(Grid::tensor(gpus), Schedule::Ring) },
        Kind::Ulysses => full(Grid::ulysses(gpus), Schedule::Ring),
        Kind::Ring(Schedule::DistFlash) => Training {
            checkpointing: Checkpointing::RematAware,
            ..full(Grid::ring(gpus), Schedule::DistFlash)
        },
        Kind::Ring(schedule) => full(Grid::ring(gpus), *schedule),
    }
}

fn empty(model: &Model, kind: &Kind, training: &Training) -> System {
    let gpus = training.grid.gpus();
    let balance = match kind {
        Kind::Ring(schedule) => bound::balance(*schedule, gpus as u32, (training.seq / gpus).max(2)),
        Kind::Tensor | Kind::Ulysses => 1.0,
    };
    let degree = legal_contexts(model.heads, 1, model.heads).last().map(|(u, _)| *u);
    System {
        name: "",
        pattern: "",
        balance,
        hidden: None,
        buffers_bytes: None,
        largest_degree: if matches!(kind, Kind::Ring(_)) { None } else { degree },
        longest_context: None,
        iteration_s: None,
        speedup_over_ring: None,
        refused: None,
    }
}

fn figures(
    cluster: &Cluster,
    model: &Model,
    kind: &Kind,
    training: &Training,
) -> Result<System, TrainingError> {
    let found = predict(model, cluster, training)?;
    let Longest { power_of_two, .. } = longest(model, cluster, training)?;
    Ok(System {
        hidden: hidden(cluster, model, training)?,
        buffers_bytes: Some(found.memory.attention.0),
        longest_context: Some(power_of_two),
        iteration_s: Some(found.time.total.as_secs_f64()),
        ..empty(model, kind, training)
    })
}

/// One minus what overlapping exposes over what the same exchange exposes without overlap, both beyond the time of the
/// busiest rank's kernels. Collectives around attention are never hidden.
fn hidden(cluster: &Cluster, model: &Model, training: &Training) -> Result<Option<f64>, TrainingError> {
    if training.grid.ring == 1 {
        return Ok(Some(0.0));
    }
    let exposed = |prefetch| -> Result<SimTime, TrainingError> {
        let context = Context { prefetch, ..training.context };
        Ok(predict(model, cluster, &Training { context, ..*training })?.time.exposed_context)
    };
    let (with, without) = (exposed(1)?.as_secs_f64(), exposed(0)?.as_secs_f64());
    Ok((without > 0.0).then(|| (1.0 - with / without).max(0.0)))
}

impl Comparison {
    /// A Markdown table.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "{} on {} ({} GPUs), {} tokens, causal, one sequence\n\n\
             | system | pattern | balance | hidden | buffers | heads allow | longest context | over the ring |\n\
             |---|---|---|---|---|---|---|---|\n",
            self.model, self.cluster, self.gpus, self.seq_len
        );
        for s in &self.systems {
            let or = |value: Option<String>, none: &str| value.unwrap_or_else(|| none.to_owned());
            text += &format!(
                "| {} | {} | {:.1}% | {} | {} | {} | {} | {} |\n",
                s.name,
                s.pattern,
                100.0 * s.balance,
                or(s.hidden.map(|h| format!("{:.0}%", 100.0 * h)), "-"),
                or(s.buffers_bytes.map(|b| Bytes(b).to_string()), "-"),
                or(s.largest_degree.map(|d| format!("up to {d} ranks")), "any degree"),
                or(s.longest_context.map(|n| format!("{}K", n / 1024)), "refused"),
                or(s.speedup_over_ring.map(|x| format!("{x:.2}x")), "-"),
            );
        }
        for s in self.systems.iter().filter(|s| s.refused.is_some()) {
            text += &format!("\n{}: {}\n", s.name, s.refused.as_deref().unwrap_or_default());
        }
        text
    }
}
