use std::ops::RangeInclusive;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUevent_flags;

use crate::abi::Strides;
use crate::gpu::{Backward, Buffer, Device, Forward, GpuError};
use crate::spec::{
    BackwardSpec, Carry, Dims, Dtype, Finished, ForwardSpec, HeadDim, KeySegment, Tensor, WorkOrder,
};
use crate::tiles::Intervals;

use super::tensors::{encode, scale};
use super::{LabError, Layout, Mask, normal};

/// Heads times head dimension of every point: a model width of 2048.
const WIDTH: usize = 2048;
/// Launches before the timed ones.
const WARM_UP: usize = 3;

/// One shape to time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Elements of one head; heads follow from a width of 2048.
    pub head_dim: HeadDim,
    /// Query heads that share a kv head.
    pub group: usize,
    /// Tokens of a sequence, over all ranks.
    pub len: usize,
    /// Sequences.
    pub batch: usize,
    /// The mask.
    pub mask: Mask,
    /// Who holds what.
    pub layout: Layout,
    /// Ranks; the one with the most work is timed, over the segments of all.
    pub ranks: usize,
}

/// The times of one pass at one point.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// The shape.
    pub point: Point,
    /// `forward` or `backward`.
    pub pass: &'static str,
    /// The kernel that ran.
    pub kernel: String,
    /// Milliseconds of each launch, rising.
    pub milliseconds: Vec<f32>,
    /// Floating-point operations of one launch, from the mask's area.
    pub flops: f64,
}

impl Timing {
    /// The middle time, in milliseconds.
    pub fn median(&self) -> f32 {
        self.milliseconds[self.milliseconds.len() / 2]
    }

    /// TFLOP/s of the middle time.
    pub fn tflops(&self) -> f64 {
        self.flops / f64::from(self.median()) / 1e9
    }
}

/// The points of the comparison with other implementations (16Ki tokens in all, or one longer sequence) and of the
/// layouts, as far as their sequences are of such `lengths`.
pub fn points(lengths: &RangeInclusive<usize>) -> Vec<Point> {
    let mut points = Vec::new();
    for head_dim in [HeadDim::D128, HeadDim::D64] {
        for len in [2048, 4096, 8192, 16384, 32768, 65536] {
            for mask in [Mask::Full, Mask::Causal] {
                let batch = (16384 / len).max(1);
                points.push(Point {
                    head_dim,
                    group: 1,
                    len,
                    batch,
                    mask,
                    layout: Layout::Contiguous,
                    ranks: 1,
                });
            }
        }
    }
    let causal = |group, layout, ranks, len| Point {
        head_dim: HeadDim::D128,
        group,
        len,
        batch: 1,
        mask: Mask::Causal,
        layout,
        ranks,
    };
    points.push(causal(4, Layout::Contiguous, 1, 16384));
    let layouts = [Layout::Contiguous, Layout::Zigzag, Layout::Striped(1), Layout::Striped(128)];
    points.extend(layouts.map(|layout| causal(1, layout, 4, 32768)));
    points.push(Point { mask: Mask::Window(4096), ..causal(1, Layout::Zigzag, 4, 32768) });
    points.push(Point { mask: Mask::Documents, ..causal(1, Layout::Zigzag, 4, 32768) });
    points.retain(|point| lengths.contains(&point.len));
    points
}

