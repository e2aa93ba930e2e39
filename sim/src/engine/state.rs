//! The run itself: heads of lanes that start, transfers that meet, events that end them.

use super::flows::{Flow, Flows, Side, Transfer};
use super::grants::Grants;
use super::paths::Path;
use super::program::{END, STRIDE, Task, TaskKind, Tasks};
use super::queue::Queue;
use super::sms::{Holder, NewEnd, Sms};
use super::{Done, Recorder, SimError};
use crate::disturb::Conditions;
use crate::plan::{LANES, Lane, MessageId, OpId, Plan};
use crate::units::SimTime;

/// One lane of one rank.
#[derive(Debug, Clone, Copy, Default)]
struct LaneState {
    /// The first operation that has not ended, or [`END`].
    head: OpId,
    /// Behind the last operation of the group in hand.
    next: OpId,
    /// Operations in hand that have not ended.
    open: u32,
    /// Lanes of the same rank that wait for this one, as bits.
    waiting: u32,
    /// When those in hand were posted.
    since: u64,
    /// When the computation in hand ends, as far as is known.
    until: u64,
}

/// All lanes, and the transfers of which one side was posted.
#[derive(Debug, Clone, Default)]
pub(super) struct Lanes {
    states: Vec<LaneState>,
    /// By message: the side that was posted first.
    posted: Vec<Side>,
    /// Lanes whose attention calls start when the transfers of this instant have started.
    calls: Vec<u32>,
    /// Transfers that wait for SMs.
    pub(super) grants: Grants,
}

const NOBODY: Side = Side { lane: u32::MAX, op: 0 };

impl Lanes {
    /// Puts all lanes at their start.
    pub fn load(&mut self, tasks: &Tasks, messages: usize) {
        self.states.clear();
        let at_start = |&head: &OpId| LaneState { head, ..LaneState::default() };
        self.states.extend(tasks.lanes().iter().map(at_start));
        self.calls.clear();
        self.grants.clear();
        self.posted.clear();
        self.posted.resize(messages, NOBODY);
    }
}

impl Lanes {
    /// Notes another end of the call in hand, and posts it if it is known.
    pub(super) fn put_off(&mut self, new: NewEnd, queue: &mut Queue) {
        self.states[new.lane as usize].until = new.end;
        if new.end != u64::MAX {
            queue.push(new.end, event(COMPUTED, new.lane));
        }
    }
}

/// Events as numbers: two bits of kind, the rest a lane or a flow.
const FLOW: u32 = 0;
const COMPUTED: u32 = 1;
const LAUNCHED: u32 = 2;
pub(super) const DUE: u32 = 3;

pub(super) fn event(kind: u32, of: u32) -> u32 {
    of << 2 | kind
}

pub(super) fn flow_event(flow: u32) -> u32 {
    event(FLOW, flow)
}

/// One plan on its way through the machine.
pub(super) struct Run<'a, R> {
    pub plan: &'a Plan,
    pub tasks: &'a Tasks,
    pub lanes: &'a mut Lanes,
    pub flows: &'a mut Flows,
    pub queue: &'a mut Queue,
    /// Which SMs are held, where transfers hold any.
    pub sms: Option<&'a mut Sms>,
    /// What happens to it, if anything does.
    pub conditions: Option<&'a Conditions>,
    pub recorder: &'a mut R,
}

