//! What a power limit makes of the clock: the same calls after a rest, under lasting load, and with pauses.

use std::f64::consts::SQRT_2;

use ringlab_sim::config::cluster::{KernelRow, Power, Quantity};
use ringlab_sim::cost::Kernel;
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::Pass;
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::units::SimTime;

use super::attention::is_launched;
use super::{CalibrateError, FitReport, Point, Session, of_kind, probes};
use crate::machine::{Duty, Launching, MachineKernel, Runs};

/// A mask, and as many tokens of queries as of keys.
pub(super) type Call = (Pattern, u64);

/// Calls that may stand for a kernel under load, the first that it is launched for: in long ones hosts leave no pauses, and
/// keys, queries and gradients lie in memory as they do in long runs.
const LOADED: [Call; 3] = [(Pattern::Full, 64 << 10), (Pattern::Causal, 16 << 10), (Pattern::Full, 2 << 10)];
/// The same after a rest, the first that is done before the clock falls.
pub(super) const RESTED: [Call; 4] = [
    (Pattern::Full, 32 << 10),
    (Pattern::Full, 24 << 10),
    (Pattern::Causal, 16 << 10),
    (Pattern::Full, 2 << 10),
];
/// Measurements under load, each a mean over a second: a card is warmer in the second one.
const UNDER_LOAD: usize = 2;
/// Repeats with pauses.
const RESTING: u32 = 25;
/// Share of the time that calls with pauses are meant to take; the host adds to the pauses, and what came out is measured.
const BUSY: f64 = 0.8;
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

impl From<[Timed; UNDER_LOAD]> for Timed {
    /// The mean, and the standard deviation of the two: repeats differ by the clock within a second, which the mean of one evens out.
    fn from([first, second]: [Self; UNDER_LOAD]) -> Self {
        let mean = |of: fn(&Self) -> f64| of(&first).midpoint(of(&second));
        let (seconds, busy) = (mean(|t| t.seconds), mean(|t| t.busy));
        let spread = (first.seconds - second.seconds).abs() / SQRT_2 / seconds;
        Self { seconds, spread: if seconds > 0.0 { spread } else { 0.0 }, busy }
    }
}

/// Calls of a kernel.
#[derive(Debug, Clone, PartialEq)]
struct Times {
    kernel: String,
    /// Under load.
    loaded: Timed,
    /// The same after a rest, by the constants that were found.
    unlimited_s: f64,
    /// With pauses, where that was measured.
    resting: Option<Timed>,
    /// By device, under load.
    each: Vec<f64>,
    /// By device, a shorter one after a rest.
    each_rested: Vec<f64>,
}

