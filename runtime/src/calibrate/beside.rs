//! What attention calls and transfers beside them cost each other.
//!
//! A call that takes `t0` in a run with messages, which is its time alone times `linked` of its kernel, and `t` beside one,
//! with which it shares the time `o`, has lost the share `(t - t0) / o` of its speed on the way; likewise a message. Over all
//! points the sums are divided, so that long overlaps count most. What NCCL takes are SMs: the share that is lost is that of
//! all of them.

mod model;
pub(super) mod nccl;
#[cfg(test)]
mod tests;

use ringlab_sim::config::cluster::{Grid, Transport as Reached};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Rank, Transport};
use ringlab_sim::timeline::{Span, SpanKind, Timeline};
use ringlab_sim::units::SimTime;

use super::attention::is_launched;
use super::clock::is_row_of;
use super::probes::{self, First, Ways};
use super::transfer::name;
use super::{CalibrateError, FitReport, Point, Session};
use crate::machine::{Launching, MachineKernel};

/// Queries of a rank over the keys of its call: a message of all its tokens takes about as long as the call, and a quarter
/// of it.
const QUERIES_A_KEY: [u64; 2] = [16, 4];
/// A message that moved for less than this share of itself beside a call had to wait for the call's end.
const WAITED: f64 = 0.5;

/// One call beside one message, averaged over the ranks, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Together {
    call: f64,
    message: f64,
    /// Both at once.
    overlap: f64,
    /// The message and any call at once.
    accompanied: f64,
    /// The message after the call's end.
    after: f64,
}

/// Times of a call and a message alone, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Alone {
    call: f64,
    /// How many times as long the call takes where messages move before or after it.
    linked: f64,
    message: f64,
}

impl Session<'_> {
    /// By copy engine and, where there is NCCL, by NCCL.
    pub(super) fn interference(&mut self, date: &str) -> Result<(), CalibrateError> {
        let copies = self.pairs(Transport::CopyEngine, First::Call)?;
        let (slows_calls, slowed_by_calls) = losses(&copies);
        let copy = &mut self.cluster.fabric.copy;
        (copy.slows_calls, copy.slowed_by_calls) = (slows_calls, slowed_by_calls);
        copy.source = format!("{}; beside attention calls, measured {date}", copy.source);
        let constants = format!(
            "a call loses {:.1}% of its speed, a copy {:.1}%",
            100.0 * slows_calls,
            100.0 * slowed_by_calls
        );
        self.report_pairs("copies beside attention calls", constants, &copies, slows_calls);
        if self.machine.has_nccl() {
            self.nccl_beside(date)?;
        }
        Ok(())
    }

    fn nccl_beside(&mut self, date: &str) -> Result<(), CalibrateError> {
        let before = self.pairs(Transport::Nccl, First::Message)?;
        let (sms, slowed_by_calls) = self.report_held("NCCL before attention calls", &before);
        let nccl = &mut self.cluster.fabric.nccl;
        (nccl.sms, nccl.slows_calls, nccl.slowed_by_calls) = (sms, 0.0, slowed_by_calls);
        nccl.source = format!("{}; beside attention calls, measured {date}", nccl.source);
        let after = self.pairs(Transport::Nccl, First::Call)?;
        let waits = waits_for_calls(&after);
        let how = if waits { "waits for the call's end" } else { "moves beside the call" };
        self.report_pairs("NCCL after attention calls", how.to_owned(), &after, 0.0);
        for row in self.cluster.kernels.iter_mut().filter(|row| row.grid == Grid::PersistentQueue && !waits) {
            row.grid = Grid::PerItem;
        }
        if !waits {
            self.notes.push("NCCL moves beside attention calls that started before it: SMs come free".into());
        }
        Ok(())
    }

    /// The machine's longest call length, once with a message of about the call's time and once of a quarter of it.
    fn pairs(
        &mut self,
        transport: Transport,
        first: First,
    ) -> Result<Vec<(Together, Alone)>, CalibrateError> {
        let sizes = self.machine.sizes();
        let (Some(kernel), Some(&tokens)) =
            (self.machine.kernels().into_iter().next(), sizes.calls.iter().max())
        else {
            return Ok(Vec::new());
        };
        let shape = kernel.shape(sizes.heads);
        let mut pairs = Vec::new();
        let message = probes::message(shape, tokens, Ways::Both, transport);
        let message = self.together(message)?.message;
        for keys in QUERIES_A_KEY.map(|ratio| (tokens / ratio).max(1)) {
            self.say(&format!("{} beside attention, {tokens} queries, {keys} keys", name(transport)))?;
            let with = |over| probes::beside(shape, (tokens, keys), first, over);
            let call = self.together(with(None))?.call;
            let both = self.together(with(Some(transport)))?;
            pairs.push((both, Alone { call, linked: self.linked_of(&kernel, (tokens, keys)), message }));
        }
        Ok(pairs)
    }

    /// What messages in its run cost a full call of so many queries and keys, by what was measured of its kernel.
    fn linked_of(&self, like: &MachineKernel, size: (u64, u64)) -> f64 {
        let kernels = self.machine.kernels();
        let launched = |kernel: &&MachineKernel| {
            kernel.is_sibling(like) && is_launched(&kernels, kernel, Pattern::Full, size)
        };
        let kernel = kernels.iter().find(launched);
        let row = kernel.and_then(|kernel| self.cluster.kernels.iter().find(|row| is_row_of(row, kernel)));
        row.and_then(|row| row.linked).unwrap_or(1.0)
    }

    fn together(&mut self, plan: Option<Plan>) -> Result<Together, CalibrateError> {
        let plan = plan.ok_or(CalibrateError::Sizes("overlapping"))?;
        let runs = self.machine.run(&plan, Launching::Stepwise, self.machine.sizes().repeats)?;
        Ok(Together::of(&runs.timeline))
    }

    /// SMs that messages hold beside calls, and the share of their bandwidth that they lose; reports both.
    fn report_held(&mut self, what: &str, pairs: &[(Together, Alone)]) -> (u32, f64) {
        let (share, slowed_by_calls) = losses(pairs);
        let total = self.cluster.device.sms;
        let sms = ((share * f64::from(total)).round() as u32).min(total.saturating_sub(1));
        let constants = format!("{sms} of {total} SMs, a message loses {:.1}%", 100.0 * slowed_by_calls);
        self.report_pairs(what, constants, pairs, share);
        (sms, slowed_by_calls)
    }

    /// Reports the calls' times: measured, and by the share `loss` of their speed while both run.
    fn report_pairs(&mut self, what: &str, constants: String, pairs: &[(Together, Alone)], loss: f64) {
        let point = |(both, alone): &(Together, Alone)| Point {
            probe: format!("call of {} alone", SimTime::from_secs_f64(alone.call)),
            measured_s: both.call,
            fitted_s: alone.linked * alone.call + loss * both.overlap,
            spread: 0.0,
        };
        self.fits.push(FitReport::of(what, constants, pairs.iter().map(point).collect()));
    }
}

