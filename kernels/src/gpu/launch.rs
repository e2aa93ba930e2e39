use std::time::Duration;

use cudarc::driver::{CudaFunction, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg as _};

use super::error::Doing as _;
use super::pack::Pack;
use super::tensor_map::{Extent, encode};
use super::{Buffer, Device, GpuError};
use crate::abi::{BackwardArgs, ForwardArgs, Segment, Strides, TileRange};
use crate::spec::{BackwardSpec, Dims, ForwardSpec, KeySegment, Tensor};
use crate::tiles::{fill_gaps, key_ranges, longest_first, query_ranges};
use crate::variant::{Kernel, Pass};

/// How long a kernel waits for a segment's ready flag before it gives up.
pub const READY_LIMIT: Duration = Duration::from_secs(10);

#[expect(unsafe_code, reason = "plain C structs of integers, floats and device addresses")]
unsafe impl DeviceRepr for ForwardArgs {}
#[expect(unsafe_code, reason = "plain C structs of integers, floats and device addresses")]
unsafe impl DeviceRepr for BackwardArgs {}

/// A forward launch whose mask, tile ranges and tensor maps lie on the device, ready to be repeated.
#[derive(Debug)]
pub struct Forward {
    launch: Launch,
    args: ForwardArgs,
}

/// A backward launch, as [`Forward`].
#[derive(Debug)]
pub struct Backward {
    launch: Launch,
    args: BackwardArgs,
}

/// What both kinds share: the function, and the words that are zeroed before every launch.
#[derive(Debug)]
struct Launch {
    kernel: Kernel,
    function: CudaFunction,
    config: LaunchConfig,
    tables: Buffer,
    /// Byte range of the tables that is zeroed: the counter, the error word and the turns.
    scratch: (usize, usize),
}

impl Forward {
    /// Validates `spec`, picks the kernel and puts what it reads beside the tensors on the device.
    pub fn prepare(device: &Device, spec: &ForwardSpec<'_>) -> Result<Self, GpuError> {
        spec.validate()?;
        let kernel = Kernel::attention(Pass::Forward, device.path(), spec.dims.dtype, spec.dims.head_dim);
        let (tile_q, tile_kv) = (kernel.tile_q, kernel.tile_kv);
        let ranges: Vec<Vec<TileRange>> = spec
            .segments
            .iter()
            .map(|segment| key_ranges(spec.mask, tile_q, segment.positions, tile_kv))
            .collect();
        let tiles = spec.q_len().div_ceil(tile_q);
        let work: Vec<i32> = (0..tiles)
            .map(|tile| ranges.iter().map(|range| range[tile].last - range[tile].first).sum())
            .collect();

        let mut pack = Pack::new();
        let scratch = pack.zeros(SCRATCH_WORDS);
        let (lo, hi) = (pack.push(spec.mask.lo), pack.push(spec.mask.hi));
        let order = pack.push(&longest_first(&work));
        let q_map =
            pack.map(&kernel, spec.q, query_extent(spec.dims, spec.q_len()), spec.dims, Side::Query)?;
        let mut rows = Vec::new();
        for (segment, range) in spec.segments.iter().zip(&ranges) {
            rows.push(pack.segment(&kernel, segment, range, spec.dims)?);
        }
        let (tables, segments) = pack.upload(device.context(), rows)?;
        let at = |offset: usize| tables.ptr() + offset as u64;
        let (carry, output) = (spec.carry, spec.output);
        let args = ForwardArgs {
            q: spec.q.ptr,
            q_stride: spec.q.strides,
            q_map: q_map.map_or(0, at),
            q_lo: at(lo),
            q_hi: at(hi),
            order: at(order),
            segments,
            segment_count: int(spec.segments.len()),
            batch: int(spec.dims.batch),
            q_len: int(spec.q_len()),
            heads: int(spec.dims.heads),
            kv_heads: int(spec.dims.kv_heads),
            scale: spec.scale,
            acc_o: carry.state.map_or(0, |state| state.o.ptr),
            acc_stride: carry.state.map_or(Strides::default(), |state| state.o.strides),
            acc_m: carry.state.map_or(0, |state| state.m),
            acc_l: carry.state.map_or(0, |state| state.l),
            carry_in: i32::from(carry.read),
            carry_out: i32::from(carry.write),
            o: output.map_or(0, |output| output.o.ptr),
            o_stride: output.map_or(Strides::default(), |output| output.o.strides),
            lse: output.map_or(0, |output| output.lse),
            error: at(scratch + ERROR),
            spin_limit: READY_LIMIT.as_nanos() as u64,
            work_counter: at(scratch),
        };
        let items = tiles * spec.dims.heads * spec.dims.batch;
        let launch = Launch::new(device, kernel, items, tables, (scratch, SCRATCH_WORDS * 4))?;
        Ok(Self { launch, args })
    }

