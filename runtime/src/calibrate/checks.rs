//! Check runs: plans that no fit used, predicted by what was fitted and then measured. They are no schedules, but have what
//! schedules have and single calls do not; what predictions of them are off by is the uncertainty of any prediction.

mod plans;
#[cfg(test)]
mod tests;

use ringlab_sim::config::cluster::{Quantity, Uncertainty};
use ringlab_sim::engine::{self, SimError};
use ringlab_sim::plan::Plan;
use ringlab_sim::units::SimTime;

use super::{CalibrateError, FitReport, POOR, Point, Session};
use crate::machine::{Launching, predicted_under};
pub(crate) use plans::plans;

impl Session<'_> {
    /// Predicts and measures every check plan that the machine takes.
    pub(super) fn checks(&mut self) -> Result<(), CalibrateError> {
        let mut points = Vec::new();
        for (name, plan) in plans(self.machine) {
            self.say(&format!("check run, {name}"))?;
            match self.check(&name, &plan)? {
                Ok(point) => points.push(point),
                Err(why) => self.notes.push(format!("check run {name} was left out: {why}")),
            }
        }
        if points.is_empty() {
            self.notes.push("no check run was made: intervals hold only what fits and repeats show".into());
        } else {
            self.keep_checks(points);
        }
        Ok(())
    }

    /// The measured makespan beside the predicted one, or why there is none.
    fn check(&mut self, name: &str, plan: &Plan) -> Result<Result<Point, String>, CalibrateError> {
        if !self.machine.takes(plan) {
            return Ok(Err("the machine does not take it".into()));
        }
        let predicted = match self.predicted(plan) {
            Ok(time) => time,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let runs = match self.machine.run(plan, Launching::Stepwise, self.machine.sizes().repeats) {
            Ok(runs) => runs,
            Err(error) if error.is_refusal() => return Ok(Err(error.source.to_string())),
            Err(error) => return Err(error.into()),
        };
        let measured = runs.makespan;
        if measured == SimTime::ZERO || predicted == SimTime::ZERO {
            return Ok(Err(format!("it took {measured}, predicted were {predicted}")));
        }
        let [measured_s, fitted_s] = [measured, predicted].map(SimTime::as_secs_f64);
        Ok(Ok(Point { probe: name.to_owned(), measured_s, fitted_s, spread: runs.spread() }))
    }

    /// The makespan of `plan` as the machine is loaded for it.
    fn predicted(&self, plan: &Plan) -> Result<SimTime, SimError> {
        let options = predicted_under(self.machine.load(plan, Launching::Stepwise), &self.cluster);
        Ok(engine::simulate(plan, &self.cluster, &options)?.makespan)
    }

    /// Reports at least one point, and keeps what they are off by.
    fn keep_checks(&mut self, points: Vec<Point>) {
        let bias = points.iter().map(|p| p.fitted_s / p.measured_s - 1.0).sum::<f64>() / points.len() as f64;
        let constants = format!("in no fit; predictions are off by {:+.1}% in the mean", 100.0 * bias);
        let report = FitReport::of("check runs", constants, points);
        if report.residual > POOR {
            self.notes.push(format!(
                "poor predictions of check runs: rms error of {:.1}%, mean {:+.1}%",
                100.0 * report.residual,
                100.0 * bias
            ));
        }
        // An interval lies about a predicted time, so here measured times are compared with that. What repeats differ by is in
        // it already.
        let about_predicted = report.points.iter().map(|p| (p.measured_s / p.fitted_s - 1.0).powi(2));
        let residual = (about_predicted.sum::<f64>() / report.points.len() as f64).sqrt();
        if residual > 1.0 {
            self.notes.push(format!(
                "check runs differ from predictions by {:.0}% of these: kept as 100%, the most that a cluster can say",
                100.0 * residual
            ));
        }
        let (residual, samples) = (residual.min(1.0), report.points.len() as u32);
        self.spreads.push(Uncertainty { of: Quantity::Model, spread: 0.0, residual, samples });
        self.fits.push(report);
    }
}
