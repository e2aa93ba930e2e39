//! One training (or forward) iteration of a transformer: its time, part by part, and the memory of a GPU.
//!
//! Matrix products cost their FLOPs, element-wise kernels their bytes, both at what the device reaches; attention is the
//! context-parallel plan, simulated, and so are exchanges of heads and of experts' tokens; everything else that moves between
//! GPUs is a collective in closed form. The model is
//! made of layers that are all alike, so one layer is costed and multiplied.

pub mod attention;
pub mod collective;
pub mod exchange;
mod grid;
mod iteration;
mod kernels;
mod longest;
mod materialised;
mod memory;
mod phases;
mod setup;
pub mod work;

use serde::Serialize;
use thiserror::Error;

use crate::config::cluster::Cluster;
use crate::config::model::Model;
use crate::engine::SimError;
use crate::schedule::BuildError;

pub use grid::{Grid, GridError, legal_contexts};
pub use iteration::{Breakdown, LayerTime, LayerTimes, iteration, iteration_with, layer};
pub use kernels::KernelFamily;
pub use longest::{LONGEST, Longest, longest};
pub use materialised::Materialised;
pub use memory::{Memory, layer_activations, layer_kept, memory, memory_with, stage_memory, stage_weights};
pub use phases::{Moment, Phase, over_time};
pub use setup::{
    AttentionKernel, Checkpointing, Context, Passes, RUNTIME_RESERVE, Sharding, Stack, Training,
};

/// Why there is no prediction.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TrainingError {
    /// The grid does not fit model or cluster.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The sequence does not fit the schedule.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The plan does not fit the cluster.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// Nothing to train on.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
}

/// An iteration on one GPU of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Prediction {
    /// Its time.
    pub time: Breakdown,
    /// Its memory.
    pub memory: Memory,
}

/// Predicts an iteration.
///
/// # Errors
/// [`TrainingError`] for a grid that does not fit (with the legal ones), a sequence that the schedule does not take, or
/// a kernel that the cluster does not have. Running out of memory is a result, not an error.
pub fn predict(model: &Model, cluster: &Cluster, training: &Training) -> Result<Prediction, TrainingError> {
    training.grid.validate(model, cluster, training.pad_heads)?;
    let sizes = [
        (training.seq, "the sequence"),
        (training.micro_batch, "the micro-batch"),
        (training.micro_batches, "the number of micro-batches"),
    ];
    if let Some((_, what)) = sizes.iter().find(|(size, _)| *size == 0) {
        return Err(TrainingError::Zero(what));
    }
    Ok(Prediction { time: iteration(model, cluster, training)?, memory: memory(model, cluster, training)? })
}
