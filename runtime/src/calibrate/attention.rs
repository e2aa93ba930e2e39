//! Constants of the attention kernels, from single calls.

use ringlab_sim::config::cluster::{Items, KernelFigure, KernelId, KernelRow, Quantity};
use ringlab_sim::cost::{self, Heads};
use ringlab_sim::mask::{Documents, Mask, Pattern};
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::{Pass, Shape};
use ringlab_sim::tiles::{self, TileProfile};
use ringlab_sim::tokens::{Progression, TokenSet};
use ringlab_sim::units::{FlopsPerSec, SimTime};

use super::fit::{Fit, FitError, Sample, relative};
use super::{CalibrateError, Session, of_kind, probes};
use crate::machine::MachineKernel;

/// Calls that hand a state on.
const CALLS: u64 = 3;
/// Keys from which a work item surely goes through all query heads of its kv head.
const GROUPED: u64 = 16 << 10;
/// How many times as many queries as keys a rectangular call has.
const RATIO: u64 = 8;

/// Time of a partial tile over that of a full one which a cluster file takes.
const PARTIAL_COSTS: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// Places of the constants in a sample's factors.
const CALL: usize = 0;
const ITEM: usize = 1;
const FULL: usize = 2;
const PARTIAL: usize = 3;
const CARRY: usize = 4;
const NAMES: [&str; 5] = ["a call", "a work item", "a full tile", "a partial tile", "a carry"];
const SINGLE_NAMES: [&str; 3] = ["a call", "a work item", "a pair"];

/// One probe of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Probe {
    /// As many queries as keys, on every rank.
    Call(Pattern),
    /// The same with fewer kv heads than query heads.
    Grouped(Pattern),
    /// Many queries over few keys.
    FewKeys,
    /// Calls in a row that hand a state on.
    Carried,
}

impl Probe {
    fn pattern(self) -> Pattern {
        if let Self::Call(pattern) | Self::Grouped(pattern) = self { pattern } else { Pattern::Full }
    }

    /// Queries and keys of one call.
    fn size(self, tokens: u64) -> (u64, u64) {
        (tokens, if self == Self::FewKeys { (tokens / RATIO).max(1) } else { tokens })
    }

    fn name(self) -> String {
        match self {
            Self::Call(pattern) => pattern.to_string(),
            Self::Grouped(pattern) => format!("{pattern}, grouped"),
            Self::FewKeys => "few keys".into(),
            Self::Carried => "carried".into(),
        }
    }
}

/// What is measured of `kernel`, of `sizes` tokens, with what is launched for other calls left out. Long causal calls are
/// added where a kernel's own calls begin at many keys, so that its partial tiles are seen.
fn probes_of(kernels: &[MachineKernel], kernel: &MachineKernel, sizes: &[u64]) -> Vec<(Probe, u64)> {
    let mut probes = Vec::new();
    for &tokens in sizes {
        probes.extend([Pattern::Full, Pattern::Causal].map(|pattern| (Probe::Call(pattern), tokens)));
        if kernel.items == Items::KeyTiles && tokens >= GROUPED {
            probes.extend([Pattern::Full, Pattern::Causal].map(|pattern| (Probe::Grouped(pattern), tokens)));
        }
        probes.extend((kernel.pass == Pass::Forward).then_some((Probe::FewKeys, tokens)));
        probes.extend(carries(kernel).then_some((Probe::Carried, tokens)));
    }
    if let Some(used_for) = kernel.used_for {
        let longer = [used_for.min_keys * 3 / 2, used_for.min_keys * 2];
        probes.extend(longer.map(|tokens| (Probe::Call(Pattern::Causal), tokens)));
    }
    probes.retain(|&(probe, tokens)| is_launched(kernels, kernel, probe.pattern(), probe.size(tokens)));
    probes
}

