//! The ranks of a context-parallel group, one after the other on one GPU.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use crate::gpu::{Backward, Buffer, Device, Forward, GpuError};
use crate::spec::{BackwardSpec, Carry, Finished, ForwardSpec, KeySegment, State, WorkOrder};
use crate::tiles::Intervals;

use super::Layout;
use super::tensors::{DeviceTensor, Inputs, scale, scatter};

/// How a rank gets its output from the keys of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// One launch over all segments.
    Fused,
    /// One launch over all segments, segment by segment.
    SegmentMajor,
    /// A launch a segment, the state carried from one to the next.
    Carried,
    /// A launch a segment into a state of its own, merged afterwards.
    Merged,
}

/// A forward pass back on the host, as `[batch][len][heads][head_dim]` and `[batch][heads][len]`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HostOutput {
    pub o: Vec<f64>,
    pub lse: Vec<f64>,
}

/// Gradients back on the host: `dq` rounded to the input dtype, `dk` and `dv` in fp32.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HostGradients {
    pub dq: Vec<f64>,
    pub dk: Vec<f64>,
    pub dv: Vec<f64>,
}

/// What one rank holds.
struct Rank {
    tokens: Vec<usize>,
    positions: Vec<i32>,
    lo: Vec<i32>,
    hi: Vec<i32>,
    q: DeviceTensor,
    k: DeviceTensor,
    v: DeviceTensor,
    d_o: DeviceTensor,
    o: DeviceTensor,
    /// fp32 `[batch][heads][tokens]`, as `delta` and the state's `m` and `l`.
    lse: Buffer,
    delta: Buffer,
}

/// All ranks of one problem.
pub(super) struct Ranks<'a> {
    device: &'a Device,
    stream: Arc<CudaStream>,
    inputs: &'a Inputs,
    members: Vec<Rank>,
}

/// fp32 memory of one carried state.
struct StateBuffers {
    o: DeviceTensor,
    m: Buffer,
    l: Buffer,
}

impl StateBuffers {
    fn state(&self) -> State {
        State { o: self.o.tensor(), m: self.m.ptr(), l: self.l.ptr() }
    }
}

impl<'a> Ranks<'a> {
    /// Deals the tokens of `inputs` to `count` ranks.
    pub fn new(
        device: &'a Device,
        inputs: &'a Inputs,
        layout: Layout,
        count: usize,
    ) -> Result<Self, GpuError> {
        let members = layout
            .tokens(inputs.len, count)
            .into_iter()
            .filter(|tokens| !tokens.is_empty())
            .map(|tokens| Rank::new(device.context(), inputs, tokens))
            .collect::<Result<_, _>>()?;
        Ok(Self { device, stream: device.context().default_stream(), inputs, members })
    }

    /// Runs every rank's forward.
    pub fn forward(&self, mode: Mode) -> Result<HostOutput, GpuError> {
        for index in 0..self.members.len() {
            let rank = &self.members[index];
            rank.o.buffer.fill(0xff, &self.stream)?;
            rank.lse.fill(0xff, &self.stream)?;
            match mode {
                Mode::Fused => self.fused(index)?,
                Mode::SegmentMajor => self.segment_major(index)?,
                Mode::Carried => self.carried(index)?,
                Mode::Merged => self.merged(index)?,
            }
        }
        self.output()
    }

