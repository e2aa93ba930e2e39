//! A plan made ready to run: flat tasks in the order of their lanes, with what they cost and when the host has launched
//! them.
//!
//! Lanes are queues, so an operation has ended if and only if its lane's head is behind it. A wait is therefore a lane
//! and a position, and one that an earlier wait of the same lane implies is left out.

use super::SimError;
use crate::config::cluster::Host;
use crate::cost::{Costs, Kernel};
use crate::plan::{LANES, NO_OP, Op, OpKind, Plan, Program, Transport};
use crate::units::SimTime;

/// Distance between the first lanes of two ranks: a power of two.
pub(super) const STRIDE: usize = 8;
const LANE_BITS: u32 = 3;
/// Tasks that a wait can name.
const MOST_TASKS: usize = 1 << (32 - LANE_BITS);

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskKind {
    Compute,
    Transfer,
}

/// One operation, ready to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    /// When its launch has ended.
    pub launched: u64,
    /// The duration in picoseconds, or the message.
    pub work: u64,
    wait_from: u32,
    /// Index in the rank's program.
    pub op: u32,
    wait_count: u8,
    pub kind: TaskKind,
    /// Whether the next task of the lane is posted together with this one.
    pub joined: bool,
}

const BLANK: Task =
    Task { launched: 0, work: 0, wait_from: 0, op: 0, wait_count: 0, kind: TaskKind::Compute, joined: false };

/// That the head of a lane of the same rank must have got to a task.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait(u32);

impl Wait {
    fn new(lane: usize, task: u32) -> Self {
        Self(task << LANE_BITS | lane as u32)
    }

    /// Which lane of the rank.
    pub fn lane(self) -> usize {
        (self.0 & ((1 << LANE_BITS) - 1)) as usize
    }

    /// Where its head must be, or behind.
    pub fn head(self) -> u32 {
        self.0 >> LANE_BITS
    }
}

/// All tasks of a plan.
#[derive(Debug, Clone, Default)]
pub(super) struct Tasks {
    all: Vec<Task>,
    waits: Vec<Wait>,
    /// For each lane, [`STRIDE`] lanes a rank, its tasks `[from, to)`.
    lanes: Vec<(u32, u32)>,
    /// For each operation of the rank in hand, its task.
    places: Vec<u32>,
}

impl Tasks {
    /// The tasks by index.
    pub fn get(&self, task: u32) -> &Task {
        &self.all[task as usize]
    }

    /// The waits of a task.
    pub fn waits(&self, task: &Task) -> &[Wait] {
        &self.waits[task.wait_from as usize..task.wait_from as usize + usize::from(task.wait_count)]
    }

    /// Tasks `[from, to)` of every lane, [`STRIDE`] lanes a rank.
    pub fn lanes(&self) -> &[(u32, u32)] {
        &self.lanes
    }

    /// Replaces the tasks with those of `plan`.
    ///
    /// # Errors
    /// A kernel that the cluster lacks, or a plan that contradicts itself.
    pub fn load(&mut self, plan: &Plan, costs: &mut Costs, host: &Host) -> Result<(), SimError> {
        self.all.clear();
        self.waits.clear();
        self.lanes.clear();
        if plan.op_count() >= MOST_TASKS {
            return Err(SimError::TooLarge { operations: plan.op_count(), limit: MOST_TASKS });
        }
        let mut prices = Prices { plan, costs, kernel: None };
        for (rank, program) in plan.programs.iter().enumerate() {
            self.place(rank as u32, program)?;
            self.fill(rank as u32, program, &mut prices, host)?;
        }
        Ok(())
    }

    /// Gives every operation of a rank its place: lane by lane, in program order.
    fn place(&mut self, rank: u32, program: &Program) -> Result<(), SimError> {
        let mut next = [0_u32; LANES];
        self.places.clear();
        for (op, Op { lane, .. }) in program.ops.iter().enumerate() {
            let Some(count) = next.get_mut(usize::from(lane.0)) else {
                return Err(SimError::Malformed {
                    rank,
                    op: op as u32,
                    what: "runs on a lane that does not exist",
                });
            };
            self.places.push(*count);
            *count += 1;
        }
        let mut from = self.all.len() as u32;
        let mut starts = [0; STRIDE];
        for (lane, start) in starts.iter_mut().enumerate() {
            let count = next.get(lane).copied().unwrap_or(0);
            *start = from;
            self.lanes.push((from, from + count));
            from += count;
        }
        for (place, op) in self.places.iter_mut().zip(&program.ops) {
            *place += starts[usize::from(op.lane.0)];
        }
        self.all.resize(from as usize, BLANK);
        Ok(())
    }

