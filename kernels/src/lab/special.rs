//! Inputs that random cases do not reach.

use std::time::Duration;

use crate::gpu::{Buffer, Device, Forward, GpuError};
use crate::reference::relative_l2;
use crate::spec::{
    Carry, Dims, Dtype, Finished, ForwardSpec, HeadDim, KeySegment, ReadyFlag, Tensor, WorkOrder,
};
use crate::tiles::Intervals;

use super::check::{Outcome, lse_error};
use super::ranks::{Mode, Ranks};
use super::tensors::{DeviceTensor, Inputs, round, scale};
use super::{LabError, Layout, Mask};

const DIMS: Dims = Dims { dtype: Dtype::Bf16, head_dim: HeadDim::D128, heads: 2, kv_heads: 2, batch: 1 };

pub(super) fn check(device: &Device, report: &mut impl FnMut(&Outcome)) -> Result<(), LabError> {
    for head_dim in HeadDim::ALL {
        for dtype in Dtype::ALL {
            let dims = Dims { dtype, head_dim, ..DIMS };
            report(&flat(device, dims)?);
            report(&large(device, dims)?);
            report(&short(device, dims)?);
            report(&interleaved(device, dims)?);
        }
        report(&ready(device, Dims { head_dim, ..DIMS })?);
    }
    Ok(())
}

fn name(dims: Dims, what: &str) -> String {
    format!("{} d{} {what}", dims.dtype, dims.head_dim.elements())
}

/// Equal scores over 64Ki keys: the output is the value itself, and sums of 131072 would overflow fp16.
fn flat(device: &Device, dims: Dims) -> Result<Outcome, LabError> {
    const KEYS: usize = 1 << 16;
    let row = dims.heads * dims.head_dim.elements();
    let context = device.context();
    let constant = |value: f32, tokens: usize| {
        let host = vec![value; tokens * row];
        DeviceTensor::gather(context, dims, (&host, tokens, dims.heads), &(0..tokens).collect::<Vec<_>>())
    };
    let (queries, q, k, v) = (130, constant(0.0, 130)?, constant(1.0, KEYS)?, constant(2.0, KEYS)?);
    let o = DeviceTensor::poisoned(context, dims, [queries, dims.heads], 2)?;
    let lse = Buffer::new(context, queries * dims.heads * 4)?;
    let positions: Vec<i32> = (0..).take(KEYS).collect();
    let (lo, hi) = (vec![0; queries], vec![i32::MAX; queries]);
    let segment = KeySegment {
        k: k.buffer.ptr(),
        v: v.buffer.ptr(),
        strides: k.strides,
        positions: &positions,
        ready: None,
    };
    let spec = ForwardSpec {
        dims,
        scale: scale(dims.head_dim),
        q: q.tensor(),
        mask: Intervals { lo: &lo, hi: &hi },
        segments: vec![segment],
        order: WorkOrder::QueryMajor,
        carry: Carry::default(),
        output: Some(Finished { o: o.tensor(), lse: lse.ptr() }),
    };
    Forward::prepare(device, &spec)?.launch(&context.default_stream())?;
    let o = o.read(dims.dtype)?;
    let lse: Vec<f64> = lse.read::<f32>(queries * dims.heads)?.into_iter().map(f64::from).collect();
    let expected = vec![(KEYS as f64).ln(); lse.len()];
    let errors =
        vec![("o", relative_l2(&o, &vec![2.0; o.len()]), 0.0), ("lse", lse_error(&lse, &expected), 1e-4)];
    Ok(Outcome { name: name(dims, "flat over 64Ki keys"), errors })
}

/// Scores of several hundred, so that most weights underflow and the running maximum jumps.
fn large(device: &Device, dims: Dims) -> Result<Outcome, LabError> {
    let mut inputs = Inputs::random(dims, 700, Mask::Causal, 31);
    for x in inputs.q.iter_mut().chain(&mut inputs.k) {
        *x = round(dims.dtype, *x * 8.0);
    }
    let expected = inputs.problem().forward()?;
    let ranks = Ranks::new(device, &inputs, Layout::Zigzag, 3)?;
    let mut errors = Vec::new();
    for (mode, o, lse) in [(Mode::Carried, "o", "lse"), (Mode::Merged, "o merged", "lse merged")] {
        let actual = ranks.forward(mode)?;
        errors.push((o, relative_l2(&actual.o, &expected.o), 4e-3));
        // fp32 scores of about 500 are exact to 3e-5 each.
        errors.push((lse, lse_error(&actual.lse, &expected.lse), 2e-3));
    }
    let gradients = ranks.backward(false)?;
    let finite =
        [&gradients.dq, &gradients.dk, &gradients.dv].iter().all(|g| g.iter().all(|x| x.is_finite()));
    errors.push(("gradients not finite", f64::from(u8::from(!finite)), 0.0));
    Ok(Outcome { name: name(dims, "large scores"), errors })
}

