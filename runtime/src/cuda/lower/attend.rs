//! Forward calls, alone or all those of a state in one launch.

use std::sync::Arc;

use ringlab_kernels::spec::{Carry, Finished, ForwardSpec, State, WorkOrder};
use ringlab_sim::plan::{Buf, MaskId, OpId, OpKind, Part, Tensor};

use super::keys::{Bounds, KeyRun};
use super::operand::View;
use super::slices::{Slice, slices};
use super::{Fail, Site, not_held};
use crate::cpu::Cause;
use crate::cuda::command::{Command, Kernel};
use crate::cuda::memory::Rows;
use crate::region::Region;

/// The running softmax of a region.
#[derive(Clone, Copy)]
pub(super) struct StateRows {
    sum: Rows,
    max: Rows,
    denominator: Rows,
}

impl StateRows {
    /// From a sequence and a head on.
    pub fn from(&self, batch: usize, head: usize) -> State {
        let at = |rows: &Rows| rows.row(batch, 0, head);
        State { o: self.sum.vectors(batch, 0, head), m: at(&self.max), l: at(&self.denominator) }
    }
}

/// A finished output: o and lse.
#[derive(Clone, Copy)]
pub(super) struct OutRows {
    o: Rows,
    lse: Rows,
}

impl OutRows {
    /// From a sequence and a head on.
    pub fn from(&self, batch: usize, head: usize) -> Finished {
        Finished { o: self.o.vectors(batch, 0, head), lse: self.lse.row(batch, 0, head) }
    }
}

/// All that the launches of a call share.
struct Launches<'l> {
    q: View,
    bounds: &'l Bounds,
    keys: &'l [KeyRun],
    state: Option<StateRows>,
    /// The call's first head in the state and the output.
    head: usize,
    output: Option<OutRows>,
    reads: bool,
    writes: bool,
    order: WorkOrder,
}

