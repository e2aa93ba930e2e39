//! What each operation does to a rank's memory.

use std::sync::Arc;

use ringlab_sim::plan::{BlockId, Buf, Bufs, MaskId, MessageId, OpKind, Part, Tensor, part_of};
use ringlab_sim::units::Bytes;

use super::attention::{Call, KeyGradients, Operand, Queries, attend, attend_backward};
use super::error::Cause;
use super::math::{add_scaled, dot};
use super::memory::Storage;
use super::rank::Runner;
use super::state;
use crate::region::{Placement, Region};

/// What an attention call reads of its keys.
const KEYS: &[Part] = &[Part::Key, Part::Value];

pub(super) fn not_held(buffer: Buf) -> Cause {
    Cause::NotHeld { buffer: buffer.0 }
}

/// Where `region` lies in a buffer.
pub(super) fn place(storage: &Storage, region: &Region, buffer: Buf) -> Result<Placement, Cause> {
    storage.held().and_then(|held| held.locate(region)).ok_or(not_held(buffer))
}

impl Runner<'_> {
    pub(super) fn call<'c>(&'c self, q: &'c Region, kv: &'c Region, mask: MaskId) -> Option<Call<'c>> {
        let plan = self.shared.plan;
        let mask = (mask != MaskId::NONE).then(|| plan.mask(mask));
        Some(Call { shape: &plan.shape, q, kv, mask }).filter(Call::has_kv_heads)
    }

    pub(super) fn operand<'k>(
        &'k self,
        bufs: Bufs,
        region: &'k Region,
        parts: &[Part],
    ) -> Result<Operand<'k>, Cause> {
        let buffers = bufs.iter().map(|buf| self.memory.any(buf)).collect::<Result<Vec<_>, _>>()?;
        let unknown = buffers.iter().position(|b| b.tensor().parts().iter().all(|p| !parts.contains(p)));
        if let Some(i) = unknown {
            let buffer = bufs.first.0 + i as u16;
            return Err(Cause::NoPart { buffer, parts: parts.to_vec(), actual: buffers[i].tensor() });
        }
        Operand::find(region, &buffers, parts).ok_or(not_held(bufs.first))
    }

    pub(super) fn attend(&mut self, op: &OpKind) -> Result<(), Cause> {
        let OpKind::Attend { q, kv, state, q_block, kv_block, mask, init } = *op else { return Ok(()) };
        let regions = &self.shared.regions;
        let (q_region, kv_region) = (&regions[q_block as usize], &regions[kv_block as usize]);
        let mut target = self.memory.take(state, Tensor::State)?;
        if init {
            hold(&mut target, q_region, state)?;
            for (plane, value) in [0.0, f32::NEG_INFINITY, 0.0].into_iter().enumerate() {
                target.fill(plane, value);
            }
        }
        let state_at = place(&target, q_region, state)?;
        let queries = self.operand(q, q_region, &[Part::Query])?;
        let call = self.call(q_region, kv_region, mask).ok_or(not_held(kv.first))?;
        let keys = self.operand(kv, kv_region, KEYS)?;
        attend(&call, &queries, &keys, (&mut target, &state_at));
        self.memory.put(state, target);
        Ok(())
    }

    pub(super) fn attend_backward(&mut self, op: &OpKind) -> Result<(), Cause> {
        let OpKind::AttendBackward {
            q,
            delta,
            kv,
            dq,
            dkv,
            q_block,
            kv_block,
            dkv_block,
            mask,
            init_dq,
            init_dkv,
        } = *op
        else {
            return Ok(());
        };
        let regions = &self.shared.regions;
        let (q_region, kv_region) = (&regions[q_block as usize], &regions[kv_block as usize]);
        let mut dq_sum = self.memory.take(dq, Tensor::QueryGrad)?;
        if init_dq {
            hold(&mut dq_sum, q_region, dq)?;
            dq_sum.fill(0, 0.0);
        }
        let parts = self.key_gradients(dkv, init_dkv.then_some(dkv_block))?;
        let mut dkv_sum = KeyGradients::find(kv_region, parts).ok_or(not_held(dkv.first))?;
        let side = self.operand(q, q_region, &[Part::Query, Part::OutputGrad, Part::Lse])?;
        let rows = self.memory.get(delta, Tensor::Delta)?;
        let (delta_at, dq_at) = (place(rows, q_region, delta)?, place(&dq_sum, q_region, dq)?);
        let queries = Queries { side, delta: (rows, &delta_at) };
        let call = self.call(q_region, kv_region, mask).ok_or(not_held(kv.first))?;
        let keys = self.operand(kv, kv_region, KEYS)?;
        attend_backward(&call, &queries, &keys, (&mut dq_sum, &dq_at), &mut dkv_sum);
        self.memory.put(dq, dq_sum);
        dkv.iter().zip(dkv_sum.into_parts()).for_each(|(buf, storage)| self.memory.put(buf, storage));
        Ok(())
    }

    /// Takes the buffers of dk and dv out of the memory, zeroed for `init` if they start here.
    fn key_gradients(&mut self, bufs: Bufs, init: Option<u32>) -> Result<Vec<Storage>, Cause> {
        bufs.iter()
            .enumerate()
            .map(|(i, buf)| match init {
                Some(block) => self.zeroed(Tensor::KeyValueGrad, (bufs, i), block),
                None => self.memory.take(buf, Tensor::KeyValueGrad),
            })
            .collect()
    }

    /// Takes the `i`-th of some buffers out of the memory, zeroed, for its part of a block.
    pub(super) fn zeroed(
        &mut self,
        tensor: Tensor,
        (bufs, i): (Bufs, usize),
        block: BlockId,
    ) -> Result<Storage, Cause> {
        let plan = self.shared.plan;
        let (block, buf) = (plan.block(block), Buf(bufs.first.0 + i as u16));
        let mut storage = self.memory.take(buf, tensor)?;
        let slots = part_of(&block.slots, i as u64, u64::from(bufs.count));
        let region = Region::of_slots(&slots, block.heads, &plan.layout);
        hold(&mut storage, &Arc::new(region), buf)?;
        (0..tensor.parts().len()).for_each(|plane| storage.fill(plane, 0.0));
        Ok(storage)
    }

    pub(super) fn preprocess(&mut self, q: Bufs, delta: Buf, block: BlockId) -> Result<(), Cause> {
        let region = &self.shared.regions[block as usize];
        let mut target = self.memory.take(delta, Tensor::Delta)?;
        hold(&mut target, region, delta)?;
        let side = self.operand(q, region, &[Part::Output, Part::OutputGrad])?;
        for batch in 0..self.shared.plan.shape.batch as usize {
            for (token, head) in region.rows() {
                let (o, d_o) = (
                    side.row(Part::Output, batch, token, head),
                    side.row(Part::OutputGrad, batch, token, head),
                );
                let row = target.index(batch, token, head);
                target.row_mut(0, row)[0] = dot(o, d_o);
            }
        }
        self.memory.put(delta, target);
        Ok(())
    }

    pub(super) fn merge(&mut self, from: Buf, into: Buf) -> Result<(), Cause> {
        self.combine(Tensor::State, from, into, |part, a, total, b| {
            total.state_row(b).merge(part.row(0, a), part.row(1, a)[0], part.row(2, a)[0]);
        })
    }

    pub(super) fn accumulate(&mut self, from: Buf, into: Buf) -> Result<(), Cause> {
        let tensor = self.memory.tensor(from)?;
        let planes = tensor.parts().len();
        self.combine(tensor, from, into, |part, a, total, b| {
            for plane in 0..planes {
                add_scaled(total.row_mut(plane, b), 1.0, part.row(plane, a));
            }
        })
    }

    /// Calls `f` with each row of `from` and the same row of `into`, which must hold all of them.
    fn combine(
        &mut self,
        tensor: Tensor,
        from: Buf,
        into: Buf,
        f: impl Fn(&Storage, usize, &mut Storage, usize),
    ) -> Result<(), Cause> {
        let mut total = self.memory.take(into, tensor)?;
        let part = self.memory.get(from, tensor)?;
        let held = part.held().ok_or(not_held(from))?;
        let (here, there) = (place(part, held, from)?, place(&total, held, into)?);
        for (a, b) in part.row_pairs(&total, (&here, &there), held.heads()) {
            f(part, a, &mut total, b);
        }
        self.memory.put(into, total);
        Ok(())
    }

    pub(super) fn finish(&mut self, state: Buf, out: Buf) -> Result<(), Cause> {
        let mut target = self.memory.take(out, Tensor::Output)?;
        let source = self.memory.get(state, Tensor::State)?;
        let held = source.held().ok_or(not_held(state))?;
        hold(&mut target, held, out)?;
        let whole = place(source, held, state)?;
        for (a, b) in source.row_pairs(&target, (&whole, &whole), held.heads()) {
            let (m, l) = (source.row(1, a)[0], source.row(2, a)[0]);
            target.row_mut(1, b)[0] = state::finish(target.row_mut(0, b), source.row(0, a), m, l);
        }
        self.memory.put(out, target);
        Ok(())
    }

    /// Copies a message's block into the channel; returns its size.
    pub(super) fn send(&mut self, message: MessageId, bufs: Bufs) -> Result<Bytes, Cause> {
        let (m, shape) = (self.shared.plan.message(message), self.shared.plan.shape);
        if m.tensor.is_result() {
            bufs.iter().try_for_each(|buf| self.memory.get(buf, m.tensor).map(drop))?;
        }
        let region = &self.shared.regions[m.block as usize];
        let source = self.operand(bufs, region, m.tensor.parts())?;
        let mut block = Storage::of_region(m.tensor, shape, Arc::clone(region));
        for (plane, &part) in m.tensor.parts().iter().enumerate() {
            for batch in 0..shape.batch as usize {
                for (token, head) in region.rows() {
                    let row = block.index(batch, token, head);
                    block.row_mut(plane, row).copy_from_slice(source.row(part, batch, token, head));
                }
            }
        }
        block.round_partials(self.shared.plan.partials);
        let bytes = block.travelling_bytes(self.shared.plan);
        self.mailbox.send(m.to, message, block);
        Ok(bytes)
    }

    /// Copies a block that arrived into its buffer; returns its size.
    pub(super) fn store(&mut self, message: MessageId, buffer: Buf, block: &Storage) -> Result<Bytes, Cause> {
        let m = self.shared.plan.message(message);
        let region = &self.shared.regions[m.block as usize];
        let mut target = self.memory.take(buffer, m.tensor)?;
        hold(&mut target, region, buffer)?;
        let whole = place(block, region, buffer)?;
        target.copy_rows(block, region, &whole).ok_or(not_held(buffer))?;
        self.memory.put(buffer, target);
        Ok(block.travelling_bytes(self.shared.plan))
    }
}

pub(super) fn hold(storage: &mut Storage, region: &Arc<Region>, buffer: Buf) -> Result<(), Cause> {
    if storage.hold(region) { Ok(()) } else { Err(Cause::TooSmall { buffer: buffer.0 }) }
}
