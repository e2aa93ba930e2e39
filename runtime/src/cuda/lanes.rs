//! Who waits for whom: a stream a lane, events between the lanes of a rank, flags between ranks.
//!
//! A pushed message: the receiver's lane tells the sender that the buffer is free, the sender's lane waits for that,
//! copies, and tells the receiver, whose lane waits. A pulled one: the sender's lane tells the receiver that the block is
//! there, the receiver's lane waits, copies, and tells the sender, whose lane waits. No host takes part.

use ringlab_sim::plan::{MessageId, NO_OP, Op, OpId, OpKind, Plan, Rank};

use super::command::{Command, Event, Parcel, Post, Strip};
use super::device::Gpu;
use super::error::CudaError;
use super::flags::Flags;
use super::folds::Folds;
use super::options::Copies;
use super::sequence::Step;
use crate::cpu::Place;

/// What an operation does, whoever waits for it.
#[derive(Debug, Clone)]
pub(super) enum Body {
    Compute(Vec<Command>),
    /// A message's copies into the receiver's buffer.
    Send {
        message: MessageId,
        strips: Vec<Strip>,
    },
    Recv {
        message: MessageId,
    },
    /// Through NCCL: commands before, on the same lane, and this rank's end.
    Parcels {
        before: Vec<Command>,
        parcels: Vec<Parcel>,
    },
}

/// When an operation ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Timed {
    pub rank: Rank,
    pub op: OpId,
    pub start: Event,
    pub end: Event,
}

/// What one GPU is told in a run, after its start.
#[derive(Debug, Clone, Default)]
pub(super) struct Program {
    pub posts: Vec<Post>,
    pub timed: Vec<Timed>,
    /// Streams in use.
    pub streams: Vec<usize>,
}

impl Program {
    /// What the stream that has most of it is told, in calls of the driver.
    pub fn depth(&self) -> usize {
        let calls = |post: &Post| match post.command {
            // It clears the launch's counters first.
            Command::Launch(_) => 2,
            _ => 1,
        };
        let of_stream = |&stream: &usize| -> usize {
            self.posts.iter().filter(|post| post.stream == stream).map(calls).sum()
        };
        self.streams.iter().map(of_stream).max().unwrap_or(0)
    }

    fn push(&mut self, stream: usize, command: Command) {
        self.posts.push(Post { stream, command, timing: false });
    }

    fn extend(&mut self, stream: usize, commands: &[Command]) {
        let posts = commands.iter().map(|c| Post { stream, command: c.clone(), timing: false });
        self.posts.extend(posts);
    }

    fn record(&mut self, stream: usize, event: Event, timing: bool) {
        self.posts.push(Post { stream, command: Command::Record(event), timing });
    }
}

/// What the arrangement of one rank needs.
pub(super) struct Arranging<'a> {
    pub plan: &'a Plan,
    pub rank: Rank,
    pub gpu: &'a dyn Gpu,
    pub folds: &'a Folds,
    pub flags: &'a Flags,
    pub copies: Copies,
    /// By message: its copies.
    pub strips: &'a [Vec<Strip>],
    /// By message: its send and its receive.
    pub ends: &'a [[Option<(Rank, OpId)>; 2]],
}

/// Whether a receive need not tell the sender that its buffer is free: nothing before touches it, and nothing has to be
/// waited for.
fn is_free(plan: &Plan, rank: Rank, recv: OpId) -> bool {
    let ops = &plan.programs[rank as usize].ops;
    let Op { kind: OpKind::Recv { buffer, .. }, waits, .. } = ops[recv as usize] else { return false };
    let before = ops[..recv as usize].iter().any(|op| {
        let mut touched = false;
        op.kind.accesses(|b, _| touched |= b == buffer);
        touched
    });
    !before && waits.iter().all(|&w| w == NO_OP)
}

/// By message: its send and its receive.
pub(super) fn ends(plan: &Plan) -> Vec<[Option<(Rank, OpId)>; 2]> {
    let mut ends = vec![[None; 2]; plan.messages.len()];
    for (rank, program) in (0..).zip(&plan.programs) {
        for (i, op) in (0..).zip(&program.ops) {
            match op.kind {
                OpKind::Send { message, .. } => ends[message as usize][0] = Some((rank, i)),
                OpKind::Recv { message, .. } => ends[message as usize][1] = Some((rank, i)),
                _ => {}
            }
        }
    }
    ends
}

