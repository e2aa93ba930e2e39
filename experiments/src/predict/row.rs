//! One line of the result: all figures of one schedule.

use ringlab_sim::disturb::Percentiles;
use ringlab_sim::engine::Load;
use ringlab_sim::units::{Bytes, SimTime};
use serde::Serialize;

use super::{Passes, Simulated};
use crate::setup::Setup;

/// What other schedules are compared with.
pub struct Baseline {
    makespan_s: f64,
    critical_flops: f64,
}

impl Baseline {
    pub fn of(simulated: &Passes) -> Self {
        let metrics = || simulated.passes.iter().map(|s| &s.metrics);
        Self {
            makespan_s: metrics().map(|m| m.makespan.as_secs_f64()).sum(),
            critical_flops: metrics().map(|m| m.critical_flops).sum(),
        }
    }
}

/// Figures of one schedule; passes that follow each other are added up. `null` where there is no baseline.
#[derive(Serialize, schemars::JsonSchema)]
pub struct Row {
    pub schedule: String,
    pub layout: String,
    pub cp: u32,
    /// Tokens of the whole sequence, padding not counted.
    pub seq_len: u64,
    /// Tokens that were added to fit the layout.
    pub padding: u64,
    pub pass: String,
    /// Time of one attention layer.
    pub makespan_s: f64,
    /// 90% interval of it by the cluster's calibration; `null` without one, and in a disturbed run.
    pub makespan_low_s: Option<f64>,
    pub makespan_high_s: Option<f64>,
    /// Percentiles of it over the repeats of a disturbed run, whose median all other figures are of.
    pub makespan_p5_s: Option<f64>,
    pub makespan_p50_s: Option<f64>,
    pub makespan_p95_s: Option<f64>,
    pub makespan_p99_s: Option<f64>,
    pub speedup_vs_ring: Option<f64>,
    /// What balance alone allows: the busiest rank's mask-area FLOPs under the ring over those under this schedule.
    pub bound_speedup_vs_ring: Option<f64>,
    pub speedup_vs_one_gpu: Option<f64>,
    pub bubble_ratio: f64,
    /// On the rank that has most of it.
    pub exposed_comm_s: f64,
    pub imbalance: f64,
    pub tflops_per_gpu: f64,
    /// TFLOP/s over the device's dense peak for the element type; `null` where it has none.
    pub mfu: Option<f64>,
    /// The largest rank's attention buffers: inputs, outputs, staging and states of one layer.
    pub peak_memory_bytes: u64,
    pub device_memory_bytes: u64,
    pub fits: bool,
    /// Over all ranks.
    pub bytes_moved: u64,
    pub notes: String,
}

impl Row {
    pub fn new(setup: &Setup, s: &Passes, ring: Option<&Baseline>, one_gpu: Option<&Baseline>) -> Self {
        let own = Baseline::of(s);
        let percentile =
            |of: fn(&Percentiles) -> SimTime| s.spread.map(|spread| of(&spread.percentiles).as_secs_f64());
        let ranks = f64::from(setup.cp);
        let metrics = || s.passes.iter().map(|s| &s.metrics);
        let busy: f64 = metrics().flat_map(|m| &m.ranks).map(|r| r.busy.as_secs_f64()).sum();
        let flops: f64 = s.passes.iter().map(|s| s.plan.mask_area_flops()).sum();
        let per_second = |flops: f64| if own.makespan_s > 0.0 { flops / own.makespan_s } else { 0.0 };
        let tflops_per_gpu = per_second(flops) / ranks / 1e12;
        let peak_memory = metrics().map(|m| m.peak_memory).max().unwrap_or(Bytes(0));
        let device = &setup.cluster.device;
        let Simulated { plan, metrics: first, .. } = &s.passes[0];
        let mut notes: Vec<&str> = s.passes.iter().flat_map(|s| &s.plan.notes).map(String::as_str).collect();
        let of_setup = setup.notes();
        notes.extend(of_setup.iter().map(String::as_str));
        let clock = clock(setup.load, s.passes.iter().flat_map(|s| &s.speeds).copied());
        notes.extend(clock.as_deref());
        notes.dedup();
        Self {
            schedule: s.schedule.to_string(),
            layout: plan.layout.kind().to_string(),
            cp: setup.cp,
            seq_len: setup.problem.tokens(),
            padding: plan.layout.documents().padding(),
            pass: setup.passes.iter().map(ToString::to_string).collect::<Vec<_>>().join("+"),
            makespan_s: own.makespan_s,
            makespan_low_s: s.interval.map(|i| i.low.as_secs_f64()),
            makespan_high_s: s.interval.map(|i| i.high.as_secs_f64()),
            makespan_p5_s: percentile(|p| p.p5),
            makespan_p50_s: percentile(|p| p.p50),
            makespan_p95_s: percentile(|p| p.p95),
            makespan_p99_s: percentile(|p| p.p99),
            speedup_vs_ring: ring.map(|r| r.makespan_s / own.makespan_s),
            bound_speedup_vs_ring: ring.map(|r| r.critical_flops / own.critical_flops),
            speedup_vs_one_gpu: one_gpu.map(|g| g.makespan_s / own.makespan_s),
            bubble_ratio: if own.makespan_s > 0.0 {
                (1.0 - busy / (ranks * own.makespan_s)).max(0.0)
            } else {
                0.0
            },
            exposed_comm_s: metrics().map(|m| m.exposed_comm.as_secs_f64()).sum(),
            imbalance: first.imbalance,
            tflops_per_gpu,
            mfu: device.peak.of(setup.problem.shape.dtype).map(|peak| tflops_per_gpu * 1e12 / peak.0),
            peak_memory_bytes: peak_memory.0,
            device_memory_bytes: device.memory.0,
            fits: peak_memory <= device.memory,
            bytes_moved: metrics().map(|m| m.bytes_moved.0).sum(),
            notes: notes.join("; "),
        }
    }
}

/// What the power limit made of the clocks, if it changed any.
fn clock(load: Load, speeds: impl Iterator<Item = f64> + Clone) -> Option<String> {
    let (low, high) = (speeds.clone().fold(f64::INFINITY, f64::min), speeds.fold(0.0, f64::max));
    match load {
        Load::Cold => Some(format!("cold clock: ranks compute {high:.3}x as fast as under sustained load")),
        _ if low >= 1.0 && high <= 1.0 => None,
        Load::Sustained | Load::Virtual => {
            Some(format!("power limit: ranks compute {low:.3}x to {high:.3}x as fast as at full load"))
        }
    }
}
