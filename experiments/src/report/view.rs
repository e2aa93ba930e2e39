//! A timeline as a page draws it: columns of numbers, labels once each.

use std::collections::BTreeMap;

use ringlab_plots::Panel;
use ringlab_plots::gantt::{CLASSES, Class};
use ringlab_sim::plan::{BlockId, OpKind, Plan};
use ringlab_sim::timeline::Span;
use serde::Serialize;

use crate::predict::Simulated;

/// One pass of one schedule.
#[derive(Serialize)]
pub struct View {
    /// Schedule and options.
    pub name: String,
    /// Forward or backward.
    pub pass: String,
    /// Number of ranks.
    pub ranks: u32,
    /// Until the last rank is done.
    pub makespan_ps: u64,
    /// Share of GPU time that is not spent computing.
    pub bubble_ratio: f64,
    /// Where each rank's time goes.
    pub times: Vec<Times>,
    /// Texts that spans point into.
    pub labels: Vec<String>,
    /// Kinds of spans, with their colours.
    pub classes: Vec<Kind>,
    /// The spans, column by column.
    pub spans: Columns,
}

/// `busy + exposed + wait` is the makespan.
#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "the unit is in the name, which is what a page reads")]
pub struct Times {
    busy_ps: u64,
    exposed_ps: u64,
    wait_ps: u64,
}

/// How spans of one kind are drawn.
#[derive(Serialize)]
pub struct Kind {
    name: &'static str,
    colour: &'static str,
    ink: &'static str,
    hatching: Option<(i32, &'static str)>,
    /// Row of the rank: 0 kernels, 1 sends, 2 receives.
    track: usize,
}

/// Spans in order of their start.
#[derive(Default, Serialize)]
pub struct Columns {
    rank: Vec<u32>,
    class: Vec<u8>,
    step: Vec<u32>,
    start_ps: Vec<u64>,
    end_ps: Vec<u64>,
    bytes: Vec<u64>,
    flops: Vec<f64>,
    /// Index into the labels.
    label: Vec<u32>,
    /// Whose queries, keys and values; -1 for nobody's, -2 for several ranks'.
    q: Vec<i64>,
    kv: Vec<i64>,
    /// The other end of a message; -1 for none.
    peer: Vec<i64>,
}

impl View {
    /// The view of a simulated pass.
    pub fn of(simulated: &Simulated) -> Self {
        let Simulated { plan, timeline, metrics, .. } = simulated;
        let panel = Panel::new(plan.name.clone(), timeline).with_plan(plan);
        let mut spans: Vec<&Span> = timeline.spans.iter().collect();
        spans.sort_by_key(|s| (s.start, s.rank, s.op));
        let mut columns = Columns::default();
        let mut labels = Labels::default();
        for span in spans {
            columns.push(plan, span, Class::of(&panel, span), labels.index(span.label(plan)));
        }
        let times = metrics.ranks.iter().map(|r| Times {
            busy_ps: r.busy.0,
            exposed_ps: r.exposed.0,
            wait_ps: r.wait.0,
        });
        Self {
            name: plan.name.clone(),
            pass: plan.pass.to_string(),
            ranks: plan.ranks(),
            makespan_ps: timeline.makespan.0,
            bubble_ratio: metrics.bubble_ratio,
            times: times.collect(),
            labels: labels.texts,
            classes: CLASSES.map(Kind::of).into(),
            spans: columns,
        }
    }
}

impl Kind {
    fn of(class: Class) -> Self {
        Self {
            name: class.name(),
            colour: class.colour(),
            ink: class.ink(),
            hatching: class.hatching(),
            track: class.track() as usize,
        }
    }
}

#[derive(Default)]
struct Labels {
    texts: Vec<String>,
    known: BTreeMap<String, u32>,
}

impl Labels {
    fn index(&mut self, text: String) -> u32 {
        let next = self.texts.len() as u32;
        *self.known.entry(text).or_insert_with_key(|text| {
            self.texts.push(text.clone());
            next
        })
    }
}

impl Columns {
    /// Number of spans.
    pub fn len(&self) -> usize {
        self.rank.len()
    }

    fn push(&mut self, plan: &Plan, span: &Span, class: Class, label: u32) {
        let owner = |block: BlockId| match &plan.block(block).slots[..] {
            [] => -1,
            [first, rest @ ..] if rest.iter().all(|s| s.rank == first.rank) => i64::from(first.rank),
            _ => -2,
        };
        let (mut q, mut kv, mut peer) = (-1, -1, -1);
        let kind = plan.programs[span.rank as usize].ops[span.op as usize].kind;
        if let Some((q_block, kv_block, _)) = kind.attended() {
            (q, kv) = (owner(q_block), owner(kv_block));
        }
        match kind {
            OpKind::Send { message, .. } => peer = i64::from(plan.message(message).to),
            OpKind::Recv { message, .. } => peer = i64::from(plan.message(message).from),
            _ => {}
        }
        if let Some(message) = plan.programs[span.rank as usize].ops[span.op as usize].kind.message() {
            let message = plan.message(message);
            let side = if message.tensor.is_key_side() { &mut kv } else { &mut q };
            *side = owner(message.block);
        }
        self.rank.push(span.rank);
        self.class.push(class as u8);
        self.step.push(span.step);
        self.start_ps.push(span.start.0);
        self.end_ps.push(span.end.0);
        self.bytes.push(span.bytes.0);
        self.flops.push(span.flops);
        self.label.push(label);
        self.q.push(q);
        self.kv.push(kv);
        self.peer.push(peer);
    }
}
