//! Comparison of a result with the f64 reference.
//!
//! The relative error of a tensor is
//!
//! ```text
//! max over rows i of  max_d |x_id - ref_id| / max(max_d |ref_id|, rms(ref))
//! ```
//!
//! where a row is one token of one head (a single number for lse) and `rms` is the root mean square of all finite
//! elements of the reference. The second term keeps rows that are zero but for rounding, such as dq of a token that
//! attends only itself, from dividing noise by noise. Rows of queries without keys must be exact, 0 and `-inf`; they
//! and any NaN give an infinite error.
//!
//! Elements that are rounded to 16 bits on their way have a largest error that depends on the rows: dq of a query with few
//! keys is a difference of numbers that were rounded before. What says whether a kernel is right is then the relative
//! error in the L2 norm, over all compared elements:
//!
//! ```text
//! sqrt( sum (x - ref)^2 / sum ref^2 )
//! ```

mod rows;

use ringlab_kernels::reference;
use ringlab_sim::mask::Pattern;
use ringlab_sim::problem::Problem;
use thiserror::Error;

pub use rows::{Sample, verify_rows};

use crate::inputs::{InputError, Inputs};
use crate::outcome::{Outcome, Results};

/// The exact result of a problem, in f64, laid out as the results are.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    head_dim: usize,
    forward: reference::Output,
    gradients: Option<reference::Gradients>,
}

