//! The run itself: heads of lanes that start, transfers that meet, events that end them.

use super::flows::{Flows, Side, Transfer};
use super::program::{STRIDE, TaskKind, Tasks};
use super::queue::Queue;
use super::{Done, Recorder, SimError};
use crate::plan::{LANES, Lane, MessageId, Plan};
use crate::units::SimTime;

/// One lane of one rank.
#[derive(Debug, Clone, Copy, Default)]
struct LaneState {
    /// The first task that has not ended.
    head: u32,
    /// Behind the last task of the group in hand.
    next: u32,
    /// Behind the lane's last task.
    end: u32,
    /// Tasks in hand that have not ended.
    open: u32,
    /// When those were posted.
    since: u64,
    /// Lanes of the same rank that wait for this one, as bits.
    waiting: u8,
}

/// All lanes, and the transfers of which one side was posted.
#[derive(Debug, Clone, Default)]
pub(super) struct Lanes {
    lanes: Vec<LaneState>,
    /// By message: the side that was posted first.
    posted: Vec<Side>,
}

const NOBODY: Side = Side { lane: u32::MAX, task: 0 };

impl Lanes {
    /// Puts all lanes at their start.
    pub fn load(&mut self, tasks: &Tasks, messages: usize) {
        self.lanes.clear();
        let at_start = |&(head, end): &(u32, u32)| LaneState { head, end, ..LaneState::default() };
        self.lanes.extend(tasks.lanes().iter().map(at_start));
        self.posted.clear();
        self.posted.resize(messages, NOBODY);
    }
}

/// Events as numbers: two bits of kind, the rest a lane or a flow.
const FLOW: u32 = 0;
const COMPUTED: u32 = 1;
const LAUNCHED: u32 = 2;

fn event(kind: u32, of: u32) -> u32 {
    of << 2 | kind
}

fn flow_event(flow: u32) -> u32 {
    event(FLOW, flow)
}

/// One plan on its way through the machine.
pub(super) struct Run<'a, R> {
    pub plan: &'a Plan,
    pub tasks: &'a Tasks,
    pub lanes: &'a mut Lanes,
    pub flows: &'a mut Flows,
    pub queue: &'a mut Queue,
    pub recorder: &'a mut R,
}

impl<R: Recorder> Run<'_, R> {
    /// Runs to the end; returns the time of the last event.
    pub fn run(mut self) -> Result<SimTime, SimError> {
        for lane in 0..self.lanes.lanes.len() as u32 {
            self.start(lane);
        }
        let mut last = SimTime::ZERO;
        loop {
            while let Some(event) = self.queue.pop_present() {
                self.take(event, &mut last);
            }
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
                *last = SimTime(self.queue.now());
                self.end_compute(of);
            }
            _ => self.post(of),
        }
    }

    /// Posts the head of an idle lane if nothing holds it back, or leaves word with what does.
    fn start(&mut self, lane: u32) {
        let state = self.lanes.lanes[lane as usize];
        if state.head == state.end {
            return;
        }
        let first = lane as usize / STRIDE * STRIDE;
        let mut task = state.head;
        loop {
            let ready = self.tasks.get(task);
            for wait in self.tasks.waits(ready) {
                let other = &mut self.lanes.lanes[first + wait.lane()];
                if other.head < wait.head() {
                    other.waiting |= 1 << (lane as usize - first);
                    return;
                }
            }
            task += 1;
            if !ready.joined {
                break;
            }
        }
        self.lanes.lanes[lane as usize].next = task;
        let launched = self.tasks.get(task - 1).launched;
        if launched > self.queue.now() {
            self.queue.push(launched, event(LAUNCHED, lane));
        } else {
            self.post(lane);
        }
    }

    /// Posts the tasks from the head to `next`.
    fn post(&mut self, lane: u32) {
        let state = &mut self.lanes.lanes[lane as usize];
        let now = self.queue.now();
        state.open = state.next - state.head;
        state.since = now;
        for index in state.head..state.next {
            let task = self.tasks.get(index);
            match task.kind {
                TaskKind::Compute => {
                    self.queue.push(now.saturating_add(task.work), event(COMPUTED, lane));
                }
                TaskKind::Transfer => self.meet(task.work as MessageId, Side { lane, task: index }),
            }
        }
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
        let transfer = Transfer { message, from: m.from, to: m.to, bytes: m.bytes, sides };
        self.flows.start(&transfer, self.queue, flow_event);
    }

    fn end_transfer(&mut self, flow: u32) {
        let flow = self.flows.get(flow);
        let (start, sides) = (flow.start, flow.sides);
        for side in sides {
            self.end_task(side.lane, side.task, start);
        }
    }

    fn end_compute(&mut self, lane: u32) {
        let LaneState { head, since, .. } = self.lanes.lanes[lane as usize];
        self.end_task(lane, head, since);
    }

    /// Notes that a task has ended; with the last one in hand the lane goes on, and so do those that waited for it.
    fn end_task(&mut self, lane: u32, task: u32, start: u64) {
        if R::ACTIVE {
            self.record(lane, task, start);
        }
        let state = &mut self.lanes.lanes[lane as usize];
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

    fn record(&mut self, lane: u32, task: u32, start: u64) {
        self.recorder.record(Done {
            rank: lane / STRIDE as u32,
            lane: Lane((lane % STRIDE as u32) as u8),
            op: self.tasks.get(task).op,
            start: SimTime(start),
            end: SimTime(self.queue.now()),
        });
    }

    /// The makespan, if no lane has anything left.
    fn finished(&self, last: SimTime) -> Result<SimTime, SimError> {
        let lanes = &self.lanes.lanes;
        let left = lanes.iter().map(|l| (l.end - l.head) as usize).sum();
        match lanes.iter().position(|l| l.head < l.end) {
            None => Ok(last),
            Some(lane) => {
                let state = lanes[lane];
                let what = if state.open > 0 { "meets its other side" } else { "starts" };
                let op = self.tasks.get(state.head).op;
                Err(SimError::Hangs { rank: (lane / STRIDE) as u32, op, what, left })
            }
        }
    }
}

const _: () = assert!(LANES <= STRIDE, "a rank's lanes fit its stride");
