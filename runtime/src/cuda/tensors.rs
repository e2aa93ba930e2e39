//! Between global token order and the ranks' buffers on GPUs.

use std::sync::Arc;
use std::thread;

use half::{bf16, f16};
use ringlab_kernels::spec::Dtype;
use ringlab_sim::plan::{Part, Plan, Rank, Role};

use super::device::Gpu;
use super::error::CudaError;
use super::memory::{Memory, Rows, number_bytes};
use crate::cpu::memory::Storage;
use crate::cpu::tensors::{Targets, source};
use crate::inputs::Inputs;
use crate::outcome::Results;
use crate::region::Region;

/// One rank's memory and what it holds.
pub(super) struct Holder<'a> {
    pub rank: Rank,
    pub gpu: &'a dyn Gpu,
    pub memory: &'a Memory,
}

/// Fills every buffer with NaN.
pub(super) fn poison(plan: &Plan, holder: &Holder<'_>, inputs_too: bool) -> Vec<super::command::Command> {
    let buffers = &plan.programs[holder.rank as usize].buffers;
    let fill = |(buf, slot): (ringlab_sim::plan::Buf, &super::memory::Slot)| {
        let initial = buffers[usize::from(buf.0)].role.initial().is_some();
        (inputs_too || !initial).then(|| super::command::Command::Fill {
            at: slot.at,
            bytes: slot.bytes(&plan.shape),
            byte: 0xff,
        })
    };
    holder.memory.slots().filter_map(fill).collect()
}

/// Uploads a rank's input buffers, rounded to the element type. Rows of padding are 0: a kernel multiplies what it masks
/// by 0, which a NaN would survive.
pub(super) fn scatter(
    plan: &Plan,
    inputs: &Inputs,
    (real, regions): (&[Option<usize>], &[Arc<Region>]),
    dtype: Dtype,
    holder: &Holder<'_>,
) -> Result<(), CudaError> {
    let buffers = &plan.programs[holder.rank as usize].buffers;
    for (buf, slot) in holder.memory.slots() {
        let Some(block) = buffers[usize::from(buf.0)].role.initial() else { continue };
        let region = &regions[block as usize];
        for &part in slot.tensor.parts() {
            let (Some((data, global)), Some(rows)) =
                (source(inputs, part), slot.part(part, region, &plan.shape))
            else {
                continue;
            };
            // A tensor of query heads carries the k and v of each of them.
            let group =
                if slot.tensor.is_key_side() { 1 } else { plan.shape.heads as usize / global.heads() };
            let row = |batch: usize, token: usize, head: usize| {
                let token = real[region.tokens[token] as usize]?;
                let head = (region.heads.first as usize + head) / group;
                Some(&data[global.row(batch, token, head)])
            };
            let bytes = encode(&rows, dtype, &row);
            holder.gpu.upload(rows.at, &bytes).map_err(|source| failed(holder.rank, source))?;
        }
    }
    Ok(())
}

fn failed(rank: Rank, source: ringlab_kernels::gpu::GpuError) -> CudaError {
    CudaError::Gpu { rank: Some(rank), source }
}

/// The bytes of an array, of the row of each (sequence, token, head); a row that is not there is 0.
fn encode<'d>(
    rows: &Rows,
    dtype: Dtype,
    row: &(impl Fn(usize, usize, usize) -> Option<&'d [f32]> + Sync),
) -> Vec<u8> {
    let bytes = rows.width * rows.number;
    let mut data = vec![0u8; rows.bytes()];
    in_parallel(&mut data, bytes, |index, to| {
        let (batch, token, head) = place(rows, index);
        let Some(from) = row(batch, token, head) else { return };
        for (to, &x) in to.chunks_exact_mut(rows.number).zip(from) {
            match (rows.number, dtype) {
                (2, Dtype::Bf16) => to.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
                (2, Dtype::F16) => to.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
                _ => to.copy_from_slice(&x.to_le_bytes()),
            }
        }
    });
    data
}

