//! A plan made ready to run: one flat task an operation, with what it costs and when the host has launched it.
//!
//! Ranks go through their programs at about the same pace, so the tasks lie in rows: the first operations of all ranks,
//! then the second ones, and so on. A run then walks through memory once, and so does the preparation, which takes a
//! few rows of all ranks at a time.
//!
//! Lanes are queues, so an operation has ended if and only if its lane's head is behind it. A wait is therefore a lane
//! and a position, and one that an earlier wait of the same lane implies is left out.

mod loader;

use super::SimError;
use crate::config::cluster::{Grid, Host};
use crate::cost::Costs;
use crate::plan::{LANES, NO_OP, Op, OpId, Plan, Rank};
use crate::timeline::Timeline;
use crate::units::SimTime;
use loader::Loader;

/// Distance between the first lanes of two ranks: a power of two.
pub(super) const STRIDE: usize = 8;
const LANE_BITS: u32 = 3;
/// Behind the last operation of a lane; one more than a wait can name.
pub(super) const END: OpId = (1 << (32 - LANE_BITS)) - 1;
/// Rows that are prepared together: enough to read a program in pieces, few enough to stay in a first-level cache.
const BLOCK: usize = 64;

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskKind {
    /// A kernel that only streams memory, or nothing.
    Memory,
    /// An attention call or a matrix product: it needs the SMs.
    Call(Grid),
    Transfer,
}

/// That the head of a lane of the same rank must be at an operation or behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait(u32);

impl Wait {
    fn new(lane: usize, head: OpId) -> Self {
        Self(head << LANE_BITS | lane as u32)
    }

    /// Which lane of the rank.
    pub fn lane(self) -> usize {
        (self.0 & ((1 << LANE_BITS) - 1)) as usize
    }

    /// Where its head must be, or behind.
    pub fn head(self) -> OpId {
        self.0 >> LANE_BITS
    }
}

/// Waits that a task holds itself.
const INLINE: usize = 2;

/// One operation, ready to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    /// When its launch has ended.
    pub launched: u64,
    /// The duration in picoseconds, or the message.
    pub work: u64,
    /// The next operation of its lane, or [`END`].
    pub next: OpId,
    /// The waits, or, if they are more than fit, where they begin among the others.
    waits: [Wait; INLINE],
    wait_count: u8,
    pub kind: TaskKind,
    /// The most by which a faster clock speeds it up: not at all where it only streams memory.
    boost: f64,
    /// Share of its SMs' time in which it multiplies matrices.
    activity: f32,
    /// Whether the next task of the lane is posted together with this one.
    pub joined: bool,
}

const BLANK: Task = Task {
    launched: 0,
    work: 0,
    next: END,
    waits: [Wait(0); INLINE],
    wait_count: 0,
    kind: TaskKind::Memory,
    boost: 1.0,
    activity: 0.0,
    joined: false,
};

/// All tasks of a plan.
#[derive(Debug, Clone, Default)]
pub(super) struct Tasks {
    all: Vec<Task>,
    /// Waits of tasks that have many.
    waits: Vec<Wait>,
    /// The first operation of each lane, [`STRIDE`] lanes a rank.
    lanes: Vec<OpId>,
    /// Where each row begins.
    rows: Vec<u32>,
    /// The place of each rank in a row: the longest programs come first, so that no row has gaps.
    columns: Vec<u32>,
    hosts: Vec<Loading>,
    has_queues: bool,
}

/// How far a rank's program was prepared.
#[derive(Debug, Clone, Copy)]
struct Loading {
    /// When the host has launched everything so far.
    clock: SimTime,
    /// Of each lane, the last operation, its group, and which heads of other lanes it has waited for.
    last: [OpId; LANES],
    groups: [u32; LANES],
    implied: [[OpId; LANES]; LANES],
}

const UNTOUCHED: Loading =
    Loading { clock: SimTime::ZERO, last: [NO_OP; LANES], groups: [0; LANES], implied: [[0; LANES]; LANES] };

impl Tasks {
    /// The task of an operation.
    pub fn get(&self, rank: Rank, op: OpId) -> &Task {
        &self.all[(self.rows[op as usize] + self.columns[rank as usize]) as usize]
    }

    /// The waits of a task.
    pub fn waits<'a>(&'a self, task: &'a Task) -> &'a [Wait] {
        let count = usize::from(task.wait_count);
        if count <= INLINE {
            return &task.waits[..count];
        }
        let from = task.waits[0].0 as usize;
        &self.waits[from..from + count]
    }

    /// Whether any attention call is a persistent grid with a queue.
    pub fn have_queues(&self) -> bool {
        self.has_queues
    }

    /// The first operation of every lane, [`STRIDE`] lanes a rank; [`END`] for an empty one.
    pub fn lanes(&self) -> &[OpId] {
        &self.lanes
    }

