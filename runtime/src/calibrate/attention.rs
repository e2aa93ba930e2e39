//! Constants of the attention kernels, from single calls.

use ringlab_sim::config::cluster::{Grid, KernelFigure, KernelId, KernelRow, Quantity};
use ringlab_sim::cost;
use ringlab_sim::mask::{Documents, Mask, Pattern};
use ringlab_sim::problem::{Pass, Shape};
use ringlab_sim::tiles;
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::tokens::{Progression, TokenSet};
use ringlab_sim::units::{FlopsPerSec, SimTime};

use super::fit::{Fit, Sample, relative};
use super::{CalibrateError, Session, of_kind, probes};
use crate::machine::MachineKernel;

/// Keys that a query of the windowed calls sees: a few tiles, most of them cut by the mask.
const WINDOW: u64 = 200;

impl Session<'_> {
    pub(super) fn kernels(&mut self, date: &str) -> Result<(), CalibrateError> {
        for kernel in self.machine.kernels() {
            self.kernel(&kernel, date)?;
        }
        Ok(())
    }

    fn kernel(&mut self, kernel: &MachineKernel, date: &str) -> Result<(), CalibrateError> {
        let sizes = self.machine.sizes();
        let heads = sizes.heads;
        let shape =
            Shape { heads, kv_heads: heads, head_dim: kernel.head_dim, dtype: kernel.dtype, batch: 1 };
        let mut samples = Vec::new();
        for pattern in [Pattern::Full, Pattern::Causal, Pattern::Window(WINDOW)] {
            for &tokens in &sizes.calls {
                let title = format!("{} {} {}", kernel.pass, kernel.dtype, kernel.head_dim);
                self.say(&format!("{title}, {pattern}, {tokens} tokens"))?;
                samples.push(self.call(kernel, shape, pattern, tokens)?);
            }
        }
        let what = format!("{} {} {}", kernel.pass, kernel.dtype, kernel.head_dim);
        let fit = relative(&samples).map_err(|source| CalibrateError::Fit { what: what.clone(), source })?;
        self.keep(kernel, what, &fit, &samples, date);
        Ok(())
    }

    /// One call as a sample of (work item, full tile, partial tile).
    fn call(
        &mut self,
        kernel: &MachineKernel,
        shape: Shape,
        pattern: Pattern,
        tokens: u64,
    ) -> Result<Sample, CalibrateError> {
        let ranks = self.machine.identity().devices;
        let plan = probes::call(shape, kernel.pass, pattern, tokens, ranks)
            .ok_or(CalibrateError::Sizes("attention"))?;
        let kind = match kernel.pass {
            Pass::Forward => SpanKind::Attend,
            Pass::Backward => SpanKind::AttendBackward,
        };
        let all = TokenSet::new([Progression::contiguous(0, tokens)]);
        let mask = Mask::new(pattern, &Documents::single(tokens));
        let profile = tiles::profile(&mask, &all, &all, kernel.tile);
        let weights = cost::weights(&profile, heads, self.cluster.device.sms);
        // Tiles of one query and key have no time of their own beside that of the pairs.
        let single = kernel.tile.q * kernel.tile.kv == 1;
        let factors = if single { vec![weights[0], weights[1] + weights[2]] } else { weights.to_vec() };
        self.sample(factors, &plan, |t| of_kind(t, kind))
    }

    fn keep(&mut self, kernel: &MachineKernel, what: String, fit: &Fit, samples: &[Sample], date: &str) {
        let (fixed, full) = (fit.constants[0], fit.constants[1]);
        let partial = fit.constants.get(2).map_or(1.0, |partial| partial / full);
        let flops = (kernel.tile.q * kernel.tile.kv * kernel.pass.flops_per_pair(kernel.head_dim)) as f64;
        let sms = f64::from(self.cluster.device.sms);
        let rate = flops * sms / full;
        let half = SimTime::from_secs_f64(fixed / 2.0);
        self.report(
            format!("attention, {what}"),
            format!("{}, partial tiles x {partial:.2}, {} a work item", FlopsPerSec(rate), half + half),
            fit,
            samples.len(),
        );
        let row = KernelRow {
            name: kernel.name.clone(),
            head_dim: kernel.head_dim,
            dtype: kernel.dtype,
            pass: kernel.pass,
            tile_q: kernel.tile.q as u32,
            tile_kv: kernel.tile.kv as u32,
            rate: FlopsPerSec(rate),
            partial_tile_cost: partial,
            prologue: half,
            epilogue: half,
            carry: SimTime::ZERO,
            items: Items::QueryTiles,
            grid: if kernel.grid == Grid::Persistent { Grid::Persistent } else { Grid::PerItem },
            source: format!(
                "fit to {} single calls measured {date}: rms residual {:.1}%, largest {:.1}%",
                samples.len(),
                100.0 * fit.residual,
                100.0 * fit.worst
            ),
        };
        let id = KernelId::from(&row);
        self.set_kernel(row);
        self.know(Quantity::Kernel(id, KernelFigure::Rate), fit, samples.len());
    }
}
