//! Whether the plan comes to its end: lanes run in order, a transfer moves once both its ends are posted.
//!
//! A posting starts when the one before it on its lane has ended and all its waits have; kernels then end, transfers end
//! when they have moved, and a group ends with its last transfer. Nothing ever disables a posting, so either every
//! execution comes to the end or every one gets stuck in the same place: one is enough.

use std::collections::VecDeque;

use super::messages::{Ends, at};
use super::postings::Postings;
use super::terms::{Cycle, Hop, Reason};
use crate::plan::{LANES, Lane, MessageId, OpId, OpKind, Plan, Rank};

/// What happened in an execution.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// A kernel ran.
    Kernel(Rank, OpId),
    /// A message moved.
    Moved(MessageId),
}

/// Which postings of a rank run one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Discipline {
    /// Those of one lane.
    Lanes,
    /// Those of all communication lanes: communicators that take turns in launch order, the worst that a GPU may do.
    Turns,
}

impl Discipline {
    fn queue(self, lane: usize) -> usize {
        if self == Self::Turns { lane.min(1) } else { lane }
    }
}

/// The postings of one lane, or of several, in order, and how far they are.
#[derive(Default)]
struct Queue {
    postings: Vec<u32>,
    head: usize,
    posted: bool,
    to_move: u32,
}

impl Queue {
    fn head(&self) -> Option<u32> {
        self.postings.get(self.head).copied()
    }
}

#[derive(Default)]
struct RankState {
    queues: [Queue; LANES],
    /// Postings of each lane that have ended.
    ended: [u32; LANES],
}

struct Run<'a> {
    plan: &'a Plan,
    postings: &'a [Postings],
    ends: &'a [Ends],
    discipline: Discipline,
    ranks: Vec<RankState>,
    /// For each message, whether one end is posted.
    half: Vec<bool>,
    events: Vec<Event>,
    /// Ranks with something to do.
    active: VecDeque<Rank>,
}

/// Executes the plan: what happened, in a possible order.
///
/// # Errors
/// The circular wait in which it gets stuck.
pub(super) fn execute(
    plan: &Plan,
    postings: &[Postings],
    ends: &[Ends],
    discipline: Discipline,
) -> Result<Vec<Event>, Cycle> {
    let ranks = postings.iter().map(|list| queue_up(list, discipline)).collect();
    let half = vec![false; plan.messages.len()];
    let active = (0..plan.ranks()).collect();
    let mut run = Run { plan, postings, ends, discipline, ranks, half, events: Vec::new(), active };
    while let Some(rank) = run.active.pop_front() {
        run.advance(rank);
    }
    match run.first_stuck() {
        None => Ok(run.events),
        Some((rank, posting)) => Err(run.cycle_from(rank, posting)),
    }
}

fn queue_up(postings: &Postings, discipline: Discipline) -> RankState {
    let mut state = RankState::default();
    for (i, posting) in postings.list().iter().enumerate() {
        state.queues[discipline.queue(posting.lane)].postings.push(i as u32);
    }
    state
}