    /// Replaces the tasks with those of `plan`.
    ///
    /// # Errors
    /// A kernel that the cluster lacks, or a plan that contradicts itself.
    pub fn load(&mut self, plan: &Plan, costs: &mut Costs, host: &Host) -> Result<(), SimError> {
        self.lay_out(plan)?;
        self.has_queues = false;
        let mut loader = Loader::new(plan, costs, host);
        let longest = self.rows.len();
        for from in (0..longest).step_by(BLOCK) {
            for (rank, program) in plan.programs.iter().enumerate() {
                let to = (from + BLOCK).min(program.ops.len());
                for op in from..to {
                    loader.load(self, rank as Rank, op as OpId)?;
                }
            }
        }
        Ok(())
    }

    /// Lets computations take as long as they took in `measured`; those that it does not have stay as they are.
    pub fn replace(&mut self, measured: &Timeline) {
        for span in &measured.spans {
            let known = self.columns.len() > span.rank as usize && self.rows.len() > span.op as usize;
            if known && !span.kind.is_transfer() {
                self.get_mut(span.rank, span.op).work = span.duration().0;
            }
        }
    }

    /// Lets every computation take `factor` times as long, which is told the most by which a clock speeds it up; `None` for
    /// what a clock does not change.
    pub fn stretch(&mut self, plan: &Plan, factor: impl Fn(Rank, OpId, Option<f64>) -> f64) {
        for (rank, program) in plan.programs.iter().enumerate() {
            for op in 0..program.ops.len() as OpId {
                let task = self.get_mut(rank as Rank, op);
                if task.kind != TaskKind::Transfer && task.work != SimTime::NEVER.0 {
                    let clock = matches!(task.kind, TaskKind::Call(_)).then_some(task.boost);
                    task.work = (task.work as f64 * factor(rank as Rank, op, clock)).round() as u64;
                }
            }
        }
    }

    /// Picoseconds in which a rank of `plan` multiplies matrices on all its SMs.
    pub fn multiplying(&self, plan: &Plan, rank: Rank) -> f64 {
        let count = plan.programs[rank as usize].ops.len() as OpId;
        let tasks = (0..count).map(|op| self.get(rank, op));
        tasks
            .map(|task| if task.activity > 0.0 { task.work as f64 * f64::from(task.activity) } else { 0.0 })
            .sum()
    }

    /// Makes room: rows of the programs that are that long.
    fn lay_out(&mut self, plan: &Plan) -> Result<(), SimError> {
        let (operations, limit) = (plan.op_count(), END as usize);
        if operations >= limit {
            return Err(SimError::TooLarge { operations, limit });
        }
        let len = |rank: u32| plan.programs[rank as usize].ops.len();
        let mut by_length: Vec<Rank> = (0..plan.ranks()).collect();
        by_length.sort_by_key(|&rank| std::cmp::Reverse(len(rank)));
        self.columns.clear();
        self.columns.resize(by_length.len(), 0);
        for (column, &rank) in by_length.iter().enumerate() {
            self.columns[rank as usize] = column as u32;
        }
        self.rows.clear();
        let (mut start, mut width) = (0, by_length.len());
        for row in 0..by_length.first().map_or(0, |&rank| len(rank)) {
            while len(by_length[width - 1]) <= row {
                width -= 1;
            }
            self.rows.push(start);
            start += width as u32;
        }
        // Every task is written when its operation is loaded.
        self.all.resize(operations, BLANK);
        self.waits.clear();
        self.lanes.clear();
        self.lanes.resize(by_length.len() * STRIDE, END);
        self.hosts.clear();
        self.hosts.resize(by_length.len(), UNTOUCHED);
        Ok(())
    }

    fn get_mut(&mut self, rank: Rank, op: OpId) -> &mut Task {
        &mut self.all[(self.rows[op as usize] + self.columns[rank as usize]) as usize]
    }

    /// Appends `op` to its lane.
    fn link(&mut self, rank: Rank, op: OpId, lane: usize, joined: bool) {
        let last = std::mem::replace(&mut self.hosts[rank as usize].last[lane], op);
        if last == NO_OP {
            self.lanes[rank as usize * STRIDE + lane] = op;
        } else {
            let last = self.get_mut(rank, last);
            (last.next, last.joined) = (op, joined);
        }
    }

    /// The waits of `op`, without those that earlier operations of its lane had already.
    fn reduce_waits(&mut self, rank: Rank, op: &Op) -> ([Wait; INLINE], u8) {
        let implied = &mut self.hosts[rank as usize].implied[usize::from(op.lane.0)];
        let mut waits = [Wait(0); LANES];
        let mut count = 0;
        for (lane, &awaited) in op.waits.iter().enumerate() {
            if awaited != NO_OP && awaited >= implied[lane] {
                implied[lane] = awaited + 1;
                waits[count] = Wait::new(lane, awaited + 1);
                count += 1;
            }
        }
        let mut inline = [waits[0], waits[1]];
        if count > INLINE {
            inline[0] = Wait(self.waits.len() as u32);
            self.waits.extend_from_slice(&waits[..count]);
        }
        (inline, count as u8)
    }
}
