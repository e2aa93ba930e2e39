//! What the kernels do, by their specs' words, on the bytes of a made-up GPU.

use std::collections::BTreeMap;
use std::ops::Range;
use std::slice;

use half::{bf16, f16};
use ringlab_kernels::abi::Strides;
use ringlab_kernels::gpu::GpuError;
use ringlab_kernels::spec::{
    BackwardSpec, Carry, Dims, Dtype, Finished, KeySegment, ReadyFlag, State, Tensor,
};
use ringlab_kernels::tiles::Intervals;

use super::world::{Memory, home};
use crate::cuda::command::{Address, Kernel, Number, Strip};

/// Keys that a kernel owns a copy of.
struct Keys {
    k: Address,
    v: Address,
    strides: Strides,
    positions: Vec<i32>,
    ready: Option<ReadyFlag>,
}

/// Queries and keys of an attention call.
struct Attention {
    dims: Dims,
    scale: f32,
    q: Tensor,
    lo: Vec<i32>,
    hi: Vec<i32>,
    keys: Vec<Keys>,
    /// Rows of keys and values as they were when the launch started, by address.
    early: BTreeMap<Address, Vec<f32>>,
}

struct Gradients {
    d_o: Tensor,
    lse: Address,
    delta: Address,
    dq: Tensor,
    dk: Tensor,
    dv: Address,
    start_dkv: bool,
}

enum Work {
    Forward(Attention, Carry, Option<Finished>),
    Backward(Attention, Gradients),
    Preprocess { dims: Dims, tokens: usize, o: Tensor, d_o: Tensor, delta: Address },
    Merge { dims: Dims, tokens: usize, into: State, from: State },
    Finalise { dims: Dims, tokens: usize, state: State, out: Finished },
    Round { dims: Dims, tokens: usize, from: Tensor, to: Tensor },
    Add { dtype: Dtype, number: Number, strip: Strip },
}

/// A launch.
pub struct Job(Work);

fn keys(segment: &KeySegment<'_>) -> Keys {
    let positions = segment.positions.to_vec();
    Keys { k: segment.k, v: segment.v, strides: segment.strides, positions, ready: segment.ready }
}

impl Attention {
    fn of(dims: Dims, scale: f32, q: Tensor, mask: Intervals<'_>, segments: &[KeySegment<'_>]) -> Self {
        Self {
            dims,
            scale,
            q,
            lo: mask.lo.to_vec(),
            hi: mask.hi.to_vec(),
            keys: segments.iter().map(keys).collect(),
            early: BTreeMap::new(),
        }
    }
}

impl Job {
    pub fn new(kernel: &Kernel<'_>) -> Result<Self, GpuError> {
        Ok(Self(match *kernel {
            Kernel::Forward(ref spec) => {
                spec.validate()?;
                let attention = Attention::of(spec.dims, spec.scale, spec.q, spec.mask, &spec.segments);
                Work::Forward(attention, spec.carry, spec.output)
            }
            Kernel::Backward(ref spec) => {
                spec.validate()?;
                let BackwardSpec { d_o, lse, delta, dq, dk, dv, start_dkv, .. } = *spec;
                let segments = slice::from_ref(&spec.segment);
                let attention = Attention::of(spec.dims, spec.scale, spec.q, spec.mask, segments);
                Work::Backward(attention, Gradients { d_o, lse, delta, dq, dk, dv, start_dkv })
            }
            Kernel::Preprocess { dims, tokens, o, d_o, delta } => {
                Work::Preprocess { dims, tokens, o, d_o, delta }
            }
            Kernel::Merge { dims, tokens, into, from } => Work::Merge { dims, tokens, into, from },
            Kernel::Finalise { dims, tokens, state, out } => Work::Finalise { dims, tokens, state, out },
            Kernel::Round { dims, tokens, from, to } => Work::Round { dims, tokens, from, to },
            Kernel::Add { dims, number, strip } => Work::Add { dtype: dims.dtype, number, strip },
        }))
    }

    /// Flags that it waits for.
    pub fn flags(&self) -> impl Iterator<Item = ReadyFlag> {
        let keys = match &self.0 {
            Work::Forward(attention, ..) | Work::Backward(attention, _) => &attention.keys[..],
            _ => &[],
        };
        keys.iter().filter_map(|k| k.ready)
    }