impl Together {
    /// Of the longest call and the message of each rank.
    fn of(timeline: &Timeline) -> Self {
        let mut sum = Self::default();
        for rank in 0..timeline.ranks {
            let call = longest(timeline, rank, |kind| kind == SpanKind::Attend);
            let message = hull(timeline, rank);
            let shared = |call: (f64, f64)| (call.1.min(message.1) - call.0.max(message.0)).max(0.0);
            let calls = timeline.spans.iter().filter(|s| s.rank == rank && s.kind == SpanKind::Attend);
            sum.accompanied += calls.map(|span| shared(seconds(span))).sum::<f64>();
            sum.call += call.1 - call.0;
            sum.message += message.1 - message.0;
            sum.overlap += shared(call);
            sum.after += (message.1 - call.1.max(message.0)).max(0.0);
        }
        let n = f64::from(timeline.ranks.max(1));
        Self {
            call: sum.call / n,
            message: sum.message / n,
            overlap: sum.overlap / n,
            accompanied: sum.accompanied / n,
            after: sum.after / n,
        }
    }
}

/// Start and end of the longest span of a kind on a rank, in seconds.
fn longest(timeline: &Timeline, rank: Rank, is: impl Fn(SpanKind) -> bool) -> (f64, f64) {
    let spans = timeline.spans.iter().filter(|s| s.rank == rank && is(s.kind));
    spans.max_by_key(|s| s.duration()).map_or((0.0, 0.0), seconds)
}

/// From the first start to the last end of a rank's transfers.
fn hull(timeline: &Timeline, rank: Rank) -> (f64, f64) {
    let spans = timeline.spans.iter().filter(|s| s.rank == rank && s.kind.is_transfer()).map(seconds);
    spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or((0.0, 0.0))
}

fn seconds(span: &Span) -> (f64, f64) {
    (span.start.as_secs_f64(), span.end.as_secs_f64())
}

/// Shares of their speed that calls and messages lose beside each other.
fn losses(pairs: &[(Together, Alone)]) -> (f64, f64) {
    let sum = |f: &dyn Fn(&(Together, Alone)) -> f64| pairs.iter().map(f).sum::<f64>();
    let share =
        |lost: f64, over: f64| if over > 0.0 { (lost / over).clamp(0.0, Reached::MOST_LOST) } else { 0.0 };
    (
        share(sum(&|(both, alone)| both.call - alone.linked * alone.call), sum(&|(both, _)| both.overlap)),
        share(sum(&|(both, alone)| both.message - alone.message), sum(&|(both, _)| both.accompanied)),
    )
}

/// Whether messages that are posted with a call move after its end.
fn waits_for_calls(pairs: &[(Together, Alone)]) -> bool {
    let (after, alone) =
        pairs.iter().fold((0.0, 0.0), |(a, b), (both, alone)| (a + both.after, b + alone.message));
    after > (1.0 - WAITED) * alone
}
