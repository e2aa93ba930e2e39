//! What results are held against: the whole f64 reference, or single rows of it.

use anyhow::{Result, bail};
use ringlab_runtime::inputs::Inputs;
use ringlab_runtime::outcome::Outcome;
use ringlab_runtime::verify::{Errors, Reference, Sample, verify, verify_rows};
use ringlab_sim::problem::{Pass, Problem};

use serde::Serialize;

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

/// Largest relative errors that are fine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Bounds {
    /// Whether o and gradients are judged in the L2 norm, because their elements were rounded to 16 bits on the way.
    pub by_l2_norm: bool,
    pub o: f64,
    pub lse: f64,
    pub gradients: f64,
}

impl Bounds {
    /// fp32 sums on CPUs. On GPUs q, k, v, do and probabilities are rounded to 16 bits: PyTorch's cuDNN and FlashAttention-2
    /// kernels are off by 2.0e-3 to 2.6e-3 in the L2 norm from the same inputs, ours by as much; lse is summed in fp32.
    pub fn of(args: &RunArgs) -> Self {
        let given = args.max_error;
        match args.backend {
            Backend::Cpu => {
                let all = given.unwrap_or(1e-5);
                Self { by_l2_norm: false, o: all, lse: all, gradients: all }
            }
            Backend::Cuda => Self {
                by_l2_norm: true,
                o: given.unwrap_or(4e-3),
                lse: given.unwrap_or(1e-4),
                gradients: given.unwrap_or(8e-3),
            },
        }
    }

    /// Whether all errors are within. Row errors must be finite in any case: a NaN or a row without keys that is not
    /// exact is never rounding.
    pub fn hold(&self, e: &Errors) -> bool {
        let (o, gradients) = if self.by_l2_norm {
            (e.o_l2_error, [e.dq_l2_error, e.dk_l2_error, e.dv_l2_error])
        } else {
            (e.o_max_rel_error, [e.dq_max_rel_error, e.dk_max_rel_error, e.dv_max_rel_error])
        };
        let within = |error: Option<f64>, bound: f64| error.is_none_or(|e| e <= bound);
        e.worst().is_finite()
            && within(o, self.o)
            && within(e.lse_max_rel_error, self.lse)
            && gradients.into_iter().all(|error| within(error, self.gradients))
    }
}

/// Rows of o.
fn all_rows(problem: &Problem) -> f64 {
    let s = &problem.shape;
    problem.tokens() as f64 * f64::from(s.heads) * f64::from(s.batch)
}

/// Rows to compare; `None` for all of them.
fn sampled(args: &RunArgs, problem: &Problem) -> Option<usize> {
    match args.backend {
        _ if args.sample_rows.is_some() => args.sample_rows.filter(|&rows| (rows as f64) < all_rows(problem)),
        Backend::Cuda if flops(problem) > QUICK_FLOPS => Some(SAMPLED),
        _ => None,
    }
}

/// A reference takes time with its rows times the sequence, a run on the CPU with N^2.
pub fn check_size(args: &RunArgs, problem: &Problem) -> Result<()> {
    let s = &problem.shape;
    let on_cpu = args.backend == Backend::Cpu;
    let compared = sampled(args, problem).map_or(1.0, |rows| rows as f64 / all_rows(problem));
    let flops = if on_cpu { flops(problem) } else { flops(problem) * compared };
    if flops <= MAX_FLOPS {
        return Ok(());
    }
    let hint = if on_cpu { "" } else { ", or compare fewer rows (--sample-rows 32)" };
    bail!(
        "{} tokens with {} heads of {} are too much for the CPU: about {flops:.0e} FLOPs; use fewer tokens (--seq) or \
         heads (--heads, --kv-heads, --head-dim){hint}",
        problem.tokens(),
        s.heads,
        s.head_dim
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_judged_in_the_l2_norm_and_nan_never_passes() {
        let bounds = Bounds { by_l2_norm: true, o: 4e-3, lse: 1e-4, gradients: 8e-3 };
        let good = Errors {
            o_max_rel_error: Some(5e-3),
            lse_max_rel_error: Some(1e-6),
            dq_max_rel_error: Some(3e-2),
            o_l2_error: Some(2e-3),
            dq_l2_error: Some(3e-3),
            ..Errors::default()
        };
        assert!(bounds.hold(&good));
        assert!(!bounds.hold(&Errors { o_l2_error: Some(5e-3), ..good }));
        assert!(!bounds.hold(&Errors { dq_l2_error: Some(9e-3), ..good }));
        assert!(!bounds.hold(&Errors { lse_max_rel_error: Some(1e-3), ..good }));
        assert!(!bounds.hold(&Errors { dq_max_rel_error: Some(f64::INFINITY), ..good }));
        assert!(!bounds.hold(&Errors { wrong_padding_rows: 1, ..good }));
        assert!(!Bounds { by_l2_norm: false, ..bounds }.hold(&good), "by rows, 5e-3 is too much");
    }
}
