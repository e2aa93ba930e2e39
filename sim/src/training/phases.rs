//! Memory of one GPU over an iteration, layer by layer.
//!
//! Of an iteration it is the stretch that sets the peak: the forwards that fill the pipeline's first stage (one, without a
//! pipeline), the loss, the backwards of the same layers, and the optimiser. A layer's forward leaves what is kept for its
//! backward; a backward has the layer at work, recomputed activations included, and then gives back what was kept.

use serde::Serialize;

use super::setup::Training;
use super::{Memory, TrainingError, attention, iteration, layer_kept, memory};
use crate::config::cluster::Cluster;
use crate::config::model::Model;
use crate::problem::Pass;
use crate::units::{Bytes, SimTime};

/// What a GPU is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Weights, gradients and optimiser state are there, nothing else.
    Start,
    /// A layer's forward.
    Forward,
    /// The output head and the loss.
    Loss,
    /// A layer's backward, after what it recomputes.
    Backward,
    /// The optimiser's step.
    Optimizer,
}

/// Memory at the end of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// The phase.
    pub phase: Phase,
    /// Layers whose activations are kept, that of the phase included.
    pub layers: u64,
    /// Since the start, waiting for other stages left out.
    pub at: SimTime,
    /// Weights, gradients, optimiser state and the runtime's own.
    pub fixed: Bytes,
    /// Kept for the backward.
    pub activations: Bytes,
    /// Staging buffers of attention.
    pub attention: Bytes,
    /// Logits and their like.
    pub logits: Bytes,
    /// The layer at work.
    pub working: Bytes,
}

impl Moment {
    /// The sum of the parts.
    pub fn total(&self) -> Bytes {
        self.fixed + self.activations + self.attention + self.logits + self.working
    }
}

/// The moments of an iteration, in order, on the stage that needs most memory. The largest total is [`Memory::total`].
///
/// # Errors
/// As [`super::predict`].
pub fn over_time(
    model: &Model,
    cluster: &Cluster,
    training: &Training,
) -> Result<Vec<Moment>, TrainingError> {
    let peak = memory(model, cluster, training)?;
    let times = iteration::layer(model, cluster, training)?;
    let staging = |pass| -> Result<Bytes, TrainingError> {
        let plan = attention::plan(training, attention::shape(model, training), pass)?;
        Ok(Bytes(attention::buffers(&plan).0.min(peak.attention.0)))
    };
    let forward = if training.context.kernel == super::AttentionKernel::Tiled {
        staging(Pass::Forward)?
    } else {
        peak.attention
    };
    Ok(moments(model, training, &peak, &times, forward))
}

fn moments(
    model: &Model,
    training: &Training,
    peak: &Memory,
    times: &iteration::LayerTimes,
    forward_staging: Bytes,
) -> Vec<Moment> {
    let fixed = peak.weights + peak.gradients + peak.optimizer + peak.reserved;
    let kept = if training.forward_only() { 0 } else { layer_kept(model, training) };
    let layers = peak.activations.0.checked_div(kept).unwrap_or(model.layers / training.grid.pp);
    let nothing = Bytes(0);
    let start = Moment {
        phase: Phase::Start,
        layers: 0,
        at: SimTime::ZERO,
        fixed,
        activations: nothing,
        attention: nothing,
        logits: nothing,
        working: nothing,
    };
    let mut out = vec![start];
    let mut at = SimTime::ZERO;
    for k in 1..=layers {
        at += times.forward.total();
        let activations = Bytes(kept * k);
        out.push(Moment {
            phase: Phase::Forward,
            layers: k,
            at,
            activations,
            attention: forward_staging,
            ..start
        });
    }
    let all = Bytes(kept * layers);
    out.push(Moment { phase: Phase::Loss, layers, at, activations: all, logits: peak.logits, ..start });
    if training.forward_only() {
        return out;
    }
    for k in (1..=layers).rev() {
        at += times.recompute.total() + times.backward.total();
        out.push(Moment {
            phase: Phase::Backward,
            layers: k,
            at,
            activations: Bytes(kept * k),
            attention: peak.attention,
            working: peak.working,
            ..start
        });
    }
    out.push(Moment { phase: Phase::Optimizer, at, ..start });
    out
}
