//! One clock for all ranks. Events of one GPU say how far apart they are; to place two GPUs' events on one line, rank 0
//! asks every rank for its time through flags, a few rounds: it marks `a`, raises a flag on the rank, which marks `x` and
//! raises a flag back, and marks `b`. On rank 0's clock x lies between a and b; taken in the middle it is wrong by at most
//! half of b - a. The shortest round counts. Then rank 0 opens every rank's gate. Ranks that cannot reach each other's
//! memory start at a [`Barrier`] instead.

use ringlab_kernels::gpu::GpuError;
use ringlab_sim::plan::Rank;
use ringlab_sim::units::SimTime;

use super::command::{Command, Event, Parcel, Post};
use super::device::Gpu;
use super::flags::{Flags, ROUNDS};

/// Picoseconds, before or after some mark.
pub(super) type Offset = i128;

/// The marks of one set of ranks.
pub(super) struct Clock {
    /// By rank: the start of its pass.
    pub anchors: Vec<Event>,
    /// By rank and round, on rank 0.
    asked: Vec<[[Event; 2]; ROUNDS]>,
    /// By rank and round, on the rank.
    answered: Vec<[Event; ROUNDS]>,
    /// Where ranks cannot reach each other's flags.
    pub barrier: Option<Barrier>,
}

/// How ranks start together that cannot reach each other's flags: each sends every other one a word through NCCL, twice,
/// and starts when it has all words. Nobody ends the second exchange before all have begun it, so starts differ by no more
/// than the longest second exchange took.
pub(super) struct Barrier {
    /// By member: the exchange.
    pub words: Vec<Vec<Parcel>>,
    /// By member: between the two.
    pub between: Vec<Event>,
}

impl Clock {
    pub fn new(gpus: &[&dyn Gpu]) -> Result<Self, GpuError> {
        let mut clock = Self { anchors: Vec::new(), asked: Vec::new(), answered: Vec::new(), barrier: None };
        for gpu in gpus {
            clock.anchors.push(gpu.event()?);
            let mut asked = [[Event(0); 2]; ROUNDS];
            let mut answered = [Event(0); ROUNDS];
            for round in 0..ROUNDS {
                asked[round] = [gpus[0].event()?, gpus[0].event()?];
                answered[round] = gpu.event()?;
            }
            clock.asked.push(asked);
            clock.answered.push(answered);
        }
        Ok(clock)
    }

    /// What the first stream of a rank, a member of this process, does before its pass.
    pub fn answer(&self, (rank, member): (Rank, usize), flags: &Flags) -> Vec<Post> {
        let mut commands = Vec::new();
        if rank > 0 && self.barrier.is_none() {
            for round in 0..ROUNDS {
                commands.push(Command::AwaitFlag(flags.ping(rank, round)));
                commands.push(Command::Record(self.answered[rank as usize][round]));
                commands.push(Command::RaiseFlag(flags.pong(rank, round)));
            }
        }
        commands.push(Command::AwaitFlag(flags.gate(rank)));
        if let Some(Barrier { words, between }) = &self.barrier {
            commands.push(Command::Exchange(words[member].clone()));
            commands.push(Command::Record(between[member]));
            commands.push(Command::Exchange(words[member].clone()));
        }
        commands.push(Command::Record(self.anchors[member]));
        commands.into_iter().map(|command| Post { stream: 0, command, timing: false }).collect()
    }

    /// What a stream of its own does on rank 0's GPU: asks all, then opens all gates.
    pub fn ask(&self, stream: usize, flags: &Flags) -> Vec<Post> {
        let ranks = 0..self.anchors.len() as Rank;
        let mut commands = Vec::new();
        for rank in ranks.clone().skip(1) {
            for round in 0..ROUNDS {
                let [a, b] = self.asked[rank as usize][round];
                commands.push(Command::Record(a));
                commands.push(Command::RaiseFlag(flags.ping(rank, round)));
                commands.push(Command::AwaitFlag(flags.pong(rank, round)));
                commands.push(Command::Record(b));
            }
        }
        commands.extend(ranks.map(|rank| Command::RaiseFlag(flags.gate(rank))));
        commands.into_iter().map(|command| Post { stream, command, timing: false }).collect()
    }

    /// Where each rank's start lies on rank 0's clock, the earliest at 0, and the largest error of that.
    pub fn offsets(&self, gpus: &[&dyn Gpu]) -> Result<(Vec<Offset>, SimTime), GpuError> {
        if let Some(barrier) = &self.barrier {
            let members = gpus.iter().zip(barrier.between.iter().zip(&self.anchors));
            let times = members.map(|(gpu, (&from, &to))| gpu.elapsed(from, to));
            let longest = times.collect::<Result<Vec<_>, _>>()?.into_iter().max();
            return Ok((vec![0; gpus.len()], longest.unwrap_or(SimTime::ZERO)));
        }
        let (mut offsets, mut error) = (vec![0], 0);
        let before = |gpu: &dyn Gpu, event, anchor| -> Result<Offset, GpuError> {
            Ok(-Offset::from(gpu.elapsed(event, anchor)?.0))
        };
        for rank in 1..gpus.len() {
            let mut best = (Offset::MAX, 0);
            for round in 0..ROUNDS {
                let [a, b] = self.asked[rank][round];
                let [a, b] = [before(gpus[0], a, self.anchors[0])?, before(gpus[0], b, self.anchors[0])?];
                let x = before(gpus[rank], self.answered[rank][round], self.anchors[rank])?;
                best = best.min((b - a, Offset::midpoint(a, b) - x));
            }
            offsets.push(best.1);
            error = error.max(best.0 / 2);
        }
        let first = offsets.iter().copied().min().unwrap_or(0);
        for offset in &mut offsets {
            *offset -= first;
        }
        Ok((offsets, SimTime(u64::try_from(error).unwrap_or(0))))
    }
}