/// Whether `kernel` is the one of `kernels` that a call is launched with, and the call one that it is fitted to.
pub(super) fn is_launched(
    kernels: &[MachineKernel],
    kernel: &MachineKernel,
    pattern: Pattern,
    (queries, keys): (u64, u64),
) -> bool {
    if keys <= kernel.fitted_above {
        return false;
    }
    let same = |other: &&MachineKernel| other.is_sibling(kernel);
    let used_for = kernels.iter().filter(same).find_map(|k| k.used_for);
    let general = kernels.iter().filter(same).find(|k| k.used_for.is_none());
    let Some((used_for, general)) = used_for.zip(general) else { return true };
    let (mask, [q, kv]) = geometry(pattern, (queries, keys));
    let profile = tiles::profile(&mask, &q, &kv, general.tile);
    let visited = profile.total.full + profile.total.partial;
    used_for.takes(keys, visited, visited + profile.empty) == kernel.used_for.is_some()
}

/// The tiles of a call for one head, and its heads: nothing was added to its gradients before.
pub(super) fn work(
    kernel: &MachineKernel,
    shape: Shape,
    pattern: Pattern,
    (size, sms): ((u64, u64), u32),
) -> (TileProfile, Heads) {
    let (mask, [q, kv]) = geometry(pattern, size);
    let profile = cost::profile((kernel.items, kernel.tile), &mask, &q, &kv);
    let (kv_heads, group) = (u64::from(shape.kv_heads), u64::from(shape.heads / shape.kv_heads));
    let heads = cost::heads(kernel.items, &profile, (kv_heads, group), sms, true);
    let Some(rule) = kernel.sections else { return (profile, heads) };
    let bytes = cost::keys_and_values(size.1, kernel.head_dim, kernel.dtype);
    let heads = heads.in_sections(rule, (group, bytes), profile.rows + profile.blank, sms);
    (profile, heads)
}

/// The first queries against the first keys of one sequence.
fn geometry(pattern: Pattern, (queries, keys): (u64, u64)) -> (Mask, [TokenSet; 2]) {
    let mask = Mask::new(pattern, &Documents::single(queries.max(keys)));
    (mask, [queries, keys].map(|tokens| TokenSet::new([Progression::contiguous(0, tokens)])))
}

