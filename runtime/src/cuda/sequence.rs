//! The operations of all ranks in one order that their lanes and waits allow: how virtual ranks run, and whether a plan
//! with its folds ends at all.

use ringlab_sim::plan::{LANES, MessageId, OpId, Plan, Rank};

use super::folds::Folds;
use crate::cpu::Place;

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// An operation that is no message.
    Compute(Rank, OpId),
    /// A message, from its send to its receive.
    Transfer { message: MessageId, send: (Rank, OpId), recv: (Rank, OpId) },
}

struct Lanes<'a> {
    plan: &'a Plan,
    folds: &'a [Folds],
    done: Vec<Vec<bool>>,
    /// By rank and lane: the operations, and how many of them have ended.
    queues: Vec<[(Vec<OpId>, usize); LANES]>,
    /// By message: who is ready to send, and to receive.
    ready: Vec<[Option<(Rank, OpId)>; 2]>,
    order: Vec<Step>,
}

/// Runs the plan on paper: a lane's neighbouring operations of one group together, all others one by one.
///
/// # Errors
/// The first operation that is never reached.
pub(super) fn sequence(plan: &Plan, folds: &[Folds]) -> Result<Vec<Step>, Place> {
    let queues = plan.programs.iter().map(|program| {
        let mut queues: [(Vec<OpId>, usize); LANES] = Default::default();
        (0..).zip(&program.ops).for_each(|(i, op)| queues[usize::from(op.lane.0)].0.push(i));
        queues
    });
    let mut lanes = Lanes {
        plan,
        folds,
        done: plan.programs.iter().map(|p| vec![false; p.ops.len()]).collect(),
        queues: queues.collect(),
        ready: vec![[None; 2]; plan.messages.len()],
        order: Vec::new(),
    };
    while lanes.pass() {}
    for (rank, done) in (0..).zip(&lanes.done) {
        if let Some(op) = done.iter().position(|done| !done) {
            return Err(Place::new(plan, rank, op));
        }
    }
    Ok(lanes.order)
}

impl Lanes<'_> {
    /// Lets every lane go as far as it can; whether any moved.
    fn pass(&mut self) -> bool {
        let mut moved = false;
        for rank in 0..self.plan.ranks() {
            for lane in 0..LANES {
                while self.advance(rank, lane) {
                    moved = true;
                }
            }
        }
        moved
    }

    /// Lets the head of a lane do what it can; whether anything changed.
    fn advance(&mut self, rank: Rank, lane: usize) -> bool {
        let (queue, at) = &self.queues[rank as usize][lane];
        let Some(&first) = queue.get(*at) else { return false };
        let ops = &self.plan.programs[rank as usize].ops;
        let group = ops[first as usize].group;
        let same = |op: &&OpId| group != 0 && ops[**op as usize].group == group;
        let length = queue[*at..].iter().take_while(same).count().max(1);
        let head = queue[*at..*at + length].to_vec();
        let before = self.order.len();
        let posted = head.iter().filter(|&&op| self.offer(rank, op)).count();
        let ended = head.iter().all(|&op| self.done[rank as usize][op as usize]);
        if ended {
            self.queues[rank as usize][lane].1 += length;
        }
        ended || posted > 0 || self.order.len() > before
    }

    /// Runs an operation if it can, or makes its message's end ready; whether that is new.
    fn offer(&mut self, rank: Rank, op: OpId) -> bool {
        let r = rank as usize;
        let kind = self.plan.programs[r].ops[op as usize].kind;
        if self.done[r][op as usize] || !self.may_start(rank, op) {
            return false;
        }
        let Some(message) = kind.message() else {
            self.order.push(Step::Compute(rank, op));
            self.done[r][op as usize] = true;
            return true;
        };
        let m = self.plan.message(message);
        let end = usize::from(m.to == rank && matches!(kind, ringlab_sim::plan::OpKind::Recv { .. }));
        let ends = &mut self.ready[message as usize];
        let new = ends[end].replace((rank, op)).is_none();
        if let [Some(send), Some(recv)] = *ends {
            self.order.push(Step::Transfer { message, send, recv });
            for (rank, op) in [send, recv] {
                self.done[rank as usize][op as usize] = true;
            }
            return true;
        }
        new
    }

    fn may_start(&self, rank: Rank, op: OpId) -> bool {
        let (folds, done) = (&self.folds[rank as usize], &self.done[rank as usize]);
        let launch = folds.done_by.get(&op).copied().unwrap_or(op);
        let own = |w: OpId| folds.done_by.get(&w).copied().unwrap_or(w) == launch;
        let waits = folds.waits(&self.plan.programs[rank as usize], op);
        waits.into_iter().all(|w| done[w as usize] || own(w))
    }
}