impl Arranging<'_> {
    /// The rank's program, of the bodies of its operations.
    pub fn arrange(&self, bodies: &[Body]) -> Result<Program, CudaError> {
        let ops = &self.plan.programs[self.rank as usize].ops;
        // The compute lane is there even where nothing is computed: it ends last.
        let mut program = Program { streams: vec![0], ..Program::default() };
        let mut done: Vec<Option<[Event; 2]>> = vec![None; ops.len()];
        for i in 0..ops.len() {
            if done[i].is_some() {
                continue;
            }
            let op = i as OpId;
            let stream = usize::from(ops[i].lane.0);
            if !program.streams.contains(&stream) {
                program.streams.push(stream);
            }
            if let Some(&leader) = self.folds.done_by.get(&op) {
                done[i] = done[leader as usize].map(|[_, end]| [end, end]);
            } else {
                let together = self.together(op);
                self.wait(&mut program, &together, &done)?;
                let events = [self.event()?, self.event()?];
                self.body(&mut program, bodies, &together, events);
                for &op in &together {
                    done[op as usize] = Some(events);
                }
            }
        }
        for stream in program.streams.clone().into_iter().filter(|&s| s != 0) {
            let end = self.event()?;
            program.push(stream, Command::Record(end));
            program.push(0, Command::Await(end));
        }
        for (op, events) in (0..).zip(done) {
            let Some([start, end]) = events else { continue };
            program.timed.push(Timed { rank: self.rank, op, start, end });
        }
        let waited = awaited(&program);
        for post in &mut program.posts {
            if let Command::Record(event) = post.command {
                post.timing = !waited.contains(&event);
            }
        }
        Ok(program)
    }

    fn event(&self) -> Result<Event, CudaError> {
        self.gpu.event().map_err(|source| CudaError::Gpu { rank: Some(self.rank), source })
    }

    /// The operations of `first`'s group, or it alone.
    fn together(&self, first: OpId) -> Vec<OpId> {
        let ops = &self.plan.programs[self.rank as usize].ops;
        let Some(head) = ops.get(first as usize).filter(|op| op.group != 0) else { return vec![first] };
        let later = (first..).zip(&ops[first as usize..]).filter(|(_, op)| op.lane == head.lane);
        later.take_while(|(_, op)| op.group == head.group).map(|(i, _)| i).collect()
    }

    /// Waits, on the lane of `together`, for what it needs of other lanes.
    fn wait(
        &self,
        program: &mut Program,
        together: &[OpId],
        done: &[Option<[Event; 2]>],
    ) -> Result<(), CudaError> {
        let own = &self.plan.programs[self.rank as usize];
        let lane = own.ops[together[0] as usize].lane;
        let mut awaited = Vec::new();
        for &op in together {
            for w in self.folds.waits(own, op) {
                let w = self.folds.done_by.get(&w).copied().unwrap_or(w);
                if together.contains(&w) || own.ops[w as usize].lane == lane || self.by_flag(op, w) {
                    continue;
                }
                let Some([_, end]) = done[w as usize] else {
                    return Err(CudaError::Deadlock { place: Place::new(self.plan, self.rank, w as usize) });
                };
                if !awaited.contains(&end) {
                    awaited.push(end);
                    program.push(usize::from(lane.0), Command::Await(end));
                }
            }
        }
        Ok(())
    }

    /// Whether the launch of `op` waits for the receive `w` on the device.
    fn by_flag(&self, op: OpId, w: OpId) -> bool {
        by_flag(self.plan, self.rank, self.folds, op, w)
    }

    fn body(&self, program: &mut Program, bodies: &[Body], together: &[OpId], [start, end]: [Event; 2]) {
        let stream = usize::from(self.plan.programs[self.rank as usize].ops[together[0] as usize].lane.0);
        match &bodies[together[0] as usize] {
            Body::Compute(commands) => {
                program.record(stream, start, true);
                program.extend(stream, commands);
            }
            Body::Send { message, .. } => self.send(program, stream, *message, start),
            Body::Recv { message } => self.recv(program, stream, (*message, together[0]), start),
            Body::Parcels { .. } => {
                let mut all = Vec::new();
                for &op in together {
                    if let Body::Parcels { before, parcels } = &bodies[op as usize] {
                        program.extend(stream, before);
                        all.extend(parcels.iter().copied());
                    }
                }
                program.record(stream, start, true);
                program.push(stream, Command::Exchange(all));
            }
        }
        program.record(stream, end, true);
    }

    fn send(&self, program: &mut Program, stream: usize, message: MessageId, start: Event) {
        let to = self.plan.message(message).to;
        let (free, sent) = (self.flags.free(self.rank, message), self.flags.sent(to, message));
        match self.copies {
            Copies::Push => {
                let [_, recv] = self.ends[message as usize];
                if recv.is_none_or(|(_, recv)| !is_free(self.plan, to, recv)) {
                    program.push(stream, Command::AwaitFlag(free));
                }
                program.record(stream, start, true);
                self.copy(program, stream, message);
                program.push(stream, Command::RaiseFlag(sent));
            }
            Copies::Pull => {
                program.record(stream, start, true);
                program.push(stream, Command::RaiseFlag(sent));
                program.push(stream, Command::AwaitFlag(free));
            }
        }
    }

    fn recv(&self, program: &mut Program, stream: usize, (message, op): (MessageId, OpId), start: Event) {
        let from = self.plan.message(message).from;
        let (free, sent) = (self.flags.free(from, message), self.flags.sent(self.rank, message));
        match self.copies {
            Copies::Push => {
                if !is_free(self.plan, self.rank, op) {
                    program.push(stream, Command::RaiseFlag(free));
                }
                program.record(stream, start, true);
                program.push(stream, Command::AwaitFlag(sent));
            }
            Copies::Pull => {
                program.push(stream, Command::AwaitFlag(sent));
                program.record(stream, start, true);
                self.copy(program, stream, message);
                program.push(stream, Command::RaiseFlag(free));
                program.push(stream, Command::RaiseFlag(self.flags.landed(self.rank, message)));
            }
        }
    }

    fn copy(&self, program: &mut Program, stream: usize, message: MessageId) {
        for &strip in &self.strips[message as usize] {
            program.push(stream, Command::Copy(strip));
        }
    }
}