impl Session<'_> {
    pub(super) fn kernels(&mut self, date: &str) -> Result<(), CalibrateError> {
        let kernels = self.machine.kernels();
        for kernel in &kernels {
            let probes = probes_of(&kernels, kernel, &self.machine.sizes().calls);
            self.kernel(kernel, &probes, date)?;
        }
        Ok(())
    }

    fn kernel(
        &mut self,
        kernel: &MachineKernel,
        probes: &[(Probe, u64)],
        date: &str,
    ) -> Result<(), CalibrateError> {
        let heads = self.machine.sizes().heads;
        let (head_dim, dtype) = (kernel.head_dim, kernel.dtype);
        let shape = kernel.shape(heads);
        let grouped = Shape { kv_heads: self.machine.sizes().grouped_kv_heads, ..shape };
        let which = if kernel.used_for.is_some() { " (conditional)" } else { "" };
        let what = format!("{} {dtype} {head_dim}{which}", kernel.pass);
        let mut samples = Vec::new();
        for &(probe, tokens) in probes {
            self.say(&format!("{what}, {}, {tokens} tokens", probe.name()))?;
            let sample = match probe {
                Probe::Call(pattern) => self.call(kernel, shape, pattern, tokens)?,
                Probe::Grouped(pattern) => self.call(kernel, grouped, pattern, tokens)?,
                Probe::FewKeys => self.rectangle(kernel, shape, tokens)?,
                Probe::Carried => self.carried(kernel, shape, tokens)?,
            };
            // What lasts too long for the highest clock says nothing of the others' constants.
            samples.extend(sample);
        }
        let (fit, are_apart) =
            fitted(&samples).map_err(|source| CalibrateError::Fit { what: what.clone(), source })?;
        if !are_apart {
            self.notes.push(format!(
                "attention, {what}: full and partial tiles could not be told apart and count the same"
            ));
        }
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
    ) -> Result<Option<Sample>, CalibrateError> {
        let ranks = self.machine.identity().devices;
        let plan = probes::call(shape, kernel.pass, pattern, tokens, ranks);
        let plan = plan.ok_or(CalibrateError::Sizes("attention"))?;
        let factors = self.factors(kernel, shape, pattern, (tokens, tokens), (1.0, 0.0));
        let kv = if shape.kv_heads < shape.heads {
            format!(", {} kv heads", shape.kv_heads)
        } else {
            String::new()
        };
        self.rested(format!("{pattern} {tokens}{kv}"), factors, &plan, kernel)
    }

    /// Many queries over few keys.
    fn rectangle(
        &mut self,
        kernel: &MachineKernel,
        shape: Shape,
        tokens: u64,
    ) -> Result<Option<Sample>, CalibrateError> {
        let (_, keys) = Probe::FewKeys.size(tokens);
        let plan =
            probes::rectangle(shape, tokens, keys).ok_or(CalibrateError::Sizes("rectangular attention"))?;
        let factors = self.factors(kernel, shape, Pattern::Full, (tokens, keys), (1.0, 0.0));
        self.rested(format!("full {tokens} x {keys}"), factors, &plan, kernel)
    }

    /// [`CALLS`] calls that hand a state on: all but the first read it, all but the last leave it.
    fn carried(
        &mut self,
        kernel: &MachineKernel,
        shape: Shape,
        tokens: u64,
    ) -> Result<Option<Sample>, CalibrateError> {
        let plan = probes::carried(shape, tokens * CALLS, CALLS).ok_or(CalibrateError::Sizes("carried"))?;
        let times = (CALLS as f64, 2.0 * (CALLS - 1) as f64);
        let factors = self.factors(kernel, shape, Pattern::Full, (tokens, tokens), times);
        self.rested(format!("carried {tokens}"), factors, &plan, kernel)
    }

    /// Calls of `kernel` at the highest clock; nothing if they last too long for that.
    fn rested(
        &mut self,
        probe: String,
        factors: Vec<f64>,
        plan: &Plan,
        kernel: &MachineKernel,
    ) -> Result<Option<Sample>, CalibrateError> {
        if !self.is_rested(plan) {
            return Ok(None);
        }
        self.sample(probe, factors, plan, |t| of_kind(t, kernel.span_kind())).map(Some)
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
        let sms = self.cluster.device.sms;
        let (profile, heads) = work(kernel, shape, pattern, ((queries, keys), sms));
        let [fixed, full, partial] = cost::weights(&profile, heads, sms, (kernel.items, kernel.grid));
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
            if is_single(kernel) { &SINGLE_NAMES } else { &NAMES },
            (fit, samples),
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
            boost: None,
            linked: None,
            items: kernel.items,
            grid: kernel.grid,
            used_for: kernel.used_for,
            sections: kernel.sections,
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

/// The constants, and whether full and partial tiles have times of their own: one of them is the other's where no time or
/// a quotient beyond [`PARTIAL_COSTS`] comes out.
fn fitted(samples: &[Sample]) -> Result<(Fit, bool), FitError> {
    let fit = relative(samples)?;
    let [Some(&full), Some(&partial)] = [FULL, PARTIAL].map(|i| fit.constants.get(i)) else {
        return Ok((fit, true));
    };
    if PARTIAL_COSTS.contains(&(partial / full)) {
        return Ok((fit, true));
    }
    let as_full = |sample: &Sample| {
        let mut factors = sample.factors.clone();
        factors[FULL] += factors.remove(PARTIAL);
        Sample { factors, ..sample.clone() }
    };
    let mut fit = relative(&samples.iter().map(as_full).collect::<Vec<_>>())?;
    if fit.constants[FULL] <= 0.0 {
        return Err(FitError::Singular);
    }
    fit.constants.insert(PARTIAL, fit.constants[FULL]);
    fit.clamped.iter_mut().filter(|i| **i >= PARTIAL).for_each(|i| *i += 1);
    Ok((fit, false))
}

/// Whether its tiles are single query-key pairs.
fn is_single(kernel: &MachineKernel) -> bool {
    kernel.tile.q * kernel.tile.kv == 1
}

/// Whether it carries a state whose cost can be told apart.
fn carries(kernel: &MachineKernel) -> bool {
    kernel.pass == Pass::Forward && !is_single(kernel)
}

#[cfg(test)]
mod tests;
