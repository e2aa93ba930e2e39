//! What a power limit makes of the clock: the same calls after a rest, under lasting load, and with pauses.

use ringlab_sim::config::cluster::{KernelRow, Power, Quantity, Uncertainty};
use ringlab_sim::cost::Kernel;
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Plan;
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::units::SimTime;
use statrs::statistics::{Data, OrderStatistics};

use super::attention::is_launched;
use super::{CalibrateError, FitReport, Point, Session, of_kind, probes};
use crate::machine::{Duty, Launching, MachineKernel, Runs};

/// Calls that may stand for a kernel, the first that it is launched for: long enough that it multiplies nearly all the
/// time, and after a rest done before the clock of an H200 falls.
const CALLS: [(Pattern, u64); 4] = [
    (Pattern::Full, 32 << 10),
    (Pattern::Causal, 32 << 10),
    (Pattern::Causal, 16 << 10),
    (Pattern::Full, 2 << 10),
];
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

/// Times of one call in seconds, how well they repeat, and for which share of the time matrices were multiplied.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Timed {
    seconds: f64,
    spread: f64,
    busy: f64,
}

/// One call of a kernel.
#[derive(Debug, Clone, PartialEq)]
struct Times {
    call: String,
    sustained: Timed,
    cold: Timed,
    /// By device, under lasting load.
    each: Vec<f64>,
    /// By device, after a rest.
    each_cold: Vec<f64>,
    /// With pauses, where that was measured.
    resting: Option<Timed>,
}

impl Times {
    fn are_measurable(&self) -> bool {
        let is_time = |t: &Timed| t.seconds > 0.0 && t.busy > 0.0;
        [&self.sustained, &self.cold].into_iter().chain(&self.resting).all(is_time)
    }
}

