//! Runs a plan on GPUs.
//!
//! The semantics are those of [`crate::cpu`]: the same buffers, the same operations, the same results in global token
//! order. Everything is prepared before the timed runs; in them the host only posts work.

mod error;
mod options;

use ringlab_sim::plan::Plan;

pub use error::CudaError;
pub use options::{Copies, Devices, Measured, Mode, Nccl, NcclWorld, Options, Run};

use crate::inputs::Inputs;

/// GPUs of this machine.
///
/// # Errors
/// No CUDA driver.
pub fn gpu_count() -> Result<usize, CudaError> {
    Ok(ringlab_kernels::gpu::Device::count()?)
}

/// Runs `plan` on `inputs`, which are rounded to the plan's element type on their way to the GPUs.
///
/// # Errors
/// See [`CudaError`].
pub fn run(plan: &Plan, inputs: &Inputs, options: &Options) -> Result<Run, CudaError> {
    let _ = (plan, inputs, options);
    gpu_count()?;
    Err(CudaError::NoNccl)
}

/// Bytes by which the processes of one [`NcclWorld`] find each other: one process makes them, all get them.
///
/// # Errors
/// No NCCL on this machine.
pub fn unique_id() -> Result<[u8; 128], CudaError> {
    Err(CudaError::NoNccl)
}
