//! Runs a plan on GPUs.
//!
//! The semantics are those of [`crate::cpu`]: the same buffers, the same operations, the same results in global token
//! order. Everything is prepared before the timed runs; in them the host only posts work. A plan is lowered in three steps:
//! `folds` says which operations become one launch, `lower` turns each operation into commands, and `lanes` adds who
//! waits for whom. `passes` runs the result on whatever implements `device::Gpu`.

mod bodies;
mod clock;
mod command;
mod device;
mod error;
mod filler;
mod flags;
mod folds;
mod lanes;
mod lower;
mod measure;
mod memory;
mod mode;
mod nccl;
mod open;
mod options;
mod passes;
mod prepare;
mod real;
mod sequence;
mod tensors;
#[cfg(test)]
mod tests;

use ringlab_kernels::gpu::Device;
use ringlab_sim::plan::{Op, OpKind, Plan};

pub use error::CudaError;
pub use options::{
    Copies, Devices, LIMITER_PERIOD, Measured, Mode, Nccl, NcclWorld, Options, Recording, Run,
};
pub use tensors::carried_bytes;

use crate::inputs::Inputs;
use prepare::{Session, kernel_types};

/// GPUs of this machine.
///
/// # Errors
/// No CUDA driver.
pub fn gpu_count() -> Result<usize, CudaError> {
    Ok(Device::count()?)
}

/// The contexts of GPUs. As long as it lives, no plan that runs on them pays for new ones.
pub struct Contexts {
    _devices: Vec<Device>,
}

impl Contexts {
    /// Opens the GPUs that `options` would run `ranks` ranks on.
    ///
    /// # Errors
    /// No driver, no such GPU.
    pub fn open(options: &Options, ranks: usize) -> Result<Self, CudaError> {
        let list = options.devices.ordinals(ranks).into_iter();
        let devices = list.map(|gpu| Ok(Device::open_with(gpu, options.kernels, None)?));
        Ok(Self { _devices: devices.collect::<Result<_, CudaError>>()? })
    }
}

/// Whether there is an NCCL that can be loaded.
pub fn has_nccl() -> bool {
    nccl::is_present()
}

/// Whether there are kernels for `plan`.
///
/// # Errors
/// An element type or head dimension without kernels; score rows in memory.
pub fn check(plan: &Plan) -> Result<(), CudaError> {
    kernel_types(plan)?;
    let in_memory = |op: &Op| matches!(op.kind, OpKind::Scores(_));
    match plan.programs.iter().any(|p| p.ops.iter().any(in_memory)) {
        true => Err(CudaError::Scores(plan.name.clone())),
        false => Ok(()),
    }
}

/// Runs `plan` on `inputs`, which are rounded to the plan's element type on their way to the GPUs.
///
/// # Errors
/// See [`CudaError`].
pub fn run(plan: &Plan, inputs: &Inputs, options: &Options) -> Result<Run, CudaError> {
    crate::cpu::tensors::check(plan, inputs)?;
    kernel_types(plan)?;
    let members = open::open(plan, options)?;
    Session::new(plan, inputs, options, members)?.run()
}

/// Bytes by which the processes of one [`NcclWorld`] find each other: one process makes them, all get them.
///
/// # Errors
/// No NCCL on this machine.
pub fn unique_id() -> Result<[u8; 128], CudaError> {
    if !has_nccl() {
        return Err(CudaError::NoNccl);
    }
    nccl::unique_id().map_err(|(doing, code)| CudaError::Nccl { rank: 0, doing, code })
}
