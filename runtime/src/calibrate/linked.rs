//! What being linked to other GPUs costs attention calls: a call between two small messages takes longer than the same call on
//! GPUs that exchange nothing, though nothing moves beside it.

use ringlab_sim::config::cluster::KernelRow;

use super::clock::{RESTED, is_row_of};
use super::{CalibrateError, FitReport, Point, Session, of_kind, probes};
use crate::machine::{Launching, MachineKernel};

/// What is set to 1 without a word.
const NOISE: f64 = 0.01;

/// A call by itself and between messages, in seconds.
struct Compared {
    probe: String,
    alone: f64,
    between: f64,
    spread: f64,
}

impl Session<'_> {
    /// Every kernel's call by itself and between messages, one right after the other. What cannot be run is named.
    pub(super) fn linked(&mut self, date: &str) -> Result<(), CalibrateError> {
        let kernels = self.machine.kernels();
        let mut found = Vec::new();
        for kernel in &kernels {
            match self.between(&kernels, kernel) {
                Ok(call) => found.extend(call.filter(|call| call.alone > 0.0).map(|call| (kernel, call))),
                Err(CalibrateError::Machine(error)) => {
                    self.notes.push(format!(
                        "calls of {} between messages were not measured: {error}",
                        kernel.name
                    ));
                }
                Err(error) => return Err(error),
            }
        }
        let (mut points, mut shown) = (Vec::new(), Vec::new());
        for (kernel, Compared { probe, alone, between, spread }) in found {
            shown.push(format!("{probe}: {:+.1}%", 100.0 * (between / alone - 1.0)));
            let measured = between / alone;
            let linked = thousandths(measured.clamp(1.0, KernelRow::MOST_LINKED));
            if (linked / measured - 1.0).abs() > NOISE {
                self.notes.push(format!(
                    "a call between messages took {measured:.3} times as long as by itself, {probe}: {linked} is kept"
                ));
            }
            self.keep_linked(kernel, linked, date);
            points.push(Point { probe, measured_s: between, fitted_s: alone * linked, spread });
        }
        if !points.is_empty() {
            self.fits.push(FitReport::of("calls between messages", shown.join(", "), points));
        }
        Ok(())
    }

    /// A call of `kernel`, `None` if it is launched for none of those that stand for kernels.
    fn between(
        &mut self,
        kernels: &[MachineKernel],
        kernel: &MachineKernel,
    ) -> Result<Option<Compared>, CalibrateError> {
        let call = self.first(kernels, kernel, &RESTED, |plan| self.is_rested(plan))?;
        let Some(((pattern, tokens), by_itself)) = call else { return Ok(None) };
        let (shape, ranks) = (kernel.shape(self.machine.sizes().heads), self.machine.identity().devices);
        let probe = format!("{pattern} {tokens}, {} {} {}", kernel.pass, kernel.dtype, kernel.head_dim);
        self.say(&format!("call between messages, {probe}"))?;
        let between = probes::between(shape, kernel.pass, pattern, tokens, ranks);
        let between = between.ok_or(CalibrateError::Sizes("linked"))?;
        let repeats = self.machine.sizes().repeats;
        let mut run = |plan| self.machine.run(plan, Launching::Stepwise, repeats);
        let (alone, between) = (run(&by_itself)?, run(&between)?);
        let spread = between.spread();
        let [alone, between] = [alone, between].map(|runs| of_kind(&runs.timeline, kernel.span_kind()));
        Ok(Some(Compared { probe, alone, between, spread }))
    }

    fn keep_linked(&mut self, kernel: &MachineKernel, linked: f64, date: &str) {
        if linked > 1.0 {
            for row in self.cluster.kernels.iter_mut().filter(|row| is_row_of(row, kernel)) {
                row.linked = Some(linked);
                row.source +=
                    &format!("; {linked} times as long between messages as by itself, measured {date}");
            }
        }
    }
}

fn thousandths(value: f64) -> f64 {
    (1000.0 * value).round() / 1000.0
}
