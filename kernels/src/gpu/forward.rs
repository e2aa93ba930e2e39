use cudarc::driver::{CudaStream, DeviceRepr};

use super::launch::{ERROR, Launch, SCRATCH_WORDS, int, nanoseconds, ready_limit};
use super::maps::Maps;
use super::pack::Pack;
use super::{Device, GpuError};
use crate::abi::{ForwardArgs, TileRange};
use crate::sections;
use crate::spec::{Dims, ForwardSpec, WorkOrder};
use crate::tiles::{key_ranges, longest_first};
use crate::variant::{ForwardTiles, Kernel, Visits};

#[expect(unsafe_code, reason = "a plain C struct of integers, floats and device addresses")]
unsafe impl DeviceRepr for ForwardArgs {}

/// A forward launch whose mask, tile ranges and tensor maps lie on the device, ready to be repeated.
#[derive(Debug)]
pub struct Forward {
    launch: Launch,
    args: ForwardArgs,
}

impl Forward {
    /// Validates `spec`, picks the kernel and puts what it reads beside the tensors on the device.
    pub fn prepare(device: &Device, spec: &ForwardSpec<'_>) -> Result<Self, GpuError> {
        spec.validate()?;
        let Dims { dtype, head_dim, .. } = spec.dims;
        let kernel = device.changed(Kernel::forward(device.target(), dtype, head_dim, shape(spec)));
        let ranges: Vec<Vec<TileRange>> = spec
            .segments
            .iter()
            .map(|segment| key_ranges(spec.mask, kernel.tile_q, segment.positions, kernel.tile_kv))
            .collect();
        let tiles = spec.q_len().div_ceil(kernel.tile_q);
        let keys = spec.segments.iter().map(|segment| segment.positions.len()).sum();
        let visits = |tile: usize| ranges.iter().map(|range| range[tile].last - range[tile].first).sum();
        let work: Vec<i32> = (0..tiles).map(visits).collect();

        let mut pack = Pack::new();
        // At offset 0: a launch zeroes the first bytes of its tables.
        pack.zeros(SCRATCH_WORDS);
        let (lo, hi) = (pack.push(spec.mask.lo), pack.push(spec.mask.hi));
        let order = pack.push(&longest_first(&work));
        let maps = Maps { boxes: kernel.boxes, dims: spec.dims };
        let q_map = maps.queries(&mut pack, spec.q, spec.q_len())?;
        let mut segments = Vec::new();
        for (segment, range) in spec.segments.iter().zip(&ranges) {
            segments.push(maps.segment(&mut pack, segment, range)?);
        }
        let (tables, segments) = pack.upload(device.context(), segments)?;
        let at = |offset: usize| tables.ptr() + offset as u64;
        let args = ForwardArgs {
            q_map: q_map.map_or(0, at),
            q_lo: at(lo),
            q_hi: at(hi),
            order: at(order),
            segments,
            error: at(ERROR),
            work_counter: at(0),
            head_section: int(sections::heads(spec.dims, keys, tiles, device.multiprocessors() as usize)),
            ..arguments(spec)
        };
        let grid = [tiles, spec.dims.heads, spec.dims.batch];
        let limits = (SCRATCH_WORDS, ready_limit(&spec.segments));
        let launch = Launch::new(device, kernel, grid, tables, limits)?;
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

/// The arguments that the spec alone gives.
fn arguments(spec: &ForwardSpec<'_>) -> ForwardArgs {
    let mut args = ForwardArgs {
        q: spec.q.ptr,
        q_stride: spec.q.strides,
        segment_count: int(spec.segments.len()),
        batch: int(spec.dims.batch),
        q_len: int(spec.q_len()),
        heads: int(spec.dims.heads),
        kv_heads: int(spec.dims.kv_heads),
        scale: spec.scale,
        carry_in: i32::from(spec.carry.read),
        carry_out: i32::from(spec.carry.write),
        spin_limit: nanoseconds(ready_limit(&spec.segments)),
        segment_major: i32::from(spec.order == WorkOrder::SegmentMajor),
        ..ForwardArgs::default()
    };
    if let Some(state) = spec.carry.state {
        (args.acc_o, args.acc_stride, args.acc_m, args.acc_l) =
            (state.o.ptr, state.o.strides, state.m, state.l);
    }
    if let Some(output) = spec.output {
        (args.o, args.o_stride, args.lse) = (output.o.ptr, output.o.strides, output.lse);
    }
    args
}

/// The shape of the tiles, by what the launch visits.
fn shape(spec: &ForwardSpec<'_>) -> ForwardTiles {
    let mut visits = Visits::default();
    for segment in &spec.segments {
        let ranges = key_ranges(spec.mask, Visits::TILE, segment.positions, Visits::TILE);
        visits.add(segment.positions.len(), &ranges);
    }
    ForwardTiles::choose(spec.dims.head_dim, visits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Strides;
    use crate::spec::{Carry, Dtype, HeadDim, KeySegment, Tensor};
    use crate::tiles::Intervals;

    fn with_spec<R>(
        len: usize,
        heads: usize,
        kv_heads: usize,
        hi: &[i32],
        run: impl Fn(&ForwardSpec<'_>) -> R,
    ) -> R {
        let positions: Vec<i32> = (0..).take(len).collect();
        let lo = vec![0; len];
        let strides = Strides::dense(len, heads, 128);
        let segment = KeySegment { k: 16, v: 16, strides, positions: &positions, ready: None };
        run(&ForwardSpec {
            dims: Dims { dtype: Dtype::Bf16, head_dim: HeadDim::D128, heads, kv_heads, batch: 1 },
            scale: 1.0,
            q: Tensor { ptr: 16, strides },
            mask: Intervals { lo: &lo, hi },
            segments: vec![segment],
            order: WorkOrder::QueryMajor,
            carry: Carry::default(),
            output: None,
        })
    }

    #[test]
    fn the_shape_follows_mask_and_keys() {
        let causal = |len: usize| (0..).take(len).collect::<Vec<i32>>();
        let at_128 = |len, hi: &[i32]| with_spec(len, 1, 1, hi, shape);
        assert_eq!(at_128(2048, &causal(2048)), ForwardTiles::General);
        assert_eq!(at_128(32768, &causal(32768)), ForwardTiles::Wide);
        assert_eq!(at_128(2048, &[4095; 2048]), ForwardTiles::General);
        assert_eq!(at_128(4096, &[4095; 4096]), ForwardTiles::Wide);
        let at_64 = |len, hi: &[i32]| {
            with_spec(len, 1, 1, hi, |spec| {
                let dims = Dims { head_dim: HeadDim::D64, ..spec.dims };
                shape(&ForwardSpec { dims, ..spec.clone() })
            })
        };
        // 36 of 64 tiles are on the diagonal or below it.
        assert_eq!(at_64(1024, &causal(1024)), ForwardTiles::ShortMasked);
        assert_eq!(at_64(1024, &[1023; 1024]), ForwardTiles::Short);
        assert_eq!(at_64(1025, &causal(1025)), ForwardTiles::General);
    }

    #[test]
    fn keys_of_all_segments_count() {
        let run = |parts: usize| {
            with_spec(1024, 1, 1, &[4095; 1024], |spec| {
                let dims = Dims { head_dim: HeadDim::D64, ..spec.dims };
                let segments = vec![spec.segments[0]; parts];
                shape(&ForwardSpec { dims, segments, ..spec.clone() })
            })
        };
        assert_eq!((run(1), run(2)), (ForwardTiles::Short, ForwardTiles::General));
    }
}
