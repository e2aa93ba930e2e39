//! One schedule's timeline with what is known about it.

use ringlab_sim::plan::{Op, Plan};
use ringlab_sim::timeline::{Span, SpanKind, Timeline};
use ringlab_sim::units::SimTime;

/// A timeline to draw or export.
#[derive(Debug, Clone)]
pub struct Panel<'a> {
    /// The schedule's name.
    pub title: String,
    /// Share of all ranks' compute time until the makespan that is not spent computing, `0..=1`, if it is to be shown.
    pub bubble: Option<f64>,
    /// Any further facts for the panel's heading.
    pub note: String,
    /// The spans.
    pub timeline: &'a Timeline,
    /// The plan that was simulated or run: gives labels, masks and messages. Without it spans show their kind only.
    pub plan: Option<&'a Plan>,
}

impl<'a> Panel<'a> {
    /// A timeline without a plan.
    pub fn new(title: impl Into<String>, timeline: &'a Timeline) -> Self {
        Self { title: title.into(), bubble: None, note: String::new(), timeline, plan: None }
    }

    /// Adds the plan.
    pub fn with_plan(self, plan: &'a Plan) -> Self {
        Self { plan: Some(plan), ..self }
    }

    /// Adds the bubble ratio.
    pub fn with_bubble(self, ratio: f64) -> Self {
        Self { bubble: Some(ratio), ..self }
    }

    /// Adds text to the heading.
    pub fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// Ranks that the timeline has, or that its spans name.
    pub(crate) fn ranks(&self) -> u32 {
        let named = self.timeline.spans.iter().map(|s| s.rank.saturating_add(1)).max();
        self.timeline.ranks.max(named.unwrap_or(0))
    }

    /// When everything has ended.
    pub(crate) fn end(&self) -> SimTime {
        let last = self.timeline.spans.iter().map(|s| s.end).max();
        self.timeline.makespan.max(last.unwrap_or(SimTime::ZERO))
    }

    /// The operation of a span, if the plan has it.
    pub(crate) fn op(&self, span: &Span) -> Option<&'a Op> {
        let op = self.plan?.programs.get(span.rank as usize)?.ops.get(span.op as usize)?;
        (SpanKind::of(&op.kind) == span.kind).then_some(op)
    }

    /// What a span did, for a person.
    pub(crate) fn label(&self, span: &Span) -> String {
        match (self.plan, self.op(span)) {
            (Some(plan), Some(_)) => span.label(plan),
            _ => span.kind.name().to_owned(),
        }
    }

    /// Spans that the given plan does not have.
    pub(crate) fn strangers(&self) -> usize {
        match self.plan {
            Some(_) => self.timeline.spans.iter().filter(|s| self.op(s).is_none()).count(),
            None => 0,
        }
    }
}
