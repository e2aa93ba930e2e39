//! One line of the result: all figures of one executed pass.

use ringlab_runtime::metrics::communication;
use ringlab_runtime::verify::Errors;
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::Plan;
use ringlab_sim::units::{Bytes, SimTime};
use serde::Serialize;

use super::Done;
use super::judge::Bounds;
use crate::args::RunArgs;
use crate::setup::Setup;

/// Figures of one executed pass. `null` for what the pass or the backend does not have.
#[derive(Serialize, schemars::JsonSchema)]
pub struct Row {
    pub schedule: String,
    pub backend: &'static str,
    pub cp: u32,
    /// Tokens of the whole sequence, padding not counted.
    pub seq_len: u64,
    pub padding: u64,
    pub pass: String,
    /// The median repeat, or the mean of those under lasting load, on the slowest rank; without events around operations where
    /// both were measured.
    pub time_s: f64,
    pub bytes_moved: u64,
    /// The largest rank's buffers, as they were allocated.
    pub peak_memory_bytes: u64,
    pub o_max_rel_error: Option<f64>,
    pub lse_max_rel_error: Option<f64>,
    pub dq_max_rel_error: Option<f64>,
    pub dk_max_rel_error: Option<f64>,
    pub dv_max_rel_error: Option<f64>,
    /// In the L2 norm, over all compared elements.
    pub o_l2_error: Option<f64>,
    pub dq_l2_error: Option<f64>,
    pub dk_l2_error: Option<f64>,
    pub dv_l2_error: Option<f64>,
    /// Padding rows that are not exactly 0, or -inf for lse.
    pub wrong_padding_rows: usize,
    /// Rows of each tensor that were compared; `null` for all of them.
    pub sampled_rows: Option<usize>,
    pub within_bound: bool,
    pub dtype: String,
    pub transport: &'static str,
    pub mode: Option<String>,
    /// Whether all ranks took turns on one GPU: then no time says anything about several.
    pub is_virtual: bool,
    pub warmup: u32,
    pub repeats: usize,
    /// What `time_s` is of the repeats: `median` or `mean`.
    pub time_is: &'static str,
    pub time_min_s: f64,
    pub time_max_s: f64,
    /// (longest - shortest) / time.
    pub spread: f64,
    /// The timeline's makespan, whose operations are timed one by one, under lasting load each from the mean of its starts to that
    /// of its ends; the figures down to `imbalance` are of it.
    pub timeline_s: f64,
    /// Compute time of the busiest rank.
    pub compute_s: f64,
    /// Time in which messages move, on the rank that has most of it.
    pub comm_s: f64,
    /// On the rank that has most of it; not of virtual ranks, which take turns.
    pub exposed_comm_s: Option<f64>,
    /// Not of virtual ranks.
    pub bubble_ratio: Option<f64>,
    pub imbalance: f64,
    /// FLOPs by the mask's area over ranks and `time_s`; not of virtual ranks.
    pub tflops_per_gpu: Option<f64>,
    /// What the simulator says of the same plan on `predicted_cluster`.
    pub predicted_s: Option<f64>,
    pub predicted_bubble_ratio: Option<f64>,
    pub predicted_exposed_comm_s: Option<f64>,
    pub predicted_cluster: Option<String>,
    /// predicted_s / time_s - 1.
    pub prediction_error: Option<f64>,
    /// The largest rank's buffers by the plan.
    pub planned_memory_bytes: u64,
    /// Contexts, kernels and communicators, on the fullest GPU.
    pub context_memory_bytes: Option<u64>,
    /// Time that recording events adds, over the time without.
    pub recording_cost: Option<f64>,
    /// By which two ranks' clocks may differ in the timeline.
    pub alignment_error_s: Option<f64>,
    /// How long runs had followed each other when the measured ones began: a GPU's clock falls under load.
    pub loaded_s: Option<f64>,
    /// Makespans over the wall time of the measured runs.
    pub duty: Option<f64>,
    /// Longest time that a host took to post one run.
    pub posting_s: Option<f64>,
    pub notes: String,
}

