//! From operations to commands. A [`Site`] is one rank: it knows what its buffers hold after the operations so far, turns
//! an operation into launches and copies, and prepares their kernels. Who waits for whom is added by [`super::lanes`].

mod attend;
mod backward;
mod keys;
mod operand;
mod project;
mod slices;
mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;

use ringlab_kernels::gpu::GpuError;
use ringlab_kernels::spec::{Dims, Dtype, HeadDim, WorkOrder};
use ringlab_sim::plan::{Buf, Bufs, MessageId, OpId, OpKind, Part, Plan, Rank, Slots, Tensor, part_of};

use super::command::{Address, Command, Kernel, Parcel, Strip};
use super::device::Gpu;
use super::error::CudaError;
use super::folds::Folds;
use super::memory::{Memory, Piece, Rows, pieces, strips};
use crate::cpu::{Cause, Place};
use crate::region::Region;
use operand::Packed;

/// What is common to all ranks.
pub(super) struct Common<'a> {
    pub plan: &'a Plan,
    pub regions: &'a [Arc<Region>],
    pub dtype: Dtype,
    pub head_dim: HeadDim,
    /// Whether the backward adds to dq in a fixed order.
    pub deterministic: bool,
    /// The order of fused launches.
    pub order: WorkOrder,
}

/// One rank.
pub(super) struct Site<'a> {
    pub common: &'a Common<'a>,
    pub rank: Rank,
    pub gpu: &'a dyn Gpu,
    pub memory: &'a Memory,
    pub folds: &'a Folds,
    /// Flag that says when the block a buffer waits for has arrived, by the receive.
    pub arrived: BTreeMap<OpId, Address>,
    /// Longest time that a kernel waits for one.
    pub ready_limit: std::time::Duration,
    held: Vec<Option<Arc<Region>>>,
    packed: Packed,
    /// The receive that filled each buffer last.
    received: Vec<Option<OpId>>,
}

/// Why an operation cannot be lowered.
#[derive(Debug)]
pub(super) enum Fail {
    Cause(Cause),
    Unsupported(&'static str),
    Gpu(GpuError),
}

impl From<GpuError> for Fail {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error)
    }
}

impl From<Cause> for Fail {
    fn from(cause: Cause) -> Self {
        Self::Cause(cause)
    }
}

pub(super) fn not_held(buf: Buf) -> Fail {
    Fail::Cause(Cause::NotHeld { buffer: buf.0 })
}

impl<'a> Site<'a> {
    pub fn new(
        common: &'a Common<'a>,
        rank: Rank,
        gpu: &'a dyn Gpu,
        memory: &'a Memory,
        folds: &'a Folds,
    ) -> Self {
        let buffers = &common.plan.programs[rank as usize].buffers;
        let held =
            buffers.iter().map(|b| b.role.initial().map(|block| Arc::clone(&common.regions[block as usize])));
        Self {
            common,
            rank,
            gpu,
            memory,
            folds,
            arrived: BTreeMap::new(),
            ready_limit: std::time::Duration::from_secs(60),
            held: held.collect(),
            packed: Packed::default(),
            received: vec![None; buffers.len()],
        }
    }

    /// Bytes that packing took beyond the plan's buffers.
    pub fn packed_bytes(&self) -> usize {
        self.packed.bytes
    }

    /// What a buffer holds in the end.
    pub fn into_held(self) -> Vec<Option<Arc<Region>>> {
        self.held
    }