impl Site<'_> {
    pub(super) fn attend(&mut self, op: OpId) -> Result<Vec<Command>, Fail> {
        let OpKind::Attend { q, state, q_block, kv_block, init, .. } = self.kind(op) else {
            return Ok(Vec::new());
        };
        self.expect(state, Tensor::State)?;
        let (q_region, kv_region) = (Arc::clone(self.region(q_block)), Arc::clone(self.region(kv_block)));
        if init {
            // A state that nothing needs memory for has no rows to be too few.
            self.hold(state, &q_region)?;
        }
        let held = self.held(state)?;
        let head = held.locate(&q_region).ok_or(not_held(state))?.head;
        // The launch covers all queries of the state: m, l and lse have no stride to skip some by.
        let launch = Arc::new(Region { tokens: held.tokens.clone(), heads: q_region.heads });
        let (view, mut commands) = self.view(q, Part::Query, &launch)?;
        let (keys, bounds) = self.operands(op, &launch)?;
        let finish = self.folds.finish.get(&op).copied();
        let output = finish.map(|finish| self.output(finish, &held)).transpose()?;
        let last = self.folds.last.contains(&op);
        let fused = self.folds.followers.contains_key(&op);
        let launches = Launches {
            q: view,
            bounds: &bounds,
            keys: &keys,
            state: self.state_rows(state, &held).ok(),
            head,
            output,
            reads: !init,
            writes: !last,
            order: if fused { self.common.order } else { WorkOrder::QueryMajor },
        };
        let widths = [held.heads()];
        let group = self.common.plan.shape.group();
        let slices = slices(q_region.heads, kv_region.heads, group, self.batch(), &widths);
        for slice in slices.ok_or(not_held(q.first))? {
            commands.push(self.forward(&launches, slice)?);
        }
        Ok(commands)
    }

    /// Keys of a call and of those done along, and what each query attends.
    fn operands(&mut self, op: OpId, launch: &Region) -> Result<(Vec<KeyRun>, Bounds), Fail> {
        let OpKind::Attend { kv, q_block, kv_block, mask, .. } = self.kind(op) else {
            return Err(Cause::NotHeld { buffer: 0 }.into());
        };
        let Some(followers) = self.folds.followers.get(&op) else {
            let keys = self.key_runs(kv, (q_block, kv_block, mask), true)?;
            let bounds = self.bounds(launch, self.region(q_block), self.region(kv_block), mask)?;
            return Ok((keys, bounds));
        };
        // One interval a query for all keys: the mask's own.
        let before = (self.held.clone(), self.received.clone());
        let mut keys = self.key_runs(kv, (q_block, kv_block, MaskId::PROBLEM), true)?;
        let mut from = op + 1;
        for &follower in followers {
            for receive in from..follower {
                self.arrive(receive);
            }
            from = follower + 1;
            if let OpKind::Attend { kv, kv_block, .. } = self.kind(follower) {
                keys.extend(self.key_runs(kv, (q_block, kv_block, MaskId::PROBLEM), true)?);
            }
        }
        (self.held, self.received) = before;
        let positions =
            keys.iter().flat_map(|run| run.positions.iter().map(|&p| u64::from(p.cast_unsigned())));
        let mut tokens: Vec<u64> = positions.collect();
        tokens.sort_unstable();
        let all = Region { tokens, heads: launch.heads };
        let bounds = self.bounds(launch, launch, &all, MaskId::PROBLEM)?;
        Ok((keys, bounds))
    }

    /// A buffer's contents once a later receive has ended.
    fn arrive(&mut self, op: OpId) {
        if let OpKind::Recv { message, buffer } = self.kind(op) {
            let block = self.common.plan.message(message).block;
            let region = Arc::clone(self.region(block));
            self.held[usize::from(buffer.0)] = Some(region);
            self.received[usize::from(buffer.0)] = Some(op);
        }
    }

    fn output(&mut self, finish: OpId, held: &Arc<Region>) -> Result<OutRows, Fail> {
        let OpKind::Finish { out, .. } = self.kind(finish) else { return Err(not_held(Buf(0))) };
        self.expect(out, Tensor::Output)?;
        self.hold(out, held)?;
        Ok(OutRows { o: self.now(out, Part::Output)?, lse: self.now(out, Part::Lse)? })
    }

    pub(super) fn out_rows(&mut self, out: Buf, held: &Arc<Region>) -> Result<OutRows, Fail> {
        self.hold(out, held)?;
        Ok(OutRows { o: self.now(out, Part::Output)?, lse: self.now(out, Part::Lse)? })
    }

    pub(super) fn state_rows(&self, state: Buf, held: &Region) -> Result<StateRows, Fail> {
        let array = |part| self.array(state, part, held).ok_or(not_held(state));
        Ok(StateRows {
            sum: array(Part::Sum)?,
            max: array(Part::Max)?,
            denominator: array(Part::Denominator)?,
        })
    }

    fn forward(&self, launches: &Launches<'_>, slice: Slice) -> Result<Command, Fail> {
        let Slice { batch, batches, q_head, q_heads, kv_head, kv_heads } = slice;
        let head = launches.head + q_head;
        let carries = launches.reads || launches.writes || launches.order == WorkOrder::SegmentMajor;
        let state = launches.state.filter(|_| carries).map(|s| s.from(batch, head));
        let segments = launches.keys.iter().map(|run| run.segment((batch, kv_head), self.ready(run)));
        let q = &launches.q;
        let spec = ForwardSpec {
            dims: self.dims(q_heads, kv_heads, batches),
            scale: self.scale(),
            q: q.rows.vectors(batch, q.token, q.head + q_head),
            mask: ringlab_kernels::tiles::Intervals { lo: &launches.bounds.lo, hi: &launches.bounds.hi },
            segments: segments.collect(),
            order: launches.order,
            carry: Carry { read: launches.reads, write: launches.writes, state },
            output: launches.output.map(|out| out.from(batch, head)),
        };
        self.launch(&Kernel::Forward(spec))
    }

    pub(super) fn scale(&self) -> f32 {
        (self.common.plan.shape.head_dim as f32).sqrt().recip()
    }
}
