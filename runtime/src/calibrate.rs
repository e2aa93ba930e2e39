//! Measures a machine by single calls and single messages, and writes what it finds as a cluster.
//!
//! Nothing here runs a schedule: whole schedules are what [`crate::validate`] holds the result against. Attention calls
//! give the constants of the cost model (`sim::cost`): time of a work item, of a full and of a partial tile. Messages give
//! latency and bandwidth. Every constant comes with the spread of its repeats and the residual of its fit. In the end several
//! calls and messages in a row, which no fit saw, are predicted and measured: how far off the predictions are is kept too.

mod attention;
mod beside;
pub(crate) mod checks;
mod clock;
pub mod fit;
mod linked;
mod memory;
pub mod probes;
#[cfg(test)]
pub(crate) mod tests;
mod transfer;

use std::time::Instant;

use ringlab_sim::config::cluster::{Calibration, Cluster, KernelRow, Quantity, Uncertainty};
use ringlab_sim::engine::Load;
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::timeline::{SpanKind, Timeline};
use ringlab_sim::units::{BytesPerSec, SimTime};
use serde::Serialize;
use statrs::statistics::{Data, OrderStatistics};
use thiserror::Error;

use crate::machine::{Identity, Launching, Machine, MachineError};
use fit::{FitError, Sample};

/// A residual above which a fit is said to be poor.
pub const POOR: f64 = 0.05;

/// Why there is no calibration.
#[derive(Debug, Error)]
pub enum CalibrateError {
    /// Its node cannot have so many devices.
    #[error("{base} cannot be the base of {devices} devices: {why}; change that in a copy of it")]
    Base {
        /// The cluster.
        base: String,
        /// Devices of the machine.
        devices: u32,
        /// What contradicts what.
        why: String,
    },
    /// A probe did not run.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Its times make no sense.
    #[error("{what}: {source}")]
    Fit {
        /// What was fitted.
        what: String,
        /// Why it failed.
        source: FitError,
    },
    /// Sizes that no probe can have.
    #[error("the machine's sizes allow no {0} probe")]
    Sizes(&'static str),
    /// Messages with times that no link gives.
    #[error("no bandwidth up to the {0} of its link gives the times of its messages")]
    Bandwidth(BytesPerSec),
    /// NCCL has one setting.
    #[error("the machine's NCCL cannot be set to it")]
    Unsettable,
    /// It was told to stop.
    #[error("stopped; no file was written")]
    Stopped,
}

/// A calibrated machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// The cluster, one node of this machine's devices.
    pub cluster: Cluster,
    /// Fits in the order in which they were made.
    pub fits: Vec<FitReport>,
    /// What a user must know.
    pub notes: Vec<String>,
}

/// How well one fit went.
#[derive(Debug, Clone, PartialEq)]
pub struct FitReport {
    /// What was fitted.
    pub what: String,
    /// The constants with their units.
    pub constants: String,
    /// Measured points.
    pub points: Vec<Point>,
    /// Root mean square of the relative residuals.
    pub residual: f64,
    /// The largest relative residual.
    pub worst: f64,
    /// Median spread of the repeats.
    pub spread: f64,
}

impl FitReport {
    /// Of points by themselves: residuals are about all of them, as of constants that are given.
    fn of(what: &str, constants: String, points: Vec<Point>) -> Self {
        let errors = || points.iter().map(|p| p.fitted_s / p.measured_s - 1.0);
        let spreads: Vec<f64> = points.iter().map(|p| p.spread).collect();
        Self {
            what: what.to_owned(),
            constants,
            residual: (errors().map(|e| e * e).sum::<f64>() / points.len().max(1) as f64).sqrt(),
            worst: errors().fold(0.0, |worst, e| e.abs().max(worst)),
            spread: if spreads.is_empty() { 0.0 } else { Data::new(spreads).median() },
            points,
        }
    }
}

/// One measured time beside what the fit makes of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// What was measured.
    pub probe: String,
    /// Median of the repeats.
    pub measured_s: f64,
    /// By the fit's constants.
    pub fitted_s: f64,
    /// Standard deviation of the repeats over their median.
    pub spread: f64,
}