    /// Reads the keys that have no flag, if others have: they may be read long before those have come.
    pub fn begin(&mut self, memory: &mut Memory, gpu: usize) {
        if self.flags().next().is_none() {
            return;
        }
        let at = On { memory, gpu };
        if let Work::Forward(ref mut attention, ..) = self.0 {
            attention.early = attention.unflagged(&at);
        }
    }

    /// Does its first or its second half.
    pub fn run(&self, memory: &mut Memory, gpu: usize, first: bool) {
        let mut at = On { memory, gpu };
        match self.0 {
            Work::Forward(ref attention, carry, output) => attention.forward(&mut at, (carry, output), first),
            Work::Backward(ref attention, ref gradients) => attention.backward(&mut at, gradients, first),
            Work::Preprocess { dims, tokens, o, d_o, delta } => {
                each_row(dims, half(tokens, first), |b, t, h| {
                    let (x, y) = (at.rounded(dims, o, b, t, h), at.rounded(dims, d_o, b, t, h));
                    at.put(scalar(delta, dims, tokens, (b, t, h)), &[dot(&x, &y)]);
                });
            }
            Work::Merge { dims, tokens, into, from } => each_row(dims, half(tokens, first), |b, t, h| {
                let mut total = at.softmax(dims, tokens, &into, (b, t, h));
                total.merge(&at.softmax(dims, tokens, &from, (b, t, h)));
                at.put_softmax(dims, tokens, &into, (b, t, h), &total);
            }),
            Work::Finalise { dims, tokens, state, out } => each_row(dims, half(tokens, first), |b, t, h| {
                let total = at.softmax(dims, tokens, &state, (b, t, h));
                at.put_finished(dims, tokens, &out, (b, t, h), &total);
            }),
            Work::Round { dims, tokens, from, to } => each_row(dims, half(tokens, first), |b, t, h| {
                let x = at.floats(row(from, b, t, h, 4), dims.head_dim.elements());
                at.put_rounded(dims.dtype, row(to, b, t, h, 2), &x);
            }),
            Work::Add { dtype, number, strip } => at.add(dtype, number, strip, half(strip.rows, first)),
        }
    }
}

fn half(n: usize, first: bool) -> Range<usize> {
    if first { 0..n / 2 } else { n / 2..n }
}

fn each_row(dims: Dims, tokens: Range<usize>, mut f: impl FnMut(usize, usize, usize)) {
    for b in 0..dims.batch {
        for t in tokens.clone() {
            (0..dims.heads).for_each(|h| f(b, t, h));
        }
    }
}

fn row(tensor: Tensor, b: usize, t: usize, h: usize, bytes: u64) -> Address {
    let Strides { batch, token, head } = tensor.strides;
    let offset = b as i64 * batch + t as i64 * token + h as i64 * head;
    tensor.ptr + offset as u64 * bytes
}

fn scalar(base: Address, dims: Dims, tokens: usize, (b, t, h): (usize, usize, usize)) -> Address {
    base + 4 * ((b * dims.heads + h) * tokens + t) as u64
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Memory as a kernel of one GPU reaches it: its own.
struct On<'m> {
    memory: &'m mut Memory,
    gpu: usize,
}

/// A running softmax of one query.
struct Softmax {
    o: Vec<f32>,
    m: f32,
    l: f32,
}

impl Softmax {
    fn empty(d: usize) -> Self {
        Self { o: vec![0.0; d], m: f32::NEG_INFINITY, l: 0.0 }
    }

    fn merge(&mut self, other: &Self) {
        let m = if self.m.is_nan() || other.m.is_nan() { f32::NAN } else { self.m.max(other.m) };
        if m == f32::NEG_INFINITY {
            return;
        }
        let (a, b) = ((self.m - m).exp(), (other.m - m).exp());
        // A state that saw no key may hold anything for o.
        let scaled = |x: f32, factor: f32| if factor == 0.0 { 0.0 } else { x * factor };
        self.o.iter_mut().zip(&other.o).for_each(|(x, y)| *x = scaled(*x, a) + scaled(*y, b));
        (self.l, self.m) = (self.l * a + other.l * b, m);
    }
}