/// Why there is no reference.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VerifyError {
    /// The inputs do not fit.
    #[error(transparent)]
    Inputs(#[from] InputError),
    /// The reference refused the problem.
    #[error(transparent)]
    Reference(#[from] reference::ReferenceError),
    /// More tokens than the reference can number.
    #[error("the reference numbers at most 2147483647 tokens, not {0}")]
    TooLong(u64),
    /// A backward held against a forward's reference.
    #[error("the reference has no gradients; compute it with `Reference::with_gradients`")]
    NoGradients,
    /// A result and a reference of different problems.
    #[error("`{name}` has {actual} elements, the reference {expected}")]
    Length {
        /// The tensor.
        name: &'static str,
        /// Elements of the reference.
        expected: usize,
        /// Elements of the result.
        actual: usize,
    },
}

impl Reference {
    /// o and lse, in `O(tokens^2)` and on all cores.
    ///
    /// # Errors
    /// Inputs that do not fit the problem.
    pub fn forward(problem: &Problem, inputs: &Inputs) -> Result<Self, VerifyError> {
        Self::compute(problem, inputs, false)
    }

    /// o, lse, dq, dk and dv. The gradients use nothing of `inputs.forward`.
    ///
    /// # Errors
    /// Inputs that do not fit the problem.
    pub fn with_gradients(problem: &Problem, inputs: &Inputs) -> Result<Self, VerifyError> {
        Self::compute(problem, inputs, true)
    }

    fn compute(problem: &Problem, inputs: &Inputs, gradients: bool) -> Result<Self, VerifyError> {
        exact_problem(problem, inputs, |exact| {
            let gradients = if gradients { Some(exact.backward(&inputs.d_o)?) } else { None };
            Ok(Self { head_dim: exact.shape.head_dim, forward: exact.forward()?, gradients })
        })?
    }
}

/// Calls `f` with the problem as the reference takes it.
fn exact_problem<R>(
    problem: &Problem,
    inputs: &Inputs,
    f: impl FnOnce(&reference::Problem<'_, f32>) -> R,
) -> Result<R, VerifyError> {
    inputs.validate()?;
    let tokens = problem.tokens();
    let n = i32::try_from(tokens).map_err(|_| VerifyError::TooLong(tokens))?;
    let (lo, hi) = intervals(problem);
    let shape = &inputs.shape;
    let key_pos: Vec<i32> = (0..n).collect();
    let exact = reference::Problem {
        shape: reference::Shape {
            batch: shape.batch as usize,
            q_len: tokens as usize,
            kv_len: tokens as usize,
            heads: shape.heads as usize,
            kv_heads: shape.kv_heads as usize,
            head_dim: shape.head_dim as usize,
        },
        q: &inputs.q,
        k: &inputs.k,
        v: &inputs.v,
        lo: &lo,
        hi: &hi,
        key_pos: &key_pos,
        scale: f64::from(shape.head_dim).sqrt().recip(),
    };
    exact.validate()?;
    Ok(f(&exact))
}

/// First and last key of every query, by the definition of the patterns; the plan's masks have no part in it.
fn intervals(problem: &Problem) -> (Vec<i32>, Vec<i32>) {
    let mut start = 0;
    let mut ends = Vec::new();
    for &len in &problem.documents {
        let end = start + len.cast_signed();
        ends.extend((start..end).map(|q| match problem.pattern {
            Pattern::Full => (start, end - 1),
            Pattern::Causal => (start, q),
            Pattern::Window(w) => (start.max((q + 1).saturating_sub_unsigned(w)), q),
        }));
        start = end;
    }
    ends.into_iter().map(|(lo, hi)| (lo as i32, hi as i32)).unzip()
}

/// Relative errors, the largest and in the L2 norm; `None` for what the pass does not compute.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Errors {
    /// Of the output.
    pub o_max_rel_error: Option<f64>,
    /// Of the log-sum-exp.
    pub lse_max_rel_error: Option<f64>,
    /// Of the queries' gradient.
    pub dq_max_rel_error: Option<f64>,
    /// Of the keys' gradient.
    pub dk_max_rel_error: Option<f64>,
    /// Of the values' gradient.
    pub dv_max_rel_error: Option<f64>,
    /// Of the output, in the L2 norm.
    pub o_l2_error: Option<f64>,
    /// Of the queries' gradient, in the L2 norm.
    pub dq_l2_error: Option<f64>,
    /// Of the keys' gradient, in the L2 norm.
    pub dk_l2_error: Option<f64>,
    /// Of the values' gradient, in the L2 norm.
    pub dv_l2_error: Option<f64>,
    /// Padding rows that are not exactly 0 or `-inf`.
    pub wrong_padding_rows: usize,
}

impl Errors {
    /// The largest of all row errors; infinite if a padding row is wrong.
    pub fn worst(&self) -> f64 {
        let padding = if self.wrong_padding_rows > 0 { f64::INFINITY } else { 0.0 };
        let all = [
            self.o_max_rel_error,
            self.lse_max_rel_error,
            self.dq_max_rel_error,
            self.dk_max_rel_error,
            self.dv_max_rel_error,
        ];
        all.into_iter().flatten().fold(padding, f64::max)
    }
}

/// Compares a result with the reference of the same problem and inputs.
///
/// # Errors
/// Results and reference of different problems, or gradients where the reference has none.
pub fn verify(outcome: &Outcome, exact: &Reference) -> Result<Errors, VerifyError> {
    let d = exact.head_dim;
    let mut errors = Errors { wrong_padding_rows: outcome.wrong_padding_rows, ..Errors::default() };
    match &outcome.results {
        Results::Forward(result) => {
            errors.o_max_rel_error = Some(relative_error("o", &result.o, &exact.forward.o, d)?);
            errors.o_l2_error = Some(l2_error(&result.o, &exact.forward.o));
            errors.lse_max_rel_error = Some(relative_error("lse", &result.lse, &exact.forward.lse, 1)?);
        }
        Results::Backward(result) => {
            let gradients = exact.gradients.as_ref().ok_or(VerifyError::NoGradients)?;
            errors.dq_max_rel_error = Some(relative_error("dq", &result.dq, &gradients.dq, d)?);
            errors.dk_max_rel_error = Some(relative_error("dk", &result.dk, &gradients.dk, d)?);
            errors.dv_max_rel_error = Some(relative_error("dv", &result.dv, &gradients.dv, d)?);
            errors.dq_l2_error = Some(l2_error(&result.dq, &gradients.dq));
            errors.dk_l2_error = Some(l2_error(&result.dk, &gradients.dk));
            errors.dv_l2_error = Some(l2_error(&result.dv, &gradients.dv));
        }
    }
    Ok(errors)
}

/// The relative error of a tensor of rows of `width` elements, as the module defines it.
fn relative_error(name: &'static str, x: &[f32], exact: &[f64], width: usize) -> Result<f64, VerifyError> {
    if x.len() != exact.len() {
        return Err(VerifyError::Length { name, expected: exact.len(), actual: x.len() });
    }
    let finite = exact.iter().filter(|r| r.is_finite());
    let (count, squares) = finite.fold((0usize, 0.0), |(n, sum), r| (n + 1, r.mul_add(*r, sum)));
    let rms = if count == 0 { 0.0 } else { (squares / count as f64).sqrt() };
    let rows = x.chunks_exact(width).zip(exact.chunks_exact(width));
    Ok(rows.map(|(x, exact)| row_error(x, exact, rms)).fold(0.0, f64::max))
}

/// The relative error in the L2 norm of tensors of one length, as the module defines it; infinite for a NaN.
fn l2_error(x: &[f32], exact: &[f64]) -> f64 {
    let sums = x.iter().zip(exact).fold((0.0, 0.0), |(off, all), (&x, &r)| {
        let difference = f64::from(x) - r;
        (difference.mul_add(difference, off), r.mul_add(r, all))
    });
    match sums {
        (0.0, _) => 0.0,
        (off, all) if off.is_finite() && all > 0.0 => (off / all).sqrt(),
        _ => f64::INFINITY,
    }
}

fn row_error(x: &[f32], exact: &[f64], rms: f64) -> f64 {
    let largest = exact.iter().fold(rms, |m, r| m.max(r.abs()));
    let element = |(&x, &r): (&f32, &f64)| {
        let difference = (f64::from(x) - r).abs();
        match f64::from(x) == r {
            true => 0.0,
            false if difference.is_nan() || !r.is_finite() => f64::INFINITY,
            false => difference / largest,
        }
    };
    x.iter().zip(exact).map(element).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_on_numbers_worked_by_hand() {
        let exact = [3.0, 4.0, 0.0, 0.0];
        let error = relative_error("o", &[3.0, 4.2, 0.0, 0.1], &exact, 2).unwrap();
        assert!((error - 0.05).abs() < 1e-6, "0.2 / 4 and 0.1 / rms 2.5: {error}");
    }

    #[test]
    fn the_l2_norm_on_numbers_worked_by_hand() {
        // Off by 0.3 and 0.4, so by 0.5, of a vector of length 5.
        assert!((l2_error(&[3.3, 4.4], &[3.0, 4.0]) - 0.1).abs() < 1e-7);
        assert_eq!(l2_error(&[0.0, 2.0], &[0.0, 2.0]), 0.0);
        assert_eq!(l2_error(&[f32::NAN, 2.0], &[0.0, 2.0]), f64::INFINITY);
        assert_eq!(l2_error(&[1.0], &[0.0]), f64::INFINITY);
    }

    #[test]
    fn rows_without_keys_are_compared_exactly() {
        let infinite = f64::NEG_INFINITY;
        let error = |x: f32| relative_error("lse", &[x, 1.0], &[infinite, 1.0], 1).unwrap();
        assert_eq!(error(f32::NEG_INFINITY), 0.0);
        assert_eq!(error(-1e30), f64::INFINITY);
        assert_eq!(error(f32::NAN), f64::INFINITY);
        assert_eq!(relative_error("lse", &[f32::NEG_INFINITY], &[1.0], 1).unwrap(), f64::INFINITY);
    }

    #[test]
    fn a_number_that_is_not_one_is_an_infinite_error() {
        assert_eq!(relative_error("o", &[f32::NAN, 1.0], &[1.0, 1.0], 2).unwrap(), f64::INFINITY);
    }
}