    fn fill(
        &mut self,
        rank: u32,
        program: &Program,
        prices: &mut Prices,
        host: &Host,
    ) -> Result<(), SimError> {
        let mut launches = Launches::new(host, prices.plan.transport);
        let mut implied = [[0_u32; LANES]; LANES];
        for (i, op) in program.ops.iter().enumerate() {
            let malformed = |what| SimError::Malformed { rank, op: i as u32, what };
            let joins = launches.launch(op);
            let (place, lane) = (self.places[i], usize::from(op.lane.0));
            if joins {
                // Groups are neighbours on their lane.
                self.all[place as usize - 1].joined = true;
            }
            let wait_from = self.waits.len() as u32;
            for (other, &awaited) in op.waits.iter().enumerate().filter(|(_, w)| **w != NO_OP) {
                let awaited =
                    *self.places.get(awaited as usize).ok_or_else(|| malformed("waits for no operation"))?;
                if awaited >= implied[lane][other] {
                    implied[lane][other] = awaited + 1;
                    self.waits.push(Wait::new(other, awaited + 1));
                }
            }
            let (kind, work) = prices.work(program, &op.kind)?;
            if kind == TaskKind::Transfer && work >= prices.plan.messages.len() as u64 {
                return Err(malformed("carries a message that does not exist"));
            }
            self.all[place as usize] = Task {
                launched: launches.clock.0,
                work,
                wait_from,
                op: i as u32,
                wait_count: (self.waits.len() as u32 - wait_from) as u8,
                kind,
                joined: false,
            };
        }
        Ok(())
    }
}

/// Durations of a plan's operations.
struct Prices<'a> {
    plan: &'a Plan,
    costs: &'a mut Costs,
    kernel: Option<Kernel>,
}

impl Prices<'_> {
    /// The duration, or the message.
    fn work(&mut self, program: &Program, kind: &OpKind) -> Result<(TaskKind, u64), SimError> {
        let duration = match *kind {
            OpKind::Send { message, .. } | OpKind::Recv { message, .. } => {
                return Ok((TaskKind::Transfer, u64::from(message)));
            }
            OpKind::Attend { q_block, kv_block, mask, .. }
            | OpKind::AttendBackward { q_block, kv_block, mask, .. } => {
                let kernel = match self.kernel {
                    Some(kernel) => kernel,
                    None => *self.kernel.insert(self.costs.kernel(self.plan)?),
                };
                self.costs.call(self.plan, &kernel, q_block, kv_block, mask).time(self.costs.sms())
            }
            // The last attention call or merge does it on its way out.
            OpKind::Finish { .. } => SimTime::ZERO,
            _ => self.costs.memory_time(self.plan, program, kind),
        };
        Ok((TaskKind::Compute, duration.0))
    }
}

/// The host of one rank, launching in program order.
struct Launches<'a> {
    host: &'a Host,
    transport: Transport,
    clock: SimTime,
    groups: [u32; LANES],
}

impl<'a> Launches<'a> {
    fn new(host: &'a Host, transport: Transport) -> Self {
        Self { host, transport, clock: SimTime::ZERO, groups: [0; LANES] }
    }

    /// Launches `op`; whether it joins the group of the operation before it on its lane.
    fn launch(&mut self, op: &Op) -> bool {
        let last_group = std::mem::replace(&mut self.groups[usize::from(op.lane.0)], op.group);
        let joins = op.group != 0 && op.group == last_group;
        let cost = match (op.kind, self.transport) {
            (OpKind::Finish { .. }, _) | (OpKind::Recv { .. }, Transport::CopyEngine) => SimTime::ZERO,
            (OpKind::Send { .. }, Transport::CopyEngine) => self.host.copy_launch,
            (OpKind::Send { .. } | OpKind::Recv { .. }, Transport::Nccl) if joins => SimTime::ZERO,
            (OpKind::Send { .. } | OpKind::Recv { .. }, Transport::Nccl) => self.host.nccl_launch,
            _ => self.host.kernel_launch,
        };
        self.clock += cost;
        joins
    }
}
