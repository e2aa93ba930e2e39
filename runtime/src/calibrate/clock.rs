//! What a power limit makes of the clock: the same calls after a rest, under lasting load, and with pauses.

use ringlab_sim::config::cluster::{KernelRow, Power, Quantity, Uncertainty};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::Pass;
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::units::SimTime;
use statrs::statistics::{Data, OrderStatistics};

use super::{CalibrateError, FitReport, Point, Session, of_kind, probes};
use crate::machine::{Duty, MachineKernel, Runs};

/// Tokens of a call: long enough to fill a GPU, short enough for several calls before the clock falls.
const TOKENS: u64 = 16 << 10;
/// Repeats after a rest: with a warm-up they end within 40 ms on an H200, whose clock falls after 75 ms.
const COLD: u32 = 3;
/// Runs under load: for some 200 ms of each second a limiter may have the clock far below where it settles.
const UNDER_LOAD: usize = 3;
/// Repeats with pauses.
const RESTING: u32 = 25;
/// Share of the time that calls with pauses are meant to take; the host adds to the pauses, and what came out is measured.
const BUSY: f64 = 0.9;
/// Exponents that a chip can have: leakage alone is below, a voltage that rises with the clock is within.
const EXPONENTS: (f64, f64) = (1.5, 4.0);
/// Power at rest over the limit of an H100 or H200 with 700 W, with kernels loaded: 120 W.
const IDLE: f64 = 0.17;

/// Times of one call in seconds, and how well they repeat.
#[derive(Debug, Clone, PartialEq)]
struct Times {
    call: String,
    sustained: (f64, f64),
    cold: (f64, f64),
    resting: (f64, f64),
    /// Share of the time that was computed in with pauses.
    busy: f64,
    /// By device, under lasting load.
    each: Vec<f64>,
}

/// A call under load, by device too, and after a rest.
struct Loaded {
    plan: Plan,
    sustained: Runs,
    each: Vec<f64>,
    cold: Runs,
}

