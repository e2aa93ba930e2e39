//! What settings of NCCL do: limits on the CTAs of a transfer, and streams of high priority.
//!
//! Each limit has messages of two sizes, of which the bandwidth is fitted while latency and ramp stay those without a limit, and the
//! calls that a message moves before. High priority has those, and calls that are posted with their message; what
//! the simulator's rule for it makes of the same plans stands beside what was measured.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ringlab_sim::config::cluster::{
    Grid, HighPriority, NcclLimit, NcclSettings, Priority, Quantity, Transport as Reached,
};
use ringlab_sim::plan::Transport;
use ringlab_sim::units::{Bytes, BytesPerSec, SimTime};

use super::model::Modelled;
use super::{Alone, Together, waits_for_calls};
use crate::calibrate::fit::Sample;
use crate::calibrate::probes::{First, Ways};
use crate::calibrate::{CalibrateError, FitReport, POOR, Point, Session};

/// Limits that are measured, in this order.
const LIMITS: [u32; 3] = [8, 16, 4];
/// A calibration that would take longer leaves out settings that it has not come to.
pub(in crate::calibrate) const IN_ALL: Duration = Duration::from_secs(165);
/// What a setting takes if none has taken longer.
const EXPECTED: Duration = Duration::from_secs(12);
/// A long message has at least so many times the bytes of the shorter one.
const APART: u64 = 16;
/// Shares of their bandwidth that transfers lose count as the same if they differ by less.
const SAME: f64 = 0.01;

const HIGH: NcclSettings = NcclSettings { ctas: None, priority: Priority::High };

/// Calls and messages beside each other, and each alone.
type Pairs = Vec<(Together, Alone)>;

