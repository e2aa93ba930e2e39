//! A rank's buffers: f32 tensors that are allocated at their first use, kept, and start as NaN.

use std::sync::Arc;

use ringlab_sim::plan::{Buf, Buffer, Op, Part, Partials, Plan, Program, Tensor};
use ringlab_sim::problem::{Dtype, Shape};
use ringlab_sim::units::Bytes;

use super::error::Cause;
use super::state::StateRow;
use crate::region::{Placement, Region};

/// Numbers a row of one array: `[batch][tokens][heads][width]`.
fn width(tensor: Tensor, part: Part, shape: &Shape) -> usize {
    tensor.width(part, shape) as usize
}

/// Memory for one tensor, and the region that it holds.
#[derive(Debug, Clone)]
pub(crate) struct Storage {
    tensor: Tensor,
    shape: Shape,
    held: Option<Arc<Region>>,
    planes: Vec<Vec<f32>>,
}

impl Storage {
    /// Memory of `rows` tokens and heads for every sequence of the batch, all NaN.
    fn poisoned(tensor: Tensor, shape: Shape, rows: usize) -> Self {
        let rows = rows * shape.batch as usize;
        let planes =
            tensor.parts().iter().map(|&p| vec![f32::NAN; rows * width(tensor, p, &shape)]).collect();
        Self { tensor, shape, held: None, planes }
    }

    /// Memory of just this region.
    pub(crate) fn of_region(tensor: Tensor, shape: Shape, region: Arc<Region>) -> Self {
        let rows = region.tokens.len() * region.heads();
        Self { held: Some(region), ..Self::poisoned(tensor, shape, rows) }
    }

    /// Size of the memory, each element at its size in the plan.
    pub fn bytes(&self) -> Bytes {
        let planes = self.tensor.parts().iter().zip(&self.planes);
        Bytes(planes.map(|(part, data)| data.len() as u64 * part.element_bytes(&self.shape)).sum())
    }

    /// Size of the memory on its way between ranks.
    pub fn travelling_bytes(&self, plan: &Plan) -> Bytes {
        let planes = self.tensor.parts().iter().zip(&self.planes);
        Bytes(planes.map(|(&part, data)| data.len() as u64 * plan.travelling_bytes(part)).sum())
    }

    /// Rounds what travels in the element type.
    pub fn round_partials(&mut self, partials: Partials) {
        if partials == Partials::Element {
            let round = rounding(self.shape.dtype);
            let planes = self.tensor.parts().iter().zip(&mut self.planes);
            let partial = planes.filter(|(part, _)| part.is_partial());
            partial.for_each(|(_, data)| data.iter_mut().for_each(|x| *x = round(*x)));
        }
    }

    pub fn tensor(&self) -> Tensor {
        self.tensor
    }

    /// Which of the memory's planes is this part.
    pub fn plane(&self, part: Part) -> Option<usize> {
        self.tensor.parts().iter().position(|&p| p == part)
    }

    pub fn held(&self) -> Option<&Arc<Region>> {
        self.held.as_ref()
    }

    /// Declares that the memory holds `region` from now on. False if it is too small.
    #[must_use]
    pub fn hold(&mut self, region: &Arc<Region>) -> bool {
        let rows = region.tokens.len() * region.heads() * self.shape.batch as usize;
        self.held = Some(Arc::clone(region));
        let mut planes = self.tensor.parts().iter().zip(&self.planes);
        planes.all(|(&p, data)| rows * width(self.tensor, p, &self.shape) <= data.len())
    }

    /// Index of a row: one token and one head, both counted within the region.
    pub fn index(&self, batch: usize, token: usize, head: usize) -> usize {
        let (tokens, heads) = self.held.as_ref().map_or((0, 0), |r| (r.tokens.len(), r.heads()));
        (batch * tokens + token) * heads + head
    }

    pub fn row(&self, plane: usize, index: usize) -> &[f32] {
        let width = width(self.tensor, self.tensor.parts()[plane], &self.shape);
        &self.planes[plane][index * width..(index + 1) * width]
    }

    pub fn row_mut(&mut self, plane: usize, index: usize) -> &mut [f32] {
        let width = width(self.tensor, self.tensor.parts()[plane], &self.shape);
        &mut self.planes[plane][index * width..(index + 1) * width]
    }