/// Sequence, token and head of a row.
fn place(rows: &Rows, index: usize) -> (usize, usize, usize) {
    let (inner, outer) = if rows.scalar { (rows.tokens, rows.heads) } else { (rows.heads, rows.tokens) };
    let (batch, middle, last) = (index / (inner * outer), index / inner % outer, index % inner);
    if rows.scalar { (batch, last, middle) } else { (batch, middle, last) }
}

/// Calls `f` with the index of every chunk and the chunk, on all cores.
fn in_parallel<T: Send>(data: &mut [T], chunk: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let chunks = data.len() / chunk.max(1);
    let each = chunks.div_ceil(threads).max(1 << 10);
    thread::scope(|scope| {
        for (i, share) in data.chunks_mut(each * chunk).enumerate() {
            let f = &f;
            let mut work =
                move || share.chunks_exact_mut(chunk).enumerate().for_each(|(j, c)| f(i * each + j, c));
            if chunks <= each { work() } else { drop(scope.spawn(work)) }
        }
    });
}

/// Collects the results of some ranks, and counts padding rows that are not what they must be. `held` is what the buffers
/// of each hold in the end.
pub(super) fn gather(
    plan: &Plan,
    inputs: &Inputs,
    (real, regions): (&[Option<usize>], &[Arc<Region>]),
    dtype: Dtype,
    holders: &[(Holder<'_>, Vec<Option<Arc<Region>>>)],
) -> Result<(Results, usize), CudaError> {
    let mut targets = Targets::new(plan, inputs);
    for (holder, held) in holders {
        let buffers = plan.programs[holder.rank as usize].buffers.iter().enumerate();
        for (i, buffer) in buffers {
            let Role::Output(block) = buffer.role else { continue };
            let unwritten = CudaError::Unwritten { rank: holder.rank, buffer: i as u16 };
            let (slot, region) = (holder.memory.slot(ringlab_sim::plan::Buf(i as u16)), held[i].as_ref());
            let (Some(slot), Some(region)) = (slot, region) else { return Err(unwritten) };
            let mut storage = Storage::of_region(buffer.tensor, plan.shape, Arc::clone(region));
            for (plane, &part) in buffer.tensor.parts().iter().enumerate() {
                if let Some(rows) = slot.part(part, region, &plan.shape) {
                    let mut bytes = vec![0u8; rows.bytes()];
                    holder.gpu.download(rows.at, &mut bytes).map_err(|source| failed(holder.rank, source))?;
                    decode(&rows, dtype, &bytes, storage.plane_mut(plane));
                }
            }
            let block = storage.into_block(&regions[block as usize]).ok_or(unwritten)?;
            targets.collect(&plan.shape, &block, real);
        }
    }
    Ok(targets.finish(plan.pass))
}

/// The numbers of an array, `[batch][tokens][heads][width]`.
fn decode(rows: &Rows, dtype: Dtype, bytes: &[u8], into: &mut [f32]) {
    let width = rows.width;
    in_parallel(into, width, |index, row| {
        let (head, rest) = (index % rows.heads, index / rows.heads);
        let from = rows.index(rest / rows.tokens, rest % rows.tokens, head) * width * rows.number;
        for (i, x) in row.iter_mut().enumerate() {
            let at = from + i * rows.number;
            *x = match (rows.number, dtype) {
                (2, Dtype::Bf16) => bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
                (2, Dtype::F16) => f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
                _ => f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]),
            };
        }
    });
}

/// Bytes that go along with a plan's messages and that the plan does not count.
pub(super) fn carried_bytes(plan: &Plan) -> u64 {
    let shape = &plan.shape;
    let carried = |part: &&Part| super::memory::is_carried(**part, shape);
    let of = |m: &ringlab_sim::plan::Message| {
        let block = plan.block(m.block);
        let rows = block.tokens.len() * u64::from(block.heads.count) * u64::from(shape.batch);
        let row =
            m.tensor.parts().iter().filter(carried).map(|&p| p.width(shape) * number_bytes(p, shape) as u64);
        rows * row.sum::<u64>()
    };
    plan.messages.iter().map(of).sum()
}
