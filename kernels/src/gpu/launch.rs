use std::slice;
use std::time::Duration;

use cudarc::driver::{CudaFunction, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg as _};

use super::device::Loaded;
use super::error::Doing as _;
use super::pack::Pack;
use super::tensor_map::{Element, Mapped, encode};
use super::{Buffer, Device, GpuError};
use crate::abi::{BackwardArgs, ForwardArgs, Segment, Strides, TileRange};
use crate::spec::{BackwardSpec, Dims, Dtype, ForwardSpec, KeySegment, Tensor};
use crate::tiles::{fill_gaps, key_ranges, longest_first, query_ranges};
use crate::variant::{Boxes, Density, Grid, Kernel};

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

/// What both kinds share: the function, its tables, and how many bytes at their start are zeroed before every launch.
#[derive(Debug)]
struct Launch {
    kernel: Kernel,
    function: CudaFunction,
    config: LaunchConfig,
    tables: Buffer,
    scratch_bytes: usize,
    ready_limit: Duration,
}

impl Forward {
    /// Validates `spec`, picks the kernel and puts what it reads beside the tensors on the device.
    pub fn prepare(device: &Device, spec: &ForwardSpec<'_>) -> Result<Self, GpuError> {
        spec.validate()?;
        let kernel = Kernel::forward(device.target(), spec.dims.dtype, spec.dims.head_dim, density(spec));
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

        let limit = ready_limit(&spec.segments);
        let mut pack = Pack::new();
        let scratch = pack.zeros(SCRATCH_WORDS);
        let (lo, hi) = (pack.push(spec.mask.lo), pack.push(spec.mask.hi));
        let order = pack.push(&longest_first(&work));
        let maps = Maps { boxes: kernel.boxes, dims: spec.dims };
        let q_map = maps.queries(&mut pack, spec.q, spec.q_len())?;
        let mut rows = Vec::new();
        for (segment, range) in spec.segments.iter().zip(&ranges) {
            rows.push(maps.segment(&mut pack, segment, range)?);
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
            spin_limit: nanoseconds(limit),
            work_counter: at(scratch),
            segment_major: 0,
            head_section: int(head_section(spec)),
        };
        let grid = [tiles, spec.dims.heads, spec.dims.batch];
        let launch = Launch::new(device, kernel, grid, tables, (SCRATCH_WORDS * 4, limit))?;
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
        let kernel = Kernel::backward(device.target(), spec.dims.dtype, spec.dims.head_dim);
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

        let limit = ready_limit(slice::from_ref(&spec.segment));
        let mut pack = Pack::new();
        let scratch = pack.zeros(scratch_words);
        let (lo, hi) = (pack.push(spec.mask.lo), pack.push(spec.mask.hi));
        let (order, q_ranges) = (pack.push(&order), pack.push(&ranges));
        let maps = Maps { boxes: kernel.boxes, dims: spec.dims };
        let q_map = maps.queries(&mut pack, spec.q, spec.q_len())?;
        let do_map = maps.queries(&mut pack, spec.d_o, spec.q_len())?;
        let dq_map = maps.query_gradient(&mut pack, spec.dq, spec.q_len())?;
        let row =
            maps.segment(&mut pack, &spec.segment, &key_ranges(spec.mask, tile_q, positions, tile_kv))?;
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
            spin_limit: nanoseconds(limit),
            dq_map: dq_map.map_or(0, at),
        };
        let grid = [work.len(), spec.dims.kv_heads, spec.dims.batch];
        let launch = Launch::new(device, kernel, grid, tables, (scratch_words * 4, limit))?;
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
    /// `grid`: tiles, heads that have CTAs of their own, sequences.
    fn new(
        device: &Device,
        kernel: Kernel,
        grid: [usize; 3],
        tables: Buffer,
        (scratch_bytes, ready_limit): (usize, Duration),
    ) -> Result<Self, GpuError> {
        let Loaded { function, shared_bytes } = device.function(&kernel)?;
        let [tiles, heads, batch] = grid.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let grid_dim = if kernel.grid == Grid::Persistent {
            let items = tiles.saturating_mul(heads).saturating_mul(batch);
            (items.min(device.multiprocessors()), 1, 1)
        } else {
            (tiles, heads, batch)
        };
        let config =
            LaunchConfig { grid_dim, block_dim: (kernel.threads, 1, 1), shared_mem_bytes: shared_bytes };
        Ok(Self { kernel, function, config, tables, scratch_bytes, ready_limit })
    }

