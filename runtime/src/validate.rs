//! Predicted against measured: whole schedules, each predicted before it is run.
//!
//! The matrix is made of schedules only; [`crate::calibrate`] measures none of them.

mod classes;
mod comparison;
mod matrix;
mod point;
mod recorded;
#[cfg(test)]
mod tests;

use ringlab_sim::config::cluster::{Cluster, NoKernel};
use ringlab_sim::engine::{self, Load, SimError, SimOptions};
use ringlab_sim::schedule::BuildError;
use serde::Serialize;
use thiserror::Error;

pub use classes::Class;
pub use matrix::{Filter, matrix, ranks};
pub use point::Point;
pub use recorded::{Origin, Recorded, RecordedCall, RecordedNccl, RecordedPoint, predict_anew};

use crate::machine::{Launching, Machine, MachineError};
use comparison::{Measured, Predicted};

/// Why a validation ended.
#[derive(Debug, Error)]
pub enum ValidateError {
    /// A point has no plan.
    #[error("{point}: {source}")]
    Build {
        /// The point.
        point: String,
        /// Why.
        source: BuildError,
    },
    /// A point has no prediction.
    #[error("{point}: {source}")]
    Predict {
        /// The point.
        point: String,
        /// Why.
        source: SimError,
    },
    /// A point did not run.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

/// One point, predicted and measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// What was run.
    #[serde(flatten)]
    pub point: Point,
    /// Predicted makespan, in seconds.
    pub predicted_s: f64,
    /// 90% interval of it; `null` without a calibration.
    pub predicted_low_s: Option<f64>,
    /// Upper end.
    pub predicted_high_s: Option<f64>,
    /// Median of the measured makespans, under lasting load their mean over a second or more; in seconds. For virtual ranks, that of
    /// measured computations on modelled links.
    pub measured_s: f64,
    /// Their standard deviation over the median.
    pub spread: f64,
    /// Their standard deviation, in seconds.
    pub spread_s: f64,
    /// `predicted / measured - 1`.
    pub error: f64,
    /// Whether the measured makespan lies in the interval.
    pub inside: Option<bool>,
    /// Bubble ratio, predicted.
    pub predicted_bubble_ratio: f64,
    /// Bubble ratio, measured.
    pub measured_bubble_ratio: f64,
    /// Exposed communication of the worst rank, predicted, in seconds.
    pub predicted_exposed_s: f64,
    /// Exposed communication of the worst rank, measured, in seconds.
    pub measured_exposed_s: f64,
    /// Median of `|predicted / measured - 1|` over the attention calls of all ranks and steps; `null` where no call's time is
    /// known.
    pub median_step_error: Option<f64>,
    /// The largest of them.
    pub worst_step_error: Option<f64>,
    /// Every attention call, rank by rank; none where there are more than [`MOST_CALLS`].
    pub calls: Vec<Call>,
    /// How they were loaded, which is also what was predicted where the cluster knows a clock.
    pub load: Load,
    /// How long the devices had been working when the measured repeats began, in seconds; zero where that plays no part.
    pub loaded_s: f64,
    /// Makespans over the wall time of the measured repeats; zero likewise.
    pub duty: f64,
}

/// Attention calls of a point that are listed.
pub const MOST_CALLS: usize = 64;

/// One attention call of a point.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Call {
    /// Whose.
    pub rank: u32,
    /// In which step.
    pub step: u32,
    /// Predicted, in seconds.
    pub predicted_s: f64,
    /// Measured, in seconds.
    pub measured_s: f64,
}

/// All points and what they come to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Every point that was run.
    pub points: Vec<Compared>,
    /// Mean of `|error|`; like the next two 0 if no point was run.
    pub mape: f64,
    /// Largest `|error|`.
    pub max_error: f64,
    /// Mean of `error`.
    pub bias: f64,
    /// Share of the points inside their interval; `null` without a calibration.
    pub coverage: Option<f64>,
    /// Mean of `|error|` of the speed-ups over ring, at equal sizes; `null` if there is no ring to compare with.
    pub speedup_mape: Option<f64>,
    /// Largest of them.
    pub speedup_max_error: Option<f64>,
    /// Points that were left out, and why.
    pub left_out: Vec<String>,
    /// Points that were not reached, in their order.
    pub not_reached: Vec<String>,
    /// What ended the runs before their time: then the points after it were not reached.
    pub broke: Option<String>,
    /// Errors by what points have in common.
    pub classes: Vec<Class>,
}

/// Tokens from which on a point takes seconds, and the most repeats that are asked for then; of the longest first.
const LONG: [(u64, u32); 2] = [(1 << 20, 1), (256 << 10, 3)];