/// Whether the launch of `op`, which does others along, waits for `w` on the device: a receive that only those need.
pub(super) fn by_flag(plan: &Plan, rank: Rank, folds: &Folds, op: OpId, w: OpId) -> bool {
    let ops = &plan.programs[rank as usize].ops;
    let own = ops[op as usize].waits.contains(&w);
    !own && folds.followers.contains_key(&op) && matches!(ops[w as usize].kind, OpKind::Recv { .. })
}

/// Events that something waits for.
fn awaited(program: &Program) -> Vec<Event> {
    let waits = program.posts.iter().filter_map(|post| match post.command {
        Command::Await(event) => Some(event),
        _ => None,
    });
    waits.collect()
}

/// The program of virtual ranks: one stream, the operations of all ranks one after the other, a message when its receive's
/// turn has come.
pub(super) fn one_by_one(order: &[Step], bodies: &[Vec<Body>], gpu: &dyn Gpu) -> Result<Program, CudaError> {
    let mut program = Program { streams: vec![0], ..Program::default() };
    for &step in order {
        let (start, end) = (gpu.event()?, gpu.event()?);
        program.record(0, start, true);
        match step {
            Step::Compute(rank, op) => {
                if let Body::Compute(commands) = &bodies[rank as usize][op as usize] {
                    program.extend(0, commands);
                }
                program.timed.push(Timed { rank, op, start, end });
            }
            Step::Transfer { send, recv, .. } => {
                if let Body::Send { strips, .. } = &bodies[send.0 as usize][send.1 as usize] {
                    for &strip in strips {
                        program.push(0, Command::Copy(strip));
                    }
                }
                program.timed.extend([send, recv].map(|(rank, op)| Timed { rank, op, start, end }));
            }
        }
        program.record(0, end, true);
    }
    Ok(program)
}
