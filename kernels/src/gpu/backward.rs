use std::slice;

use cudarc::driver::{CudaStream, DeviceRepr};

use super::launch::{ERROR, Launch, SCRATCH_WORDS, int, nanoseconds, ready_limit};
use super::maps::Maps;
use super::pack::Pack;
use super::{Device, GpuError};
use crate::abi::BackwardArgs;
use crate::items::{Items, Launched};
use crate::spec::BackwardSpec;
use crate::tiles::{fill_gaps, key_ranges, longest_first, query_ranges};
use crate::variant::{Grid, Kernel};

#[expect(unsafe_code, reason = "a plain C struct of integers, floats and device addresses")]
unsafe impl DeviceRepr for BackwardArgs {}

/// A backward launch, prepared and repeated as a [`Forward`](super::Forward).
#[derive(Debug)]
pub struct Backward {
    launch: Launch,
    args: BackwardArgs,
}

impl Backward {
    /// Validates `spec`, picks the kernel and puts what it reads beside the tensors on the device.
    pub fn prepare(device: &Device, spec: &BackwardSpec<'_>) -> Result<Self, GpuError> {
        spec.validate()?;
        let kernel = device.changed(Kernel::backward(device.target(), spec.dims.dtype, spec.dims.head_dim));
        let (tile_q, tile_kv, positions) = (kernel.tile_q, kernel.tile_kv, spec.segment.positions);
        let mut ranges = query_ranges(spec.mask, tile_q, positions, tile_kv);
        if spec.deterministic {
            fill_gaps(&mut ranges);
        }
        let work: Vec<i32> = ranges.iter().map(|range| range.last - range.first).collect();
        // A key tile waits for the one before it, which must not start later.
        let order = if spec.deterministic { (0..int(work.len())).collect() } else { longest_first(&work) };
        let turns = if spec.deterministic { turns(spec, tile_q) } else { 0 };
        let items = items(device, &kernel, spec, &work);
        let started = 8 * (items.count - items.whole);
        let scratch = SCRATCH_WORDS + turns + started;

        let mut pack = Pack::new();
        // At offset 0: a launch zeroes the first bytes of its tables.
        pack.zeros(scratch);
        let (lo, hi) = (pack.push(spec.mask.lo), pack.push(spec.mask.hi));
        let (order, q_ranges) = (pack.push(&order), pack.push(&ranges));
        let maps = Maps { boxes: kernel.boxes, dims: spec.dims };
        let q_map = maps.queries(&mut pack, spec.q, spec.q_len())?;
        let do_map = maps.queries(&mut pack, spec.d_o, spec.q_len())?;
        let dq_map = maps.query_gradient(&mut pack, spec.dq, spec.q_len())?;
        let key_ranges = key_ranges(spec.mask, tile_q, positions, tile_kv);
        let segment = maps.segment(&mut pack, &spec.segment, &key_ranges)?;
        let (tables, segments) = pack.upload(device.context(), vec![segment])?;
        let at = |offset: usize| tables.ptr() + offset as u64;
        let args = BackwardArgs {
            q_map: q_map.map_or(0, at),
            do_map: do_map.map_or(0, at),
            dq_map: dq_map.map_or(0, at),
            q_lo: at(lo),
            q_hi: at(hi),
            segments,
            q_ranges: at(q_ranges),
            order: at(order),
            dq_turn: at(4 * SCRATCH_WORDS),
            started: at(4 * (SCRATCH_WORDS + turns)),
            heads_per_item: int(items.heads),
            whole_items: int(items.whole),
            last_parts: int(items.parts),
            work_counter: at(0),
            error: at(ERROR),
            ..arguments(spec)
        };
        let grid = match kernel.grid {
            Grid::Persistent => [items.pieces(), 1, 1],
            Grid::Tiles | Grid::Rows => [work.len(), spec.dims.kv_heads, spec.dims.batch],
        };
        let limits = (scratch, ready_limit(slice::from_ref(&spec.segment)));
        let launch = Launch::new(device, kernel, grid, tables, limits)?;
        Ok(Self { launch, args })
    }

    /// Puts the launch on `stream`; see [`Forward::launch`](super::Forward::launch).
    pub fn launch(&self, stream: &CudaStream) -> Result<(), GpuError> {
        self.launch.run(&self.args, stream)
    }

    /// Waits for the device; an error where the segment's ready flag did not come in time.
    pub fn check_ready(&self) -> Result<(), GpuError> {
        self.launch.check_ready()
    }

    /// The kernel that runs.
    pub fn kernel(&self) -> &Kernel {
        &self.launch.kernel
    }
}

fn items(device: &Device, kernel: &Kernel, spec: &BackwardSpec<'_>, work: &[i32]) -> Items {
    let launched = Launched {
        dims: spec.dims,
        work,
        deterministic: spec.deterministic,
        start_dkv: spec.start_dkv,
        multiprocessors: device.multiprocessors() as usize,
    };
    if kernel.cuts_last_items() { Items::with_last_cut(launched) } else { Items::whole(launched) }
}

/// Query tiles of all heads and sequences, each of which is handed from key tile to key tile.
fn turns(spec: &BackwardSpec<'_>, tile_q: usize) -> usize {
    spec.dims.batch * spec.dims.heads * spec.q_len().div_ceil(tile_q)
}

/// The arguments that the spec alone gives.
fn arguments(spec: &BackwardSpec<'_>) -> BackwardArgs {
    BackwardArgs {
        q: spec.q.ptr,
        q_stride: spec.q.strides,
        d_o: spec.d_o.ptr,
        do_stride: spec.d_o.strides,
        lse: spec.lse,
        delta: spec.delta,
        segment_count: 1,
        batch: int(spec.dims.batch),
        q_len: int(spec.q_len()),
        heads: int(spec.dims.heads),
        kv_heads: int(spec.dims.kv_heads),
        scale: spec.scale,
        dq: spec.dq.ptr,
        dq_stride: spec.dq.strides,
        dk: spec.dk.ptr,
        dv: spec.dv,
        dkv_stride: spec.dk.strides,
        deterministic: i32::from(spec.deterministic),
        start_dkv: i32::from(spec.start_dkv),
        spin_limit: nanoseconds(ready_limit(slice::from_ref(&spec.segment))),
        ..BackwardArgs::default()
    }
}
