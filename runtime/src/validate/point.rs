//! One schedule at one size.

use std::fmt;

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::problem::{Pass, Problem, Shape};
use ringlab_sim::schedule::{self, BuildError, Options, Schedule};
use serde::{Serialize, Serializer};

use crate::machine::Launching;

/// What is predicted and run: causal attention of one sequence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// The schedule.
    #[serde(serialize_with = "text")]
    pub schedule: Schedule,
    /// Forward or backward.
    pub pass: Pass,
    /// Ranks P.
    pub cp: u32,
    /// Tokens N.
    pub seq_len: u64,
    /// Heads and sizes.
    #[serde(flatten)]
    pub shape: Shape,
    /// How messages travel.
    pub transport: Transport,
    /// How calls follow each other.
    pub launching: Launching,
    /// Messages that a transfer is cut into.
    pub chunks: u32,
}

fn text<S: Serializer>(schedule: &Schedule, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(schedule)
}

impl Point {
    /// Its plan.
    ///
    /// # Errors
    /// [`BuildError`] if the sizes do not fit the schedule.
    pub fn plan(&self) -> Result<Plan, BuildError> {
        let problem = Problem { shape: self.shape, pattern: Pattern::Causal, documents: vec![self.seq_len] };
        let options = Options { transport: self.transport, chunks: self.chunks, ..Options::new(self.pass) };
        schedule::build(self.schedule, &problem, self.cp, &options)
    }

    /// How its messages travel, as results name it.
    pub fn transport_name(&self) -> &'static str {
        match self.transport {
            Transport::CopyEngine => "copy-engine",
            Transport::Nccl => "nccl",
        }
    }

    /// What it has in common with points of other sizes.
    pub fn class(&self) -> String {
        let Self { schedule, pass, cp, transport, launching, .. } = self;
        format!("{launching:?} {transport:?} {cp} {pass} {schedule}")
    }

    /// Whether this is the ring that `other` is compared with.
    pub fn is_ring_of(&self, other: &Self) -> bool {
        self.schedule == Schedule::Ring && *self == Self { schedule: Schedule::Ring, ..other.clone() }
    }

    /// A point of a small forward.
    #[cfg(test)]
    pub fn test(schedule: &str) -> Self {
        let shape =
            Shape { heads: 2, kv_heads: 2, head_dim: 64, dtype: ringlab_sim::problem::Dtype::Fp32, batch: 1 };
        Self {
            schedule: schedule.parse().unwrap(),
            pass: Pass::Forward,
            cp: 2,
            seq_len: 256,
            shape,
            transport: Transport::CopyEngine,
            launching: Launching::Stepwise,
            chunks: 1,
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { heads, kv_heads, head_dim, dtype, .. } = self.shape;
        write!(
            f,
            "{} {} cp {} n {} h {heads}/{kv_heads} d {head_dim} {dtype}",
            self.schedule, self.pass, self.cp, self.seq_len
        )?;
        match self.transport {
            Transport::CopyEngine => f.write_str(" copies")?,
            Transport::Nccl => f.write_str(" nccl")?,
        }
        match self.launching {
            Launching::Stepwise => Ok(()),
            Launching::Fused => f.write_str(" fused"),
            Launching::FusedQueries => write!(f, " fused-queries in {} chunks", self.chunks),
            Launching::Virtual => f.write_str(" virtual"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_that_of_equal_sizes_only() {
        let (ring, zigzag) = (Point::test("ring"), Point::test("zigzag"));
        assert!(ring.is_ring_of(&zigzag) && ring.is_ring_of(&ring) && !zigzag.is_ring_of(&ring));
        assert!(!ring.is_ring_of(&Point { seq_len: 512, ..zigzag.clone() }));
        assert!(!ring.is_ring_of(&Point { transport: Transport::Nccl, ..zigzag.clone() }));
        let fp16 = Shape { dtype: ringlab_sim::problem::Dtype::Fp16, ..zigzag.shape };
        assert!(!ring.is_ring_of(&Point { shape: fp16, ..zigzag }));
    }
}