impl Session<'_> {
    /// Measures the clock of a machine that has a power limit; others get no table.
    pub(super) fn clock(&mut self, date: &str) -> Result<(), CalibrateError> {
        let known = self.cluster.device.power.take();
        if !self.machine.has_power_limit() {
            return Ok(());
        }
        let Some(idle) = known.map(|power| power.idle).or_else(|| at_rest(&self.cluster.device.name)) else {
            let name = &self.cluster.device.name;
            self.notes
                .push(format!("the power of a {name} at rest is not known: its clock was not measured"));
            return Ok(());
        };
        let kernels = self.machine.kernels();
        let largest = kernels.iter().map(|kernel| kernel.head_dim).max().unwrap_or(0);
        let (mut times, mut measured) = (Vec::new(), Vec::new());
        for pass in [Pass::Forward, Pass::Backward] {
            if let Some(kernel) = kernels.iter().find(|k| k.pass == pass && k.head_dim == largest) {
                times.push(self.times(kernel)?);
                measured.push(kernel.clone());
            }
        }
        if times
            .iter()
            .any(|t: &Times| [t.sustained.0, t.cold.0, t.resting.0, t.busy].iter().any(|&x| x <= 0.0))
        {
            self.notes.push("calls of no measurable time: the clock was not measured".into());
            return Ok(());
        }
        let (mut power, notes) = fitted(&times, idle, date);
        self.notes.extend(notes);
        let boosts = times.iter().map(|t| t.sustained.0 / t.cold.0);
        let known: Vec<(MachineKernel, f64)> = measured.into_iter().zip(boosts).collect();
        for kernel in &kernels {
            let boost = rounded(self.boost(&kernels, kernel, &known)?.clamp(1.0, 10.0), 1000.0);
            power.boost = power.boost.max(boost);
            for row in self.cluster.kernels.iter_mut().filter(|row| is_row_of(row, kernel)) {
                row.boost = Some(boost);
            }
        }
        self.keep_clock(power, &times);
        Ok(())
    }

    /// A full call of `kernel`'s pass and sizes, also with pauses.
    fn times(&mut self, kernel: &MachineKernel) -> Result<Times, CalibrateError> {
        let Loaded { plan, sustained, each, cold } = self.loaded(kernel, Pattern::Full)?;
        let call = format!("{} {} {}", kernel.pass, kernel.dtype, kernel.head_dim);
        self.say(&format!("clock with pauses, {call}"))?;
        let pause = sustained.timeline.makespan.as_secs_f64() * (1.0 / BUSY - 1.0);
        let pause = Duty::Resting(SimTime::from_secs_f64(pause));
        let resting = self.machine.run_at(&plan, pause, RESTING)?;
        let time = |runs: &Runs| (of_kind(&runs.timeline, kernel.span_kind()), runs.spread());
        Ok(Times {
            call,
            sustained: time(&sustained),
            cold: time(&cold),
            resting: time(&resting),
            busy: resting.duty,
            each,
        })
    }

    /// A call that `kernel` is launched for or, of a full one, its sibling; under load and after a rest.
    fn loaded(&mut self, kernel: &MachineKernel, pattern: Pattern) -> Result<Loaded, CalibrateError> {
        let ranks = self.machine.identity().devices;
        let shape = kernel.shape(self.machine.sizes().heads);
        let plan = probes::call(shape, kernel.pass, pattern, TOKENS, ranks);
        let plan = plan.ok_or(CalibrateError::Sizes("clock"))?;
        let call = format!("{} {} {}, {pattern}", kernel.pass, kernel.dtype, kernel.head_dim);
        self.say(&format!("clock under load, {call}"))?;
        let repeats = self.machine.sizes().repeats;
        let mut runs = Vec::new();
        for _ in 0..UNDER_LOAD {
            runs.push(self.machine.run_at(&plan, Duty::Sustained, repeats)?);
        }
        let on = |rank| median(runs.iter().map(|run| computing_on(rank, run)).collect());
        let each = (0..ranks).map(on).collect();
        runs.sort_by_key(|run| run.timeline.makespan);
        let sustained = runs.swap_remove(UNDER_LOAD / 2);
        self.say(&format!("clock after a rest, {call}"))?;
        let cold = self.machine.run_at(&plan, Duty::Cold, COLD)?;
        Ok(Loaded { plan, sustained, each, cold })
    }

    /// Time under load over that after a rest of a call that `kernel` is launched for; `known` are those of full calls.
    fn boost(
        &mut self,
        kernels: &[MachineKernel],
        kernel: &MachineKernel,
        known: &[(MachineKernel, f64)],
    ) -> Result<f64, CalibrateError> {
        let is_sibling = |other: &MachineKernel| other.used_for.is_some() && other.is_sibling(kernel);
        // A full call of this length is for the kernel of many visited tiles, where there is one.
        let leaves_full = kernel.used_for.is_none() && kernels.iter().any(is_sibling);
        if let Some(&(_, boost)) = known.iter().find(|(full, _)| !leaves_full && full.is_sibling(kernel)) {
            return Ok(boost);
        }
        let pattern = if leaves_full { Pattern::Causal } else { Pattern::Full };
        let Loaded { sustained, cold, .. } = self.loaded(kernel, pattern)?;
        let time = |runs: &Runs| of_kind(&runs.timeline, kernel.span_kind());
        Ok(if time(&cold) > 0.0 { time(&sustained) / time(&cold) } else { 1.0 })
    }

    fn keep_clock(&mut self, power: Power, times: &[Times]) {
        let mut points = Vec::new();
        for t in times {
            let mut point = |how: &str, (measured_s, spread): (f64, f64), speed: f64| {
                let (probe, fitted_s) = (format!("{} {how}", t.call), t.sustained.0 / speed);
                points.push(Point { probe, measured_s, fitted_s, spread });
            };
            point("after a rest", t.cold, power.boost);
            let share = format!("busy for {:.1}% of the time", 100.0 * t.busy);
            point(&share, t.resting, power.speed(t.busy.clamp(0.0, 1.0)));
        }
        let residuals = || points.iter().map(|p| (p.fitted_s / p.measured_s - 1.0).abs());
        let residual = (residuals().map(|r| r * r).sum::<f64>() / points.len().max(1) as f64).sqrt();
        let spread = median(points.iter().map(|p| p.spread).collect());
        self.spreads.push(Uncertainty {
            of: Quantity::Boost,
            spread: spread.min(1.0),
            residual: residual.min(1.0),
            samples: points.len() as u32,
        });
        self.fits.push(FitReport {
            what: "clock".into(),
            constants: format!("boost {:.3}, exponent {:.2}", power.boost, power.exponent),
            residual,
            worst: residuals().fold(0.0, f64::max),
            spread,
            points,
        });
        self.cluster.device.power = Some(power);
    }
}