    /// Runs every pair's backward, after a forward: `dk` and `dv` stay with the owner of the keys.
    pub fn backward(&self, deterministic: bool) -> Result<HostGradients, GpuError> {
        let context = self.device.context();
        let dims = self.inputs.dims;
        let mut grads = Vec::new();
        for rank in &self.members {
            let tokens = rank.tokens.len();
            let poisoned = |heads, bytes| DeviceTensor::poisoned(context, dims, [tokens, heads], bytes);
            let dq = poisoned(dims.heads, 4)?;
            rank.delta.fill(0xff, &self.stream)?;
            let (o, d_o) = (rank.o.tensor(), rank.d_o.tensor());
            let delta = rank.delta.ptr();
            self.device.preprocess_zeroing(&self.stream, (dims, tokens), o, d_o, delta, dq.tensor())?;
            grads.push([
                dq,
                poisoned(dims.kv_heads, 4)?,
                poisoned(dims.kv_heads, 4)?,
                poisoned(dims.heads, 2)?,
            ]);
        }
        for (index, rank) in self.members.iter().enumerate() {
            for source in self.ring(index) {
                // Rank 0 comes first and reaches the keys of all: what it starts on is NaN.
                let start_dkv = index == 0;
                let spec = BackwardSpec {
                    dims,
                    scale: scale(dims.head_dim),
                    q: rank.q.tensor(),
                    d_o: rank.d_o.tensor(),
                    lse: rank.lse.ptr(),
                    delta: rank.delta.ptr(),
                    mask: rank.mask(),
                    segment: self.members[source].segment(),
                    dq: grads[index][0].tensor(),
                    dk: grads[source][1].tensor(),
                    dv: grads[source][2].buffer.ptr(),
                    start_dkv,
                    deterministic,
                };
                Backward::prepare(self.device, &spec)?.launch(&self.stream)?;
            }
        }
        self.gradients(&grads)
    }

    fn gradients(&self, grads: &[[DeviceTensor; 4]]) -> Result<HostGradients, GpuError> {
        let (dims, len) = (self.inputs.dims, self.inputs.len);
        let mut host = HostGradients {
            dq: vec![f64::NAN; self.inputs.q.len()],
            dk: vec![f64::NAN; self.inputs.k.len()],
            dv: vec![f64::NAN; self.inputs.k.len()],
        };
        let row = |heads: usize| heads * dims.head_dim.elements();
        for (rank, [dq, dk, dv, rounded]) in self.members.iter().zip(grads) {
            let sizes = [rank.tokens.len(), dims.heads];
            self.device.convert(&self.stream, dims, sizes, (dq.tensor(), rounded.tensor()), 1.0)?;
            scatter(&mut host.dq, &rounded.read(dims.dtype)?, len, row(dims.heads), &rank.tokens);
            scatter(&mut host.dk, &dk.read_f32()?, len, row(dims.kv_heads), &rank.tokens);
            scatter(&mut host.dv, &dv.read_f32()?, len, row(dims.kv_heads), &rank.tokens);
        }
        Ok(host)
    }

    /// Ranks whose keys rank `index` sees, in the order of a ring: its own first.
    fn ring(&self, index: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.members.len();
        (0..count).map(move |step| (index + count - step) % count)
    }