/// Predicts and runs every point, until `progress` says to stop or a run breaks. What the executor refuses, for want of
/// memory or of a kernel, is left out.
///
/// # Errors
/// [`ValidateError`] at the first point that cannot be planned or predicted, or if the first that is run breaks.
pub fn validate(
    machine: &mut dyn Machine,
    cluster: &Cluster,
    points: &[Point],
    progress: &mut dyn FnMut(usize, &Point) -> bool,
) -> Result<Report, ValidateError> {
    let (mut compared, mut left_out) = (Vec::new(), Vec::new());
    let (mut reached, mut broke) = (points.len(), None);
    for (i, point) in points.iter().enumerate() {
        if !progress(i, point) {
            reached = i;
            break;
        }
        match compare(machine, cluster, point) {
            Ok(Ok(done)) => compared.push(done),
            Ok(Err(reason)) => left_out.push(format!("{point}: {reason}")),
            Err(ValidateError::Machine(error)) if error.is_refusal() => {
                left_out.push(format!("{point}: {}", error.source));
            }
            Err(ValidateError::Machine(error)) if !compared.is_empty() => {
                (reached, broke) = (i + 1, Some(format!("{point}: {error}")));
                break;
            }
            Err(ValidateError::Predict { point, source: SimError::Kernel(NoKernel { .. }) }) => {
                left_out.push(format!("{point}: the cluster has no kernel for it"));
            }
            Err(error) => return Err(error),
        }
    }
    let not_reached = points[reached..].iter().map(ToString::to_string).collect();
    Ok(Report { not_reached, broke, ..Report::of(compared, left_out) })
}

/// Predicts `point`, then runs it; or why a run says nothing of the prediction.
fn compare(
    machine: &mut dyn Machine,
    cluster: &Cluster,
    point: &Point,
) -> Result<Result<Compared, String>, ValidateError> {
    let cluster = &on_enough(cluster, point);
    let plan = point.plan().map_err(|source| ValidateError::Build { point: point.to_string(), source })?;
    if let Some(reason) = machine.beyond(&plan) {
        return Ok(Err(reason));
    }
    let failed = |source| ValidateError::Predict { point: point.to_string(), source };
    let load = machine.load(&plan, point.launching);
    let predicted = Predicted::of((&plan, point.launching), cluster, load).map_err(failed)?;
    let most = LONG.iter().find(|(tokens, _)| point.seq_len >= *tokens).map_or(u32::MAX, |&(_, most)| most);
    let repeats = machine.sizes().repeats.min(most);
    let runs = machine.run(&plan, point.launching, repeats)?;
    if point.launching == Launching::Virtual {
        let mut group = engine::Machine::new(cluster, point.cp, &SimOptions::default()).map_err(failed)?;
        let timeline = group.replay(&plan, &runs.timeline).map_err(failed)?;
        let measured = Measured::of(&predicted, &timeline, timeline.makespan, (&runs, load));
        return Ok(Ok(predicted.against(point, measured)));
    }
    let measured = Measured::of(&predicted, &runs.timeline, runs.makespan, (&runs, load));
    Ok(Ok(predicted.against(point, measured)))
}

/// The cluster with a device for every virtual rank, all as fast as the first, which computes for all and exchanges nothing
/// with other GPUs.
fn on_enough(cluster: &Cluster, point: &Point) -> Cluster {
    let mut cluster = cluster.clone();
    if point.launching == Launching::Virtual {
        cluster.gpus_per_node = cluster.gpus_per_node.max(point.cp);
        if let Some(power) = &mut cluster.device.power {
            power.speeds.truncate(1);
            power.cold_speeds.truncate(1);
        }
        cluster.kernels.iter_mut().for_each(|row| row.linked = None);
    }
    cluster
}

impl Report {
    fn of(points: Vec<Compared>, left_out: Vec<String>) -> Self {
        let errors: Vec<f64> = points.iter().map(|p| p.error).collect();
        let magnitudes: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
        let inside: Option<Vec<bool>> = points.iter().map(|p| p.inside).collect();
        let covered =
            |all: Vec<bool>| mean(&all.into_iter().map(|i| f64::from(u8::from(i))).collect::<Vec<_>>());
        let speedups = speedup_errors(&points);
        Self {
            mape: mean(&magnitudes).unwrap_or(0.0),
            max_error: magnitudes.iter().copied().fold(0.0, f64::max),
            bias: mean(&errors).unwrap_or(0.0),
            coverage: inside.and_then(covered),
            speedup_mape: mean(&speedups),
            speedup_max_error: speedups.iter().copied().reduce(f64::max),
            classes: classes::classes(&points),
            points,
            left_out,
            not_reached: Vec::new(),
            broke: None,
        }
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// `|predicted / measured - 1|` of each point's speed-up over the ring of the same size.
fn speedup_errors(points: &[Compared]) -> Vec<f64> {
    let error = |p: &Compared| {
        let ring = points.iter().find(|r| r.point.is_ring_of(&p.point))?;
        let predicted = ring.predicted_s / p.predicted_s;
        let measured = ring.measured_s / p.measured_s;
        Some((predicted / measured - 1.0).abs())
    };
    points.iter().filter(|p| !p.point.is_ring_of(&p.point)).filter_map(error).collect()
}