impl On<'_> {
    fn floats(&self, at: Address, n: usize) -> Vec<f32> {
        assert_eq!(home(at), self.gpu, "a kernel reads another GPU's memory");
        let bytes = self.memory.bytes(at, 4 * n);
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    fn put(&mut self, at: Address, x: &[f32]) {
        assert_eq!(home(at), self.gpu, "a kernel writes another GPU's memory");
        let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.memory.bytes_mut(at, bytes.len()).copy_from_slice(&bytes);
    }

    fn halves(&self, dtype: Dtype, at: Address, n: usize) -> Vec<f32> {
        assert_eq!(home(at), self.gpu, "a kernel reads another GPU's memory");
        let number = |b: &[u8]| match dtype {
            Dtype::Bf16 => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
            Dtype::F16 => f16::from_le_bytes([b[0], b[1]]).to_f32(),
        };
        self.memory.bytes(at, 2 * n).chunks_exact(2).map(number).collect()
    }

    fn rounded(&self, dims: Dims, tensor: Tensor, b: usize, t: usize, h: usize) -> Vec<f32> {
        self.halves(dims.dtype, row(tensor, b, t, h, 2), dims.head_dim.elements())
    }

    fn put_rounded(&mut self, dtype: Dtype, at: Address, x: &[f32]) {
        assert_eq!(home(at), self.gpu, "a kernel writes another GPU's memory");
        let bytes = x.iter().flat_map(|&x| match dtype {
            Dtype::Bf16 => bf16::from_f32(x).to_le_bytes(),
            Dtype::F16 => f16::from_f32(x).to_le_bytes(),
        });
        let bytes: Vec<u8> = bytes.collect();
        self.memory.bytes_mut(at, bytes.len()).copy_from_slice(&bytes);
    }

    fn softmax(&self, dims: Dims, tokens: usize, state: &State, at: (usize, usize, usize)) -> Softmax {
        let one = |base| self.floats(scalar(base, dims, tokens, at), 1)[0];
        let o = self.floats(row(state.o, at.0, at.1, at.2, 4), dims.head_dim.elements());
        Softmax { o, m: one(state.m), l: one(state.l) }
    }

    fn put_softmax(
        &mut self,
        dims: Dims,
        tokens: usize,
        state: &State,
        at: (usize, usize, usize),
        x: &Softmax,
    ) {
        self.put(row(state.o, at.0, at.1, at.2, 4), &x.o);
        self.put(scalar(state.m, dims, tokens, at), &[x.m]);
        self.put(scalar(state.l, dims, tokens, at), &[x.l]);
    }

    fn put_finished(
        &mut self,
        dims: Dims,
        tokens: usize,
        out: &Finished,
        at: (usize, usize, usize),
        x: &Softmax,
    ) {
        let empty = x.m == f32::NEG_INFINITY;
        let o: Vec<f32> = x.o.iter().map(|&o| if empty { 0.0 } else { o / x.l }).collect();
        self.put_rounded(dims.dtype, row(out.o, at.0, at.1, at.2, 2), &o);
        let lse = if empty { f32::NEG_INFINITY } else { x.m + x.l.ln() };
        self.put(scalar(out.lse, dims, tokens, at), &[lse]);
    }

    fn add(&mut self, dtype: Dtype, number: Number, strip: Strip, rows: Range<usize>) {
        let n = strip.row_bytes / number.bytes();
        for r in rows {
            let (to, from) =
                (strip.to + (r * strip.to_pitch) as u64, strip.from + (r * strip.from_pitch) as u64);
            let sum =
                |a: Vec<f32>, b: Vec<f32>| -> Vec<f32> { a.iter().zip(b).map(|(x, y)| x + y).collect() };
            match number {
                Number::F32 => self.put(to, &sum(self.floats(to, n), self.floats(from, n))),
                Number::Rounded => {
                    self.put_rounded(dtype, to, &sum(self.halves(dtype, to, n), self.halves(dtype, from, n)));
                }
            }
        }
    }
}

impl Attention {
    fn attends(&self, query: usize, position: i32) -> bool {
        self.lo[query] <= position && position <= self.hi[query]
    }

    fn kv(&self, at: &On<'_>, base: Address, strides: Strides, (b, j, h): (usize, usize, usize)) -> Vec<f32> {
        let (tensor, head) = (Tensor { ptr: base, strides }, h / (self.dims.heads / self.dims.kv_heads));
        let known = self.early.get(&row(tensor, b, j, head, 2)).cloned();
        known.unwrap_or_else(|| at.rounded(self.dims, tensor, b, j, head))
    }