/// Figures of one rank, in the pass's timeline.
#[derive(Serialize, schemars::JsonSchema)]
pub struct RankRow {
    pub rank: u32,
    pub compute_s: f64,
    /// Time in which at least one of the rank's messages moves.
    pub comm_s: f64,
    pub exposed_comm_s: f64,
    pub wait_s: f64,
    /// 1 - compute / makespan.
    pub idle_ratio: f64,
    /// FLOPs of the rank by the mask's area over its compute time.
    pub kernel_tflops: Option<f64>,
    pub peak_memory_bytes: u64,
    pub planned_memory_bytes: u64,
    pub device: Option<String>,
}

/// A row with its ranks, for JSON.
#[derive(Serialize, schemars::JsonSchema)]
pub struct Full<'a> {
    #[serde(flatten)]
    pub row: &'a Row,
    pub ranks: &'a [RankRow],
}

impl Row {
    pub fn new(args: &RunArgs, setup: &Setup, done: &Done, errors: &Errors, sampled: Option<usize>) -> Self {
        let Done { plan, executed, metrics, prediction, .. } = done;
        let finite = |e: Option<f64>| e.filter(|e| e.is_finite());
        let (time, ranks) = (executed.time().as_secs_f64(), f64::from(plan.ranks()));
        let (low, high) = executed.extremes();
        let (gpu, seconds) = (executed.gpu.as_ref(), SimTime::as_secs_f64);
        let timeline = &executed.outcome.timeline;
        let comm = (0..plan.ranks()).map(|r| communication(timeline, r)).max().unwrap_or(SimTime::ZERO);
        let predicted = prediction.as_ref();
        let real = !executed.is_virtual();
        let notes: Vec<&str> = plan.notes.iter().chain(&executed.notes).map(String::as_str).collect();
        Self {
            schedule: plan.name.clone(),
            backend: args.backend.name(),
            cp: plan.ranks(),
            seq_len: setup.problem.tokens(),
            padding: plan.layout.documents().padding(),
            pass: plan.pass.to_string(),
            time_s: time,
            bytes_moved: executed.outcome.bytes_moved.0,
            peak_memory_bytes: executed.outcome.peak_bytes.iter().max().map_or(0, |b| b.0),
            o_max_rel_error: finite(errors.o_max_rel_error),
            lse_max_rel_error: finite(errors.lse_max_rel_error),
            dq_max_rel_error: finite(errors.dq_max_rel_error),
            dk_max_rel_error: finite(errors.dk_max_rel_error),
            dv_max_rel_error: finite(errors.dv_max_rel_error),
            o_l2_error: finite(errors.o_l2_error),
            dq_l2_error: finite(errors.dq_l2_error),
            dk_l2_error: finite(errors.dk_l2_error),
            dv_l2_error: finite(errors.dv_l2_error),
            wrong_padding_rows: errors.wrong_padding_rows,
            sampled_rows: sampled,
            within_bound: Bounds::of(args).hold(errors),
            dtype: plan.shape.dtype.to_string(),
            transport: transport(plan),
            mode: gpu.map(|g| g.mode.clone()),
            is_virtual: executed.is_virtual(),
            warmup: args.warmup(),
            repeats: executed.recorded.len().max(executed.unrecorded.len()),
            time_min_s: seconds(low),
            time_max_s: seconds(high),
            time_is: executed.typical.name(),
            spread: executed.spread(),
            timeline_s: seconds(timeline.makespan),
            compute_s: seconds(metrics.ranks.iter().map(|r| r.busy).max().unwrap_or(SimTime::ZERO)),
            comm_s: seconds(comm),
            exposed_comm_s: real.then(|| seconds(metrics.exposed_comm)),
            bubble_ratio: real.then_some(metrics.bubble_ratio),
            imbalance: metrics.imbalance,
            tflops_per_gpu: (time > 0.0 && real).then(|| plan.mask_area_flops() / (ranks * time) / 1e12),
            predicted_s: predicted.map(|p| seconds(p.makespan)),
            predicted_bubble_ratio: predicted.map(|p| p.bubble_ratio),
            predicted_exposed_comm_s: predicted.map(|p| seconds(p.exposed_comm)),
            predicted_cluster: predicted.map(|_| setup.cluster.name.clone()),
            prediction_error: predicted.filter(|_| time > 0.0).map(|p| seconds(p.makespan) / time - 1.0),
            planned_memory_bytes: metrics.peak_memory.0,
            context_memory_bytes: gpu.map(|g| g.context_bytes.0),
            recording_cost: executed.recording_cost(),
            alignment_error_s: gpu.map(|g| seconds(g.alignment_error)),
            loaded_s: gpu.map(|g| g.loaded_s),
            duty: gpu.map(|g| g.duty),
            posting_s: gpu.map(|g| seconds(g.posting)),
            notes: notes.join("; "),
        }
    }

