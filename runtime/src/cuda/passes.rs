//! The runs themselves: the host lowers the flags, posts every rank's program behind its gate, opens the gates, and waits.

use std::thread;
use std::time::{Duration, Instant};

use ringlab_sim::plan::{LANES, OpKind, Program, Rank};
use ringlab_sim::units::SimTime;

use super::clock::Offset;
use super::command::{Command, Event, Post};
use super::device::{Fault, Gpu};
use super::error::CudaError;
use super::filler::Filler;
use super::flags::Flags;
use super::prepare::{Member, Session};
use super::tensors::{Holder, poison};
use crate::cpu::Place;

/// The stream that compares clocks and opens gates.
pub(super) const ASKING: usize = LANES;
/// Streams of a GPU.
pub(super) const STREAMS: usize = LANES + 1;
/// How long released streams may take to end.
const GRACE: Duration = Duration::from_secs(5);

/// How long the host asks without a pause whether the GPUs are done, and the pause after that.
const AWAKE: Duration = Duration::from_millis(2);
const NAP: Duration = Duration::from_micros(20);

/// How to run once.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct How<'a> {
    /// Times every operation.
    pub recorded: bool,
    /// Fills what is to be written with NaN before.
    pub poisoned: bool,
    /// Opens the gates before anything is posted: loading a kernel or building a connection may wait for streams that
    /// would wait for the gates.
    pub open: bool,
    /// What the GPUs do after it, by GPU, where another run follows.
    pub fillers: &'a [Filler],
    pub is_last: bool,
}

/// One run.
pub(super) struct Pass {
    /// When each member's pass started, on one clock.
    pub offsets: Vec<Offset>,
    pub alignment_error: SimTime,
    /// From the first start to the last end.
    pub makespan: SimTime,
    /// Longest time that posting one rank's program took.
    pub posting: SimTime,
}