/// Times forward and backward at `point`, `repeats` launches each.
///
/// A backward is everything between `do` and rounded `dq`: the row sums of `o * do`, zeroed `dq`, one launch a segment,
/// the rounding of `dq`. `dk` and `dv` are added to fp32 accumulators, as in a ring.
pub fn bench(device: &Device, point: Point, repeats: usize) -> Result<Vec<Timing>, LabError> {
    let setup = Setup::new(device, point)?;
    let specs: Vec<BackwardSpec<'_>> =
        (0..setup.positions.len()).map(|source| setup.backward(source)).collect();
    let forward = Forward::prepare(device, &setup.forward())?;
    let backwards =
        specs.iter().map(|spec| Backward::prepare(device, spec)).collect::<Result<Vec<_>, _>>()?;
    let mut timings = Vec::new();
    let stream = device.context().default_stream();
    let forward_ms = time(device, repeats, || forward.launch(&stream))?;
    timings.push(setup.timing(point, "forward", forward.kernel().to_string(), forward_ms));
    let (o, d_o, delta) = (setup.o.tensor, setup.d_o.tensor, setup.delta.ptr());
    let backward_ms = time(device, repeats, || {
        device.preprocess(&stream, (setup.dims, setup.lo.len()), o, d_o, delta)?;
        setup.dq.buffer.fill(0, &stream)?;
        backwards.iter().try_for_each(|backward| backward.launch(&stream))?;
        device.convert(
            &stream,
            setup.dims,
            [setup.lo.len(), setup.dims.heads],
            (setup.dq.tensor, setup.rounded.tensor),
            1.0,
        )
    })?;
    let kernel = backwards.first().map(|backward| backward.kernel().to_string()).unwrap_or_default();
    timings.push(setup.timing(point, "backward", kernel, backward_ms));
    Ok(timings)
}

/// Times of `repeats` launches after a warm-up, in milliseconds, rising.
fn time(
    device: &Device,
    repeats: usize,
    mut launch: impl FnMut() -> Result<(), GpuError>,
) -> Result<Vec<f32>, GpuError> {
    let driver = |source| GpuError::Driver { doing: "time a launch", source };
    let stream = device.context().default_stream();
    let mark = || stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver);
    (0..WARM_UP).try_for_each(|_| launch())?;
    let mut events = Vec::with_capacity(repeats);
    for _ in 0..repeats.max(1) {
        let start = mark()?;
        launch()?;
        events.push((start, mark()?));
    }
    let mut times = events
        .iter()
        .map(|(start, end)| start.elapsed_ms(end).map_err(driver))
        .collect::<Result<Vec<f32>, _>>()?;
    times.sort_by(f32::total_cmp);
    Ok(times)
}

struct Placed {
    buffer: Buffer,
    tensor: Tensor,
}

/// The tensors of the busiest rank, and the keys of all.
struct Setup {
    dims: Dims,
    lo: Vec<i32>,
    hi: Vec<i32>,
    /// Positions of each rank's keys, the timed rank's own first.
    positions: Vec<Vec<i32>>,
    pairs: u64,
    q: Placed,
    d_o: Placed,
    o: Placed,
    dq: Placed,
    /// `dq` in the input dtype.
    rounded: Placed,
    lse: Buffer,
    delta: Buffer,
    /// Keys, values and their fp32 gradients of each rank.
    segments: Vec<[Placed; 4]>,
}

impl Setup {
    fn new(device: &Device, point: Point) -> Result<Self, GpuError> {
        let heads = WIDTH / point.head_dim.elements();
        let kv_heads = heads / point.group;
        let dims = Dims { dtype: Dtype::Bf16, head_dim: point.head_dim, heads, kv_heads, batch: point.batch };
        let (lo, hi) = point.mask.intervals(point.len);
        let held = point.layout.tokens(point.len, point.ranks);
        let area = |tokens: &Vec<usize>| {
            tokens.iter().map(|&t| u64::from((hi[t] - lo[t] + 1).max(0).unsigned_abs())).sum::<u64>()
        };
        let busiest = (0..held.len()).max_by_key(|&rank| area(&held[rank])).unwrap_or(0);
        let pick = |from: &[i32]| held[busiest].iter().map(|&token| from[token]).collect::<Vec<i32>>();
        let order = (0..held.len()).map(|step| &held[(busiest + held.len() - step) % held.len()]);
        let positions: Vec<Vec<i32>> = order
            .map(|tokens| tokens.iter().filter_map(|&token| i32::try_from(token).ok()).collect())
            .collect();
        let numbers = Numbers::new(device.context(), dims);
        let q_len = held[busiest].len();
        let rows = point.batch * heads * q_len * 4;
        let mut segments = Vec::new();
        for keys in &positions {
            let tensor = |seed| numbers.random(keys.len(), kv_heads, seed);
            let zeros = || numbers.zeros(keys.len(), kv_heads);
            segments.push([tensor(1)?, tensor(2)?, zeros()?, zeros()?]);
        }
        Ok(Self {
            dims,
            pairs: area(&held[busiest]),
            lo: pick(&lo),
            hi: pick(&hi),
            positions,
            q: numbers.random(q_len, heads, 3)?,
            d_o: numbers.random(q_len, heads, 4)?,
            o: numbers.random(q_len, heads, 5)?,
            dq: numbers.zeros(q_len, heads)?,
            rounded: numbers.random(q_len, heads, 6)?,
            lse: Buffer::new(device.context(), rows)?,
            delta: Buffer::new(device.context(), rows)?,
            segments,
        })
    }

