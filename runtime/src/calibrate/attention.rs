//! Constants of the attention kernels, from single calls.

use ringlab_sim::config::cluster::{Items, KernelFigure, KernelId, KernelRow, Quantity};
use ringlab_sim::cost::{self, Heads};
use ringlab_sim::mask::{Documents, Mask, Pattern};
use ringlab_sim::problem::{Pass, Shape};
use ringlab_sim::tiles;
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::tokens::{Progression, TokenSet};
use ringlab_sim::units::{FlopsPerSec, SimTime};

use super::fit::{Fit, Sample, relative};
use super::{CalibrateError, Session, of_kind, probes};
use crate::machine::MachineKernel;

/// Calls that hand a state on.
const CALLS: u64 = 3;
/// How many times as many queries as keys a rectangular call has.
const RATIO: u64 = 8;

/// Places of the constants in a sample's factors.
const CALL: usize = 0;
const ITEM: usize = 1;
const FULL: usize = 2;
const PARTIAL: usize = 3;
const CARRY: usize = 4;

impl Session<'_> {
    pub(super) fn kernels(&mut self, date: &str) -> Result<(), CalibrateError> {
        for kernel in self.machine.kernels() {
            self.kernel(&kernel, date)?;
        }
        Ok(())
    }

    fn kernel(&mut self, kernel: &MachineKernel, date: &str) -> Result<(), CalibrateError> {
        let sizes = self.machine.sizes();
        let (heads, kv_heads, head_dim, dtype) = (sizes.heads, sizes.heads, kernel.head_dim, kernel.dtype);
        let shape = Shape { heads, kv_heads, head_dim, dtype, batch: 1 };
        let what = format!("{} {dtype} {head_dim}", kernel.pass);
        let mut samples = Vec::new();
        for &tokens in &sizes.calls {
            for pattern in [Pattern::Full, Pattern::Causal] {
                self.say(&format!("{what}, {pattern}, {tokens} tokens"))?;
                samples.push(self.call(kernel, shape, pattern, tokens)?);
            }
            if kernel.pass == Pass::Forward {
                self.say(&format!("{what}, few keys, {tokens} tokens"))?;
                samples.push(self.rectangle(kernel, shape, tokens)?);
            }
            if carries(kernel) {
                self.say(&format!("{what}, carried, {tokens} tokens"))?;
                samples.push(self.carried(kernel, shape, tokens)?);
            }
        }
        let fit = relative(&samples).map_err(|source| CalibrateError::Fit { what: what.clone(), source })?;
        self.keep(kernel, &what, &fit, &samples, date);
        Ok(())
    }

    /// One call a rank.
    fn call(
        &mut self,
        kernel: &MachineKernel,
        shape: Shape,
        pattern: Pattern,
        tokens: u64,
    ) -> Result<Sample, CalibrateError> {
        let ranks = self.machine.identity().devices;
        let plan = probes::call(shape, kernel.pass, pattern, tokens, ranks);
        let plan = plan.ok_or(CalibrateError::Sizes("attention"))?;
        let kind = match kernel.pass {
            Pass::Forward => SpanKind::Attend,
            Pass::Backward => SpanKind::AttendBackward,
        };
        let factors = self.factors(kernel, shape, pattern, (tokens, tokens), (1.0, 0.0));
        self.sample(format!("{pattern} {tokens}"), factors, &plan, |t| of_kind(t, kind))
    }

    /// Many queries over few keys.
    fn rectangle(
        &mut self,
        kernel: &MachineKernel,
        shape: Shape,
        tokens: u64,
    ) -> Result<Sample, CalibrateError> {
        let keys = (tokens / RATIO).max(1);
        let plan =
            probes::rectangle(shape, tokens, keys).ok_or(CalibrateError::Sizes("rectangular attention"))?;
        let factors = self.factors(kernel, shape, Pattern::Full, (tokens, keys), (1.0, 0.0));
        self.sample(format!("full {tokens} x {keys}"), factors, &plan, |t| of_kind(t, SpanKind::Attend))
    }

    /// [`CALLS`] calls that hand a state on: all but the first read it, all but the last leave it.
    fn carried(
        &mut self,
        kernel: &MachineKernel,
        shape: Shape,
        tokens: u64,
    ) -> Result<Sample, CalibrateError> {
        let plan = probes::carried(shape, tokens * CALLS, CALLS).ok_or(CalibrateError::Sizes("carried"))?;
        let times = (CALLS as f64, 2.0 * (CALLS - 1) as f64);
        let factors = self.factors(kernel, shape, Pattern::Full, (tokens, tokens), times);
        self.sample(format!("carried {tokens}"), factors, &plan, |t| of_kind(t, SpanKind::Attend))
    }

    /// Factors of (call, work item, full tile, partial tile, carry) in `calls` equal calls that carry a state `carried`
    /// times. Single pairs are all full tiles, and have no state whose cost can be told apart.
    fn factors(
        &self,
        kernel: &MachineKernel,
        shape: Shape,
        pattern: Pattern,
        (queries, keys): (u64, u64),
        (calls, carried): (f64, f64),
    ) -> Vec<f64> {
        let set = |tokens| TokenSet::new([Progression::contiguous(0, tokens)]);
        let mask = Mask::new(pattern, &Documents::single(queries.max(keys)));
        let (heads, kv_heads) = (u64::from(shape.heads), u64::from(shape.kv_heads));
        let (profile, heads) = match kernel.items {
            Items::QueryTiles => {
                (tiles::profile(&mask, &set(queries), &set(keys), kernel.tile), Heads::separate(heads))
            }
            Items::KeyTiles => (
                tiles::key_profile(&mask, &set(queries), &set(keys), kernel.tile),
                Heads { separate: kv_heads, shared: heads / kv_heads },
            ),
        };
        let [fixed, full, partial] = cost::weights(&profile, heads, self.cluster.device.sms);
        if is_single(kernel) {
            return vec![calls, calls * fixed, calls * (full + partial)];
        }
        let mut factors = vec![calls, calls * fixed, calls * full, calls * partial];
        factors.extend(carries(kernel).then_some(carried * fixed));
        factors
    }

    fn keep(&mut self, kernel: &MachineKernel, what: &str, fit: &Fit, samples: &[Sample], date: &str) {
        let seconds = |i: usize| fit.constants.get(i).copied().unwrap_or(0.0);
        let time = |i: usize| SimTime::from_secs_f64(seconds(i));
        let full = seconds(FULL);
        let partial = if is_single(kernel) { 1.0 } else { seconds(PARTIAL) / full };
        let (call, carry, half) = (time(CALL), time(CARRY), SimTime::from_secs_f64(seconds(ITEM) / 2.0));
        let points = samples.len();
        let flops = (kernel.tile.q * kernel.tile.kv * kernel.pass.flops_per_pair(kernel.head_dim)) as f64;
        let sms = f64::from(self.cluster.device.sms);
        let rate = flops * sms / full;
        self.report(
            format!("attention, {what}"),
            format!(
                "{}, partial tiles x {partial:.2}, {} a work item, {carry} a carry, {call} a call",
                FlopsPerSec(rate),
                half + half
            ),
            fit,
            samples,
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
            call,
            carry,
            items: kernel.items,
            grid: kernel.grid,
            source: format!(
                "fit to {} single calls measured {date}: rms residual {:.1}%, largest {:.1}%",
                points,
                100.0 * fit.residual,
                100.0 * fit.worst
            ),
        };
        let id = KernelId::from(&row);
        self.set_kernel(row);
        self.know(Quantity::Kernel(id, KernelFigure::Rate), fit, points);
    }
}

/// Whether its tiles are single query-key pairs.
fn is_single(kernel: &MachineKernel) -> bool {
    kernel.tile.q * kernel.tile.kv == 1
}

/// Whether it carries a state whose cost can be told apart.
fn carries(kernel: &MachineKernel) -> bool {
    kernel.pass == Pass::Forward && !is_single(kernel)
}
