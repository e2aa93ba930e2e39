//! Tensors of one timed point.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use crate::abi::Strides;
use crate::gpu::{Buffer, Device, GpuError};
use crate::spec::{
    BackwardSpec, Carry, Dims, Dtype, Finished, ForwardSpec, KeySegment, State, Tensor, WorkOrder,
};
use crate::tiles::Intervals;

use super::bench::WIDTH;
use super::tensors::{encode, scale};
use super::{Point, Scope, Timing, normal};

struct Placed {
    buffer: Buffer,
    tensor: Tensor,
}

/// The tensors of the busiest rank, and the keys that it reads.
pub(super) struct Setup {
    /// Whether the keys are those of all ranks.
    pub whole: bool,
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
    /// The carried state of a single step: o, m and l.
    state: Option<(Placed, Buffer, Buffer)>,
    /// Keys, values and their fp32 gradients of each rank.
    segments: Vec<[Placed; 4]>,
}

/// The part of a point that one rank computes.
struct Share {
    /// Interval of keys of each query.
    lo: Vec<i32>,
    hi: Vec<i32>,
    /// Positions of each source's keys, in the order of a ring.
    positions: Vec<Vec<i32>>,
    /// Unmasked pairs of the queries with these keys.
    pairs: u64,
}

impl Share {
    /// That of the rank with the most pairs.
    fn of_busiest(point: &Point) -> Self {
        let (lo, hi) = point.mask.intervals(point.len);
        let held = point.layout.tokens(point.len, point.ranks);
        let sources = |rank: usize| match point.scope {
            Scope::Whole => (0..held.len()).map(|step| (rank + held.len() - step) % held.len()).collect(),
            Scope::Step(distance) => vec![(rank + held.len() - distance % held.len()) % held.len()],
        };
        let seen = |keys: &[usize], q: usize| {
            let below = |limit: i64| keys.partition_point(|&key| (key as i64) < limit);
            below(i64::from(hi[q]) + 1).saturating_sub(below(i64::from(lo[q]))) as u64
        };
        let area = |rank: usize| -> u64 {
            let with = |source: usize| held[rank].iter().map(|&q| seen(&held[source], q)).sum::<u64>();
            sources(rank).into_iter().map(with).sum()
        };
        let areas: Vec<u64> = (0..held.len()).map(area).collect();
        let busiest = (0..held.len()).max_by_key(|&rank| areas[rank]).unwrap_or(0);
        let pick = |from: &[i32]| held[busiest].iter().map(|&token| from[token]).collect();
        let places = |source: usize| held[source].iter().filter_map(|&t| i32::try_from(t).ok()).collect();
        let positions = sources(busiest).into_iter().map(places).collect();
        Self { lo: pick(&lo), hi: pick(&hi), positions, pairs: areas[busiest] }
    }
}

impl Setup {
    pub fn new(device: &Device, point: Point) -> Result<Self, GpuError> {
        let heads = WIDTH / point.head_dim.elements();
        let kv_heads = heads / point.group;
        let dims = Dims { dtype: Dtype::Bf16, head_dim: point.head_dim, heads, kv_heads, batch: point.batch };
        let Share { lo, hi, positions, pairs } = Share::of_busiest(&point);
        let numbers = Numbers::new(device.context(), dims);
        let q_len = lo.len();
        let rows = point.batch * heads * q_len * 4;
        let mut segments = Vec::new();
        for keys in &positions {
            let tensor = |seed| numbers.random(keys.len(), kv_heads, seed);
            let zeros = || numbers.zeros(keys.len(), kv_heads);
            segments.push([tensor(1)?, tensor(2)?, zeros()?, zeros()?]);
        }
        let whole = point.scope == Scope::Whole;
        let zeros = || {
            let buffer = Buffer::new(device.context(), rows)?;
            buffer.fill(0, &device.context().default_stream())?;
            Ok::<_, GpuError>(buffer)
        };
        let state = (!whole).then(|| Ok::<_, GpuError>((numbers.zeros(q_len, heads)?, zeros()?, zeros()?)));
        Ok(Self {
            whole,
            state: state.transpose()?,
            dims,
            pairs,
            lo,
            hi,
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

    /// Segments that are read.
    pub fn sources(&self) -> usize {
        self.positions.len()
    }

    /// Row sums of `o * do`, and `dq` zeroed.
    pub fn before_backward(&self, device: &Device, stream: &CudaStream) -> Result<(), GpuError> {
        let (o, d_o, delta) = (self.o.tensor, self.d_o.tensor, self.delta.ptr());
        device.preprocess_zeroing(stream, (self.dims, self.lo.len()), o, d_o, delta, self.dq.tensor)
    }

    /// `dq` rounded to the input dtype.
    pub fn after_backward(&self, device: &Device, stream: &CudaStream) -> Result<(), GpuError> {
        let sizes = [self.lo.len(), self.dims.heads];
        device.convert(stream, self.dims, sizes, (self.dq.tensor, self.rounded.tensor), 1.0)
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

    pub fn forward(&self) -> ForwardSpec<'_> {
        ForwardSpec {
            dims: self.dims,
            scale: scale(self.dims.head_dim),
            q: self.q.tensor,
            mask: Intervals { lo: &self.lo, hi: &self.hi },
            segments: (0..self.positions.len()).map(|source| self.segment(source)).collect(),
            order: WorkOrder::QueryMajor,
            carry: self.state.as_ref().map_or_else(Carry::default, |(o, m, l)| Carry {
                read: true,
                write: true,
                state: Some(State { o: o.tensor, m: m.ptr(), l: l.ptr() }),
            }),
            output: self.whole.then(|| Finished { o: self.o.tensor, lse: self.lse.ptr() }),
        }
    }

    pub fn backward(&self, source: usize) -> BackwardSpec<'_> {
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
            start_dkv: self.whole,
            deterministic: false,
        }
    }

    /// A forward is two products of `2 D` operations a pair, a backward five.
    pub fn timing(&self, point: Point, pass: &'static str, kernel: String, milliseconds: Vec<f32>) -> Timing {
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
        let mut host = Vec::with_capacity(elements + self.run.len());
        host.extend_from_slice(&self.run[seed * 104_729 % self.run.len()..]);
        while host.len() < elements {
            host.extend_from_slice(&self.run);
        }
        host.truncate(elements);
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
