//! How a run on GPUs fails.

use std::time::Duration;

use ringlab_kernels::gpu::GpuError;
use ringlab_sim::plan::{Rank, Transport};
use ringlab_sim::problem::Dtype;
use ringlab_sim::units::Bytes;
use thiserror::Error;

use crate::cpu::{Cause, Place};
use crate::inputs::InputError;

/// Why a run on GPUs has no result.
#[derive(Debug, Error)]
pub enum CudaError {
    /// The inputs do not fit the plan.
    #[error(transparent)]
    Inputs(#[from] InputError),
    /// An element type without kernels.
    #[error("no kernel for {0} elements; use bf16 or fp16 on GPUs, or the CPU backend")]
    Dtype(Dtype),
    /// A head dimension without kernels.
    #[error("no kernel for head dimension {0}; use 64 or 128 on GPUs, or the CPU backend")]
    HeadDim(u32),
    /// A schedule that keeps its scores in memory.
    #[error(
        "{0} keeps whole score rows in memory, which no kernel here does; run it on the CPU backend, or simulate it"
    )]
    Scores(String),
    /// Fewer GPUs than ranks.
    #[error(
        "{ranks} ranks need as many GPUs, and there are {gpus}; use fewer ranks, or run all of them one after the other \
         on one GPU (virtual ranks)"
    )]
    TooFewGpus {
        /// Ranks to run.
        ranks: u32,
        /// GPUs of this machine.
        gpus: usize,
    },
    /// A list of GPUs of the wrong length.
    #[error("{gpus} GPUs are listed for {ranks} ranks; list one for each")]
    DeviceList {
        /// GPUs listed.
        gpus: usize,
        /// Ranks to run.
        ranks: usize,
    },
    /// Two real ranks on one GPU.
    #[error(
        "GPU {gpu} is listed for two ranks, whose times would say nothing about two GPUs; use virtual ranks for that"
    )]
    SharedGpu {
        /// The GPU.
        gpu: usize,
    },
    /// GPUs that cannot reach each other's memory.
    #[error("GPU {from} cannot access the memory of GPU {to}; use a plan for NCCL, or GPUs joined by NVLink")]
    NoPeerAccess {
        /// One GPU.
        from: usize,
        /// The other.
        to: usize,
    },
    /// Ranks of other processes in a plan for copy engines, or a rank named twice.
    #[error(
        "ranks in several processes need a plan for NCCL and each of its ranks once; this plan is for {0:?}"
    )]
    World(Transport),
    /// No memory left.
    #[error("GPU {gpu} has no room for {what} of rank {rank}: {bytes} asked for, {free} free")]
    OutOfMemory {
        /// The GPU.
        gpu: usize,
        /// The rank.
        rank: Rank,
        /// The buffer.
        what: String,
        /// Its size.
        bytes: Bytes,
        /// What was left.
        free: Bytes,
    },
    /// An operation that the plan asks for in a way that has no kernel.
    #[error("{place}: {reason}")]
    Unsupported {
        /// The operation.
        place: Place,
        /// Why not.
        reason: &'static str,
    },
    /// A plan that contradicts itself.
    #[error("{place}: {cause}")]
    Plan {
        /// The operation.
        place: Place,
        /// What is wrong.
        cause: Cause,
    },
    /// Ranks that wait for each other for ever.
    #[error("the plan never ends: {place} waits for what never comes; `ringlab check` proves plans")]
    Deadlock {
        /// The first operation that is never reached.
        place: Place,
    },
    /// A mode that the plan does not allow.
    #[error("the attention calls of rank {rank} cannot be fused: {reason}; use the stepwise mode")]
    NotFusable {
        /// The rank.
        rank: Rank,
        /// Why not.
        reason: &'static str,
    },
    /// An operation that did not finish in time.
    #[error("{place} did not finish within {} s{}", .after.as_secs_f64(), others_text(.others))]
    TimedOut {
        /// The operation that all others wait for, as far as events tell.
        place: Place,
        /// How long the host waited.
        after: Duration,
        /// Where the other ranks were.
        others: Vec<Place>,
    },
    /// A rank finished without writing one of its results.
    #[error("rank {rank} never wrote all of its result in buffer {buffer}; `ringlab check` proves plans")]
    Unwritten {
        /// The rank.
        rank: Rank,
        /// The output buffer.
        buffer: u16,
    },
    /// The driver, the compiler or a kernel.
    #[error("{}{source}", rank_text(*.rank))]
    Gpu {
        /// The rank, if it was one's work.
        rank: Option<Rank>,
        /// What went wrong.
        source: GpuError,
    },
    /// NCCL is not on this machine.
    #[error(
        "no NCCL (libnccl.so) on this machine; install it, or put a folder with a link of that name on \
         LD_LIBRARY_PATH, or use a plan for copy engines"
    )]
    NoNccl,
    /// NCCL refused a call.
    #[error("rank {rank}: NCCL failed to {doing}: {code}")]
    Nccl {
        /// The rank.
        rank: Rank,
        /// What was attempted.
        doing: &'static str,
        /// NCCL's answer.
        code: String,
    },
    /// A load before the measured runs, of ranks in several processes.
    #[error(
        "each process would end a load of a given time after another number of runs, and wait for the others for ever"
    )]
    Sustained,
    /// A rank's host thread ended before its time.
    #[error("the thread of rank {rank} ended before its time: {reason}")]
    Thread {
        /// The rank.
        rank: Rank,
        /// What it said.
        reason: String,
    },
}

impl From<GpuError> for CudaError {
    fn from(source: GpuError) -> Self {
        Self::Gpu { rank: None, source }
    }
}

fn rank_text(rank: Option<Rank>) -> String {
    rank.map_or_else(String::new, |rank| format!("rank {rank}: "))
}

fn others_text(others: &[Place]) -> String {
    let places: Vec<String> = others.iter().map(ToString::to_string).collect();
    if places.is_empty() { String::new() } else { format!("; the others: {}", places.join("; ")) }
}
