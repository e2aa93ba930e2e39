//! Keys and values on tour.

use super::{Site, Step, Tour};
use crate::plan::builder::PlanBuilder;
use crate::plan::{Buf, Bufs, MessageId, OpId, Rank, Tensor};
use crate::schedule::Options;
use crate::schedule::step::Channel;

/// Who sends whose keys where, and in which buffers they lie.
pub(super) struct Keys<'a> {
    tour: &'a Tour,
    sites: &'a [Site],
    overlaps: bool,
    inside: Channel,
    between: Channel,
    /// By rank, for the steps inside a window in turn.
    stages: Vec<Vec<Buf>>,
    /// By rank, for the starts of windows in turn.
    starts: Vec<Vec<Buf>>,
}

impl<'a> Keys<'a> {
    /// Room for the keys of others on every rank.
    pub fn new(b: &mut PlanBuilder, options: &Options, tour: &'a Tour, sites: &'a [Site]) -> Self {
        let inside = tour.windows * (tour.window - 1);
        let stages = (options.prefetch.max(1) + 1).min(inside);
        let starts = (tour.windows - 1).min(2);
        let room = |b: &mut PlanBuilder, r: usize, count: u32| -> Vec<Buf> {
            (0..count).map(|_| b.scratch(r as Rank, Tensor::KeyValue, sites[r].kv_block)).collect()
        };
        Self {
            tour,
            sites,
            overlaps: options.prefetch > 0,
            inside: Channel::new(options.transport, 0),
            between: Channel::new(options.transport, 2),
            stages: (0..sites.len()).map(|r| room(b, r, stages)).collect(),
            starts: (0..sites.len()).map(|r| room(b, r, starts)).collect(),
        }
    }

    /// The buffers of rank r at a step.
    pub fn holding(&self, r: Rank, step: Step) -> Bufs {
        let (stages, starts) = (&self.stages[r as usize], &self.starts[r as usize]);
        match step {
            Step { j: 0, i: 0, .. } => self.sites[r as usize].kv,
            Step { j, i: 0, .. } => starts[(j as usize - 1) % starts.len()].into(),
            Step { j, i, .. } => stages[(j * (self.tour.window - 1) + i - 1) as usize % stages.len()].into(),
        }
    }

    /// Pushes what can travel while `step` computes.
    pub fn during(&self, b: &mut PlanBuilder, step: Step) {
        if self.overlaps {
            if step.i == 0 {
                self.leave_for_next_window(b, step, step.t, &[]);
            }
            self.to_next(b, step, &[]);
        }
    }

    /// Pushes what travels after `step` if nothing overlaps; `done` are the last operations of the ranks.
    pub fn after(&self, b: &mut PlanBuilder, step: Step, done: &[Option<OpId>]) {
        if !self.overlaps {
            if step.i + 1 == self.tour.window {
                let start = Step { j: step.j, i: 0, t: step.t - step.i };
                self.leave_for_next_window(b, start, step.t, done);
            }
            self.to_next(b, step, done);
        }
    }

    /// To the next place of the window.
    fn to_next(&self, b: &mut PlanBuilder, step: Step, done: &[Option<OpId>]) {
        let next = Step { j: step.j, i: step.i + 1, t: step.t + 1 };
        if next.i < self.tour.window {
            self.travel(b, self.inside, (step, next, step.t), |r| self.tour.next(r), done);
        }
    }

    /// From the start of a window to the start of the next.
    fn leave_for_next_window(&self, b: &mut PlanBuilder, start: Step, at: u32, done: &[Option<OpId>]) {
        let next = Step { j: start.j + 1, i: 0, t: start.t + self.tour.window };
        if next.j < self.tour.windows {
            self.travel(b, self.between, (start, next, at), |r| self.tour.next_window(r), done);
        }
    }

    fn travel(
        &self,
        b: &mut PlanBuilder,
        channel: Channel,
        (held, needed, at): (Step, Step, u32),
        next: impl Fn(Rank) -> Rank,
        done: &[Option<OpId>],
    ) {
        let mut arriving: Vec<Option<MessageId>> = vec![None; self.sites.len()];
        for r in 0..b.ranks() {
            let block = self.sites[self.tour.owner(r, held) as usize].kv_block;
            arriving[next(r) as usize] = Some(b.message(r, next(r), Tensor::KeyValue, block));
        }
        for r in 0..b.ranks() {
            let send = arriving[next(r) as usize].map(|m| (m, self.holding(r, held)));
            let recv = arriving[r as usize].map(|m| (m, self.holding(r, needed).first));
            let after = done.get(r as usize).copied().flatten();
            channel.exchange(b, (r, at), send.as_slice(), recv.as_slice(), after);
        }
    }
}
