//! Comparison of a result with the f64 reference.
//!
//! The relative error of a tensor is
//!
//! ```text
//! max over rows i of  max_d |x_id - ref_id| / max(max_d |ref_id|, rms(ref), terms_i / 16)
//! ```
//!
//! where a row is one token of one head (a single number for lse) and `rms` is the root mean square of all finite
//! elements of the reference. The second term keeps rows that are zero but for rounding, such as dq of a token that
//! attends only itself, from dividing noise by noise. `terms_i` is the size of what is summed up to the row
//! ([`ringlab_kernels::reference`]'s `forward_terms` and its like define it): rounding is a fraction of the terms, so a
//! row of which cancellation leaves less than a sixteenth is held against them. That happens to whole small problems, of
//! which every dq can be a difference of nearly equal numbers, and not to random rows of many keys. Rows of queries
//! without keys must be exact, 0 and `-inf`; they and any NaN give an infinite error.
//!
//! Elements that are rounded to 16 bits on their way have a largest error that depends on the rows: dq of a query with few
//! keys is a difference of numbers that were rounded before. What says whether a kernel is right is then the relative
//! error in the L2 norm, over all compared elements:
//!
//! ```text
//! sqrt( sum (x - ref)^2 / sum ref^2 )
//! ```

mod relative;
mod rows;

use ringlab_kernels::reference::{self, QueryStats, Row};
use ringlab_sim::mask::Pattern;
use ringlab_sim::problem::Problem;
use thiserror::Error;

use relative::{l2_error, relative_error};
pub use rows::{Sample, verify_rows};

use crate::inputs::{InputError, Inputs};
use crate::outcome::{Forward, Gradients, Outcome, Results};

/// The exact result of a problem, in f64, laid out as the results are.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    problem: Problem,
    inputs: Inputs,
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
            let (problem, inputs) = (problem.clone(), inputs.clone());
            Ok(Self { problem, inputs, forward: exact.forward()?, gradients })
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
    let padding = Errors { wrong_padding_rows: outcome.wrong_padding_rows, ..Errors::default() };
    exact_problem(&exact.problem, &exact.inputs, |problem| match &outcome.results {
        Results::Forward(result) => forward(problem, result, &exact.forward, padding),
        Results::Backward(result) => backward(problem, result, exact, padding),
    })?
}

fn forward(
    problem: &reference::Problem<'_, f32>,
    result: &Forward,
    exact: &reference::Output,
    errors: Errors,
) -> Result<Errors, VerifyError> {
    let shape = problem.shape;
    let query = |at| dense_row(at, shape.q_len, shape.heads);
    let of_o = |at| problem.forward_terms(query(at)).0;
    let of_lse = |at: usize| {
        let (batch, head) = (at / (shape.heads * shape.q_len), at / shape.q_len % shape.heads);
        problem.forward_terms(Row { batch, head, token: at % shape.q_len }).1
    };
    Ok(Errors {
        o_max_rel_error: Some(relative_error("o", &result.o, &exact.o, shape.head_dim, of_o)?),
        lse_max_rel_error: Some(relative_error("lse", &result.lse, &exact.lse, 1, of_lse)?),
        o_l2_error: Some(l2_error(&result.o, &exact.o)),
        ..errors
    })
}

fn backward(
    problem: &reference::Problem<'_, f32>,
    result: &Gradients,
    exact: &Reference,
    errors: Errors,
) -> Result<Errors, VerifyError> {
    let gradients = exact.gradients.as_ref().ok_or(VerifyError::NoGradients)?;
    let (shape, d_o) = (problem.shape, &exact.inputs.d_o[..]);
    let delta = deltas(shape, &exact.forward.o, d_o);
    let stats = QueryStats { lse: &exact.forward.lse, delta: &delta };
    let of_query = |at| problem.query_gradient_terms(d_o, dense_row(at, shape.q_len, shape.heads));
    let of_key = |at| problem.key_gradient_terms(d_o, stats, dense_row(at, shape.kv_len, shape.kv_heads));
    let d = shape.head_dim;
    Ok(Errors {
        dq_max_rel_error: Some(relative_error("dq", &result.dq, &gradients.dq, d, of_query)?),
        dk_max_rel_error: Some(relative_error("dk", &result.dk, &gradients.dk, d, |at| of_key(at).0)?),
        dv_max_rel_error: Some(relative_error("dv", &result.dv, &gradients.dv, d, |at| of_key(at).1)?),
        dq_l2_error: Some(l2_error(&result.dq, &gradients.dq)),
        dk_l2_error: Some(l2_error(&result.dk, &gradients.dk)),
        dv_l2_error: Some(l2_error(&result.dv, &gradients.dv)),
        ..errors
    })
}

/// Which row of a tensor `[batch][tokens][heads][head_dim]` is its row `at`.
fn dense_row(at: usize, tokens: usize, heads: usize) -> Row {
    Row { batch: at / (tokens * heads), head: at % heads, token: at / heads % tokens }
}

/// rowsum(o * do) of every query, `[batch][heads][q_len]`.
fn deltas(shape: reference::Shape, o: &[f64], d_o: &[f32]) -> Vec<f64> {
    let mut delta = vec![0.0; shape.lse_rows()];
    let rows = o.chunks_exact(shape.head_dim).zip(d_o.chunks_exact(shape.head_dim));
    for (at, (o, d_o)) in rows.enumerate() {
        let row = dense_row(at, shape.q_len, shape.heads);
        let index = (row.batch * shape.heads + row.head) * shape.q_len + row.token;
        delta[index] = o.iter().zip(d_o).map(|(o, &g)| o * f64::from(g)).sum();
    }
    delta
}