impl Session<'_> {
    /// High priority, then the limits that the devices have SMs for, as far as there is time until `end`. What does not run or
    /// fit is left out and named.
    pub(in crate::calibrate) fn nccl_settings(
        &mut self,
        date: &str,
        end: Instant,
    ) -> Result<(), CalibrateError> {
        let nccl = &mut self.cluster.fabric.nccl;
        (nccl.limits, nccl.high_priority) = (Vec::new(), None);
        let sms = self.cluster.device.sms;
        let limits = LIMITS.into_iter().filter(|&ctas| ctas <= sms);
        let limited = |ctas| NcclSettings { ctas: Some(ctas), ..NcclSettings::default() };
        let mut all: VecDeque<_> = [HIGH].into_iter().chain(limits.map(limited)).collect();
        let mut longest = EXPECTED;
        while let Some(settings) = all.pop_front() {
            let (what, begun) = (named(settings), Instant::now());
            if begun + longest > end {
                let most = IN_ALL.as_secs();
                self.notes.push(format!("{what} was not measured: a calibration is to end within {most} s"));
                continue;
            }
            let error = match self.apart(settings, date) {
                Ok(()) => None,
                Err(CalibrateError::Stopped) => return Err(CalibrateError::Stopped),
                Err(error) => Some(error),
            };
            longest = longest.max(begun.elapsed());
            let Some(error) = error else { continue };
            self.notes.push(format!("{what} was not measured: {error}"));
            if matches!(&error, CalibrateError::Machine(error) if error.is_hang()) {
                let untried = all.drain(..).map(named);
                self.notes.extend(untried.map(|what| format!("{what} was not tried after that")));
            }
        }
        self.cluster.fabric.nccl.limits.sort_by_key(|limit| limit.ctas);
        Ok(())
    }

    /// Measures with `settings` alone: nothing has them afterwards.
    fn apart(&mut self, settings: NcclSettings, date: &str) -> Result<(), CalibrateError> {
        self.say(&named(settings))?;
        if !self.machine.set_nccl(settings) {
            return Err(CalibrateError::Unsettable);
        }
        let measured = match settings.ctas {
            Some(ctas) => self.nccl_limit(ctas, date),
            None => self.high_priority(date),
        };
        self.machine.set_nccl(NcclSettings::default());
        measured
    }

    fn high_priority(&mut self, date: &str) -> Result<(), CalibrateError> {
        let before = self.pairs(Transport::Nccl, First::Message)?;
        let after = self.pairs(Transport::Nccl, First::Call)?;
        self.keep_high_priority(&before, date);
        self.hold_against_the_rule(&[("before", before), ("with", after)]);
        Ok(())
    }

    fn nccl_limit(&mut self, ctas: u32, date: &str) -> Result<(), CalibrateError> {
        let sizes = two_of(&self.machine.sizes().messages);
        let samples = sizes.into_iter().map(|bytes| self.message(bytes, Ways::Both, Transport::Nccl));
        let samples = samples.collect::<Result<Vec<_>, _>>()?;
        let before = self.pairs(Transport::Nccl, First::Message)?;
        let (nccl, link) = (&self.cluster.fabric.nccl, self.cluster.fabric.topology.link_bandwidth());
        let bandwidth = bandwidth(&samples, nccl).filter(|reached| *reached <= link);
        let bandwidth = bandwidth.ok_or(CalibrateError::Bandwidth(link))?;
        let points = samples.iter().map(|s| fitted(s, nccl, bandwidth)).collect();
        let constants = format!("{} + bytes / {bandwidth}", nccl.latency);
        let what = format!("NCCL of {ctas} CTAs");
        let fit = FitReport::of(&format!("{what}, both ways"), constants, points);
        let source = format!(
            "fit to {} sizes sent both ways at once, measured {date}: rms residual {:.1}%; beside attention calls, \
             measured {date}",
            samples.len(),
            100.0 * fit.residual
        );
        self.keep_uncertainty(Quantity::NcclLimit(ctas), (fit.spread, fit.residual), samples.len() as u32);
        if fit.residual > POOR {
            self.notes.push(format!("poor fit of {}: residuals of {:.1}%", fit.what, 100.0 * fit.residual));
        }
        self.fits.push(fit);
        let (sms, slowed_by_calls) = self.report_held(&format!("{what} before attention calls"), &before);
        self.cluster.fabric.nccl.limits.push(NcclLimit { ctas, bandwidth, sms, slowed_by_calls, source });
        Ok(())
    }

    /// Keeps what transfers of high priority take, where that is not what others do.
    fn keep_high_priority(&mut self, before: &Pairs, date: &str) {
        let (sms, slowed_by_calls) = self.report_held("NCCL of high priority before attention calls", before);
        let nccl = &mut self.cluster.fabric.nccl;
        if sms != nccl.sms || (slowed_by_calls - nccl.slowed_by_calls).abs() >= SAME {
            let source = format!("beside attention calls, measured {date}");
            nccl.high_priority = Some(HighPriority { sms, slowed_by_calls, source });
        }
    }

    /// Reports what the simulator makes of the measured plans: each time alone, and what the model adds to it beside the other.
    /// `orders` has the plans whose message comes first, then those in which it is posted with the call.
    fn hold_against_the_rule(&mut self, orders: &[(&str, Pairs); 2]) {
        let found = outcome(orders, self.cluster.kernels.iter().any(|row| row.grid == Grid::PersistentQueue));
        let mut points = Vec::new();
        for ((order, pairs), first) in orders.iter().zip([First::Message, First::Call]) {
            let modelled = match self.modelled(first) {
                Ok(modelled) => modelled,
                Err(error) => {
                    self.notes.push(format!("NCCL of high priority is not predicted: {error}"));
                    return;
                }
            };
            let both = pairs.iter().zip(&modelled);
            points.extend(both.flat_map(|(measured, modelled)| by_the_rule(order, measured, modelled)));
        }
        let fit = FitReport::of("NCCL of high priority, as predicted", found.clone(), points);
        if fit.worst > POOR {
            self.notes.push(format!(
                "predictions of NCCL at high priority are off by up to {:.0}%: measured, it {found}",
                100.0 * fit.worst
            ));
        }
        self.fits.push(fit);
    }

    /// What the simulator makes of the probes at high priority.
    fn modelled(&self, first: First) -> Result<Pairs, CalibrateError> {
        // Only a limit can be unknown.
        let cluster = self.cluster.with_nccl(HIGH).unwrap_or_else(|_| self.cluster.clone());
        let mut machine = Modelled { cluster: &cluster, of: &*self.machine };
        let mut session = Session {
            machine: &mut machine,
            cluster: cluster.clone(),
            fits: Vec::new(),
            notes: Vec::new(),
            spreads: Vec::new(),
            progress: &mut |_| true,
        };
        session.pairs(Transport::Nccl, first)
    }
}

