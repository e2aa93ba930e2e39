//! Runs the program of one rank.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use ringlab_sim::plan::{MessageId, Op, OpKind, Plan, Rank};
use ringlab_sim::timeline::{Span, SpanKind};
use ringlab_sim::units::{Bytes, SimTime};

use super::error::{Cause, Place, RankFailure};
use super::mailbox::{Mailbox, Missing};
use super::memory::{Memory, Storage};
use super::{Fault, RunOptions};
use crate::region::Region;

/// What all ranks share.
pub(super) struct Shared<'a> {
    pub plan: &'a Plan,
    pub regions: Vec<Arc<Region>>,
    pub options: &'a RunOptions,
    pub start: Instant,
    pub progress: Vec<Progress>,
}

/// What a rank is at. It only serves messages, so it is read and written without ordering.
#[derive(Default)]
pub(super) struct Progress {
    op: AtomicUsize,
    waits: AtomicBool,
}

impl Shared<'_> {
    /// Where `rank` is now.
    pub fn place(&self, rank: Rank) -> Place {
        Place::new(self.plan, rank, self.progress[rank as usize].op.load(Ordering::Relaxed))
    }

    /// Where the rank is that keeps `sender` from sending: at the end of the chain of ranks that wait for each other, or
    /// the sender itself if they wait in a circle.
    fn blame(&self, sender: Rank) -> Place {
        let mut rank = sender;
        for _ in 0..self.progress.len() {
            match self.awaits(rank) {
                Some(next) => rank = next,
                None => return self.place(rank),
            }
        }
        self.place(sender)
    }

    /// The rank whose message `rank` waits for.
    fn awaits(&self, rank: Rank) -> Option<Rank> {
        let progress = &self.progress[rank as usize];
        let op = self.plan.programs[rank as usize].ops.get(progress.op.load(Ordering::Relaxed))?;
        let message = op.kind.message().filter(|_| progress.waits.load(Ordering::Relaxed))?;
        Some(self.plan.message(message).from)
    }

    fn now(&self) -> SimTime {
        const PS_PER_NS: u64 = 1000;
        SimTime(PS_PER_NS.saturating_mul(self.start.elapsed().as_nanos() as u64))
    }
}

/// One rank with its memory.
pub(super) struct Runner<'a> {
    pub shared: &'a Shared<'a>,
    pub memory: Memory,
    pub mailbox: Mailbox<'a>,
    rank: Rank,
    spans: Vec<Span>,
    received: Bytes,
}

/// What a rank leaves that ran its program to the end.
pub(super) struct Finished {
    pub memory: Memory,
    pub spans: Vec<Span>,
    /// Bytes that arrived.
    pub received: Bytes,
}

impl<'a> Runner<'a> {
    pub fn new(shared: &'a Shared<'a>, rank: Rank, memory: Memory, mailbox: Mailbox<'a>) -> Self {
        Self { shared, memory, mailbox, rank, spans: Vec::new(), received: Bytes(0) }
    }

    /// Runs the program to its end and tells the others how it ended.
    pub fn run(mut self) -> Result<Finished, RankFailure> {
        let result = catch_unwind(AssertUnwindSafe(|| self.run_all()));
        let result = result.unwrap_or_else(|panic| Err(Cause::Panicked(text(panic.as_ref()))));
        let result = result.map_err(|cause| RankFailure { place: self.shared.place(self.rank), cause });
        match &result {
            // A rank that just exits says no more than that it has ended.
            Ok(()) | Err(RankFailure { cause: Cause::Exited, .. }) => self.mailbox.announce(Ok(())),
            Err(failure) => self.mailbox.announce(Err(failure.culprit())),
        }
        result.map(|()| Finished { memory: self.memory, spans: self.spans, received: self.received })
    }

    fn run_all(&mut self) -> Result<(), Cause> {
        let ops = &self.shared.plan.programs[self.rank as usize].ops;
        for (i, op) in ops.iter().enumerate() {
            self.progress().op.store(i, Ordering::Relaxed);
            self.mailbox.poll().map_err(|culprit| Cause::PeerFailed { culprit })?;
            self.inject(i)?;
            self.memory.before(op);
            self.run_timed(i, op)?;
        }
        self.progress().op.store(ops.len(), Ordering::Relaxed);
        Ok(())
    }

