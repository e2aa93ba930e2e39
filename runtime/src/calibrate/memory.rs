//! Rate of steps that stream device memory: row sums, merging, adding gradients.

use ringlab_sim::config::cluster::Quantity;
use ringlab_sim::cost;
use ringlab_sim::plan::Plan;
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::units::{BytesPerSec, SimTime};

use super::fit::{Sample, relative};
use super::{CalibrateError, Session, of_kind, probes};
use crate::machine::{Launching, Runs};

impl Session<'_> {
    /// Every kind of step over the machine's lengths.
    pub(super) fn memory(&mut self, date: &str) -> Result<(), CalibrateError> {
        let sizes = self.machine.sizes();
        let Some(kernel) = self.machine.kernels().into_iter().next() else { return Ok(()) };
        let shape = kernel.shape(sizes.heads);
        let mut samples = Vec::new();
        for &tokens in &sizes.calls {
            self.say(&format!("steps that stream memory, {tokens} tokens"))?;
            let (merge, add) = (probes::merge(shape, tokens), probes::accumulate(shape, tokens));
            for (plan, kinds) in
                [(merge, &[SpanKind::Merge][..]), (add, &[SpanKind::Preprocess, SpanKind::Accumulate])]
            {
                let plan = plan.ok_or(CalibrateError::Sizes("memory"))?;
                let runs = self.machine.run(&plan, Launching::Stepwise, sizes.repeats)?;
                samples.extend(kinds.iter().map(|&kind| step(kind, &plan, &runs, tokens)));
            }
        }
        let what = "steps that stream memory";
        let fit = relative(&samples).map_err(|source| CalibrateError::Fit { what: what.into(), source })?;
        let (call, hbm) = (SimTime::from_secs_f64(fit.constants[0]), BytesPerSec(1.0 / fit.constants[1]));
        self.report(what.into(), format!("{call} + bytes / {hbm}"), &["a step", "a byte"], (&fit, &samples));
        let reached = &mut self.cluster.device.reached;
        if hbm.0.is_finite() {
            (reached.call, reached.hbm) = (call, hbm);
            reached.source =
                format!("hbm and call: fit to {} steps measured {date}; {}", samples.len(), reached.source);
            self.know(Quantity::Hbm, &fit, samples.len());
        } else {
            self.notes.push(format!("{what}: no rate could be told; it stays as in the base cluster"));
        }
        Ok(())
    }
}

/// All steps of `kind` of a plan of one rank.
fn step(kind: SpanKind, plan: &Plan, runs: &Runs, tokens: u64) -> Sample {
    let program = &plan.programs[0];
    let of_that_kind = program.ops.iter().filter(|op| SpanKind::of(&op.kind) == kind);
    let bytes: Vec<u64> = of_that_kind.map(|op| cost::moved_bytes(plan, program, &op.kind).0).collect();
    Sample {
        probe: format!("{} {tokens}", kind.name()),
        factors: vec![bytes.len() as f64, bytes.iter().sum::<u64>() as f64],
        seconds: of_kind(&runs.timeline, kind),
        spread: runs.spread(),
    }
}
