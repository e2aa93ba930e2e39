//! Work for the GPUs while the host turns from one measured run to the next: without it short runs would find GPUs that
//! had time to rest, and a higher clock than long ones.
//!
//! A filler is one of the run's own attention launches, repeated for about a millisecond on each GPU's first stream behind
//! a run, while its times are read and the next one is posted. Fused launches do too: their flags are lowered after it. It
//! changes nothing that the next run does not write again, since a run can be repeated; and it ends before any gate opens,
//! so that no rank's messages meet it.

use ringlab_sim::plan::{OpId, OpKind, Plan, Rank};
use ringlab_sim::units::SimTime;

use super::command::{Command, Launch, Post};
use super::error::CudaError;
use super::lanes::Body;
use super::options::Options;
use super::passes::Pass;
use super::prepare::{Member, Session};

/// How long a filler lasts; reading times and posting a run take less.
const LENGTH: SimTime = SimTime(1_500_000_000);
/// Most launches of a filler.
const MOST: u64 = 64;
/// Runs of this length and more need none: the host's share of them is small.
const LONG: SimTime = SimTime(25_000_000_000);

/// An attention launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    rank: Rank,
    op: OpId,
    launch: Launch,
    /// Launches of its operation.
    launches: u64,
}

/// A filler of one GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filler {
    launch: Launch,
    times: u64,
    pub lasts: SimTime,
}

/// The first attention launch of a rank.
pub(super) fn candidate(plan: &Plan, member: &Member, bodies: &[Body]) -> Option<Candidate> {
    let ops = (0..).zip(&plan.programs[member.rank as usize].ops).zip(bodies);
    let mut found = ops.filter_map(|((op, planned), body)| {
        let attends = matches!(planned.kind, OpKind::Attend { .. } | OpKind::AttendBackward { .. });
        let Body::Compute(commands) = body else { return None };
        if !attends {
            return None;
        }
        let is_launch = |command: &Command| match command {
            Command::Launch(launch) => Some(*launch),
            _ => None,
        };
        let launches: Vec<Launch> = commands.iter().filter_map(is_launch).collect();
        let launch = *launches.last()?;
        Some(Candidate { rank: member.rank, op, launch, launches: launches.len() as u64 })
    });
    found.next()
}

impl Session<'_> {
    /// The fillers that suit the run that has just ended, one a GPU; none where runs are long or GPUs are to rest.
    pub fn fillers(&self, pass: &Pass) -> Result<Vec<Filler>, CudaError> {
        let Options { sustain, rest, .. } = self.options;
        if sustain.is_zero() || !rest.is_zero() || pass.makespan >= LONG {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for (i, candidate) in self.candidates.iter().enumerate() {
            let Some(Candidate { rank, op, launch, launches }) = *candidate else { return Ok(Vec::new()) };
            let timed = self.programs[i].timed.iter().find(|t| (t.rank, t.op) == (rank, op));
            let Some(timed) = timed else { return Ok(Vec::new()) };
            let took = self.members[i].gpu.elapsed(timed.start, timed.end)?;
            let one = SimTime((took.0 / launches).max(1));
            let times = LENGTH.0.div_ceil(one.0).min(MOST);
            all.push(Filler { launch, times, lasts: SimTime(times * one.0) });
        }
        Ok(all)
    }

    /// Lets a GPU do its filler, after what it has to do.
    pub fn fill(&self, gpu: usize, fillers: &[Filler]) -> Result<(), CudaError> {
        let Some(filler) = fillers.get(gpu) else { return Ok(()) };
        let launch = Post { stream: 0, command: Command::Launch(filler.launch), timing: false };
        (0..filler.times).try_for_each(|_| self.post_one(gpu, &launch))
    }
}