impl Session<'_> {
    /// Measures the clock of a machine that has a power limit, and turns the rates of kernels that were measured after a
    /// rest into those of lasting load; others get no table.
    pub(super) fn clock(&mut self, date: &str) -> Result<(), CalibrateError> {
        let known = self.cluster.device.power.take();
        if !self.machine.has_power_limit() {
            return Ok(());
        }
        let Some(idle) = known.map(|power| power.idle).or_else(|| at_rest(&self.cluster.device.name)) else {
            let name = &self.cluster.device.name;
            self.notes.push(format!(
                "the power of a {name} at rest is not known: its clock was not measured, and kernels are as fast as after a rest"
            ));
            return Ok(());
        };
        let kernels = self.machine.kernels();
        let mut measured = Vec::new();
        for kernel in &kernels {
            let takes = |&(pattern, tokens): &(Pattern, u64)| {
                is_launched(&kernels, kernel, pattern, (tokens, tokens))
            };
            match CALLS.into_iter().find(takes) {
                Some(call) => measured.push((kernel, self.times(&kernels, kernel, call)?)),
                None => self.notes.push(format!("clock: no call of {} was measured", kernel.name)),
            }
        }
        let times: Vec<Times> = measured.iter().map(|(_, times)| times.clone()).collect();
        if times.is_empty() || !times.iter().all(Times::are_measurable) {
            self.notes.push("calls of no measurable time: the clock was not measured".into());
            return Ok(());
        }
        let (power, notes) = fitted(&times, idle, date);
        self.notes.extend(notes);
        for (kernel, times) in &measured {
            let boost = boost(times, &power);
            for row in self.cluster.kernels.iter_mut().filter(|row| is_row_of(row, kernel)) {
                make_sustained(row, boost);
            }
        }
        self.keep_clock(power, &times);
        Ok(())
    }

    /// `kernel` after a rest and under load; the longest full calls of the largest heads also with pauses.
    fn times(
        &mut self,
        kernels: &[MachineKernel],
        kernel: &MachineKernel,
        (pattern, tokens): (Pattern, u64),
    ) -> Result<Times, CalibrateError> {
        let identity = self.machine.identity();
        let (sizes, ranks) = (self.machine.sizes(), identity.devices);
        let shape = kernel.shape(sizes.heads);
        let plan = probes::call(shape, kernel.pass, pattern, tokens, ranks);
        let plan = plan.ok_or(CalibrateError::Sizes("clock"))?;
        let call = format!("{} {} {}, {pattern} {tokens}", kernel.pass, kernel.dtype, kernel.head_dim);
        let activity = self.activity(kernel, (pattern, tokens));
        let timed = |runs: &Runs| Timed {
            seconds: of_kind(&runs.timeline, kernel.span_kind()),
            spread: runs.spread(),
            busy: (activity * runs.duty).min(1.0),
        };
        self.say(&format!("clock after a rest, {call}"))?;
        let cold = self.machine.run(&plan, Launching::Stepwise, sizes.repeats)?;
        self.say(&format!("clock under load, {call}"))?;
        let (sustained, each) = self.under_load(&plan)?;
        let largest = kernels.iter().map(|kernel| kernel.head_dim).max();
        let rests = pattern == Pattern::Full && Some(kernel.head_dim) == largest;
        let resting = if rests {
            self.say(&format!("clock with pauses, {call}"))?;
            let pause = sustained.timeline.makespan.as_secs_f64() * (1.0 / BUSY - 1.0);
            let pause = Duty::Resting(SimTime::from_secs_f64(pause));
            Some(timed(&self.machine.run_at(&plan, pause, RESTING)?))
        } else {
            None
        };
        let each_cold = (0..ranks).map(|rank| computing_on(rank, &cold)).collect();
        Ok(Times { call, sustained: timed(&sustained), cold: timed(&cold), each, each_cold, resting })
    }

    /// The median of the runs under load, and each device's time.
    fn under_load(&mut self, plan: &Plan) -> Result<(Runs, Vec<f64>), CalibrateError> {
        let repeats = self.machine.sizes().repeats;
        let mut runs = Vec::new();
        for _ in 0..UNDER_LOAD {
            runs.push(self.machine.run_at(plan, Duty::Sustained, repeats)?);
        }
        let on = |rank| median(runs.iter().map(|run| computing_on(rank, run)).collect());
        let each = (0..plan.ranks()).map(on).collect();
        runs.sort_by_key(|run| run.timeline.makespan);
        Ok((runs.swap_remove(UNDER_LOAD / 2), each))
    }

    /// Share of its SMs' time in which a call of `kernel` multiplies matrices, by the constants that were found.
    fn activity(&self, kernel: &MachineKernel, (pattern, tokens): (Pattern, u64)) -> f64 {
        let Some(row) = self.cluster.kernels.iter().find(|row| is_row_of(row, kernel)) else { return 1.0 };
        let (sms, shape) = (self.cluster.device.sms, kernel.shape(self.machine.sizes().heads));
        let (profile, heads) = super::attention::work(kernel, shape, pattern, (tokens, tokens));
        Kernel::new(row, sms).call(&profile, heads, 0).activity(sms)
    }

    fn keep_clock(&mut self, power: Power, times: &[Times]) {
        let mut points = Vec::new();
        for t in times {
            let unlimited = t.sustained.seconds * power.speed(t.sustained.busy);
            let mut point = |how: &str, timed: &Timed, speed: f64| {
                let (probe, fitted_s) = (format!("{} {how}", t.call), unlimited / speed);
                points.push(Point { probe, measured_s: timed.seconds, fitted_s, spread: timed.spread });
            };
            point("under load", &t.sustained, power.speed(t.sustained.busy));
            point("after a rest", &t.cold, boost(t, &power));
            if let Some(resting) = &t.resting {
                let how = format!("multiplying for {:.1}% of the time", 100.0 * resting.busy);
                point(&how, resting, power.speed(resting.busy));
            }
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

/// Rate after a rest over that of a device under load which multiplies without a pause.
fn boost(times: &Times, power: &Power) -> f64 {
    let now = times.sustained.seconds / times.cold.seconds;
    rounded((now * power.speed(times.sustained.busy)).clamp(1.0, 10.0), 1000.0)
}

/// Turns constants of the highest clock into those of lasting load, which is what a cluster gives.
fn make_sustained(row: &mut KernelRow, boost: f64) {
    row.rate.0 /= boost;
    for time in [&mut row.prologue, &mut row.epilogue, &mut row.call, &mut row.carry] {
        *time = SimTime::from_secs_f64(time.as_secs_f64() * boost);
    }
    row.boost = Some(boost);
    row.source += &format!(", at the highest clock; here for lasting load, {boost:.3} times as long");
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

/// Power that a device has for multiplying at the limit, over that of one that multiplies all the time.
fn headroom(idle: f64, busy: f64) -> f64 {
    (1.0 - idle * (1.0 - busy)) / busy
}

/// The constants that `times` show, rounded to what they are known to, and what must be said of them.
fn fitted(times: &[Times], idle: f64, date: &str) -> (Power, Vec<String>) {
    let mut notes = Vec::new();
    let with_pauses: Vec<(&Times, Timed)> = times.iter().filter_map(|t| Some((t, t.resting?))).collect();
    // At the limit the speed to the exponent is the headroom.
    let saved = |(t, resting): &(&Times, Timed)| {
        (headroom(idle, resting.busy) / headroom(idle, t.sustained.busy)).ln()
    };
    let gained = |(t, resting): &(&Times, Timed)| (t.sustained.seconds / resting.seconds).ln();
    let sums = (with_pauses.iter().map(saved).sum::<f64>(), with_pauses.iter().map(gained).sum::<f64>());
    let shown = if sums.1 > 0.0 { sums.0 / sums.1 } else { f64::INFINITY };
    let exponent = rounded(shown.clamp(EXPONENTS.0, EXPONENTS.1), 100.0);
    if !(EXPONENTS.0..=EXPONENTS.1).contains(&shown) {
        let (low, high) = EXPONENTS;
        notes.push(format!(
            "clock: the exponent came out as {shown:.2}, beyond {low} to {high}: {exponent} is kept"
        ));
    }
    if times.iter().any(|t| t.sustained.seconds < t.cold.seconds) {
        notes.push("clock: calls after a rest were slower than under load".into());
    }
    let is_at_highest = |(t, resting): &(&Times, Timed)| resting.seconds < 1.01 * t.cold.seconds;
    if with_pauses.iter().any(|t| is_at_highest(t) && t.0.sustained.seconds > t.0.cold.seconds) {
        notes
            .push("clock: with pauses it was at its highest already, so the exponent is at most that".into());
    }
    let percent = |timed: &Timed| format!("{:.0}%", 100.0 * timed.busy);
    let busy: Vec<String> = with_pauses
        .iter()
        .map(|(t, resting)| format!("{} and {}", percent(&t.sustained), percent(resting)))
        .collect();
    let source = format!(
        "single calls after a rest, under load, and with pauses (multiplying for {} of the time), measured {date}; idle is assumed",
        busy.join(", ")
    );
    let (speeds, cold_speeds) = (speeds(times, |t| &t.each), speeds(times, |t| &t.each_cold));
    let mut power = Power { boost: f64::INFINITY, idle, exponent, speeds, cold_speeds, source };
    power.boost = times.iter().map(|t| boost(t, &power)).fold(1.0, f64::max);
    (power, notes)
}

/// Rate of each device over the mean that the fits take: mean time over its own, in the mean over the calls.
fn speeds(times: &[Times], each: impl Fn(&Times) -> &[f64]) -> Vec<f64> {
    let devices = times.first().map_or(0, |t| each(t).len());
    if devices < 2 || times.iter().flat_map(&each).any(|&own| own <= 0.0) {
        return Vec::new();
    }
    let of = |device: usize| {
        let speed = |t: &Times| each(t).iter().sum::<f64>() / devices as f64 / each(t)[device];
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