fn points(fit: &fit::Fit, samples: &[Sample]) -> Vec<Point> {
    let point = |(s, &fitted_s): (&Sample, &f64)| Point {
        probe: s.probe.clone(),
        measured_s: s.seconds,
        fitted_s,
        spread: s.spread,
    };
    samples.iter().zip(&fit.fitted).map(point).collect()
}

/// What a calibration collects on its way.
struct Session<'a> {
    machine: &'a mut dyn Machine,
    cluster: Cluster,
    fits: Vec<FitReport>,
    notes: Vec<String>,
    spreads: Vec<Uncertainty>,
    /// Told what comes next; says whether to go on.
    progress: &'a mut dyn FnMut(&str) -> bool,
}

/// Measures `machine`. What is not measured (memory, peaks, topology) stays as in `base`; `date` is an ISO date, and
/// `progress` is told what comes next and says whether to go on.
///
/// # Errors
/// [`CalibrateError`] if a probe fails or the times cannot be fitted.
pub fn calibrate(
    machine: &mut dyn Machine,
    base: &Cluster,
    date: &str,
    progress: &mut dyn FnMut(&str) -> bool,
) -> Result<Calibrated, CalibrateError> {
    let (started, identity) = (Instant::now(), machine.identity());
    let mut cluster = of_machine(base, &identity, date);
    check(&cluster, &base.name)?;
    let mut notes = Vec::new();
    if let Some(sms) = machine.sms().filter(|&sms| sms != cluster.device.sms) {
        notes.push(format!(
            "a {} has {sms} SMs, not {} as {}",
            identity.device, cluster.device.sms, base.name
        ));
        cluster.device.sms = sms;
    }
    let mut session = Session { machine, cluster, fits: Vec::new(), notes, spreads: Vec::new(), progress };
    session.launches(date)?;
    session.kernels(date)?;
    session.memory(date)?;
    session.clock(date)?;
    if identity.devices > 1 {
        session.between_devices(date)?;
    } else {
        session.notes.push("one device: links stay as in the base cluster, unmeasured".into());
    }
    session.checks()?;
    if identity.devices > 1 && session.machine.has_overlap() && session.machine.has_nccl() {
        // Last, so that all else is measured whatever comes of it.
        session.nccl_settings(date, started + beside::nccl::IN_ALL)?;
    }
    let Session { mut cluster, fits, notes, spreads, .. } = session;
    cluster.calibration = Some(Calibration {
        device: identity.device,
        devices: identity.devices,
        versions: identity.versions,
        date: date.to_owned(),
        spreads,
    });
    Ok(Calibrated { cluster, fits, notes })
}

/// A node of `base` that is the machine, before anything is measured.
fn of_machine(base: &Cluster, identity: &Identity, date: &str) -> Cluster {
    let mut cluster = base.clone();
    cluster.name = format!("{}-calibrated", base.name);
    cluster.source = format!("{identity}, measured {date}");
    (cluster.nodes, cluster.gpus_per_node, cluster.network) = (1, identity.devices, None);
    cluster.device.name.clone_from(&identity.device);
    cluster
}

/// Refuses, before anything is measured, a cluster that could not be read when it is written.
fn check(cluster: &Cluster, base: &str) -> Result<(), CalibrateError> {
    let mut bare = Cluster { calibration: None, ..cluster.clone() };
    bare.device.power = None;
    Cluster::parse(base, &bare.to_toml()).map(|_| ()).map_err(|error| CalibrateError::Base {
        base: base.to_owned(),
        devices: cluster.gpus_per_node,
        why: error.message().to_owned(),
    })
}