fn named(settings: NcclSettings) -> String {
    match settings.ctas {
        Some(ctas) => format!("NCCL of {ctas} CTAs"),
        None => "NCCL of high priority".into(),
    }
}

/// What messages of high priority do beside calls whose grids keep all SMs, or do not.
fn outcome([(_, before), (_, with)]: &[(&str, Pairs); 2], calls_keep_sms: bool) -> String {
    let posted_with = match (waits_for_calls(with), calls_keep_sms) {
        (true, _) => "waits for the end of a call that was posted with it",
        (false, true) => "goes before a call that was posted with it",
        (false, false) => "moves beside a call that was posted with it, as at normal priority",
    };
    let next =
        if waits_for_calls(before) { "comes after the next call" } else { "goes before the next call" };
    format!("{posted_with}, and {next}")
}

/// A call and its message, measured and by the model.
fn by_the_rule(
    order: &str,
    (both, alone): &(Together, Alone),
    (by_model, alone_by_model): &(Together, Alone),
) -> [Point; 2] {
    let point = |what: &str, measured_s: f64, alone_s: f64, added: f64| Point {
        probe: format!("{what}, message {order} a call of {}", SimTime::from_secs_f64(alone.call)),
        measured_s,
        fitted_s: alone_s + added,
        spread: 0.0,
    };
    [
        point("call", both.call, alone.call, by_model.call - alone_by_model.call),
        point("message", both.message, alone.message, by_model.message - alone_by_model.message),
    ]
}

/// The longest message, and the longest of those that are [`APART`] from it.
fn two_of(sizes: &[u64]) -> Vec<u64> {
    let longest = sizes.iter().copied().max();
    let shorter = longest.and_then(|longest| sizes.iter().copied().filter(|s| s * APART <= longest).max());
    shorter.into_iter().chain(longest).collect()
}

/// Time of a transfer of so many bytes besides that of its bytes, in seconds.
fn besides(bytes: f64, nccl: &Reached) -> f64 {
    let ramp = nccl.ramp.map_or(SimTime::ZERO, |ramp| ramp.of(Bytes(bytes as u64)));
    (nccl.latency + ramp).as_secs_f64()
}

/// Least squares of the relative residuals of `besides + bytes / bandwidth`; `None` where no bandwidth gives such times.
fn bandwidth(samples: &[Sample], nccl: &Reached) -> Option<BytesPerSec> {
    let (mut product, mut square) = (0.0, 0.0);
    for sample in samples {
        let bytes = sample.factors[1];
        let weight = bytes / sample.seconds;
        product += weight * (1.0 - besides(bytes, nccl) / sample.seconds);
        square += weight * weight;
    }
    let bandwidth = square / product;
    (bandwidth.is_finite() && bandwidth > 0.0).then_some(BytesPerSec(bandwidth))
}

fn fitted(sample: &Sample, nccl: &Reached, bandwidth: BytesPerSec) -> Point {
    let bytes = sample.factors[1];
    Point {
        probe: sample.probe.clone(),
        measured_s: sample.seconds,
        fitted_s: besides(bytes, nccl) + bytes / bandwidth.0,
        spread: sample.spread,
    }
}