    /// The largest of the errors that are judged, lse's apart: of rows, or in the L2 norm.
    pub fn worst_error(&self, by_l2_norm: bool) -> Option<f64> {
        let all = if by_l2_norm {
            [self.o_l2_error, self.dq_l2_error, self.dk_l2_error, self.dv_l2_error]
        } else {
            [self.o_max_rel_error, self.dq_max_rel_error, self.dk_max_rel_error, self.dv_max_rel_error]
        };
        all.into_iter().flatten().reduce(f64::max)
    }
}

/// The figures of every rank.
pub fn ranks(done: &Done) -> Vec<RankRow> {
    let Done { plan, executed, metrics, .. } = done;
    let timeline = &executed.outcome.timeline;
    let makespan = timeline.makespan.as_secs_f64();
    let of_rank = |rank: u32| {
        let times = metrics.ranks.get(rank as usize).copied().unwrap_or_default();
        let busy = times.busy.as_secs_f64();
        let flops: f64 = timeline.spans.iter().filter(|s| s.rank == rank).map(|s| s.flops).sum();
        let devices = executed.gpu.as_ref().map(|g| &g.device_names);
        RankRow {
            rank,
            compute_s: busy,
            comm_s: communication(timeline, rank).as_secs_f64(),
            exposed_comm_s: times.exposed.as_secs_f64(),
            wait_s: times.wait.as_secs_f64(),
            idle_ratio: if makespan > 0.0 { (1.0 - busy / makespan).max(0.0) } else { 0.0 },
            kernel_tflops: (busy > 0.0).then(|| flops / busy / 1e12),
            peak_memory_bytes: executed.outcome.peak_bytes.get(rank as usize).map_or(0, |b| b.0),
            planned_memory_bytes: plan.programs[rank as usize].peak_memory().0,
            device: devices.and_then(|names| names.get(rank as usize)).cloned(),
        }
    };
    (0..plan.ranks()).map(of_rank).collect()
}

fn transport(plan: &Plan) -> &'static str {
    match plan.transport {
        ringlab_sim::plan::Transport::CopyEngine => "copy-engine",
        ringlab_sim::plan::Transport::Nccl => "nccl",
    }
}

/// The prediction's part that is shown beside a measurement.
pub struct Prediction {
    pub makespan: SimTime,
    pub bubble_ratio: f64,
    pub exposed_comm: SimTime,
}

impl From<Metrics> for Prediction {
    fn from(m: Metrics) -> Self {
        Self { makespan: m.makespan, bubble_ratio: m.bubble_ratio, exposed_comm: m.exposed_comm }
    }
}

/// As text with its unit.
pub fn bytes(n: u64) -> String {
    Bytes(n).to_string()
}

/// As text with its unit.
pub fn seconds(s: f64) -> String {
    SimTime::from_secs_f64(s).to_string()
}
