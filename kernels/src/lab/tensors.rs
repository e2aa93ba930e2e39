//! Tensors on the host and on the device.

use std::sync::Arc;

use cudarc::driver::CudaContext;
use half::{bf16, f16};

use crate::abi::Strides;
use crate::gpu::{Buffer, GpuError};
use crate::reference::{Problem, Shape};
use crate::spec::{Dims, Dtype, HeadDim, Tensor};

use super::{Mask, normal};

/// One attention problem on the host: random inputs that the dtype holds exactly.
#[derive(Debug, Clone)]
pub(super) struct Inputs {
    pub dims: Dims,
    pub len: usize,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub d_o: Vec<f32>,
    pub lo: Vec<i32>,
    pub hi: Vec<i32>,
    pub positions: Vec<i32>,
}

impl Inputs {
    /// Normal random tensors of `len` tokens under `mask`.
    pub fn random(dims: Dims, len: usize, mask: Mask, seed: u64) -> Self {
        let (lo, hi) = mask.intervals(len);
        let tensor = |seed: u64, heads: usize| {
            let elements = dims.batch * len * heads * dims.head_dim.elements();
            normal(seed, elements).into_iter().map(|x| round(dims.dtype, x)).collect::<Vec<f32>>()
        };
        Self {
            q: tensor(seed, dims.heads),
            k: tensor(seed + 1, dims.kv_heads),
            v: tensor(seed + 2, dims.kv_heads),
            d_o: tensor(seed + 3, dims.heads),
            positions: (0..).take(len).collect(),
            dims,
            len,
            lo,
            hi,
        }
    }

    /// The same problem for the reference.
    pub fn problem(&self) -> Problem<'_, f32> {
        let Dims { heads, kv_heads, batch, head_dim, .. } = self.dims;
        let shape = Shape {
            batch,
            q_len: self.len,
            kv_len: self.len,
            heads,
            kv_heads,
            head_dim: head_dim.elements(),
        };
        let Self { q, k, v, lo, hi, positions, .. } = self;
        Problem { shape, q, k, v, lo, hi, key_pos: positions, scale: f64::from(scale(self.dims.head_dim)) }
    }
}

/// The customary factor on scores.
pub(super) fn scale(head_dim: HeadDim) -> f32 {
    1.0 / (head_dim.elements() as f32).sqrt()
}

/// The nearest number that `dtype` holds.
pub(super) fn round(dtype: Dtype, x: f32) -> f32 {
    match dtype {
        Dtype::Bf16 => bf16::from_f32(x).to_f32(),
        Dtype::F16 => f16::from_f32(x).to_f32(),
    }
}

/// Bits of `x` in `dtype`.
pub(super) fn encode(dtype: Dtype, x: f32) -> u16 {
    match dtype {
        Dtype::Bf16 => bf16::from_f32(x).to_bits(),
        Dtype::F16 => f16::from_f32(x).to_bits(),
    }
}

/// The number whose bits in `dtype` are `bits`.
pub(super) fn decode(dtype: Dtype, bits: u16) -> f64 {
    match dtype {
        Dtype::Bf16 => bf16::from_bits(bits).to_f64(),
        Dtype::F16 => f16::from_bits(bits).to_f64(),
    }
}

/// A dense `[batch][tokens][heads][head_dim]` tensor on the device, of some tokens of a longer sequence.
#[derive(Debug)]
pub(super) struct DeviceTensor {
    pub buffer: Buffer,
    pub strides: Strides,
    elements: usize,
}

impl DeviceTensor {
    /// Room for `tokens` tokens of elements of `bytes` bytes, every byte `0xff`: a NaN in every format.
    pub fn poisoned(
        context: &Arc<CudaContext>,
        dims: Dims,
        [tokens, heads]: [usize; 2],
        bytes: usize,
    ) -> Result<Self, GpuError> {
        let elements = dims.batch * tokens * heads * dims.head_dim.elements();
        let buffer = Buffer::new(context, elements * bytes)?;
        buffer.fill(0xff, &context.default_stream())?;
        Ok(Self { buffer, strides: Strides::dense(tokens, heads, dims.head_dim.elements()), elements })
    }

    /// The rows of `tokens` of the host tensor `[batch][len][heads][head_dim]`.
    pub fn gather(
        context: &Arc<CudaContext>,
        dims: Dims,
        (host, len, heads): (&[f32], usize, usize),
        tokens: &[usize],
    ) -> Result<Self, GpuError> {
        let row = heads * dims.head_dim.elements();
        let rows =
            (0..dims.batch).flat_map(|batch| tokens.iter().map(move |token| (batch * len + token) * row));
        let bits: Vec<u16> =
            rows.flat_map(|start| &host[start..start + row]).map(|&x| encode(dims.dtype, x)).collect();
        let strides = Strides::dense(tokens.len(), heads, dims.head_dim.elements());
        Ok(Self { buffer: Buffer::from_slice(context, &bits)?, strides, elements: bits.len() })
    }

    pub fn tensor(&self) -> Tensor {
        Tensor { ptr: self.buffer.ptr(), strides: self.strides }
    }

    /// Its values, from the input dtype.
    pub fn read(&self, dtype: Dtype) -> Result<Vec<f64>, GpuError> {
        Ok(self.buffer.read::<u16>(self.elements)?.into_iter().map(|bits| decode(dtype, bits)).collect())
    }

    /// Its values, from fp32.
    pub fn read_f32(&self) -> Result<Vec<f64>, GpuError> {
        Ok(self.buffer.read::<f32>(self.elements)?.into_iter().map(f64::from).collect())
    }
}

/// Writes the rows of `tokens` into a host tensor of `len` tokens; `row` elements each.
pub(super) fn scatter(to: &mut [f64], from: &[f64], len: usize, row: usize, tokens: &[usize]) {
    for (index, values) in from.chunks(row).enumerate() {
        let (batch, slot) = (index / tokens.len(), index % tokens.len());
        let start = (batch * len + tokens[slot]) * row;
        to[start..start + row].copy_from_slice(values);
    }
}