    fn spec(&self, index: usize, sources: impl Iterator<Item = usize>) -> ForwardSpec<'_> {
        let rank = &self.members[index];
        ForwardSpec {
            dims: self.inputs.dims,
            scale: scale(self.inputs.dims.head_dim),
            q: rank.q.tensor(),
            mask: rank.mask(),
            segments: sources.map(|source| self.members[source].segment()).collect(),
            order: WorkOrder::QueryMajor,
            carry: Carry::default(),
            output: Some(rank.finished()),
        }
    }

    fn fused(&self, index: usize) -> Result<(), GpuError> {
        Forward::prepare(self.device, &self.spec(index, self.ring(index)))?.launch(&self.stream)
    }

    fn segment_major(&self, index: usize) -> Result<(), GpuError> {
        let state = self.state(index)?;
        let mut spec = self.spec(index, self.ring(index));
        spec.order = WorkOrder::SegmentMajor;
        spec.carry = Carry { read: false, write: false, state: Some(state.state()) };
        Forward::prepare(self.device, &spec)?.launch(&self.stream)
    }

    fn carried(&self, index: usize) -> Result<(), GpuError> {
        let state = self.state(index)?;
        let last = self.members.len() - 1;
        for (step, source) in self.ring(index).enumerate() {
            let mut spec = self.spec(index, std::iter::once(source));
            spec.carry = Carry { read: step > 0, write: step < last, state: Some(state.state()) };
            spec.output = spec.output.filter(|_| step == last);
            Forward::prepare(self.device, &spec)?.launch(&self.stream)?;
        }
        Ok(())
    }

    fn merged(&self, index: usize) -> Result<(), GpuError> {
        let (total, rank) = (self.state(index)?, &self.members[index]);
        let rows = (self.inputs.dims, rank.tokens.len());
        for (step, source) in self.ring(index).enumerate() {
            let part = self.state(index)?;
            let state = if step == 0 { &total } else { &part };
            let mut spec = self.spec(index, std::iter::once(source));
            spec.carry = Carry { read: false, write: true, state: Some(state.state()) };
            spec.output = None;
            Forward::prepare(self.device, &spec)?.launch(&self.stream)?;
            if step > 0 {
                self.device.merge(&self.stream, rows, total.state(), part.state())?;
            }
        }
        self.device.finalise(&self.stream, rows, total.state(), rank.finished())
    }

    fn state(&self, index: usize) -> Result<StateBuffers, GpuError> {
        let (context, dims, rank) = (self.device.context(), self.inputs.dims, &self.members[index]);
        let poisoned = || {
            let buffer = Buffer::new(context, rank.lse.bytes())?;
            buffer.fill(0xff, &self.stream)?;
            Ok::<_, GpuError>(buffer)
        };
        let o = DeviceTensor::poisoned(context, dims, [rank.tokens.len(), dims.heads], 4)?;
        Ok(StateBuffers { o, m: poisoned()?, l: poisoned()? })
    }

    fn output(&self) -> Result<HostOutput, GpuError> {
        let (dims, len) = (self.inputs.dims, self.inputs.len);
        let sequences = dims.batch * dims.heads;
        let mut host =
            HostOutput { o: vec![f64::NAN; self.inputs.q.len()], lse: vec![f64::NAN; sequences * len] };
        for rank in &self.members {
            let row = dims.heads * dims.head_dim.elements();
            scatter(&mut host.o, &rank.o.read(dims.dtype)?, len, row, &rank.tokens);
            let lse: Vec<f32> = rank.lse.read(sequences * rank.tokens.len())?;
            let lse: Vec<f64> = lse.into_iter().map(f64::from).collect();
            scatter(&mut host.lse, &lse, len, 1, &rank.tokens);
        }
        Ok(host)
    }
}

impl Rank {
    fn new(context: &Arc<CudaContext>, inputs: &Inputs, tokens: Vec<usize>) -> Result<Self, GpuError> {
        let (dims, len) = (inputs.dims, inputs.len);
        let rows = dims.batch * dims.heads * tokens.len() * 4;
        let pick = |from: &[i32]| tokens.iter().map(|&token| from[token]).collect();
        let queries = |host| DeviceTensor::gather(context, dims, (host, len, dims.heads), &tokens);
        let keys = |host| DeviceTensor::gather(context, dims, (host, len, dims.kv_heads), &tokens);
        Ok(Self {
            positions: pick(&inputs.positions),
            lo: pick(&inputs.lo),
            hi: pick(&inputs.hi),
            q: queries(&inputs.q)?,
            k: keys(&inputs.k)?,
            v: keys(&inputs.v)?,
            d_o: queries(&inputs.d_o)?,
            o: DeviceTensor::poisoned(context, dims, [tokens.len(), dims.heads], 2)?,
            lse: Buffer::new(context, rows)?,
            delta: Buffer::new(context, rows)?,
            tokens,
        })
    }

    fn mask(&self) -> Intervals<'_> {
        Intervals { lo: &self.lo, hi: &self.hi }
    }

    fn segment(&self) -> KeySegment<'_> {
        KeySegment {
            k: self.k.buffer.ptr(),
            v: self.v.buffer.ptr(),
            strides: self.k.strides,
            positions: &self.positions,
            ready: None,
        }
    }

    fn finished(&self) -> Finished {
        Finished { o: self.o.tensor(), lse: self.lse.ptr() }
    }
}