    /// The fault that the options ask for here.
    fn inject(&mut self, op: usize) -> Result<(), Cause> {
        match self.shared.options.fault {
            Some((rank, at, fault)) if rank == self.rank && at as usize == op => match fault {
                Fault::Panic => panic!("a fault was injected"),
                Fault::Exit => Err(Cause::Exited),
                Fault::Stall => {
                    // Longer than the others wait, so that it is they who notice.
                    self.mailbox.wait_for_failure(self.shared.options.timeout * 2);
                    Err(Cause::Stalled)
                }
            },
            _ => Ok(()),
        }
    }

    fn run_timed(&mut self, index: usize, op: &Op) -> Result<(), Cause> {
        let mut start = self.shared.now();
        let mut bytes = Bytes(0);
        match op.kind {
            OpKind::Attend { .. } => self.attend(&op.kind)?,
            OpKind::AttendBackward { .. } => self.attend_backward(&op.kind)?,
            OpKind::Preprocess { q, delta, block } => self.preprocess(q, delta, block)?,
            OpKind::Merge { from, into } => self.merge(from, into)?,
            OpKind::Accumulate { from, into } => self.accumulate(from, into)?,
            OpKind::Finish { state, out } => self.finish(state, out)?,
            OpKind::Project(projection) => self.project(&projection)?,
            OpKind::Scores(scores) => self.scores(&scores)?,
            OpKind::Send { message, buffer } => bytes = self.send(message, buffer)?,
            OpKind::Recv { message, buffer } => {
                let block = self.receive(message)?;
                // A transfer's span is the time that its bytes move, not that its receiver waits for them.
                start = self.shared.now();
                bytes = self.store(message, buffer, &block)?;
                self.received += bytes;
            }
        }
        self.spans.push(Span {
            rank: self.rank,
            lane: op.lane,
            op: index as u32,
            step: op.step,
            kind: SpanKind::of(&op.kind),
            start,
            end: self.shared.now(),
            bytes,
            flops: self.shared.plan.flops(&op.kind),
        });
        Ok(())
    }

    fn progress(&self) -> &'a Progress {
        &self.shared.progress[self.rank as usize]
    }

    fn receive(&mut self, message: MessageId) -> Result<Storage, Cause> {
        let (from, timeout) = (self.shared.plan.message(message).from, self.shared.options.timeout);
        self.progress().waits.store(true, Ordering::Relaxed);
        let block = self.mailbox.receive(message, from, timeout).map_err(|missing| match missing {
            Missing::TimedOut => {
                Cause::TimedOut { message, from, culprit: self.shared.blame(from), after: timeout }
            }
            Missing::SenderFinished => Cause::NeverSent { message, sender: self.shared.place(from) },
            Missing::PeerFailed(culprit) => Cause::PeerFailed { culprit },
        })?;
        self.progress().waits.store(false, Ordering::Relaxed);
        Ok(block)
    }
}

/// What a panic says.
pub(super) fn text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use ringlab_sim::mask::Pattern;
    use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
    use ringlab_sim::schedule::{Options, Schedule, build};

    use super::*;

    /// The rank to blame where `waiting` ranks of a ring of four wait for their first message, and rank 3 asks.
    fn blamed(waiting: &[usize]) -> Rank {
        let shape = Shape { heads: 1, kv_heads: 1, head_dim: 1, dtype: Dtype::Fp32, batch: 1 };
        let problem = Problem { shape, pattern: Pattern::Causal, documents: vec![8] };
        let plan = build(Schedule::Ring, &problem, 4, &Options::new(Pass::Forward)).unwrap();
        let options = RunOptions::default();
        let progress: Vec<Progress> = plan.programs.iter().map(|_| Progress::default()).collect();
        for &rank in waiting {
            let ops = &plan.programs[rank].ops;
            let first = ops.iter().position(|op| matches!(op.kind, OpKind::Recv { .. })).unwrap();
            progress[rank].op.store(first, Ordering::Relaxed);
            progress[rank].waits.store(true, Ordering::Relaxed);
        }
        let shared =
            Shared { plan: &plan, regions: Vec::new(), options: &options, start: Instant::now(), progress };
        shared.blame(2).rank
    }

    #[test]
    fn the_end_of_a_chain_of_waiting_ranks_is_to_blame() {
        assert_eq!(blamed(&[3]), 2);
        assert_eq!(blamed(&[3, 2]), 1);
        assert_eq!(blamed(&[3, 2, 1]), 0);
        assert_eq!(blamed(&[3, 2, 1, 0]), 2, "in a circle, the sender");
    }
}
