//! The result for programs.

use ringlab_sim::training::{Breakdown, Checkpointing, Sharding};
use ringlab_sim::units::SimTime;
use serde::Serialize;

use super::Answer;
use crate::output::FORMAT_VERSION;
use crate::tune::{Costed, Counts, Length, Price, Shift};

/// A way to train with its iteration.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Row {
    /// What the row is: `best`, `runner-up`, `schedule's best`, `too large`.
    pub kind: &'static str,
    /// Of the ring; `none` where one rank is no ring.
    pub schedule: String,
    pub tp: u64,
    pub ulysses: u64,
    pub ring: u64,
    pub pp: u64,
    pub dp: u64,
    /// Ranks that share experts.
    pub experts: u64,
    /// Of an iteration, on each replica.
    pub micro_batches: u64,
    pub chunks: u32,
    pub checkpointing: &'static str,
    pub sharding: &'static str,
    /// An iteration.
    pub time_s: f64,
    /// Over the best.
    pub slowdown: f64,
    pub tokens_per_s_per_gpu: f64,
    pub matmul_s: f64,
    pub elementwise_s: f64,
    pub attention_s: f64,
    /// Exposed communication, imbalance and waiting of context parallelism.
    pub exposed_context_s: f64,
    pub exposed_tensor_s: f64,
    pub exposed_experts_s: f64,
    pub exposed_data_s: f64,
    pub exposed_pipeline_s: f64,
    pub recompute_s: f64,
    pub host_s: f64,
    pub optimizer_s: f64,
    /// Pipeline stages that wait.
    pub bubble_s: f64,
    pub memory_bytes: u64,
    pub device_memory_bytes: u64,
    /// What is missing; 0 when it fits.
    pub over_memory_bytes: u64,
    /// Where it is slower than the best, or what is missing.
    pub loses_by: String,
}

#[derive(Serialize, schemars::JsonSchema)]
struct ShiftRow {
    change: String,
    seq_len: u64,
    sequences: u64,
    /// The best way's throughput there; `null` where it does not fit or is not legal.
    same_tokens_per_s_per_gpu: Option<f64>,
    best: Option<Row>,
    changes_the_best: bool,
}

#[derive(Serialize, schemars::JsonSchema)]
struct LengthRow {
    seq_len: u64,
    sequences: u64,
    whole_tokens_per_s_per_gpu: Option<f64>,
    shared_tokens_per_s_per_gpu: Option<f64>,
    shared: Option<Row>,
}

#[derive(Serialize, schemars::JsonSchema)]
struct CrossoverRow {
    /// From which length on context parallelism pays; `null` if it never does.
    pays_from: Option<u64>,
    lengths: Vec<LengthRow>,
}

/// The JSON form.
#[derive(Serialize, schemars::JsonSchema)]
pub struct Report<'a> {
    version: u32,
    cluster: &'a str,
    gpus: u64,
    model: &'a str,
    seq_len: u64,
    sequences: u64,
    tokens: u64,
    /// Whether everything was searched.
    complete: bool,
    candidates: Counts,
    results: &'a [Row],
    sensitivity: Vec<ShiftRow>,
    crossover: Option<CrossoverRow>,
    price: Option<Price>,
    refused: &'a [String],
    notes: &'a [String],
}

/// Names and times of what an iteration is made of.
pub fn parts(time: &Breakdown) -> [(&'static str, SimTime); 12] {
    [
        ("matrix products", time.matmul),
        ("element-wise", time.elementwise),
        ("attention", time.attention),
        ("exposed context", time.exposed_context),
        ("exposed tensor", time.exposed_tensor),
        ("exposed experts", time.exposed_experts),
        ("exposed data", time.exposed_data),
        ("exposed pipeline", time.exposed_pipeline),
        ("recompute", time.recompute),
        ("host", time.host),
        ("optimiser", time.optimizer),
        ("bubble", time.bubble),
    ]
}

/// Name of a schedule.
pub fn schedule(costed: &Costed) -> String {
    if costed.training.grid.ring == 1 { "none".into() } else { costed.training.context.schedule.to_string() }
}

/// Name of a checkpointing.
pub fn checkpointing(of: Checkpointing) -> &'static str {
    match of {
        Checkpointing::None => "none",
        Checkpointing::Selective => "selective",
        Checkpointing::FullLayer => "full-layer",
        Checkpointing::RematAware => "remat-aware",
    }
}

/// Name of a sharding.
pub fn sharding(of: Sharding) -> &'static str {
    match of {
        Sharding::None => "none",
        Sharding::Optimizer => "optimizer",
        Sharding::Gradients => "gradients",
        Sharding::Weights => "weights",
    }
}

/// The two parts in which `costed` is slower than `best` by most, or what it lacks.
fn loses_by(costed: &Costed, best: &Costed) -> String {
    if let Some(over) = costed.memory.over {
        return format!("{over} too much");
    }
    let pairs = parts(&costed.time).into_iter().zip(parts(&best.time));
    let mut slower: Vec<(&str, SimTime)> = pairs
        .filter_map(|((name, own), (_, best))| {
            Some((name, own.checked_sub(best).filter(|t| *t > SimTime::ZERO)?))
        })
        .collect();
    slower.sort_by_key(|(_, by)| std::cmp::Reverse(*by));
    let said = slower.iter().take(2).map(|(name, by)| format!("{name} +{by}"));
    said.collect::<Vec<_>>().join(", ")
}

