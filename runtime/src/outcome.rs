//! What running a plan gives, in global token order.

use std::time::Duration;

use ringlab_sim::timeline::Timeline;
use ringlab_sim::units::{Bytes, SimTime};

/// Result of a forward.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// Output, `[batch][tokens][heads][head_dim]`.
    pub o: Vec<f32>,
    /// Natural logarithm of the softmax denominator, `[batch][heads][tokens]`; `-inf` for a query without keys.
    pub lse: Vec<f32>,
}

/// Result of a backward.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Gradients {
    /// Shaped like q.
    pub dq: Vec<f32>,
    /// Shaped like k.
    pub dk: Vec<f32>,
    /// Shaped like v.
    pub dv: Vec<f32>,
}

/// The tensors of either pass.
#[derive(Debug, Clone, PartialEq)]
pub enum Results {
    /// Of a forward.
    Forward(Forward),
    /// Of a backward.
    Backward(Gradients),
}

impl Results {
    /// o and lse, if this was a forward.
    pub fn forward(&self) -> Option<&Forward> {
        match self {
            Self::Forward(forward) => Some(forward),
            Self::Backward(_) => None,
        }
    }

    /// dq, dk and dv, if this was a backward.
    pub fn gradients(&self) -> Option<&Gradients> {
        match self {
            Self::Forward(_) => None,
            Self::Backward(gradients) => Some(gradients),
        }
    }
}

/// A plan that was executed.
///
/// Sizes are counted from the elements that were sent or allocated, each at the size that it has in the plan: the
/// problem's element type, or fp32 for states, lse, delta and gradients.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The tensors.
    pub results: Results,
    /// Rows of padding tokens that are not what they must be: o and gradients 0, lse `-inf`.
    pub wrong_padding_rows: usize,
    /// Bytes that arrived, over all ranks.
    pub bytes_moved: Bytes,
    /// From before the first rank's first operation to after the last rank's last one.
    pub wall_time: Duration,
    /// When each operation ran.
    pub timeline: Timeline,
    /// For each rank, the sum of the sizes of the buffers that it used.
    pub peak_bytes: Vec<Bytes>,
}

/// The middle one, the lower of two; zero of none.
pub fn median(times: &[SimTime]) -> SimTime {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(SimTime::ZERO)
}
