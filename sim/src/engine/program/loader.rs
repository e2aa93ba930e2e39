//! Tasks of operations: what each costs, and when its host has launched it.

use super::{BLANK, SimError, Task, TaskKind, Tasks};
use crate::config::cluster::{Grid, Host};
use crate::cost::{Costs, Kernels};
use crate::plan::{BlockId, LANES, MaskId, NO_OP, OpId, OpKind, Plan, Program, Rank, Transport};
use crate::units::SimTime;

/// Makes tasks of operations.
pub(super) struct Loader<'a> {
    plan: &'a Plan,
    costs: &'a mut Costs,
    host: &'a Host,
    kernels: Option<Kernels>,
    /// Of each rank, whether it exchanges messages; looked up where a kernel asks for it.
    linked: Option<Vec<bool>>,
}

impl<'a> Loader<'a> {
    pub fn new(plan: &'a Plan, costs: &'a mut Costs, host: &'a Host) -> Self {
        Self { plan, costs, host, kernels: None, linked: None }
    }

    /// Appends an operation of a rank to `tasks`, behind those before it.
    pub fn load(&mut self, tasks: &mut Tasks, rank: Rank, index: OpId) -> Result<(), SimError> {
        let program = &self.plan.programs[rank as usize];
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
        let work = self.work(rank, program, index)?;
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
    fn work(&mut self, rank: Rank, program: &Program, index: OpId) -> Result<Task, SimError> {
        let kind = &program.ops[index as usize].kind;
        let task = |kind, work: SimTime| Task { kind, work: work.0, boost: f64::INFINITY, ..BLANK };
        Ok(match *kind {
            OpKind::Send { message, .. } | OpKind::Recv { message, .. } => {
                task(TaskKind::Transfer, SimTime(u64::from(message)))
            }
            OpKind::Attend { q_block, kv_block, mask, .. }
            | OpKind::AttendBackward { q_block, kv_block, mask, .. } => {
                self.attention((rank, program), index, (q_block, kv_block, mask))?
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
        (rank, program): (Rank, &Program),
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
        if kernel.linked() > 1.0 && self.is_linked(rank) && work != SimTime::NEVER.0 {
            work = (work as f64 * kernel.linked()).round() as u64;
            activity /= kernel.linked();
        }
        Ok(Task { kind, work, boost, activity: activity as f32, ..BLANK })
    }

    fn is_linked(&mut self, rank: Rank) -> bool {
        self.linked.get_or_insert_with(|| linked(self.plan))[rank as usize]
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