/// Tokens a second and GPU of an iteration of `tokens`.
pub fn throughput(costed: &Costed, tokens: u64) -> f64 {
    tokens as f64 / costed.time.total.as_secs_f64() / costed.training.grid.gpus() as f64
}

fn row(kind: &'static str, costed: &Costed, best: &Costed, tokens: u64) -> Row {
    let (training, grid, memory) = (&costed.training, &costed.training.grid, &costed.memory);
    let s = |time: SimTime| time.as_secs_f64();
    let time = &costed.time;
    Row {
        kind,
        schedule: schedule(costed),
        tp: grid.tp,
        ulysses: grid.ulysses,
        ring: grid.ring,
        pp: grid.pp,
        dp: grid.dp,
        experts: grid.experts,
        micro_batches: training.micro_batches,
        chunks: training.context.chunks,
        checkpointing: checkpointing(training.checkpointing),
        sharding: sharding(training.sharding),
        time_s: s(time.total),
        slowdown: s(time.total) / s(best.time.total),
        tokens_per_s_per_gpu: throughput(costed, tokens),
        matmul_s: s(time.matmul),
        elementwise_s: s(time.elementwise),
        attention_s: s(time.attention),
        exposed_context_s: s(time.exposed_context),
        exposed_tensor_s: s(time.exposed_tensor),
        exposed_experts_s: s(time.exposed_experts),
        exposed_data_s: s(time.exposed_data),
        exposed_pipeline_s: s(time.exposed_pipeline),
        recompute_s: s(time.recompute),
        host_s: s(time.host),
        optimizer_s: s(time.optimizer),
        bubble_s: s(time.bubble),
        memory_bytes: memory.total.0,
        device_memory_bytes: memory.capacity.0,
        over_memory_bytes: memory.over.map_or(0, |b| b.0),
        loses_by: loses_by(costed, best),
    }
}

/// The best, the runner-ups, the best of each schedule and what is too large.
pub fn rows(answer: &Answer<'_>) -> Vec<Row> {
    let (found, tokens) = (&answer.found, answer.job.tokens());
    let Some(best) = found.best.first() else { return Vec::new() };
    let named =
        |kind, list: &[Costed]| -> Vec<Row> { list.iter().map(|c| row(kind, c, best, tokens)).collect() };
    let mut rows = named("best", &found.best[..1]);
    rows.extend(named("runner-up", &found.best[1..]));
    let other = |c: &&Costed| !found.best.iter().any(|known| known.index == c.index);
    let by_schedule: Vec<Costed> = found.by_schedule.iter().filter(other).copied().collect();
    rows.extend(named("schedule's best", &by_schedule));
    rows.extend(named("too large", &found.too_large));
    rows
}

fn shift(shift: &Shift, old: &Costed) -> ShiftRow {
    let tokens = shift.job.tokens();
    ShiftRow {
        change: shift.what.clone(),
        seq_len: shift.job.seq,
        sequences: shift.job.sequences,
        same_tokens_per_s_per_gpu: shift.same.as_ref().map(|c| throughput(c, tokens)),
        best: shift.best.as_ref().map(|best| row("best", best, best, tokens)),
        changes_the_best: shift.changes(old),
    }
}

fn length(length: &Length) -> LengthRow {
    let tokens = length.seq * length.sequences;
    LengthRow {
        seq_len: length.seq,
        sequences: length.sequences,
        whole_tokens_per_s_per_gpu: length.whole.as_ref().map(|c| throughput(c, tokens)),
        shared_tokens_per_s_per_gpu: length.shared.as_ref().map(|c| throughput(c, tokens)),
        shared: length.shared.as_ref().map(|best| row("best", best, best, tokens)),
    }
}

/// The JSON form of `answer`, whose rows are `rows`.
pub fn report<'a>(answer: &'a Answer<'_>, rows: &'a [Row]) -> Report<'a> {
    let (job, found) = (answer.job, &answer.found);
    let best = found.best.first();
    Report {
        version: FORMAT_VERSION,
        cluster: &job.cluster.name,
        gpus: job.gpus(),
        model: &job.model.name,
        seq_len: job.seq,
        sequences: job.sequences,
        tokens: job.tokens(),
        complete: answer.complete,
        candidates: found.counts,
        results: rows,
        sensitivity: best.map_or(Vec::new(), |best| answer.shifts.iter().map(|s| shift(s, best)).collect()),
        crossover: answer.crossover.as_ref().map(|c| CrossoverRow {
            pays_from: c.from().map(|l| l.seq),
            lengths: c.lengths.iter().map(length).collect(),
        }),
        price: answer.price,
        refused: &found.reasons,
        notes: &answer.notes,
    }
}
