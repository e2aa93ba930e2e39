//! What becomes of the spans of a simulation: kept as a timeline, or dropped.

use super::SimError;
use crate::cost::{Costs, Kernel};
use crate::plan::{Lane, OpId, OpKind, Plan, Rank};
use crate::timeline::{Span, SpanKind, Timeline};
use crate::units::{Bytes, SimTime};

/// One operation that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Where.
    pub rank: Rank,
    /// On which lane.
    pub lane: Lane,
    /// Index in the rank's program.
    pub op: OpId,
    /// When it began to compute, or its bytes to move.
    pub start: SimTime,
    /// When it ended.
    pub end: SimTime,
}

/// Is told of every operation that ends, in the order of their ends.
pub trait Recorder {
    /// Whether to tell it at all.
    const ACTIVE: bool = true;

    /// Takes note of one operation.
    fn record(&mut self, done: Done);
}

/// Keeps nothing: only the makespan is wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Discard;

impl Recorder for Discard {
    const ACTIVE: bool = false;

    fn record(&mut self, _: Done) {}
}

impl Recorder for Vec<Done> {
    fn record(&mut self, done: Done) {
        self.push(done);
    }
}

/// The timeline of all operations of `plan`.
pub(super) fn timeline(
    plan: &Plan,
    costs: &mut Costs,
    mut done: Vec<Done>,
    makespan: SimTime,
) -> Result<Timeline, SimError> {
    done.sort_unstable_by_key(|d| (d.end, d.rank, d.op));
    let mut spans = Vec::with_capacity(done.len());
    let mut kernel = None;
    for d in done {
        let op = &plan.programs[d.rank as usize].ops[d.op as usize];
        spans.push(Span {
            rank: d.rank,
            lane: d.lane,
            op: d.op,
            step: op.step,
            kind: SpanKind::of(&op.kind),
            start: d.start,
            end: d.end,
            bytes: op.kind.message().map_or(Bytes(0), |m| plan.message(m).bytes),
            flops: flops(plan, costs, &mut kernel, &op.kind)?,
        });
    }
    Ok(Timeline { ranks: plan.ranks(), spans, makespan })
}

fn flops(
    plan: &Plan,
    costs: &mut Costs,
    kernel: &mut Option<Kernel>,
    kind: &OpKind,
) -> Result<f64, SimError> {
    let Some((q_block, kv_block, mask)) = kind.attended() else { return Ok(0.0) };
    if matches!(kind, OpKind::Scores(_)) {
        return Ok(plan.flops(kind));
    }
    let kernel = match kernel {
        Some(kernel) => kernel,
        None => kernel.insert(*costs.kernels(plan)?.general()),
    };
    Ok(costs.flops(plan, kernel, q_block, kv_block, mask))
}