    fn unflagged(&self, at: &On<'_>) -> BTreeMap<Address, Vec<f32>> {
        let mut rows = BTreeMap::new();
        for keys in self.keys.iter().filter(|keys| keys.ready.is_none()) {
            for tensor in [keys.k, keys.v].map(|ptr| Tensor { ptr, strides: keys.strides }) {
                let dims = Dims { heads: self.dims.kv_heads, ..self.dims };
                each_row(dims, 0..keys.positions.len(), |b, j, h| {
                    rows.insert(row(tensor, b, j, h, 2), at.rounded(self.dims, tensor, b, j, h));
                });
            }
        }
        rows
    }

    fn forward(&self, at: &mut On<'_>, (carry, output): (Carry, Option<Finished>), first: bool) {
        let (dims, tokens) = (self.dims, self.lo.len());
        let mut rows = Vec::new();
        each_row(dims, half(tokens, first), |b, t, h| rows.push((b, t, h)));
        for (b, t, h) in rows {
            let mut total = match carry.state.filter(|_| carry.read) {
                Some(state) => at.softmax(dims, tokens, &state, (b, t, h)),
                None => Softmax::empty(dims.head_dim.elements()),
            };
            let q = at.rounded(dims, self.q, b, t, h);
            for keys in &self.keys {
                for (j, &position) in keys.positions.iter().enumerate() {
                    if self.attends(t, position) {
                        let k = self.kv(at, keys.k, keys.strides, (b, j, h));
                        let v = self.kv(at, keys.v, keys.strides, (b, j, h));
                        total.merge(&Softmax { o: v, m: self.scale * dot(&q, &k), l: 1.0 });
                    }
                }
            }
            if let Some(state) = carry.state.filter(|_| carry.write) {
                at.put_softmax(dims, tokens, &state, (b, t, h), &total);
            }
            if let Some(out) = output {
                at.put_finished(dims, tokens, &out, (b, t, h), &total);
            }
        }
    }

    fn backward(&self, at: &mut On<'_>, grads: &Gradients, first: bool) {
        let (dims, tokens, d) = (self.dims, self.lo.len(), self.dims.head_dim.elements());
        let keys = &self.keys[0];
        let group = dims.heads / dims.kv_heads;
        if grads.start_dkv && first {
            each_row(Dims { heads: dims.kv_heads, ..dims }, 0..keys.positions.len(), |b, j, h| {
                at.put(row(grads.dk, b, j, h, 4), &vec![0.0; d]);
                at.put(row(Tensor { ptr: grads.dv, ..grads.dk }, b, j, h, 4), &vec![0.0; d]);
            });
        }
        let mut rows = Vec::new();
        each_row(dims, half(tokens, first), |b, t, h| rows.push((b, t, h)));
        for (b, t, h) in rows {
            let (q, d_o) = (at.rounded(dims, self.q, b, t, h), at.rounded(dims, grads.d_o, b, t, h));
            let one = |at: &On<'_>, base| at.floats(scalar(base, dims, tokens, (b, t, h)), 1)[0];
            let (lse, delta) = (one(at, grads.lse), one(at, grads.delta));
            for (j, _) in keys.positions.iter().enumerate().filter(|&(_, &p)| self.attends(t, p)) {
                let k = self.kv(at, keys.k, keys.strides, (b, j, h));
                let v = self.kv(at, keys.v, keys.strides, (b, j, h));
                let p = (self.scale * dot(&q, &k) - lse).exp();
                let ds = self.scale * p * (dot(&d_o, &v) - delta);
                let dv = Tensor { ptr: grads.dv, ..grads.dk };
                let targets = [
                    (row(grads.dq, b, t, h, 4), ds, &k),
                    (row(grads.dk, b, j, h / group, 4), ds, &q),
                    (row(dv, b, j, h / group, 4), p, &d_o),
                ];
                for (to, factor, x) in targets {
                    let sum: Vec<f32> = at.floats(to, d).iter().zip(x).map(|(s, x)| s + factor * x).collect();
                    at.put(to, &sum);
                }
            }
        }
    }
}