    /// A row of [`Tensor::State`].
    pub(super) fn state_row(&mut self, index: usize) -> StateRow<'_> {
        let d = self.shape.head_dim as usize;
        let (o, scalars) = self.planes.split_at_mut(1);
        let (m, l) = scalars.split_at_mut(1);
        StateRow { o: &mut o[0][index * d..(index + 1) * d], m: &mut m[0][index], l: &mut l[0][index] }
    }

    /// Sets every row of one plane.
    pub fn fill(&mut self, plane: usize, value: f32) {
        self.planes[plane].fill(value);
    }

    /// The index of each row of a region here and in `other`, for the region's placement in both.
    pub fn row_pairs(
        &self,
        other: &Self,
        (here, there): (&Placement, &Placement),
        heads: usize,
    ) -> Vec<(usize, usize)> {
        let mut pairs = Vec::with_capacity(self.shape.batch as usize * here.tokens.len() * heads);
        for batch in 0..self.shape.batch as usize {
            for (&a, &b) in here.tokens.iter().zip(&there.tokens) {
                let (a, b) = (self.index(batch, a, here.head), other.index(batch, b, there.head));
                pairs.extend((0..heads).map(|head| (a + head, b + head)));
            }
        }
        pairs
    }

    /// Copies `region` out of this memory into memory of its own; `None` if it is not all here.
    pub fn extract(&self, region: &Arc<Region>) -> Option<Self> {
        let from = self.held.as_ref()?.locate(region)?;
        let mut copy = Self::of_region(self.tensor, self.shape, Arc::clone(region));
        copy.copy_rows(self, region, &from)?;
        Some(copy)
    }

    /// Copies `region`, which lies at `from` in `source`, to where it lies in this memory.
    pub fn copy_rows(&mut self, source: &Self, region: &Region, from: &Placement) -> Option<()> {
        let into = self.held.as_ref()?.locate(region)?;
        let pairs = source.row_pairs(self, (from, &into), region.heads());
        for plane in 0..self.planes.len() {
            for &(a, b) in &pairs {
                self.row_mut(plane, b).copy_from_slice(source.row(plane, a));
            }
        }
        Some(())
    }
}

/// To the nearest number of the element type. TF32 and fp32 travel in four bytes, and fp8 partial results would need scales
/// that no schedule sends: both stay as they are.
fn rounding(dtype: Dtype) -> fn(f32) -> f32 {
    match dtype {
        Dtype::Bf16 => |x| half::bf16::from_f32(x).to_f32(),
        Dtype::Fp16 => |x| half::f16::from_f32(x).to_f32(),
        Dtype::Fp8 | Dtype::Tf32 | Dtype::Fp32 => |x| x,
    }
}

struct Slot {
    buffer: Buffer,
    storage: Option<Storage>,
}

/// All buffers of one rank.
pub(super) struct Memory {
    shape: Shape,
    slots: Vec<Slot>,
    allocated: u64,
}

impl Memory {
    /// Buffers as the program declares them; only the inputs, all NaN, are there yet.
    pub fn new(program: &Program, shape: Shape) -> Self {
        let slots = program.buffers.iter().map(|&buffer| Slot { buffer, storage: None });
        let mut memory = Self { shape, slots: slots.collect(), allocated: 0 };
        for i in 0..memory.slots.len() {
            if memory.slots[i].buffer.role.initial().is_some() {
                memory.allocate(Buf(i as u16));
            }
        }
        memory
    }

    /// Sum of the sizes of all buffers that were allocated; none is given back before the end.
    pub fn allocated(&self) -> Bytes {
        Bytes(self.allocated)
    }

    /// Allocates what the operation is the first to touch.
    pub fn before(&mut self, op: &Op) {
        op.kind.accesses(|buf, _| self.allocate(buf));
    }

    fn allocate(&mut self, buf: Buf) {
        let slot = &mut self.slots[usize::from(buf.0)];
        if slot.storage.is_none() {
            let tensor = slot.buffer.tensor;
            let rows = slot.buffer.bytes.0 / tensor.bytes(&self.shape, 1, 1).0;
            let storage = Storage::poisoned(tensor, self.shape, rows as usize);
            self.allocated += storage.bytes().0;
            slot.storage = Some(storage);
        }
    }

    pub fn get(&self, buf: Buf, tensor: Tensor) -> Result<&Storage, Cause> {
        check(self.any(buf)?, buf, tensor)
    }

    /// A buffer, whatever it holds.
    pub fn any(&self, buf: Buf) -> Result<&Storage, Cause> {
        let storage = self.slots.get(usize::from(buf.0)).and_then(|s| s.storage.as_ref());
        storage.ok_or(Cause::NotHeld { buffer: buf.0 })
    }

    /// The tensor that the plan declares for a buffer.
    pub fn tensor(&self, buf: Buf) -> Result<Tensor, Cause> {
        let slot = self.slots.get(usize::from(buf.0)).ok_or(Cause::NotHeld { buffer: buf.0 })?;
        Ok(slot.buffer.tensor)
    }

    /// Takes a buffer out, so that it can be written while others are read; [`Memory::put`] puts it back.
    pub fn take(&mut self, buf: Buf, tensor: Tensor) -> Result<Storage, Cause> {
        self.get(buf, tensor)?;
        self.slots[usize::from(buf.0)].storage.take().ok_or(Cause::NotHeld { buffer: buf.0 })
    }

    pub fn put(&mut self, buf: Buf, storage: Storage) {
        self.slots[usize::from(buf.0)].storage = Some(storage);
    }

    /// The buffers with their contents.
    pub fn iter(&self) -> impl Iterator<Item = (Buf, &Buffer, Option<&Storage>)> {
        self.slots.iter().enumerate().map(|(i, s)| (Buf(i as u16), &s.buffer, s.storage.as_ref()))
    }
}

fn check(storage: &Storage, buf: Buf, expected: Tensor) -> Result<&Storage, Cause> {
    let actual = storage.tensor;
    if actual == expected { Ok(storage) } else { Err(Cause::WrongTensor { buffer: buf.0, expected, actual }) }
}

/// The regions of a plan's blocks.
pub(crate) fn regions(plan: &Plan) -> Vec<Arc<Region>> {
    plan.blocks.iter().map(|block| Arc::new(Region::of_block(block))).collect()
}
