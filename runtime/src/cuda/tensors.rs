//! Between global token order and the ranks' buffers on GPUs.

use std::sync::Arc;

use half::{bf16, f16};
use ringlab_kernels::spec::Dtype;
use ringlab_sim::plan::{Buf, Part, Plan, Rank, Role, Tensor};

use super::device::Gpu;
use super::error::CudaError;
use super::memory::{Memory, Rows, number_bytes};
use crate::cpu::tensors::{Targets, source};
use crate::inputs::Inputs;
use crate::outcome::Results;
use crate::parallel;
use crate::region::{Placement, Region};

/// One rank's memory and what it holds.
pub(super) struct Holder<'a> {
    pub rank: Rank,
    pub gpu: &'a dyn Gpu,
    pub memory: &'a Memory,
}

/// Fills every buffer with NaN.
pub(super) fn poison(plan: &Plan, holder: &Holder<'_>, inputs_too: bool) -> Vec<super::command::Command> {
    let buffers = &plan.programs[holder.rank as usize].buffers;
    let fill = |(buf, slot): (Buf, &super::memory::Slot)| {
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
    let mut data = parallel::filled(rows.bytes(), 0u8);
    parallel::for_chunks(&mut data, bytes, |index, to| {
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

/// What each buffer of a rank holds in the end.
pub(super) type Held = [Option<Arc<Region>>];

/// The bytes of a rank's results.
struct Downloaded<'a> {
    /// The block that a buffer must hold.
    block: &'a Arc<Region>,
    tensor: Tensor,
    /// Where the block lies in what it holds.
    at: Placement,
    /// Of each array.
    arrays: Vec<(Rows, Vec<u8>)>,
}

/// Collects the results of some ranks, and counts padding rows that are not what they must be.
pub(super) fn gather(
    plan: &Plan,
    inputs: &Inputs,
    (real, regions): (&[Option<usize>], &[Arc<Region>]),
    dtype: Dtype,
    holders: &[(Holder<'_>, &Held)],
) -> Result<(Results, usize), CudaError> {
    let downloaded = parallel::map(holders, |(holder, held)| download(plan, regions, holder, held));
    let mut targets = Targets::new(plan, inputs);
    for rank in downloaded {
        for Downloaded { block, tensor, at, arrays } in rank? {
            let read = |array: usize, (batch, token, head): (usize, usize, usize), into: &mut [f32]| {
                let (rows, bytes) = &arrays[array];
                let from = rows.index(batch, at.tokens[token], at.head + head) * rows.width * rows.number;
                decode(&bytes[from..from + rows.width * rows.number], (rows.number, dtype), into);
            };
            targets.collect(&plan.shape, (tensor, block), real, read);
        }
    }
    Ok(targets.finish(plan.pass))
}

/// All results of a rank.
fn download<'a>(
    plan: &Plan,
    regions: &'a [Arc<Region>],
    holder: &Holder<'_>,
    held: &Held,
) -> Result<Vec<Downloaded<'a>>, CudaError> {
    let mut all = Vec::new();
    for (i, buffer) in plan.programs[holder.rank as usize].buffers.iter().enumerate() {
        let Role::Output(block) = buffer.role else { continue };
        let block = &regions[block as usize];
        let unwritten = CudaError::Unwritten { rank: holder.rank, buffer: i as u16 };
        let (slot, region) = (holder.memory.slot(Buf(i as u16)), held[i].as_ref());
        let (Some(slot), Some(region)) = (slot, region) else { return Err(unwritten) };
        let at = region.locate(block).ok_or(unwritten)?;
        let mut arrays = Vec::new();
        for &part in buffer.tensor.parts() {
            let Some(rows) = slot.part(part, region, &plan.shape) else { continue };
            let mut bytes = parallel::filled(rows.bytes(), 0);
            holder.gpu.download(rows.at, &mut bytes).map_err(|source| failed(holder.rank, source))?;
            arrays.push((rows, bytes));
        }
        all.push(Downloaded { block, tensor: buffer.tensor, at, arrays });
    }
    Ok(all)
}

/// The numbers of a row.
fn decode(bytes: &[u8], (number, dtype): (usize, Dtype), into: &mut [f32]) {
    for (from, x) in bytes.chunks_exact(number).zip(into) {
        *x = match (from, dtype) {
            (&[a, b], Dtype::Bf16) => bf16::from_le_bytes([a, b]).to_f32(),
            (&[a, b], Dtype::F16) => f16::from_le_bytes([a, b]).to_f32(),
            (&[a, b, c, d], _) => f32::from_le_bytes([a, b, c, d]),
            _ => f32::NAN,
        };
    }
}

/// Bytes that go along with a plan's messages and that the plan does not count.
pub fn carried_bytes(plan: &Plan) -> u64 {
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
