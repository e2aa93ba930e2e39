//! From options to GPUs: which one runs which rank, whether they reach each other, and their NCCL communicators.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use ringlab_sim::plan::{Plan, Rank, Transport};

use super::device::Gpu;
use super::error::CudaError;
use super::options::{Devices, NcclWorld, Options};
use super::passes::{STREAMS, failed};
use super::prepare::{Member, Members};
use super::real::RealGpu;
use super::{gpu_count, nccl};

/// Opens the GPU of each rank of this process.
pub(super) fn open(plan: &Plan, options: &Options) -> Result<Members, CudaError> {
    let ranks = ranks_here(plan, options.nccl.world.as_ref())?;
    let count = gpu_count()?;
    match &options.devices {
        Devices::Virtual(gpu) => return open_virtual(plan, options, *gpu),
        Devices::First if count < ranks.len() => {
            return Err(CudaError::TooFewGpus { ranks: ranks.len() as u32, gpus: count });
        }
        Devices::First | Devices::List(_) => {}
    }
    let list = options.devices.ordinals(ranks.len());
    check_list(&list, ranks.len())?;
    if plan.transport == Transport::Nccl && !nccl::is_present() {
        return Err(CudaError::NoNccl);
    }
    let open = |&gpu: &usize| Ok(Arc::new(open_one(options, gpu)?));
    let gpus = list.iter().map(open).collect::<Result<Vec<_>, CudaError>>()?;
    let connected = options.nccl.world.is_none() && connect(&gpus, &list, plan.transport)?;
    if plan.transport == Transport::Nccl {
        join(plan, options, (&ranks, &gpus), !connected)?;
    }
    let all = ranks.into_iter().zip(gpus).map(|(rank, gpu)| Member { rank, gpu: gpu as Arc<dyn Gpu> });
    Ok(Members { all: all.collect(), are_virtual: false, by_barrier: !connected })
}

fn open_one(options: &Options, gpu: usize) -> Result<RealGpu, CudaError> {
    Ok(RealGpu::open(gpu, options.kernels, STREAMS, options.nccl.high_priority)?)
}

fn open_virtual(plan: &Plan, options: &Options, gpu: usize) -> Result<Members, CudaError> {
    let gpu = Arc::new(open_one(options, gpu)?) as Arc<dyn Gpu>;
    let all = (0..plan.ranks()).map(|rank| Member { rank, gpu: Arc::clone(&gpu) }).collect();
    Ok(Members { all, are_virtual: true, by_barrier: false })
}

/// The ranks that run in this process.
pub(super) fn ranks_here(plan: &Plan, world: Option<&NcclWorld>) -> Result<Vec<Rank>, CudaError> {
    let Some(world) = world else { return Ok((0..plan.ranks()).collect()) };
    let each_once = world.ranks.windows(2).all(|pair| pair[0] < pair[1]);
    let all_there = world.ranks.iter().all(|&rank| rank < plan.ranks());
    if plan.transport != Transport::Nccl || world.ranks.is_empty() || !each_once || !all_there {
        return Err(CudaError::World(plan.transport));
    }
    Ok(world.ranks.clone())
}

/// Whether a list names a GPU for each rank, each once.
pub(super) fn check_list(list: &[usize], ranks: usize) -> Result<(), CudaError> {
    if list.len() != ranks {
        return Err(CudaError::DeviceList { gpus: list.len(), ranks });
    }
    match (1..list.len()).find(|&i| list[..i].contains(&list[i])) {
        Some(i) => Err(CudaError::SharedGpu { gpu: list[i] }),
        None => Ok(()),
    }
}

/// Lets every GPU reach the memory of every other one; whether they all can. Copies need it, NCCL does not.
fn connect(gpus: &[Arc<RealGpu>], list: &[usize], transport: Transport) -> Result<bool, CudaError> {
    for (i, gpu) in gpus.iter().enumerate() {
        for (j, peer) in gpus.iter().enumerate().filter(|&(j, _)| j != i) {
            match gpu.enable_peer(peer)? {
                true => {}
                false if transport == Transport::Nccl => return Ok(false),
                false => return Err(CudaError::NoPeerAccess { from: list[i], to: list[j] }),
            }
        }
    }
    Ok(true)
}

/// Opens the communicators: one for each lane that any rank sends or receives on, and one for a start by a barrier.
fn join(
    plan: &Plan,
    options: &Options,
    (ranks, gpus): (&[Rank], &[Arc<RealGpu>]),
    by_barrier: bool,
) -> Result<(), CudaError> {
    let ops = plan.programs.iter().flat_map(|program| &program.ops);
    let lanes = ops.filter(|op| op.kind.message().is_some()).map(|op| usize::from(op.lane.0));
    let streams: Vec<usize> =
        lanes.chain(by_barrier.then_some(0)).collect::<BTreeSet<usize>>().into_iter().collect();
    let id = match &options.nccl.world {
        Some(world) => world.unique_id,
        None => super::unique_id()?,
    };
    thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .iter()
            .zip(gpus)
            .map(|(&rank, gpu)| {
                let (id, streams) = (&id, &streams);
                let how = (&options.nccl, options.timeout);
                let join = move || gpu.join(id, (rank, plan.ranks()), streams, how);
                (rank, scope.spawn(join))
            })
            .collect();
        threads.into_iter().try_for_each(|(rank, thread)| {
            let joined = thread.join();
            let joined = joined.map_err(|_| CudaError::Thread { rank, reason: "it panicked".into() })?;
            joined.map_err(|fault| failed(rank, fault))
        })
    })
}
