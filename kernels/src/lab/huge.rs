//! Tensors whose last rows lie more than 2^32 elements behind their first: offsets that 32 bits do not hold.

use crate::abi::Strides;
use crate::gpu::{Backward, Buffer, Device, Forward, GpuError};
use crate::reference::relative_l2;
use crate::spec::{
    BackwardSpec, Carry, Dims, Dtype, Finished, ForwardSpec, HeadDim, KeySegment, Tensor, WorkOrder,
};
use crate::tiles::Intervals;

use super::check::Outcome;
use super::tensors::{Inputs, decode, encode, scale};
use super::{LabError, Mask};

const LEN: usize = 1100;
/// Elements from token to token: 1100 of them are 4.6e9.
const TOKEN: usize = 1 << 22;
const DIMS: Dims = Dims { dtype: Dtype::Bf16, head_dim: HeadDim::D128, heads: 2, kv_heads: 2, batch: 1 };

/// Two allocations, 28 GB together: every token's row of one holds the 16-bit tensors side by side, of the other the fp32
/// gradients.
struct Rows {
    halves: Buffer,
    floats: Buffer,
}

/// Elements of a token in one tensor.
const ROW: usize = DIMS.heads * 128;

pub(super) fn check(device: &Device, report: &mut impl FnMut(&Outcome)) -> Result<(), LabError> {
    let inputs = Inputs::random(DIMS, LEN, Mask::Causal, 23);
    let problem = inputs.problem();
    let (output, gradients) = (problem.forward()?, problem.backward(&inputs.d_o)?);
    let context = device.context();
    let rows = Rows {
        halves: Buffer::new(context, 2 * LEN * TOKEN)?,
        floats: Buffer::new(context, 4 * LEN * TOKEN)?,
    };
    for (slot, host) in [&inputs.q, &inputs.k, &inputs.v, &inputs.d_o].into_iter().enumerate() {
        for (token, row) in host.chunks(ROW).enumerate() {
            let bits: Vec<u16> = row.iter().map(|&x| encode(DIMS.dtype, x)).collect();
            rows.halves.write(2 * (token * TOKEN + slot * ROW), &bits)?;
        }
    }
    for token in 0..LEN {
        rows.floats.write(4 * token * TOKEN, &[0.0f32; 3 * ROW])?;
    }
    let (lse, delta) =
        (Buffer::new(context, LEN * DIMS.heads * 4)?, Buffer::new(context, LEN * DIMS.heads * 4)?);
    rows.launch(device, &inputs, lse.ptr(), delta.ptr())?;
    let errors = vec![
        ("o", relative_l2(&rows.half(4)?, &output.o), 4e-3),
        ("dq", relative_l2(&rows.float(0)?, &gradients.dq), 8e-3),
        ("dk", relative_l2(&rows.float(1)?, &gradients.dk), 8e-3),
        ("dv", relative_l2(&rows.float(2)?, &gradients.dv), 8e-3),
    ];
    report(&Outcome {
        name: format!("bf16 d128 {LEN} tokens causal, {TOKEN} elements from token to token"),
        errors,
    });
    Ok(())
}

impl Rows {
    fn strides() -> Strides {
        let [token, head] = [TOKEN, DIMS.head_dim.elements()].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        Strides { batch: 0, token, head }
    }

    /// The 16-bit tensor number `slot` of a row: q, k, v, do, o.
    fn tensor(&self, slot: usize) -> Tensor {
        Tensor { ptr: self.halves.ptr() + (2 * slot * ROW) as u64, strides: Self::strides() }
    }

    /// The fp32 tensor number `slot` of a row: dq, dk, dv.
    fn gradient(&self, slot: usize) -> Tensor {
        Tensor { ptr: self.floats.ptr() + (4 * slot * ROW) as u64, strides: Self::strides() }
    }

    fn launch(&self, device: &Device, inputs: &Inputs, lse: u64, delta: u64) -> Result<(), GpuError> {
        let stream = device.context().default_stream();
        let mask = Intervals { lo: &inputs.lo, hi: &inputs.hi };
        let scale = scale(DIMS.head_dim);
        let segment = KeySegment {
            k: self.tensor(1).ptr,
            v: self.tensor(2).ptr,
            strides: Self::strides(),
            positions: &inputs.positions,
            ready: None,
        };
        let forward = ForwardSpec {
            dims: DIMS,
            scale,
            q: self.tensor(0),
            mask,
            segments: vec![segment],
            order: WorkOrder::QueryMajor,
            carry: Carry::default(),
            output: Some(Finished { o: self.tensor(4), lse }),
        };
        Forward::prepare(device, &forward)?.launch(&stream)?;
        device.preprocess(&stream, (DIMS, LEN), self.tensor(4), self.tensor(3), delta)?;
        let backward = BackwardSpec {
            dims: DIMS,
            scale,
            q: self.tensor(0),
            d_o: self.tensor(3),
            lse,
            delta,
            mask,
            segment,
            dq: self.gradient(0),
            dk: self.gradient(1),
            dv: self.gradient(2).ptr,
            start_dkv: false,
            deterministic: false,
        };
        Backward::prepare(device, &backward)?.launch(&stream)
    }

    fn half(&self, slot: usize) -> Result<Vec<f64>, GpuError> {
        let row = |token: usize| self.halves.read_at::<u16>(2 * (token * TOKEN + slot * ROW), ROW);
        let bits = (0..LEN).map(row).collect::<Result<Vec<_>, _>>()?;
        Ok(bits.into_iter().flatten().map(|bits| decode(DIMS.dtype, bits)).collect())
    }

    fn float(&self, slot: usize) -> Result<Vec<f64>, GpuError> {
        let row = |token: usize| self.floats.read_at::<f32>(4 * (token * TOKEN + slot * ROW), ROW);
        Ok((0..LEN).map(row).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().map(f64::from).collect())
    }
}