impl<R: Recorder> Run<'_, R> {
    /// Runs to the end; returns the time of the last event.
    pub fn run(mut self) -> Result<SimTime, SimError> {
        for lane in 0..self.lanes.states.len() as u32 {
            self.start(lane);
        }
        let mut last = SimTime::ZERO;
        loop {
            while let Some(event) = self.queue.pop_present() {
                self.take(event, &mut last);
            }
            self.grant();
            self.start_calls();
            self.flows.settle(self.queue, flow_event);
            if self.queue.present_is_empty() && !self.queue.advance() {
                return self.finished(last);
            }
            if self.queue.now() == SimTime::NEVER.0 {
                return Err(SimError::NeverEnds { after: last });
            }
        }
    }

    fn take(&mut self, event: u32, last: &mut SimTime) {
        let (kind, of) = (event & 3, event >> 2);
        match kind {
            FLOW => {
                if self.flows.take_event(of, self.queue.now()) {
                    *last = SimTime(self.queue.now());
                    self.end_transfer(of);
                }
            }
            COMPUTED => {
                // Otherwise left over from before the call got more or fewer SMs.
                if self.lanes.states[of as usize].until == self.queue.now() {
                    *last = SimTime(self.queue.now());
                    self.end_compute(of);
                }
            }
            LAUNCHED => self.post(of),
            _ => self.lanes.grants.fall_due(of),
        }
    }

    /// Posts the head of an idle lane if nothing holds it back, or leaves word with what does.
    fn start(&mut self, lane: u32) {
        let mut op = self.lanes.states[lane as usize].head;
        if op == END {
            return;
        }
        let (rank, first) = (lane / STRIDE as u32, lane as usize / STRIDE * STRIDE);
        let launched = loop {
            let task = self.tasks.get(rank, op);
            for wait in self.tasks.waits(task) {
                let other = &mut self.lanes.states[first + wait.lane()];
                if other.head < wait.head() {
                    other.waiting |= 1 << (lane as usize - first);
                    return;
                }
            }
            op = task.next;
            if !task.joined {
                break task.launched;
            }
        };
        self.lanes.states[lane as usize].next = op;
        if launched > self.queue.now() {
            self.queue.push(launched, event(LAUNCHED, lane));
        } else {
            self.post(lane);
        }
    }

    /// Posts the operations from the head to `next`.
    fn post(&mut self, lane: u32) {
        let now = self.queue.now();
        let LaneState { head: mut op, next, .. } = self.lanes.states[lane as usize];
        let mut open = 0;
        while op != next {
            let Task { kind, work, next, .. } = *self.tasks.get(lane / STRIDE as u32, op);
            match kind {
                TaskKind::Call(_) if self.sms.is_some() && is_compute(lane) => {
                    self.lanes.calls.push(lane);
                }
                TaskKind::Call(_) | TaskKind::Memory => self.end_at(lane, now.saturating_add(work)),
                TaskKind::Transfer => self.meet(work as MessageId, Side { lane, op }),
            }
            open += 1;
            op = next;
        }
        let state = &mut self.lanes.states[lane as usize];
        (state.open, state.since) = (open, now);
    }

    fn end_at(&mut self, lane: u32, end: u64) {
        self.lanes.states[lane as usize].until = end;
        self.queue.push(end, event(COMPUTED, lane));
    }

    /// Starts the attention calls of this instant with the SMs that are left to them.
    fn start_calls(&mut self) {
        let Some(sms) = &mut self.sms else { return };
        let now = self.queue.now();
        let mut calls = std::mem::take(&mut self.lanes.calls);
        for lane in calls.drain(..) {
            let head = self.lanes.states[lane as usize].head;
            let rank = lane / STRIDE as u32;
            let task = self.tasks.get(rank, head);
            let TaskKind::Call(grid) = task.kind else { continue };
            let new = sms.start_call(lane, task.work, now, grid);
            self.lanes.put_off(new, self.queue);
            self.flows.set_busy(rank, true);
        }
        self.lanes.calls = calls;
    }

    /// Starts a transfer if its other side was posted.
    fn meet(&mut self, message: MessageId, side: Side) {
        let posted = &mut self.lanes.posted[message as usize];
        if posted.lane == NOBODY.lane {
            *posted = side;
            return;
        }
        let sides = [*posted, side];
        let m = self.plan.message(message);
        let bytes = self.conditions.map_or(m.bytes, |c| c.of_message(message, m.bytes));
        let transfer = Transfer { from: m.from, to: m.to, bytes, sides, posted: self.queue.now() };
        self.await_sms(message, transfer);
    }

    /// Lets a transfer begin, which holds its SMs from now on.
    pub(super) fn begin(&mut self, transfer: &Transfer) {
        let flow = self.flows.start(transfer, self.queue, flow_event);
        self.change_sms(flow, transfer.sides, Sms::hold);
    }

    /// Lets a transfer take or give back SMs on both its ranks.
    fn change_sms(
        &mut self,
        flow: u32,
        sides: [Side; 2],
        change: impl Fn(&mut Sms, Holder, u64) -> Option<NewEnd>,
    ) {
        let Some(sms) = &mut self.sms else { return };
        let Path { sms: held, slows_calls: loss, .. } = *self.flows.path(flow);
        if held == 0 && loss == 0.0 {
            return;
        }
        for (side, Side { lane, .. }) in sides.into_iter().enumerate() {
            let holder = Holder { flow, side, lane, sms: held, loss };
            if let Some(new) = change(sms, holder, self.queue.now()) {
                self.lanes.put_off(new, self.queue);
            }
        }
    }

    fn end_transfer(&mut self, flow: u32) {
        let Flow { start, sides, .. } = *self.flows.get(flow);
        self.change_sms(flow, sides, Sms::release);
        for side in sides {
            self.end_task(side.lane, side.op, start);
        }
    }

    fn end_compute(&mut self, lane: u32) {
        let state = &mut self.lanes.states[lane as usize];
        let LaneState { head, since, .. } = *state;
        // An event of a former end must not end it again.
        state.until = u64::MAX;
        if let Some(sms) = self.sms.as_mut().filter(|_| is_compute(lane)) {
            sms.end_call(lane);
            self.flows.set_busy(lane / STRIDE as u32, false);
        }
        self.end_task(lane, head, since);
    }

    /// Notes that a task has ended; with the last one in hand the lane goes on, and so do those that waited for it.
    fn end_task(&mut self, lane: u32, op: OpId, start: u64) {
        if R::ACTIVE {
            self.record(lane, op, start);
        }
        let state = &mut self.lanes.states[lane as usize];
        state.open -= 1;
        if state.open > 0 {
            return;
        }
        state.head = state.next;
        let mut waiting = std::mem::take(&mut state.waiting);
        let first = lane - lane % STRIDE as u32;
        while waiting != 0 {
            self.start(first + waiting.trailing_zeros());
            waiting &= waiting - 1;
        }
        self.start(lane);
    }

    fn record(&mut self, lane: u32, op: OpId, start: u64) {
        self.recorder.record(Done {
            rank: lane / STRIDE as u32,
            lane: Lane((lane % STRIDE as u32) as u8),
            op,
            start: SimTime(start),
            end: SimTime(self.queue.now()),
        });
    }

    /// The makespan, if no lane has anything left.
    fn finished(&self, last: SimTime) -> Result<SimTime, SimError> {
        let lanes = &self.lanes.states;
        let Some(lane) = lanes.iter().position(|l| l.head != END) else { return Ok(last) };
        // A kernel that is under way has an end, if not one that a clock of 213 days can show.
        if lanes.iter().enumerate().any(|(i, l)| l.open > 0 && is_compute(i as u32)) {
            return Err(SimError::NeverEnds { after: last });
        }
        let LaneState { head: op, open, .. } = lanes[lane];
        let what = if open > 0 { "meets its other side" } else { "starts" };
        let left = (0..lanes.len() as u32).map(|lane| self.left(lane)).sum();
        Err(SimError::Hangs { rank: (lane / STRIDE) as u32, op, what, left })
    }

    /// How many operations of a lane have not ended.
    fn left(&self, lane: u32) -> usize {
        let not_behind = |op: OpId| (op != END).then_some(op);
        let head = not_behind(self.lanes.states[lane as usize].head);
        let next = |&op: &OpId| not_behind(self.tasks.get(lane / STRIDE as u32, op).next);
        std::iter::successors(head, next).count()
    }
}

/// Whether a lane is its rank's compute lane.
fn is_compute(lane: u32) -> bool {
    lane.is_multiple_of(STRIDE as u32)
}

const _: () = assert!(LANES <= STRIDE, "a rank's lanes fit its stride");
