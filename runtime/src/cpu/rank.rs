//! Runs the program of one rank.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use ringlab_sim::plan::{MessageId, Op, OpKind, Plan, Rank};
use ringlab_sim::timeline::{Span, SpanKind};
use ringlab_sim::units::{Bytes, SimTime};
use ringlab_sim::work;

use super::error::{Cause, Place, RankFailure};
use super::mailbox::{Mailbox, Missing};
use super::memory::{Memory, Storage};
use super::region::Region;
use super::{Fault, RunOptions};

/// What all ranks share.
pub(super) struct Shared<'a> {
    pub plan: &'a Plan,
    pub regions: Vec<Arc<Region>>,
    pub options: &'a RunOptions,
    pub start: Instant,
    /// The operation that each rank is at.
    pub progress: Vec<AtomicUsize>,
}

impl Shared<'_> {
    /// Where `rank` is now.
    pub fn place(&self, rank: Rank) -> Place {
        Place::new(self.plan, rank, self.progress[rank as usize].load(Ordering::Relaxed))
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
        let shared = self.shared;
        let ops = &shared.plan.programs[self.rank as usize].ops;
        for (i, op) in ops.iter().enumerate() {
            shared.progress[self.rank as usize].store(i, Ordering::Relaxed);
            self.mailbox.poll().map_err(|culprit| Cause::PeerFailed { culprit })?;
            self.inject(i)?;
            self.memory.before(op);
            self.run_timed(i, op)?;
            self.memory.after(i, op);
        }
        shared.progress[self.rank as usize].store(ops.len(), Ordering::Relaxed);
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
            OpKind::Preprocess { q, delta } => self.preprocess(q, delta)?,
            OpKind::Merge { from, into } => self.merge(from, into)?,
            OpKind::Accumulate { from, into } => self.accumulate(from, into)?,
            OpKind::Finish { state, out } => self.finish(state, out)?,
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
            flops: flops(self.shared.plan, &op.kind),
        });
        Ok(())
    }

    fn receive(&mut self, message: MessageId) -> Result<Storage, Cause> {
        let (from, timeout) = (self.shared.plan.message(message).from, self.shared.options.timeout);
        self.mailbox.receive(message, from, timeout).map_err(|missing| match missing {
            Missing::TimedOut => Cause::TimedOut { message, sender: self.shared.place(from), after: timeout },
            Missing::SenderFinished => Cause::NeverSent { message, sender: self.shared.place(from) },
            Missing::PeerFailed(culprit) => Cause::PeerFailed { culprit },
        })
    }
}

/// FLOPs of an operation by the mask's area.
fn flops(plan: &Plan, op: &OpKind) -> f64 {
    match *op {
        OpKind::Attend { q_block, kv_block, mask, .. }
        | OpKind::AttendBackward { q_block, kv_block, mask, .. } => {
            let (q, kv) = (plan.block(q_block), plan.block(kv_block));
            let pairs = work::pairs(plan.mask(mask), &q.tokens, &kv.tokens);
            let each = plan.pass.flops_per_pair(plan.shape.head_dim) as f64;
            pairs as f64 * each * f64::from(q.heads.count) * f64::from(plan.shape.batch)
        }
        _ => 0.0,
    }
}

/// What a panic says.
pub(super) fn text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