impl Times {
    fn are_measurable(&self) -> bool {
        let is_time = |t: &Timed| t.seconds > 0.0 && t.busy > 0.0;
        self.unlimited_s > 0.0 && [&self.loaded].into_iter().chain(&self.resting).all(is_time)
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
            match self.times(&kernels, kernel)? {
                Some(times) => measured.push((kernel, times)),
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

    /// `kernel` after a rest and under load; the forward of the largest heads also with pauses. `None` if it is launched for
    /// none of the calls.
    fn times(
        &mut self,
        kernels: &[MachineKernel],
        kernel: &MachineKernel,
    ) -> Result<Option<Times>, CalibrateError> {
        let short = self.first(kernels, kernel, &RESTED, |plan| self.is_rested(plan))?;
        let long = self.first(kernels, kernel, &LOADED, |_| true)?;
        let (Some((short, brief)), Some((long, lasting))) = (short, long) else { return Ok(None) };
        let of = |runs: &Runs, activity: f64| Timed {
            seconds: of_kind(&runs.timeline, kernel.span_kind()),
            spread: runs.spread(),
            busy: (activity * runs.duty).min(1.0),
        };
        let name = format!("{} {} {}", kernel.pass, kernel.dtype, kernel.head_dim);
        self.say(&format!("clock after a rest, {name}, {} {} tokens", short.0, short.1))?;
        let repeats = self.machine.sizes().repeats;
        let rested = self.machine.run(&brief, Launching::Stepwise, repeats)?;
        let each_rested = (0..brief.ranks()).map(|rank| computing_on(rank, &rested)).collect();
        self.say(&format!("clock under load, {name}, {} {} tokens", long.0, long.1))?;
        let (loads, each) = self.under_load(&lasting)?;
        let found = self.found(kernel, long);
        let largest = kernels.iter().map(|kernel| kernel.head_dim).max();
        let rests = (long.0, kernel.pass, Some(kernel.head_dim)) == (Pattern::Full, Pass::Forward, largest);
        let resting = if rests {
            self.say(&format!("clock with pauses, {name}"))?;
            let pause = loads[0].makespan.as_secs_f64() * (1.0 / BUSY - 1.0);
            let pause = Duty::Resting(SimTime::from_secs_f64(pause));
            Some(of(&self.machine.run_at(&lasting, pause, RESTING)?, found.activity))
        } else {
            None
        };
        let loaded = loads.map(|runs| of(&runs, found.activity)).into();
        let unlimited_s = found.seconds;
        Ok(Some(Times { kernel: name, loaded, unlimited_s, resting, each, each_rested }))
    }

    /// The first of `calls`, each of as many queries as keys on every rank, that `kernel` is launched for and whose plan
    /// `suits`.
    pub(super) fn first(
        &self,
        kernels: &[MachineKernel],
        kernel: &MachineKernel,
        calls: &[Call],
        suits: impl Fn(&Plan) -> bool,
    ) -> Result<Option<(Call, Plan)>, CalibrateError> {
        let (shape, ranks) = (kernel.shape(self.machine.sizes().heads), self.machine.identity().devices);
        for &(pattern, tokens) in calls {
            if is_launched(kernels, kernel, pattern, (tokens, tokens)) {
                let plan = probes::call(shape, kernel.pass, pattern, tokens, ranks);
                let plan = plan.ok_or(CalibrateError::Sizes("clock"))?;
                if suits(&plan) {
                    return Ok(Some(((pattern, tokens), plan)));
                }
            }
        }
        Ok(None)
    }

    /// `plan` under load, again and again, and each device's mean time.
    fn under_load(&mut self, plan: &Plan) -> Result<([Runs; UNDER_LOAD], Vec<f64>), CalibrateError> {
        let repeats = self.machine.sizes().repeats;
        let mut run = || self.machine.run_at(plan, Duty::Sustained, repeats);
        let loads = [run()?, run()?];
        let each = |rank| loads.iter().map(|runs| computing_on(rank, runs)).sum::<f64>() / UNDER_LOAD as f64;
        let each = (0..plan.ranks()).map(each).collect();
        Ok((loads, each))
    }

    /// A call of `kernel` by the constants that were found.
    fn found(&self, kernel: &MachineKernel, (pattern, tokens): Call) -> Found {
        let row = self.cluster.kernels.iter().find(|row| is_row_of(row, kernel));
        row.map_or(Found { seconds: 0.0, activity: 1.0 }, |row| {
            let (sms, shape) = (self.cluster.device.sms, kernel.shape(self.machine.sizes().heads));
            let (profile, heads) = super::attention::work(kernel, shape, pattern, ((tokens, tokens), sms));
            let call = Kernel::new(row, sms).call(&profile, heads, 0);
            Found { seconds: call.time(sms).as_secs_f64(), activity: call.activity(sms) }
        })
    }

    fn keep_clock(&mut self, power: Power, times: &[Times]) {
        let mut points = Vec::new();
        for t in times {
            let mut point = |how: String, timed: &Timed, fitted_s: f64| {
                let probe = format!("{} {how}", t.kernel);
                points.push(Point { probe, measured_s: timed.seconds, fitted_s, spread: timed.spread });
            };
            let how = |timed: &Timed| format!("multiplying for {:.1}% of the time", 100.0 * timed.busy);
            let at_limit = |timed: &Timed| t.unlimited_s * boost(t, &power) / power.speed(timed.busy);
            point(how(&t.loaded), &t.loaded, at_limit(&t.loaded));
            if let Some(resting) = &t.resting {
                point(how(resting), resting, at_limit(resting));
            }
        }
        let constants = format!("boost {:.3}, exponent {:.2}", power.boost, power.exponent);
        let report = FitReport::of("clock", constants, points);
        self.keep_uncertainty(Quantity::Boost, (report.spread, report.residual), report.points.len() as u32);
        self.fits.push(report);
        self.cluster.device.power = Some(power);
    }
}

/// What a call takes, and its share of the SMs' time in which it multiplies matrices.
struct Found {
    seconds: f64,
    activity: f64,
}

/// Rate after a rest over that of a device under load which multiplies without a pause.
fn boost(times: &Times, power: &Power) -> f64 {
    let now = times.loaded.seconds / times.unlimited_s;
    rounded((now * power.speed(times.loaded.busy)).clamp(1.0, 10.0), 1000.0)
}

/// Turns constants of the highest clock into those of lasting load, which is what a cluster gives.
fn make_sustained(row: &mut KernelRow, boost: f64) {
    row.slow_down(boost);
    row.boost = Some(boost);
    row.source += &format!(", at the highest clock; here for lasting load, {boost:.3} times as long");
}

/// Whether `row` is what was measured of `kernel`.
pub(super) fn is_row_of(row: &KernelRow, kernel: &MachineKernel) -> bool {
    (row.head_dim, row.dtype, row.pass, row.used_for)
        == (kernel.head_dim, kernel.dtype, kernel.pass, kernel.used_for)
}

/// The power at rest of a device by its name, where it is known.
fn at_rest(device: &str) -> Option<f64> {
    ["H100", "H200"].iter().any(|name| device.contains(name)).then_some(IDLE)
}

/// The constants that `times` show, rounded to what they are known to, and what must be said of them.
fn fitted(times: &[Times], idle: f64, date: &str) -> (Power, Vec<String>) {
    let mut notes = Vec::new();
    let with_pauses: Vec<(&Times, Timed)> = times.iter().filter_map(|t| Some((t, t.resting?))).collect();
    // At the limit the speed to the exponent is the headroom.
    let saved = |(t, resting): &(&Times, Timed)| {
        (Power::headroom(idle, resting.busy) / Power::headroom(idle, t.loaded.busy)).ln()
    };
    let gained = |(t, resting): &(&Times, Timed)| (t.loaded.seconds / resting.seconds).ln();
    let sums = (with_pauses.iter().map(saved).sum::<f64>(), with_pauses.iter().map(gained).sum::<f64>());
    let shown = if sums.1 > 0.0 { sums.0 / sums.1 } else { f64::INFINITY };
    let exponent = rounded(shown.clamp(EXPONENTS.0, EXPONENTS.1), 100.0);
    if !(EXPONENTS.0..=EXPONENTS.1).contains(&shown) {
        let (low, high) = EXPONENTS;
        notes.push(format!(
            "clock: the exponent came out as {shown:.2}, beyond {low} to {high}: {exponent} is kept"
        ));
    }
    if times.iter().any(|t| t.loaded.seconds < 0.99 * t.unlimited_s) {
        notes.push("clock: calls after a rest were slower than under load".into());
    }
    let is_at_highest = |(t, resting): &(&Times, Timed)| resting.seconds < 1.01 * t.unlimited_s;
    if with_pauses.iter().any(|t| is_at_highest(t) && t.0.loaded.seconds > t.0.unlimited_s) {
        notes
            .push("clock: with pauses it was at its highest already, so the exponent is at most that".into());
    }
    let percent = |timed: &Timed| format!("{:.0}%", 100.0 * timed.busy);
    let busy: Vec<String> = with_pauses
        .iter()
        .map(|(t, resting)| format!("{} and {}", percent(&t.loaded), percent(resting)))
        .collect();
    let source = format!(
        "single calls after a rest, under load, and with pauses (multiplying for {} of the time), measured {date}; idle is assumed",
        busy.join(", ")
    );
    let (speeds, cold_speeds) = (speeds(times, |t| &t.each), speeds(times, |t| &t.each_rested));
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