impl Session<'_> {
    /// The GPUs, each once.
    fn gpus(&self) -> Vec<&dyn Gpu> {
        let count = if self.is_virtual { 1 } else { self.members.len() };
        self.members[..count].iter().map(|m| m.gpu.as_ref()).collect()
    }

    /// Runs the plan once.
    pub fn pass(&self, how: How<'_>) -> Result<Pass, CudaError> {
        // Without this, what was posted would wait for ever, and whoever frees its memory with it.
        self.unreleased_pass(how).inspect_err(|_| self.release(&self.finished))
    }

    fn unreleased_pass(&self, how: How<'_>) -> Result<Pass, CudaError> {
        let gpus = self.gpus();
        self.lower_flags(how.poisoned)?;
        let gated = !self.is_virtual;
        let opens_first = gated && (how.open || self.is_deep);
        if opens_first {
            self.open_gates()?;
        }
        let posting = thread::scope(|scope| {
            let threads: Vec<_> = (1..gpus.len()).map(|i| scope.spawn(move || self.post(i, how))).collect();
            // A thread takes longer to start than some programs to be posted.
            let first = self.post(0, how);
            let times = threads.into_iter().zip(&self.members[1..]).map(|(t, m)| {
                t.join().map_err(|_| CudaError::Thread { rank: m.rank, reason: "it panicked".into() })?
            });
            let others = times.collect::<Result<Vec<Duration>, CudaError>>()?;
            Ok::<_, CudaError>(others.into_iter().fold(first?, Duration::max))
        })?;
        if gated && !opens_first {
            self.open_gates()?;
        }
        self.wait(&self.finished)?;
        let (offsets, alignment_error) =
            if self.is_virtual { (vec![0], SimTime::ZERO) } else { self.clock.offsets(&gpus)? };
        let mut makespan = 0;
        for (i, gpu) in gpus.iter().enumerate() {
            let end = gpu.elapsed(self.clock.anchors[i], self.finished[i])?;
            makespan = makespan.max(offsets[i] + Offset::from(end.0));
        }
        Ok(Pass {
            offsets,
            alignment_error,
            makespan: SimTime(u64::try_from(makespan).unwrap_or(0)),
            posting: SimTime(posting.as_nanos() as u64 * 1000),
        })
    }

    /// Lets every rank start that runs here, once all flags are lowered: one that is raised too early would be lost.
    fn open_gates(&self) -> Result<(), CudaError> {
        self.wait(&self.lowered)?;
        match &self.clock.barrier {
            None => self.post_all(0, &self.clock.ask(ASKING, &self.flags)),
            Some(_) => self.members.iter().enumerate().try_for_each(|(i, member)| {
                let open = Command::RaiseFlag(self.flags.gate(member.rank));
                self.post_one(i, &Post { stream: ASKING, command: open, timing: false })
            }),
        }
    }

    /// Lowers every flag and poisons what is to be written, before all else on the first streams.
    fn lower_flags(&self, poisoned: bool) -> Result<(), CudaError> {
        let bytes = 4 * Flags::count(self.plan);
        for (i, (member, memory)) in self.members.iter().zip(&self.memories).enumerate() {
            let holder = Holder { rank: member.rank, gpu: member.gpu.as_ref(), memory };
            let mut commands = vec![Command::Fill { at: self.flags.base(member.rank), bytes, byte: 0 }];
            if poisoned {
                commands.extend(poison(self.plan, &holder, false));
            }
            let posts: Vec<Post> =
                commands.into_iter().map(|command| Post { stream: 0, command, timing: false }).collect();
            self.post_all(i, &posts)?;
        }
        for (i, &event) in self.lowered.iter().enumerate() {
            self.post_all(i, &[Post { stream: 0, command: Command::Record(event), timing: false }])?;
        }
        Ok(())
    }

    /// Posts a member's program; how long that took.
    fn post(&self, member: usize, how: How<'_>) -> Result<Duration, CudaError> {
        let start = Instant::now();
        let (program, anchor) = (&self.programs[member], self.clock.anchors[member]);
        if self.is_virtual {
            self.post_all(member, &[Post { stream: 0, command: Command::Record(anchor), timing: false }])?;
        } else {
            self.post_all(member, &self.clock.answer((self.members[member].rank, member), &self.flags))?;
        }
        for &stream in program.streams.iter().filter(|&&s| s != 0) {
            self.post_all(member, &[Post { stream, command: Command::Await(anchor), timing: false }])?;
        }
        for post in program.posts.iter().filter(|post| how.recorded || !post.timing) {
            self.post_one(member, post)?;
        }
        let finished = Command::Record(self.finished[member]);
        self.post_one(member, &Post { stream: 0, command: finished, timing: false })?;
        if !how.is_last {
            self.fill(member, how.fillers)?;
        }
        Ok(start.elapsed())
    }

    fn post_all(&self, member: usize, posts: &[Post]) -> Result<(), CudaError> {
        posts.iter().try_for_each(|post| self.post_one(member, post))
    }

    pub(super) fn post_one(&self, member: usize, post: &Post) -> Result<(), CudaError> {
        let Member { rank, gpu } = &self.members[member];
        gpu.post(post.stream, &post.command).map_err(|source| failed(*rank, source))
    }

    /// Waits until one event of each GPU has been reached.
    fn wait(&self, events: &[Event]) -> Result<(), CudaError> {
        if self.wait_for(events, self.options.timeout)? { Ok(()) } else { Err(self.time_out()) }
    }

    fn wait_for(&self, events: &[Event], limit: Duration) -> Result<bool, CudaError> {
        let start = Instant::now();
        for (member, &event) in self.members.iter().zip(events) {
            while !member.gpu.is_done(event).map_err(|source| failed(member.rank, source))? {
                if start.elapsed() > limit {
                    return Ok(false);
                }
                // A sleep lasts several times as long as it should, and the GPUs stand still meanwhile.
                if start.elapsed() < AWAKE { thread::yield_now() } else { thread::sleep(NAP) }
            }
        }
        Ok(true)
    }

    /// Ends all waiting. GPUs that go on regardless are leaked: freeing their memory would wait for ever.
    fn release(&self, events: &[Event]) {
        for member in &self.members {
            // A GPU that is lost has nothing that waits.
            let _ = member.gpu.release(self.flags.base(member.rank), Flags::count(self.plan));
        }
        if !self.wait_for(events, GRACE).is_ok_and(|ended| ended) {
            self.members.iter().for_each(|member| std::mem::forget(std::sync::Arc::clone(&member.gpu)));
        }
    }

    /// Which operation did not end, and where the other ranks are.
    fn time_out(&self) -> CudaError {
        let end = |(rank, program): (Rank, &Program)| Place::new(self.plan, rank, program.ops.len());
        let mut places: Vec<Place> = (0..).zip(&self.plan.programs).map(end).collect();
        for (i, program) in self.programs.iter().enumerate() {
            for timed in &program.timed {
                let place = &mut places[timed.rank as usize];
                let ended = self.members[i].gpu.is_done(timed.end).unwrap_or(false);
                if !ended && timed.op < place.op {
                    *place = Place::new(self.plan, timed.rank, timed.op as usize);
                }
            }
        }
        let place = places[self.culprit(&places) as usize];
        let here = |rank: Rank| self.members.iter().any(|m| m.rank == rank);
        let others = places.into_iter().filter(|p| p.rank != place.rank && here(p.rank)).collect();
        CudaError::TimedOut { place, after: self.options.timeout, others }
    }

    /// The rank at the end of the chain of ranks that wait for each other's messages.
    fn culprit(&self, places: &[Place]) -> Rank {
        let unfinished = |rank: Rank| places[rank as usize].kind.is_some();
        let Some(mut rank) = (0..places.len() as Rank).find(|&r| unfinished(r)) else { return 0 };
        for _ in 0..places.len() {
            let op = places[rank as usize].op;
            let other = match self.plan.programs[rank as usize].ops[op as usize].kind {
                OpKind::Recv { message, .. } => self.plan.message(message).from,
                OpKind::Send { message, .. } => self.plan.message(message).to,
                _ => return rank,
            };
            if !unfinished(other) {
                return rank;
            }
            rank = other;
        }
        rank
    }
}

pub(super) fn failed(rank: Rank, fault: impl Into<Fault>) -> CudaError {
    match fault.into() {
        Fault::Gpu(source) => CudaError::Gpu { rank: Some(rank), source },
        Fault::Nccl(doing, code) => CudaError::Nccl { rank, doing, code },
    }
}