    fn run<A: DeviceRepr>(&self, args: &A, stream: &CudaStream) -> Result<(), GpuError> {
        self.tables.fill_range(0, self.scratch_bytes, 0, stream)?;
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
        let words: Vec<i32> = self.tables.read(ERROR / 4 + 1)?;
        match words.last() {
            Some(&error) if error > 0 => {
                Err(GpuError::NotReady { segment: error as usize - 1, limit: self.ready_limit })
            }
            _ => Ok(()),
        }
    }
}

/// Writes the tensor maps of a launch, where its kernel reads through them.
struct Maps {
    boxes: Option<Boxes>,
    dims: Dims,
}

impl Maps {
    fn queries(&self, pack: &mut Pack, tensor: Tensor, tokens: usize) -> Result<Option<usize>, GpuError> {
        let heads = self.dims.heads;
        let element = Element::Input(self.dims.dtype);
        self.map(pack, |boxes| Mapped { tensor, heads, tokens, rows: boxes.q, axes: boxes.axes, element })
    }

    fn query_gradient(
        &self,
        pack: &mut Pack,
        tensor: Tensor,
        tokens: usize,
    ) -> Result<Option<usize>, GpuError> {
        let (heads, element) = (self.dims.heads, Element::F32);
        self.map(pack, |boxes| Mapped { tensor, heads, tokens, rows: boxes.dq, axes: boxes.axes, element })
    }

    fn keys(&self, pack: &mut Pack, tensor: Tensor, tokens: usize) -> Result<Option<usize>, GpuError> {
        let heads = self.dims.kv_heads;
        let element = Element::Input(self.dims.dtype);
        self.map(pack, |boxes| Mapped { tensor, heads, tokens, rows: boxes.kv, axes: boxes.axes, element })
    }

    /// The byte offset of the map in `pack`, if the kernel has maps of that many rows.
    fn map(&self, pack: &mut Pack, describe: impl Fn(Boxes) -> Mapped) -> Result<Option<usize>, GpuError> {
        let mapped = self.boxes.map(describe).filter(|mapped| mapped.rows > 0);
        mapped.map(|mapped| Ok(pack.push(&encode(mapped, self.dims)?))).transpose()
    }

    /// A segment whose table addresses are still offsets.
    fn segment(
        &self,
        pack: &mut Pack,
        segment: &KeySegment<'_>,
        ranges: &[TileRange],
    ) -> Result<Segment, GpuError> {
        let tokens = segment.positions.len();
        let tensor = |ptr| Tensor { ptr, strides: segment.strides };
        Ok(Segment {
            k: segment.k,
            v: segment.v,
            pos: pack.push(segment.positions) as u64,
            ranges: pack.push(ranges) as u64,
            ready: segment.ready.map_or(0, |flag| flag.ptr),
            ready_value: segment.ready.map_or(0, |flag| flag.value),
            len: int(tokens),
            kv: segment.strides,
            k_map: self.keys(pack, tensor(segment.k), tokens)?.unwrap_or(0) as u64,
            v_map: self.keys(pack, tensor(segment.v), tokens)?.unwrap_or(0) as u64,
        })
    }
}

/// Dense where at least nine tenths of the tiles of 128 x 128 are visited.
fn density(spec: &ForwardSpec<'_>) -> Density {
    const TILE: usize = 128;
    let (mut visited, mut all) = (0, 0);
    for segment in &spec.segments {
        let ranges = key_ranges(spec.mask, TILE, segment.positions, TILE);
        visited += ranges.iter().map(|range| (range.last - range.first) as usize).sum::<usize>();
        all += ranges.len() * segment.positions.len().div_ceil(TILE);
    }
    if visited * 10 >= all * 9 { Density::Dense } else { Density::Sparse }
}

/// Heads, counted over the batch, whose keys and values together fill about half of a Hopper's L2 cache.
fn head_section(spec: &ForwardSpec<'_>) -> usize {
    const L2_BUDGET: usize = 32 << 20;
    let Dims { heads, kv_heads, batch, head_dim, .. } = spec.dims;
    let keys: usize = spec.segments.iter().map(|segment| segment.positions.len()).sum();
    let group = heads / kv_heads;
    let kv_head_bytes = 2 * keys * head_dim.elements() * Dtype::BYTES as usize;
    ((L2_BUDGET / kv_head_bytes).max(1) * group).min(heads * batch)
}

fn ready_limit(segments: &[KeySegment<'_>]) -> Duration {
    segments.iter().filter_map(|segment| segment.ready).map(|flag| flag.limit).max().unwrap_or_default()
}

fn nanoseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

fn int(value: usize) -> i32 {
    i32::try_from(value).expect("sizes are validated to fit i32")
}
