//! The memory-bound steps around the attention kernels, launched at once: nothing is prepared for them.

use cudarc::driver::{CudaStream, DeviceRepr, LaunchConfig, PushKernelArg as _};

use super::device::Loaded;
use super::error::Doing as _;
use super::launch::int;
use super::{Device, GpuError};
use crate::abi::{AddArgs, ConvertArgs, FinaliseArgs, MergeArgs, PreprocessArgs, StateArgs};
use crate::spec::{
    ALIGNMENT, Dims, Dtype, Finished, SpecError, State, Tensor, check_address, check_size, check_tensor,
};
use crate::variant::{Kernel, Step};

/// Elements that a thread of these kernels works on.
const ELEMENTS_A_THREAD: usize = 8;

macro_rules! plain_arguments {
    ($($type:ty),*) => {$(
        #[expect(unsafe_code, reason = "a plain C struct of integers, floats and device addresses")]
        unsafe impl DeviceRepr for $type {}
    )*};
}
plain_arguments!(PreprocessArgs, ConvertArgs, MergeArgs, FinaliseArgs, AddArgs);

/// Rows of numbers in device memory, their starts `pitch` numbers apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strip {
    /// Device address of the first.
    pub ptr: u64,
    /// Distance between the starts of two rows.
    pub pitch: usize,
}

impl Device {
    /// Compiles and loads the kernel of `step`, so that its first launch takes no longer than others.
    pub fn load_step(&self, step: Step, dims: Dims) -> Result<(), GpuError> {
        self.function(&Kernel::step(step, dims.dtype, dims.head_dim)).map(drop)
    }

    /// Adds `rows` rows of `columns` numbers: fp32, or `rounded` ones of the input dtype.
    pub fn add(
        &self,
        stream: &CudaStream,
        (dims, rounded): (Dims, bool),
        [rows, columns]: [usize; 2],
        (to, from): (Strip, Strip),
    ) -> Result<(), GpuError> {
        let bytes = if rounded { Dtype::BYTES } else { 4 };
        let starts = |s: Strip| [s.ptr, s.pitch as u64 * bytes];
        let aligned = [starts(to), starts(from)].concat().iter().all(|x| x.is_multiple_of(ALIGNMENT));
        for (name, strip) in [("to", to), ("from", from)] {
            check_address(name, strip.ptr, bytes)?;
        }
        if rounded && !(aligned && columns.is_multiple_of(ELEMENTS_A_THREAD)) {
            return Err(SpecError::Misaligned { name: "columns", value: columns as i128 * 2 }.into());
        }
        for value in [rows, columns, to.pitch, from.pitch] {
            check_size("rows, columns or pitch", value, 1 << 30)?;
        }
        let args = AddArgs {
            to: to.ptr,
            from: from.ptr,
            to_pitch: to.pitch as i64,
            from_pitch: from.pitch as i64,
            rows: int(rows),
            columns: int(columns),
            aligned: i32::from(aligned),
        };
        let step = if rounded { Step::AddRounded } else { Step::Add };
        self.launch(stream, step, dims, rows * columns.div_ceil(ELEMENTS_A_THREAD), &args)
    }

    /// `delta = rowsum(o * do)`, fp32 `[batch][heads][q_len]` at the address `delta`: what a backward subtracts from dP.
    pub fn preprocess(
        &self,
        stream: &CudaStream,
        (dims, q_len): (Dims, usize),
        o: Tensor,
        d_o: Tensor,
        delta: u64,
    ) -> Result<(), GpuError> {
        let args = preprocess_args((dims, q_len), o, d_o, delta)?;
        self.step(stream, Step::Preprocess, dims, [args.batch, args.q_len, args.heads], &args)
    }

    /// [`preprocess`](Self::preprocess) that zeroes the fp32 `dq`, shaped like `o`, in the same pass.
    pub fn preprocess_zeroing(
        &self,
        stream: &CudaStream,
        (dims, q_len): (Dims, usize),
        o: Tensor,
        d_o: Tensor,
        delta: u64,
        dq: Tensor,
    ) -> Result<(), GpuError> {
        check_tensor("dq", dq, dims.heads, dims.head_dim, 4)?;
        let args = preprocess_args((dims, q_len), o, d_o, delta)?;
        let args = PreprocessArgs { dq: dq.ptr, dq_stride: dq.strides, ..args };
        self.step(stream, Step::Preprocess, dims, [args.batch, args.q_len, args.heads], &args)
    }

