//! Runs a plan exactly, in f32: one thread a rank, channels between them, each rank's program in its own order.
//!
//! Every rank has only the buffers that the plan declares. They start as NaN, know which tokens and heads they hold, and
//! refuse to be read for others; what a rank has not received it cannot use. Sends copy their block into the channel and
//! never block. A receive waits at most for [`RunOptions::timeout`]; a rank that fails tells the others at once, so that
//! all end with an error that names it.

mod attention;
mod error;
mod mailbox;
mod math;
pub(crate) mod memory;
mod operations;
mod projections;
pub(crate) mod rank;
mod scores;
mod state;
pub(crate) mod tensors;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use ringlab_sim::plan::{OpId, Plan, Rank};
use ringlab_sim::timeline::{Span, Timeline};
use ringlab_sim::units::{Bytes, SimTime};

pub use error::{Cause, Place, RankFailure, RunError};

use crate::inputs::Inputs;
use crate::outcome::Outcome;
use mailbox::{Letter, Mailbox};
use memory::Memory;
use rank::{Finished, Progress, Runner, Shared};

/// Most ranks of a run. Each is a thread, and together they exchange messages as the square of their number: a million
/// for 1024.
pub const MAX_RANKS: u32 = 512;

/// How to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOptions {
    /// How long a rank waits for a message.
    pub timeout: Duration,
    /// A fault to inject before an operation of a rank: how the others end is part of what is promised.
    pub fault: Option<(Rank, OpId, Fault)>,
}

impl Default for RunOptions {
    /// A time-out of 60 s, no fault.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(60), fault: None }
    }
}

/// How a rank breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The operation panics.
    Panic,
    /// The rank ends there, without a word.
    Exit,
    /// The rank goes on living, but does nothing more.
    Stall,
}

/// Whether so many ranks can run.
///
/// # Errors
/// More than [`MAX_RANKS`].
pub fn check_ranks(ranks: u32) -> Result<(), RunError> {
    if ranks > MAX_RANKS { Err(RunError::TooManyRanks { ranks }) } else { Ok(()) }
}

/// Runs `plan` on `inputs`: o and lse of a forward, dq, dk and dv of a backward.
///
/// # Errors
/// More ranks than [`MAX_RANKS`]; inputs that do not fit the plan; a rank that fails, with what became of the others; a result that was never written.
pub fn run(plan: &Plan, inputs: &Inputs, options: &RunOptions) -> Result<Outcome, RunError> {
    check_ranks(plan.ranks())?;
    tensors::check(plan, inputs)?;
    let regions = memory::regions(plan);
    let real = tensors::real_tokens(&plan.layout);
    let mut memories = Vec::new();
    for (rank, program) in plan.programs.iter().enumerate() {
        let mut memory = Memory::new(program, plan.shape);
        tensors::scatter(plan, inputs, &real, &regions, &mut memory).map_err(|cause| {
            let place = Place::new(plan, rank as Rank, 0);
            RunError::Ranks { root: RankFailure { place, cause }, others: Vec::new() }
        })?;
        memories.push(memory);
    }
    let progress = plan.programs.iter().map(|_| Progress::default()).collect();
    let shared = Shared { plan, regions, options, start: Instant::now(), progress };
    let ranks = run_ranks(&shared, memories)?;
    let wall_time = shared.start.elapsed();
    let peak_bytes = ranks.iter().map(|r| r.memory.allocated()).collect();
    let bytes_moved = ranks.iter().map(|r| r.received).sum::<Bytes>();
    let (memories, spans): (Vec<Memory>, Vec<Vec<Span>>) =
        ranks.into_iter().map(|r| (r.memory, r.spans)).unzip();
    let (results, wrong_padding_rows) = tensors::gather(plan, inputs, &real, &shared.regions, &memories)?;
    let timeline = timeline(plan.ranks(), spans.concat());
    Ok(Outcome { results, wrong_padding_rows, bytes_moved, wall_time, timeline, peak_bytes })
}

/// Runs every rank on a thread of its own and waits for all of them.
fn run_ranks(shared: &Shared<'_>, memories: Vec<Memory>) -> Result<Vec<Finished>, RunError> {
    let (outgoing, incoming): (Vec<Sender<Letter>>, Vec<Receiver<Letter>>) =
        memories.iter().map(|_| channel()).unzip();
    let reports: Vec<Result<Finished, RankFailure>> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (rank, (memory, incoming)) in (0..).zip(memories.into_iter().zip(incoming)) {
            let mailbox = Mailbox::new(rank, incoming, &outgoing);
            let runner = Runner::new(shared, rank, memory, mailbox);
            let builder = thread::Builder::new().name(format!("rank {rank}"));
            let thread = builder.spawn_scoped(scope, || runner.run());
            if thread.is_err() {
                let place = shared.place(rank);
                for mailbox in &outgoing {
                    let _ = mailbox.send(Letter::Failed(place));
                }
            }
            threads.push(thread);
        }
        let report = |(rank, thread): (Rank, std::io::Result<ScopedJoinHandle<'_, _>>)| {
            let failure = |cause| RankFailure { place: shared.place(rank), cause };
            let thread = thread.map_err(|error| failure(Cause::Thread(error.to_string())))?;
            thread.join().unwrap_or_else(|panic| Err(failure(Cause::Panicked(rank::text(panic.as_ref())))))
        };
        (0..).zip(threads).map(report).collect()
    });
    let (done, failures): (Vec<_>, Vec<_>) = reports.into_iter().partition(Result::is_ok);
    let mut failures: Vec<RankFailure> = failures.into_iter().filter_map(Result::err).collect();
    let Some(closest) = (0..failures.len()).min_by_key(|&i| failures[i].cause.distance()) else {
        return Ok(done.into_iter().flatten().collect());
    };
    let root = failures.remove(closest);
    Err(RunError::Ranks { root, others: failures })
}

fn timeline(ranks: u32, mut spans: Vec<Span>) -> Timeline {
    spans.sort_by_key(|s| (s.end, s.rank, s.op));
    let makespan = spans.last().map_or(SimTime::ZERO, |s| s.end);
    Timeline { ranks, spans, makespan }
}