/// Fewer tokens than any tile holds, down to one.
fn short(device: &Device, dims: Dims) -> Result<Outcome, LabError> {
    let mut errors = Vec::new();
    for (len, what) in [(1, "o of 1"), (7, "o of 7"), (65, "o of 65")] {
        let inputs = Inputs::random(dims, len, Mask::Causal, 5);
        let expected = inputs.problem().forward()?;
        let gradients = inputs.problem().backward(&inputs.d_o)?;
        let ranks = Ranks::new(device, &inputs, Layout::Contiguous, 1)?;
        errors.push((what, relative_l2(&ranks.forward(Mode::Fused)?.o, &expected.o), 4e-3));
        errors.push(("dv", relative_l2(&ranks.backward(true)?.dv, &gradients.dv), 8e-3));
    }
    Ok(Outcome { name: name(dims, "short sequences"), errors })
}

/// Queries, keys and values side by side in one buffer: the strides differ from a dense tensor's.
fn interleaved(device: &Device, dims: Dims) -> Result<Outcome, LabError> {
    let inputs = Inputs::random(dims, 300, Mask::Causal, 9);
    let expected = inputs.problem().forward()?;
    let (len, row) = (inputs.len, dims.heads * dims.head_dim.elements());
    let mut host = Vec::with_capacity(3 * len * row);
    for token in 0..len {
        for tensor in [&inputs.q, &inputs.k, &inputs.v] {
            host.extend_from_slice(&tensor[token * row..(token + 1) * row]);
        }
    }
    let (context, all) = (device.context(), (0..len).collect::<Vec<_>>());
    let packed = DeviceTensor::gather(context, dims, (&host, len, 3 * dims.heads), &all)?;
    let o = DeviceTensor::poisoned(context, dims, [len, dims.heads], 2)?;
    let lse = Buffer::new(context, len * dims.heads * 4)?;
    let base = packed.buffer.ptr();
    let tensor = |index: usize| base + (2 * index * row) as u64;
    let segment = KeySegment {
        k: tensor(1),
        v: tensor(2),
        strides: packed.strides,
        positions: &inputs.positions,
        ready: None,
    };
    let spec = whole(&inputs, packed.tensor(), segment, Finished { o: o.tensor(), lse: lse.ptr() });
    Forward::prepare(device, &spec)?.launch(&context.default_stream())?;
    let errors = vec![("o", relative_l2(&o.read(dims.dtype)?, &expected.o), 4e-3)];
    Ok(Outcome { name: name(dims, "queries, keys and values in one buffer"), errors })
}

/// A forward over one segment of keys, from start to end.
fn whole<'a>(inputs: &'a Inputs, q: Tensor, segment: KeySegment<'a>, output: Finished) -> ForwardSpec<'a> {
    ForwardSpec {
        dims: inputs.dims,
        scale: scale(inputs.dims.head_dim),
        q,
        mask: Intervals { lo: &inputs.lo, hi: &inputs.hi },
        segments: vec![segment],
        order: WorkOrder::QueryMajor,
        carry: Carry::default(),
        output: Some(output),
    }
}

/// A segment whose flag is up is read; one whose flag never comes ends the launch with an error that names it.
fn ready(device: &Device, dims: Dims) -> Result<Outcome, LabError> {
    let inputs = Inputs::random(dims, 200, Mask::Full, 3);
    let expected = inputs.problem().forward()?;
    let (context, all) = (device.context(), (0..inputs.len).collect::<Vec<_>>());
    let gather = |host| DeviceTensor::gather(context, dims, (host, inputs.len, dims.heads), &all);
    let (q, k, v) = (gather(&inputs.q)?, gather(&inputs.k)?, gather(&inputs.v)?);
    let o = DeviceTensor::poisoned(context, dims, [inputs.len, dims.heads], 2)?;
    let lse = Buffer::new(context, inputs.len * dims.heads * 4)?;
    let flag = Buffer::from_slice(context, &[5u32])?;
    let launch = |value: u32| {
        let ready = Some(ReadyFlag { ptr: flag.ptr(), value, limit: Duration::from_millis(50) });
        let segment = KeySegment {
            k: k.buffer.ptr(),
            v: v.buffer.ptr(),
            strides: k.strides,
            positions: &inputs.positions,
            ready,
        };
        let spec = whole(&inputs, q.tensor(), segment, Finished { o: o.tensor(), lse: lse.ptr() });
        let forward = Forward::prepare(device, &spec)?;
        forward.launch(&context.default_stream())?;
        forward.check_ready()
    };
    launch(5)?;
    let error = relative_l2(&o.read(dims.dtype)?, &expected.o);
    let named = matches!(launch(6), Err(GpuError::NotReady { segment: 0, .. }));
    let errors = vec![("o", error, 4e-3), ("missing flag not named", f64::from(u8::from(!named)), 0.0)];
    Ok(Outcome { name: name(dims, "ready flags"), errors })
}