    /// Rounds the fp32 tensor `from`, times `scale`, to the input dtype; both `[batch][tokens][heads][head_dim]`.
    pub fn convert(
        &self,
        stream: &CudaStream,
        dims: Dims,
        [tokens, heads]: [usize; 2],
        (from, to): (Tensor, Tensor),
        scale: f32,
    ) -> Result<(), GpuError> {
        check_tensor("from", from, heads, dims.head_dim, 4)?;
        check_tensor("to", to, heads, dims.head_dim, Dtype::BYTES)?;
        let [batch, tokens, heads] = sizes([dims.batch, tokens, heads])?;
        let (from_stride, to_stride) = (from.strides, to.strides);
        let args =
            ConvertArgs { from: from.ptr, from_stride, to: to.ptr, to_stride, batch, tokens, heads, scale };
        self.step(stream, Step::Convert, dims, [batch, tokens, heads], &args)
    }

    /// Merges the state `from` into `into`; the two have seen different keys of the same queries.
    pub fn merge(
        &self,
        stream: &CudaStream,
        (dims, q_len): (Dims, usize),
        into: State,
        from: State,
    ) -> Result<(), GpuError> {
        into.validate(dims)?;
        from.validate(dims)?;
        let [batch, q_len, heads] = sizes([dims.batch, q_len, dims.heads])?;
        let args = MergeArgs { a: state_args(into), b: state_args(from), batch, q_len, heads };
        self.step(stream, Step::Merge, dims, [batch, q_len, heads], &args)
    }

    /// Writes the output and log-sum-exp of a state.
    pub fn finalise(
        &self,
        stream: &CudaStream,
        (dims, q_len): (Dims, usize),
        state: State,
        output: Finished,
    ) -> Result<(), GpuError> {
        state.validate(dims)?;
        output.validate(dims)?;
        let [batch, q_len, heads] = sizes([dims.batch, q_len, dims.heads])?;
        let Finished { o, lse } = output;
        let state = state_args(state);
        let args = FinaliseArgs { state, o: o.ptr, o_stride: o.strides, lse, batch, q_len, heads };
        self.step(stream, Step::Finalise, dims, [batch, q_len, heads], &args)
    }

    fn step<A: DeviceRepr>(
        &self,
        stream: &CudaStream,
        step: Step,
        dims: Dims,
        rows: [i32; 3],
        args: &A,
    ) -> Result<(), GpuError> {
        let rows: usize = rows.iter().map(|&n| n as usize).product();
        self.launch(stream, step, dims, rows * (dims.head_dim.elements() / ELEMENTS_A_THREAD), args)
    }

    fn launch<A: DeviceRepr>(
        &self,
        stream: &CudaStream,
        step: Step,
        dims: Dims,
        threads: usize,
        args: &A,
    ) -> Result<(), GpuError> {
        let kernel = Kernel::step(step, dims.dtype, dims.head_dim);
        let Loaded { function, shared_bytes } = self.function(&kernel)?;
        let ctas = threads.div_ceil(kernel.threads as usize);
        check_size("rows", ctas, (1 << 31) - 1)?;
        let config = LaunchConfig {
            grid_dim: (ctas as u32, 1, 1),
            block_dim: (kernel.threads, 1, 1),
            shared_mem_bytes: shared_bytes,
        };
        let mut builder = stream.launch_builder(&function);
        builder.arg(args);
        #[expect(unsafe_code, reason = "the kernel takes exactly this struct, whose tensors were validated")]
        unsafe { builder.launch(config) }.doing("launch a kernel")?;
        Ok(())
    }
}

fn preprocess_args(
    (dims, q_len): (Dims, usize),
    o: Tensor,
    d_o: Tensor,
    delta: u64,
) -> Result<PreprocessArgs, SpecError> {
    check_tensor("o", o, dims.heads, dims.head_dim, Dtype::BYTES)?;
    check_tensor("do", d_o, dims.heads, dims.head_dim, Dtype::BYTES)?;
    check_address("delta", delta, 4)?;
    let [batch, q_len, heads] = sizes([dims.batch, q_len, dims.heads])?;
    Ok(PreprocessArgs {
        o: o.ptr,
        o_stride: o.strides,
        d_o: d_o.ptr,
        do_stride: d_o.strides,
        delta,
        batch,
        q_len,
        heads,
        ..PreprocessArgs::default()
    })
}

fn sizes<const N: usize>(values: [usize; N]) -> Result<[i32; N], SpecError> {
    for value in values {
        check_size("batch, tokens or heads", value, 1 << 30)?;
    }
    Ok(values.map(|value| i32::try_from(value).unwrap_or(i32::MAX)))
}

fn state_args(state: State) -> StateArgs {
    StateArgs { o: state.o.ptr, o_stride: state.o.strides, m: state.m, l: state.l }
}