impl Session<'_> {
    /// Messages, and calls beside them and in runs with them.
    fn between_devices(&mut self, date: &str) -> Result<(), CalibrateError> {
        self.transfers(Transport::CopyEngine, date)?;
        self.all_pairs()?;
        if self.machine.has_nccl() {
            self.transfers(Transport::Nccl, date)?;
        }
        if self.machine.has_overlap() {
            self.linked(date)?;
            self.interference(date)?;
        }
        Ok(())
    }

    fn say(&mut self, what: &str) -> Result<(), CalibrateError> {
        if (self.progress)(what) { Ok(()) } else { Err(CalibrateError::Stopped) }
    }

    /// Whether a run of `plan` has the highest clock, or there is only one.
    fn is_rested(&self, plan: &Plan) -> bool {
        !self.machine.has_power_limit() || self.machine.load(plan, Launching::Stepwise) == Load::Cold
    }

    /// Measures `plan`, of which `pick` is the time that counts, in seconds.
    fn sample(
        &mut self,
        probe: String,
        factors: Vec<f64>,
        plan: &Plan,
        pick: impl Fn(&Timeline) -> f64,
    ) -> Result<Sample, CalibrateError> {
        let repeats = self.machine.sizes().repeats;
        let runs = self.machine.run(plan, Launching::Stepwise, repeats)?;
        Ok(Sample { probe, factors, seconds: pick(&runs.timeline), spread: runs.spread() })
    }

    fn launches(&mut self, date: &str) -> Result<(), CalibrateError> {
        self.say("launches")?;
        let costs = self.machine.launch_costs()?;
        let host = &mut self.cluster.host;
        (host.kernel_launch, host.copy_launch, host.nccl_launch) = (costs.kernel, costs.copy, costs.nccl);
        host.source = format!("host time of calls in a row, measured {date}");
        for (of, time) in [
            (Quantity::KernelLaunch, costs.kernel),
            (Quantity::CopyLaunch, costs.copy),
            (Quantity::NcclLaunch, costs.nccl),
        ] {
            if time > SimTime::ZERO {
                self.keep_uncertainty(of, (costs.spread, 0.0), 1);
            }
        }
        Ok(())
    }

    /// Keeps how well a fit went; `names` are those of its constants.
    fn report(
        &mut self,
        what: String,
        constants: String,
        names: &[&str],
        (fit, samples): (&fit::Fit, &[Sample]),
    ) {
        if fit.residual > POOR {
            self.notes.push(format!("poor fit of {what}: residuals of {:.1}%", 100.0 * fit.residual));
        }
        for name in fit.clamped.iter().filter_map(|&constant| names.get(constant)) {
            self.notes.push(format!("{what}: the time of {name} came out below zero and is zero"));
        }
        self.fits.push(FitReport {
            what,
            constants,
            points: points(fit, samples),
            residual: fit.residual,
            worst: fit.worst,
            spread: fit.spread,
        });
    }

    fn know(&mut self, of: Quantity, fit: &fit::Fit, points: usize) {
        self.keep_uncertainty(of, (fit.spread, fit.residual), points as u32);
    }

    /// Keeps what is known of a constant; a cluster can say of none that it is more than 100% off.
    fn keep_uncertainty(&mut self, of: Quantity, (spread, residual): (f64, f64), samples: u32) {
        for (what, size) in [("repeats", spread), ("residuals", residual)] {
            if size > 1.0 {
                let size = 100.0 * size;
                self.notes.push(format!(
                    "{of}: {what} of {size:.0}% are kept as 100%, the most that a cluster can say"
                ));
            }
        }
        self.spreads.push(Uncertainty { of, spread: spread.min(1.0), residual: residual.min(1.0), samples });
    }

    fn set_kernel(&mut self, row: KernelRow) {
        let rows = &mut self.cluster.kernels;
        let same = |known: &KernelRow| {
            (known.pass, known.dtype, known.head_dim) == (row.pass, row.dtype, row.head_dim)
        };
        // A row with a condition follows the one for all other calls, and goes with it.
        if row.used_for.is_none() {
            rows.retain(|known| !same(known));
        }
        rows.push(row);
    }
}

/// Sum of the durations of the spans of `kind`, in seconds, averaged over the ranks.
fn of_kind(timeline: &Timeline, kind: SpanKind) -> f64 {
    let spans = timeline.spans.iter().filter(|s| s.kind == kind);
    spans.map(|s| s.duration().as_secs_f64()).sum::<f64>() / f64::from(timeline.ranks)
}
