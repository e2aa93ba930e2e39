//! Runs a plan on GPUs.
//!
//! The semantics are those of [`crate::cpu`]: the same buffers, the same operations, the same results in global token
//! order. Everything is prepared before the timed runs; in them the host only posts work. A plan is lowered in three steps:
//! [`folds`] says which operations become one launch, [`lower`] turns each operation into commands, and [`lanes`] adds who
//! waits for whom. [`passes`] runs the result on whatever implements [`device::Gpu`].

mod clock;
mod command;
mod device;
mod error;
mod flags;
mod folds;
mod lanes;
mod lower;
mod measure;
mod memory;
mod options;
mod passes;
mod prepare;
mod real;
mod sequence;
mod tensors;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use ringlab_sim::plan::{Plan, Rank, Transport};

pub use error::CudaError;
pub use options::{Copies, Devices, Measured, Mode, Nccl, NcclWorld, Options, Run};

use crate::inputs::Inputs;
use passes::STREAMS;
use prepare::{Member, Session, kernel_types};
use real::RealGpu;

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
    crate::cpu::tensors::check(plan, inputs)?;
    kernel_types(plan)?;
    let (members, is_virtual) = open(plan, options)?;
    Session::new(plan, inputs, options, (members, is_virtual))?.run()
}

/// Opens the GPU of each rank; whether all ranks share one.
fn open(plan: &Plan, options: &Options) -> Result<(Vec<Member>, bool), CudaError> {
    let count = gpu_count()?;
    let ranks: Vec<Rank> = (0..plan.ranks()).collect();
    let open = |gpu: usize| RealGpu::open(gpu, options.kernels, STREAMS, options.nccl.high_priority);
    let list = match &options.devices {
        Devices::Virtual(gpu) => {
            let gpu: Arc<RealGpu> = Arc::new(open(*gpu)?);
            let member = |rank| Member { rank, gpu: Arc::clone(&gpu) as Arc<dyn device::Gpu> };
            return Ok((ranks.into_iter().map(member).collect(), true));
        }
        Devices::First if count < ranks.len() => {
            return Err(CudaError::TooFewGpus { ranks: plan.ranks(), gpus: count });
        }
        Devices::First => (0..ranks.len()).collect(),
        Devices::List(list) => list.clone(),
    };
    check_list(&list, ranks.len())?;
    let gpus = list.iter().map(|&gpu| Ok(Arc::new(open(gpu)?))).collect::<Result<Vec<_>, CudaError>>()?;
    if plan.transport == Transport::CopyEngine {
        connect(&gpus, &list)?;
    }
    let members = ranks.into_iter().zip(gpus);
    Ok((members.map(|(rank, gpu)| Member { rank, gpu: gpu as Arc<dyn device::Gpu> }).collect(), false))
}

/// Whether a list names a GPU for each rank, each once.
fn check_list(list: &[usize], ranks: usize) -> Result<(), CudaError> {
    if list.len() != ranks {
        return Err(CudaError::DeviceList { gpus: list.len(), ranks });
    }
    match (1..list.len()).find(|&i| list[..i].contains(&list[i])) {
        Some(i) => Err(CudaError::SharedGpu { gpu: list[i] }),
        None => Ok(()),
    }
}

/// Lets every GPU reach the memory of every other one.
fn connect(gpus: &[Arc<RealGpu>], list: &[usize]) -> Result<(), CudaError> {
    for (i, gpu) in gpus.iter().enumerate() {
        for (j, peer) in gpus.iter().enumerate().filter(|&(j, _)| j != i) {
            if !gpu.enable_peer(peer)? {
                return Err(CudaError::NoPeerAccess { from: list[i], to: list[j] });
            }
        }
    }
    Ok(())
}

/// Bytes by which the processes of one [`NcclWorld`] find each other: one process makes them, all get them.
///
/// # Errors
/// No NCCL on this machine.
pub fn unique_id() -> Result<[u8; 128], CudaError> {
    Err(CudaError::NoNccl)
}