    fn segment(&self, source: usize) -> KeySegment<'_> {
        let [k, v, ..] = &self.segments[source];
        KeySegment {
            k: k.buffer.ptr(),
            v: v.buffer.ptr(),
            strides: k.tensor.strides,
            positions: &self.positions[source],
            ready: None,
        }
    }

    fn forward(&self) -> ForwardSpec<'_> {
        ForwardSpec {
            dims: self.dims,
            scale: scale(self.dims.head_dim),
            q: self.q.tensor,
            mask: Intervals { lo: &self.lo, hi: &self.hi },
            segments: (0..self.positions.len()).map(|source| self.segment(source)).collect(),
            order: WorkOrder::QueryMajor,
            carry: Carry::default(),
            output: Some(Finished { o: self.o.tensor, lse: self.lse.ptr() }),
        }
    }

    fn backward(&self, source: usize) -> BackwardSpec<'_> {
        let [.., dk, dv] = &self.segments[source];
        BackwardSpec {
            dims: self.dims,
            scale: scale(self.dims.head_dim),
            q: self.q.tensor,
            d_o: self.d_o.tensor,
            lse: self.lse.ptr(),
            delta: self.delta.ptr(),
            mask: Intervals { lo: &self.lo, hi: &self.hi },
            segment: self.segment(source),
            dq: self.dq.tensor,
            dk: dk.tensor,
            dv: dv.buffer.ptr(),
            deterministic: false,
        }
    }

    /// A forward is two products of `2 D` operations a pair, a backward five.
    fn timing(&self, point: Point, pass: &'static str, kernel: String, milliseconds: Vec<f32>) -> Timing {
        let products = if pass == "forward" { 2.0 } else { 5.0 };
        let per_pair = 2.0 * products * point.head_dim.elements() as f64;
        let flops = per_pair * self.pairs as f64 * (self.dims.heads * self.dims.batch) as f64;
        Timing { point, pass, kernel, milliseconds, flops }
    }
}

/// Fills tensors with normal numbers, a run of them repeated: as random to the multipliers, and quick to make.
struct Numbers<'a> {
    context: &'a Arc<CudaContext>,
    dims: Dims,
    run: Vec<u16>,
}

impl<'a> Numbers<'a> {
    /// Odd, so that repeats fall on other columns.
    const RUN: usize = (1 << 20) + 7;

    fn new(context: &'a Arc<CudaContext>, dims: Dims) -> Self {
        let run = normal(1, Self::RUN).into_iter().map(|x| encode(dims.dtype, x)).collect();
        Self { context, dims, run }
    }

    fn random(&self, tokens: usize, heads: usize, seed: usize) -> Result<Placed, GpuError> {
        let elements = self.dims.batch * tokens * heads * self.dims.head_dim.elements();
        let host: Vec<u16> = self.run.iter().copied().cycle().skip(seed * 104_729).take(elements).collect();
        Ok(self.placed(Buffer::from_slice(self.context, &host)?, tokens, heads))
    }

    fn zeros(&self, tokens: usize, heads: usize) -> Result<Placed, GpuError> {
        let elements = self.dims.batch * tokens * heads * self.dims.head_dim.elements();
        let buffer = Buffer::new(self.context, 4 * elements)?;
        buffer.fill(0, &self.context.default_stream())?;
        Ok(self.placed(buffer, tokens, heads))
    }

    fn placed(&self, buffer: Buffer, tokens: usize, heads: usize) -> Placed {
        let strides = Strides::dense(tokens, heads, self.dims.head_dim.elements());
        Placed { tensor: Tensor { ptr: buffer.ptr(), strides }, buffer }
    }
}