    /// Puts the launch on `stream`.
    ///
    /// The tensors of the spec, and this value, must stay alive until the stream has run it.
    pub fn launch(&self, stream: &CudaStream) -> Result<(), GpuError> {
        self.launch.run(&self.args, stream)
    }

    /// Waits for the device; an error where a segment's ready flag did not come in time.
    pub fn check_ready(&self) -> Result<(), GpuError> {
        self.launch.check_ready()
    }

    /// The kernel that runs.
    pub fn kernel(&self) -> &Kernel {
        &self.launch.kernel
    }
}

impl Backward {
    /// Validates `spec`, picks the kernel and puts what it reads beside the tensors on the device.
    pub fn prepare(device: &Device, spec: &BackwardSpec<'_>) -> Result<Self, GpuError> {
        spec.validate()?;
        let kernel = Kernel::attention(Pass::Backward, device.path(), spec.dims.dtype, spec.dims.head_dim);
        let (tile_q, tile_kv) = (kernel.tile_q, kernel.tile_kv);
        let positions = spec.segment.positions;
        let mut ranges = query_ranges(spec.mask, tile_q, positions, tile_kv);
        if spec.deterministic {
            fill_gaps(&mut ranges);
        }
        let work: Vec<i32> = ranges.iter().map(|range| range.last - range.first).collect();
        // A key tile waits for the one before it, which must not start later.
        let order = if spec.deterministic { (0..int(work.len())).collect() } else { longest_first(&work) };
        let q_tiles = spec.q_len().div_ceil(tile_q);
        let turns = spec.dims.batch * spec.dims.heads * q_tiles;
        let scratch_words = SCRATCH_WORDS + if spec.deterministic { turns } else { 0 };

        let mut pack = Pack::new();
        let scratch = pack.zeros(scratch_words);
        let (lo, hi) = (pack.push(spec.mask.lo), pack.push(spec.mask.hi));
        let (order, q_ranges) = (pack.push(&order), pack.push(&ranges));
        let extent = query_extent(spec.dims, spec.q_len());
        let q_map = pack.map(&kernel, spec.q, extent, spec.dims, Side::Query)?;
        let do_map = pack.map(&kernel, spec.d_o, extent, spec.dims, Side::Query)?;
        let key = key_ranges(spec.mask, tile_q, positions, tile_kv);
        let row = pack.segment(&kernel, &spec.segment, &key, spec.dims)?;
        let (tables, segments) = pack.upload(device.context(), vec![row])?;
        let at = |offset: usize| tables.ptr() + offset as u64;
        let args = BackwardArgs {
            q: spec.q.ptr,
            q_stride: spec.q.strides,
            q_map: q_map.map_or(0, at),
            d_o: spec.d_o.ptr,
            do_stride: spec.d_o.strides,
            do_map: do_map.map_or(0, at),
            lse: spec.lse,
            delta: spec.delta,
            q_lo: at(lo),
            q_hi: at(hi),
            segments,
            segment_count: 1,
            q_ranges: at(q_ranges),
            order: at(order),
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
            dq_turn: at(scratch + SCRATCH_WORDS * 4),
            work_counter: at(scratch),
            error: at(scratch + ERROR),
            spin_limit: READY_LIMIT.as_nanos() as u64,
        };
        let items = work.len() * spec.dims.kv_heads * spec.dims.batch;
        let launch = Launch::new(device, kernel, items, tables, (scratch, scratch_words * 4))?;
        Ok(Self { launch, args })
    }