impl Run<'_> {
    /// Posts and ends what a rank can.
    fn advance(&mut self, rank: Rank) {
        let mut moved_on = true;
        while std::mem::take(&mut moved_on) {
            for queue in 0..LANES {
                while self.step(rank, queue) {
                    moved_on = true;
                }
            }
        }
    }

    /// Ends the head of a queue, which it posts first if it can; whether it has ended.
    fn step(&mut self, rank: Rank, queue: usize) -> bool {
        let Some(posting) = self.ranks[rank as usize].queues[queue].head() else { return false };
        if !self.ranks[rank as usize].queues[queue].posted {
            if self.unmet_wait(rank, posting).is_some() {
                return false;
            }
            self.post(rank, queue, posting);
        }
        let state = &mut self.ranks[rank as usize];
        let ended = state.queues[queue].to_move == 0;
        if ended {
            state.queues[queue].posted = false;
            state.queues[queue].head += 1;
            state.ended[self.postings[rank as usize].list()[posting as usize].lane] += 1;
        }
        ended
    }

    fn post(&mut self, rank: Rank, queue: usize, posting: u32) {
        let members = self.postings[rank as usize].members(posting);
        let ops = &self.plan.programs[rank as usize].ops;
        let transfers = members.iter().filter(|&&op| ops[op as usize].kind.message().is_some()).count();
        let state = &mut self.ranks[rank as usize].queues[queue];
        (state.posted, state.to_move) = (true, transfers as u32);
        for &op in members {
            match ops[op as usize].kind.message() {
                None => self.events.push(Event::Kernel(rank, op)),
                Some(message) => {
                    let other_is_posted = std::mem::replace(&mut self.half[message as usize], true);
                    if other_is_posted {
                        self.transfer(message);
                    }
                }
            }
        }
    }

    fn transfer(&mut self, message: MessageId) {
        self.events.push(Event::Moved(message));
        let (m, ends) = (self.plan.message(message), self.ends[message as usize]);
        for (rank, op) in [(m.from, ends.send), (m.to, ends.recv)] {
            let lane = self.plan.programs[rank as usize].ops[op as usize].lane;
            let queue = &mut self.ranks[rank as usize].queues[self.discipline.queue(usize::from(lane.0))];
            queue.to_move -= 1;
            if queue.to_move == 0 {
                self.active.push_back(rank);
            }
        }
    }

    /// A member of a posting and what it still waits for.
    fn unmet_wait(&self, rank: Rank, posting: u32) -> Option<(OpId, OpId)> {
        let (program, postings) = (&self.plan.programs[rank as usize], &self.postings[rank as usize]);
        let ended = &self.ranks[rank as usize].ended;
        postings.waits(&program.ops, posting).find(|&(_, wait)| {
            let other = postings.list()[postings.of(wait) as usize];
            ended[other.lane] <= other.position
        })
    }

    fn first_stuck(&self) -> Option<(Rank, u32)> {
        let heads = self.ranks.iter().enumerate();
        heads.flat_map(|(r, s)| s.queues.iter().filter_map(move |q| Some((r as Rank, q.head()?)))).next()
    }

    /// Follows who waits for whom until it comes back to where it was.
    fn cycle_from(&self, mut rank: Rank, mut posting: u32) -> Cycle {
        let (mut path, mut hops) = (Vec::new(), Vec::new());
        loop {
            if let Some(start) = path.iter().position(|&seen| seen == (rank, posting)) {
                return Cycle(hops.split_off(start));
            }
            path.push((rank, posting));
            let (op, reason, other_rank, other) = self.blocker(rank, posting);
            hops.push(Hop { op: at(self.plan, rank, op), reason, of: at(self.plan, other_rank, other) });
            (rank, posting) = (other_rank, self.postings[other_rank as usize].of(other));
        }
    }

    /// Which member of a posting that has not ended waits, why, and for what.
    fn blocker(&self, rank: Rank, posting: u32) -> (OpId, Reason, Rank, OpId) {
        let postings = &self.postings[rank as usize];
        let lane = postings.list()[posting as usize].lane;
        let queue = &self.ranks[rank as usize].queues[self.discipline.queue(lane)];
        let head = queue.postings[queue.head];
        if head != posting {
            let same_lane = postings.list()[head as usize].lane == lane;
            let reason = if same_lane { Reason::Lane } else { Reason::Turn };
            return (postings.members(posting)[0], reason, rank, postings.members(head)[0]);
        }
        if let Some((op, wait)) = self.unmet_wait(rank, posting) {
            return (op, Reason::Wait, rank, wait);
        }
        self.missing_partner(rank, postings.members(posting))
    }

    /// The member whose other end is not posted, and that end.
    fn missing_partner(&self, rank: Rank, members: &[OpId]) -> (OpId, Reason, Rank, OpId) {
        let partner = |&op: &OpId| {
            let (to, other) = match self.plan.programs[rank as usize].ops[op as usize].kind {
                OpKind::Send { message, .. } => {
                    (self.plan.message(message).to, self.ends[message as usize].recv)
                }
                OpKind::Recv { message, .. } => {
                    (self.plan.message(message).from, self.ends[message as usize].send)
                }
                _ => return None,
            };
            (!self.is_posted(to, other)).then_some((op, Reason::Partner, to, other))
        };
        members.iter().find_map(partner).unwrap_or((members[0], Reason::Partner, rank, members[0]))
    }

    fn is_posted(&self, rank: Rank, op: OpId) -> bool {
        let (postings, state) = (&self.postings[rank as usize], &self.ranks[rank as usize]);
        let posting = postings.of(op);
        let Lane(lane) = self.plan.programs[rank as usize].ops[op as usize].lane;
        let queue = &state.queues[self.discipline.queue(usize::from(lane))];
        let posted_head = queue.posted && queue.head() == Some(posting);
        let place = postings.list()[posting as usize];
        posted_head || place.position < state.ended[place.lane]
    }
}