    fn region(&self, block: u32) -> &'a Arc<Region> {
        &self.common.regions[block as usize]
    }

    fn kind(&self, op: OpId) -> OpKind {
        self.common.plan.programs[self.rank as usize].ops[op as usize].kind
    }

    /// The commands of an operation that is no message; none if another one does it along.
    pub fn compute(&mut self, op: OpId) -> Result<Vec<Command>, CudaError> {
        if self.folds.done_by.contains_key(&op) {
            return Ok(Vec::new());
        }
        let result = match self.kind(op) {
            OpKind::Attend { .. } => self.attend(op),
            OpKind::AttendBackward { .. } => self.attend_backward(op),
            OpKind::Preprocess { q, delta, block } => self.preprocess(q, delta, block),
            OpKind::Merge { from, into } => self.merge(from, into),
            OpKind::Accumulate { from, into } => self.accumulate(from, into),
            OpKind::Finish { state, out } => self.finish(state, out),
            OpKind::Project(projection) => self.project(&projection),
            OpKind::Scores(_) => Err(Fail::Unsupported("score rows in memory are for the CPU")),
            OpKind::Send { .. } | OpKind::Recv { .. } => Ok(Vec::new()),
        };
        result.map_err(|fail| self.error(op, fail))
    }

    /// The buffer of a receive holds its message from now on.
    pub fn receive(&mut self, op: OpId, message: MessageId, buf: Buf) -> Result<(), CudaError> {
        let block = self.common.plan.message(message).block;
        let region = Arc::clone(self.region(block));
        self.hold(buf, &region).map_err(|fail| self.error(op, fail))?;
        self.received[usize::from(buf.0)] = Some(op);
        Ok(())
    }

    /// The copies of a message's block to `into`, arrays of its tensor on another rank; the bytes that the plan counts.
    pub fn send(
        &self,
        op: OpId,
        (message, bufs): (MessageId, Bufs),
        into: impl Fn(Part) -> Option<Rows>,
    ) -> Result<(Vec<Strip>, usize), CudaError> {
        let m = self.common.plan.message(message);
        let region = self.region(m.block);
        let (mut all, mut counted) = (Vec::new(), 0);
        for &part in m.tensor.parts() {
            let found = self.find(bufs, part, region);
            let (Some(pieces), Some(to)) = (found, into(part)) else {
                return Err(self.error(op, not_held(bufs.first)));
            };
            let copies: Vec<Strip> =
                pieces.iter().flat_map(|p| strips(p, (&to, 0), region.heads())).collect();
            if !super::memory::is_carried(part, &self.common.plan.shape) {
                counted += copies.iter().map(Strip::bytes).sum::<usize>();
            }
            all.extend(copies);
        }
        Ok((all, counted))
    }

    /// A message's block as parcels to its receiver, an array each, with the copies that gather it.
    pub fn send_parcels(
        &mut self,
        op: OpId,
        (message, bufs): (MessageId, Bufs),
    ) -> Result<(Vec<Command>, Vec<Parcel>), CudaError> {
        let m = *self.common.plan.message(message);
        let region = Arc::clone(self.region(m.block));
        let (mut before, mut parcels) = (Vec::new(), Vec::new());
        for &part in m.tensor.parts() {
            let (at, bytes, copies) =
                self.gathered(bufs, part, &region).map_err(|fail| self.error(op, fail))?;
            before.extend(copies);
            parcels.push(Parcel { peer: m.to, sends: true, at, bytes });
        }
        Ok((before, parcels))
    }

    /// The parcels that a receive takes.
    pub fn receive_parcels(&self, op: OpId, message: MessageId, buf: Buf) -> Result<Vec<Parcel>, CudaError> {
        let m = self.common.plan.message(message);
        let parcel = |&part: &Part| {
            let rows = self.now(buf, part).map_err(|fail| self.error(op, fail))?;
            Ok(Parcel { peer: m.from, sends: false, at: rows.at, bytes: rows.bytes() })
        };
        m.tensor.parts().iter().map(parcel).collect()
    }

    /// An array of a buffer as it lies once the buffer holds `region`.
    pub fn array(&self, buf: Buf, part: Part, region: &Region) -> Option<Rows> {
        self.memory.slot(buf)?.part(part, region, &self.common.plan.shape)
    }

    fn error(&self, op: OpId, fail: Fail) -> CudaError {
        let place = Place::new(self.common.plan, self.rank, op as usize);
        match fail {
            Fail::Cause(cause) => CudaError::Plan { place, cause },
            Fail::Unsupported(reason) => CudaError::Unsupported { place, reason },
            Fail::Gpu(source) => CudaError::Gpu { rank: Some(self.rank), source },
        }
    }

    /// Declares that a buffer holds `region` from now on.
    fn hold(&mut self, buf: Buf, region: &Arc<Region>) -> Result<(), Fail> {
        let rows = self.memory.slot(buf).map_or(usize::MAX, |slot| slot.rows);
        if region.tokens.len() * region.heads() > rows {
            return Err(Cause::TooSmall { buffer: buf.0 }.into());
        }
        self.held[usize::from(buf.0)] = Some(Arc::clone(region));
        self.changed(buf);
        Ok(())
    }

    /// A buffer has other contents from now on.
    fn changed(&mut self, buf: Buf) {
        self.received[usize::from(buf.0)] = None;
        self.packed.forget(buf);
    }

    fn held(&self, buf: Buf) -> Result<Arc<Region>, Fail> {
        self.held.get(usize::from(buf.0)).and_then(Clone::clone).ok_or(not_held(buf))
    }

    /// An array of a buffer as it is now.
    fn now(&self, buf: Buf, part: Part) -> Result<Rows, Fail> {
        let region = self.held(buf)?;
        self.array(buf, part, &region).ok_or(not_held(buf))
    }

    /// Where the rows of `region` lie in those of the buffers that have this array.
    fn find(&self, bufs: Bufs, part: Part, region: &Region) -> Option<Vec<Piece>> {
        let held: Vec<(Buf, Rows, Arc<Region>)> = bufs
            .iter()
            .filter_map(|buf| {
                let region = self.held[usize::from(buf.0)].clone()?;
                Some((buf, self.array(buf, part, &region)?, region))
            })
            .collect();
        let held: Vec<(Buf, Rows, &Region)> =
            held.iter().map(|(buf, rows, r)| (*buf, *rows, r.as_ref())).collect();
        pieces(region, &held)
    }

    /// Declares that the `i`-th of some buffers holds its part of a block from now on.
    fn hold_part(&mut self, (bufs, i): (Bufs, u16), block: u32) -> Result<Buf, Fail> {
        let plan = self.common.plan;
        let (block, buf) = (plan.block(block), Buf(bufs.first.0 + i));
        let slots: Vec<Slots> = part_of(&block.slots, u64::from(i), u64::from(bufs.count));
        let region = Arc::new(Region::of_slots(&slots, block.heads, &plan.layout));
        self.hold(buf, &region)?;
        Ok(buf)
    }

    /// Zeroes every array of the `i`-th of some buffers for its part of a block, which it holds from now on.
    fn zero_part(&mut self, part: (Bufs, u16), block: u32) -> Result<Vec<Command>, Fail> {
        let buf = self.hold_part(part, block)?;
        self.zero(buf)
    }

    /// Zeroes what a buffer holds.
    fn zero(&self, buf: Buf) -> Result<Vec<Command>, Fail> {
        let tensor = self.memory.slot(buf).ok_or(not_held(buf))?.tensor;
        let arrays = tensor.parts().iter().map(|&part| {
            let rows = self.now(buf, part)?;
            Ok(Command::Fill { at: rows.at, bytes: rows.bytes(), byte: 0 })
        });
        arrays.collect()
    }

    fn launch(&self, kernel: &Kernel<'_>) -> Result<Command, Fail> {
        Ok(Command::Launch(self.gpu.prepare(kernel)?))
    }

    /// Sizes of a launch over so many query heads, kv heads and sequences.
    fn dims(&self, heads: usize, kv_heads: usize, batch: usize) -> Dims {
        Dims { dtype: self.common.dtype, head_dim: self.common.head_dim, heads, kv_heads, batch }
    }

    fn batch(&self) -> usize {
        self.common.plan.shape.batch as usize
    }

    /// The buffer must be of this tensor.
    fn expect(&self, buf: Buf, expected: Tensor) -> Result<(), Fail> {
        match self.memory.slot(buf) {
            Some(slot) if slot.tensor != expected => {
                Err(Cause::WrongTensor { buffer: buf.0, expected, actual: slot.tensor }.into())
            }
            _ => Ok(()),
        }
    }
}