/// Whether `row` is what was measured of `kernel`.
fn is_row_of(row: &KernelRow, kernel: &MachineKernel) -> bool {
    (row.head_dim, row.dtype, row.pass, row.used_for)
        == (kernel.head_dim, kernel.dtype, kernel.pass, kernel.used_for)
}

/// The power at rest of a device by its name, where it is known.
fn at_rest(device: &str) -> Option<f64> {
    ["H100", "H200"].iter().any(|name| device.contains(name)).then_some(IDLE)
}

fn median(values: Vec<f64>) -> f64 {
    if values.is_empty() { 0.0 } else { Data::new(values).median() }
}

/// The constants that `times` show, rounded to what they are known to, and what must be said of them.
fn fitted(times: &[Times], idle: f64, date: &str) -> (Power, Vec<String>) {
    let mut notes = Vec::new();
    let measured = median(times.iter().map(|t| t.sustained.0 / t.cold.0).collect());
    let boost = rounded(measured.clamp(1.0, 10.0), 1000.0);
    if measured < 1.0 {
        notes.push("clock: calls after a rest were slower than under load, so there is no boost".into());
    }
    // At the limit, speed^exponent = (1 - idle (1 - busy)) / busy.
    let saved = |t: &Times| ((1.0 - idle * (1.0 - t.busy)) / t.busy).ln();
    let gained = |t: &Times| (t.sustained.0 / t.resting.0).ln();
    let sums = (times.iter().map(saved).sum::<f64>(), times.iter().map(gained).sum::<f64>());
    let shown = if sums.1 > 0.0 { sums.0 / sums.1 } else { f64::INFINITY };
    let exponent = rounded(shown.clamp(EXPONENTS.0, EXPONENTS.1), 100.0);
    if !(EXPONENTS.0..=EXPONENTS.1).contains(&shown) {
        let (low, high) = EXPONENTS;
        notes.push(format!(
            "clock: the exponent came out as {shown:.2}, beyond {low} to {high}: {exponent} is kept"
        ));
    }
    if times.iter().any(|t| t.sustained.0 / t.resting.0 > 0.99 * boost) && boost > 1.0 {
        notes
            .push("clock: with pauses it was at its highest already, so the exponent is at most that".into());
    }
    let busy: Vec<String> = times.iter().map(|t| format!("{:.0}%", 100.0 * t.busy)).collect();
    let source = format!(
        "single calls after a rest, under load, and with pauses (busy for {} of the time), measured {date}; idle is assumed",
        busy.join(" and ")
    );
    (Power { boost, idle, exponent, speeds: speeds(times), source }, notes)
}

/// Rate of each device over the mean that the fits take: mean time over its own, in the mean over the calls.
fn speeds(times: &[Times]) -> Vec<f64> {
    let devices = times.first().map_or(0, |t| t.each.len());
    if devices < 2 || times.iter().flat_map(|t| &t.each).any(|&own| own <= 0.0) {
        return Vec::new();
    }
    let of = |device: usize| {
        let speed = |t: &Times| t.each.iter().sum::<f64>() / devices as f64 / t.each[device];
        rounded(times.iter().map(speed).sum::<f64>() / times.len() as f64, 1000.0)
    };
    (0..devices).map(of).collect()
}

/// Time of the attention call of one device.
fn computing_on(rank: u32, runs: &Runs) -> f64 {
    let calls = runs.timeline.spans.iter().filter(|s| s.rank == rank);
    let calls = calls.filter(|s| matches!(s.kind, SpanKind::Attend | SpanKind::AttendBackward));
    calls.map(|s| s.duration().as_secs_f64()).sum()
}

fn rounded(value: f64, steps: f64) -> f64 {
    (value * steps).round() / steps
}

#[cfg(test)]
mod tests;