    /// Puts the launch on `stream`; see [`Forward::launch`].
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

/// Words at the start of the scratch range: the work counter and the error, a cache line each.
const SCRATCH_WORDS: usize = 64;
/// Byte of the error word.
const ERROR: usize = 128;

impl Launch {
    fn new(
        device: &Device,
        kernel: Kernel,
        items: usize,
        tables: Buffer,
        scratch: (usize, usize),
    ) -> Result<Self, GpuError> {
        let function = device.function(&kernel)?;
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        let grid = if kernel.persistent { items.min(device.multiprocessors()) } else { items };
        let config = LaunchConfig {
            grid_dim: (grid, 1, 1),
            block_dim: (kernel.threads, 1, 1),
            shared_mem_bytes: kernel.shared_bytes,
        };
        Ok(Self { kernel, function, config, tables, scratch })
    }

    fn run<A: DeviceRepr>(&self, args: &A, stream: &CudaStream) -> Result<(), GpuError> {
        self.tables.fill_range(self.scratch.0, self.scratch.1, 0, stream)?;
        let mut builder = stream.launch_builder(&self.function);
        builder.arg(args);
        #[expect(
            unsafe_code,
            reason = "the kernel takes exactly this struct; its spec was validated, its tables live"
        )]
        unsafe { builder.launch(self.config) }.doing("launch a kernel")?;
        Ok(())
    }

    fn check_ready(&self) -> Result<(), GpuError> {
        let words: Vec<i32> = self.tables.read((self.scratch.0 + ERROR) / 4 + 1)?;
        match words.last() {
            Some(&error) if error > 0 => Err(GpuError::NotReady {
                segment: error as usize - 1,
                limit_ms: READY_LIMIT.as_millis() as u64,
            }),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Query,
    Key,
}

impl Pack {
    fn map(
        &mut self,
        kernel: &Kernel,
        tensor: Tensor,
        extent: Extent,
        dims: Dims,
        side: Side,
    ) -> Result<Option<usize>, GpuError> {
        let Some(boxes) = kernel.boxes else { return Ok(None) };
        let rows = if side == Side::Query { boxes.q } else { boxes.kv };
        Ok(Some(self.push(&encode(tensor, extent, dims, rows)?)))
    }

    /// A segment whose table addresses are still offsets.
    fn segment(
        &mut self,
        kernel: &Kernel,
        segment: &KeySegment<'_>,
        ranges: &[TileRange],
        dims: Dims,
    ) -> Result<Segment, GpuError> {
        let extent = Extent { heads: dims.kv_heads, tokens: segment.positions.len() };
        let tensor = |ptr| Tensor { ptr, strides: segment.strides };
        let k_map = self.map(kernel, tensor(segment.k), extent, dims, Side::Key)?;
        let v_map = self.map(kernel, tensor(segment.v), extent, dims, Side::Key)?;
        Ok(Segment {
            k: segment.k,
            v: segment.v,
            pos: self.push(segment.positions) as u64,
            ranges: self.push(ranges) as u64,
            ready: segment.ready.map_or(0, |flag| flag.ptr),
            ready_value: segment.ready.map_or(0, |flag| flag.value),
            len: int(segment.positions.len()),
            kv: segment.strides,
            k_map: k_map.unwrap_or(0) as u64,
            v_map: v_map.unwrap_or(0) as u64,
        })
    }
}

fn query_extent(dims: Dims, tokens: usize) -> Extent {
    Extent { heads: dims.heads, tokens }
}

fn int(value: usize) -> i32 {
    i32::try_from(value).expect("sizes are validated to fit i32")
}
