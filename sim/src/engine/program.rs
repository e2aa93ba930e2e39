//! A plan made ready to run: one flat task an operation, with what it costs and when the host has launched it.
//!
//! Ranks go through their programs at about the same pace, so the tasks lie in rows: the first operations of all ranks,
//! then the second ones, and so on. A run then walks through memory once, and so does the preparation, which takes a
//! few rows of all ranks at a time.
//!
//! Lanes are queues, so an operation has ended if and only if its lane's head is behind it. A wait is therefore a lane
//! and a position, and one that an earlier wait of the same lane implies is left out.

use super::SimError;
use crate::config::cluster::{Grid, Host};
use crate::cost::{Costs, Kernels};
use crate::plan::{BlockId, LANES, MaskId, NO_OP, Op, OpId, OpKind, Plan, Program, Rank, Transport};
use crate::timeline::Timeline;
use crate::units::SimTime;

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
        let mut loader = Loader { plan, costs, host, kernels: None, is_linked: false };
        let linked = linked(plan);
        let longest = self.rows.len();
        for from in (0..longest).step_by(BLOCK) {
            for (rank, program) in plan.programs.iter().enumerate() {
                let to = (from + BLOCK).min(program.ops.len());
                loader.is_linked = linked[rank];
                for op in from..to {
                    loader.load(self, rank as Rank, program, op as OpId)?;
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

/// Makes tasks of operations.
struct Loader<'a> {
    plan: &'a Plan,
    costs: &'a mut Costs,
    host: &'a Host,
    kernels: Option<Kernels>,
    /// Whether the rank in hand exchanges messages.
    is_linked: bool,
}

impl Loader<'_> {
    fn load(
        &mut self,
        tasks: &mut Tasks,
        rank: Rank,
        program: &Program,
        index: OpId,
    ) -> Result<(), SimError> {
        let op = &program.ops[index as usize];
        self.check(rank, program, index)?;
        let lane = usize::from(op.lane.0);
        let host = &mut tasks.hosts[rank as usize];
        let last_group = std::mem::replace(&mut host.groups[lane], op.group);
        let joined = op.group != 0 && op.group == last_group;
        host.clock += self.launch(&op.kind, joined);
        let launched = host.clock.0;
        tasks.link(rank, index, lane, joined);
        let (waits, wait_count) = tasks.reduce_waits(rank, op);
        let work = self.work(program, index)?;
        tasks.has_queues |= work.kind == TaskKind::Call(Grid::PersistentQueue);
        *tasks.get_mut(rank, index) = Task { launched, waits, wait_count, ..work };
        Ok(())
    }

    fn check(&self, rank: Rank, program: &Program, index: OpId) -> Result<(), SimError> {
        let op = &program.ops[index as usize];
        let exists = |&wait: &OpId| wait == NO_OP || (wait as usize) < program.ops.len();
        let carried = op.kind.message().is_none_or(|m| (m as usize) < self.plan.messages.len());
        let what = match () {
            () if usize::from(op.lane.0) >= LANES => "runs on a lane that does not exist",
            () if !op.waits.iter().all(exists) => "waits for an operation that does not exist",
            () if !carried => "carries a message that does not exist",
            () => return Ok(()),
        };
        Err(SimError::Malformed { rank, op: index, what })
    }

    /// What the host spends on launching an operation; one that has `joined` a group is launched with it.
    fn launch(&self, kind: &OpKind, joined: bool) -> SimTime {
        match (kind, self.plan.transport) {
            (OpKind::Finish { .. } | OpKind::Project(_), _)
            | (OpKind::Recv { .. }, Transport::CopyEngine) => SimTime::ZERO,
            (OpKind::Send { .. }, Transport::CopyEngine) => self.host.copy_launch,
            (OpKind::Send { .. } | OpKind::Recv { .. }, Transport::Nccl) if joined => SimTime::ZERO,
            (OpKind::Send { .. } | OpKind::Recv { .. }, Transport::Nccl) => self.host.nccl_launch,
            _ => self.host.kernel_launch,
        }
    }

    /// The duration, or the message, and what a clock makes of it; nothing of when it may begin.
    fn work(&mut self, program: &Program, index: OpId) -> Result<Task, SimError> {
        let kind = &program.ops[index as usize].kind;
        let task = |kind, work: SimTime| Task { kind, work: work.0, boost: f64::INFINITY, ..BLANK };
        Ok(match *kind {
            OpKind::Send { message, .. } | OpKind::Recv { message, .. } => {
                task(TaskKind::Transfer, SimTime(u64::from(message)))
            }
            OpKind::Attend { q_block, kv_block, mask, .. }
            | OpKind::AttendBackward { q_block, kv_block, mask, .. } => {
                self.attention(program, index, (q_block, kv_block, mask))?
            }
            OpKind::Scores(scores) => {
                let is_product = scores.product().is_some();
                let product = if is_product { TaskKind::Call(Grid::PerItem) } else { TaskKind::Memory };
                let activity = f32::from(u8::from(is_product));
                let time = self.costs.scores_time(self.plan, program, &scores);
                Task { activity, ..task(product, time) }
            }
            // The last attention call or merge does it on its way out.
            OpKind::Finish { .. } | OpKind::Project(_) => task(TaskKind::Memory, SimTime::ZERO),
            _ => task(TaskKind::Memory, self.costs.memory_time(self.plan, program, kind)),
        })
    }

    fn attention(
        &mut self,
        program: &Program,
        index: OpId,
        blocks: (BlockId, BlockId, MaskId),
    ) -> Result<Task, SimError> {
        let kernels = match self.kernels {
            Some(kernels) => kernels,
            None => *self.kernels.insert(self.costs.kernels(self.plan)?),
        };
        let kernel = self.costs.choose(self.plan, &kernels, blocks);
        let carries = if kernel.has_carry() { carries(program, index) } else { 0 };
        let writes =
            matches!(program.ops[index as usize].kind, OpKind::AttendBackward { init_dkv: true, .. });
        let call = self.costs.call(self.plan, &kernel, blocks, (carries, writes));
        let sms = self.costs.sms();
        let grid = match kernel.grid() {
            // A grid of fewer thread blocks than there are SMs leaves some free.
            Grid::PersistentQueue if call.items < u64::from(sms) => Grid::PerItem,
            grid => grid,
        };
        let (kind, boost) = (TaskKind::Call(grid), kernel.boost());
        let (mut work, mut activity) = (call.time(sms).0, call.activity(sms));
        if self.is_linked && kernel.linked() > 1.0 && work != SimTime::NEVER.0 {
            work = (work as f64 * kernel.linked()).round() as u64;
            activity /= kernel.linked();
        }
        Ok(Task { kind, work, boost, activity: activity as f32, ..BLANK })
    }
}

/// Of each rank, whether it sends or receives anything.
fn linked(plan: &Plan) -> Vec<bool> {
    let mut linked = vec![false; plan.programs.len()];
    for message in plan.messages.iter().filter(|m| m.from != m.to) {
        for rank in [message.from, message.to] {
            if let Some(linked) = linked.get_mut(rank as usize) {
                *linked = true;
            }
        }
    }
    linked
}

/// How often a forward call moves a carried state: once if it takes one up, and once if it leaves one, which it does not
/// where its state is finished next.
fn carries(program: &Program, index: OpId) -> u32 {
    let OpKind::Attend { state, init, .. } = program.ops[index as usize].kind else { return 0 };
    let touches = |kind: &OpKind| {
        let mut found = false;
        kind.accesses(|buffer, _| found |= buffer == state);
        found
    };
    let next = program.ops[index as usize + 1..].iter().find(|op| touches(&op.kind));
    let leaves = next.is_some_and(|op| !matches!(op.kind, OpKind::Finish { .. }));
    u32::from(!init) + u32::from(leaves)
}
