//! Comparison of some rows of a result with f64, for sequences that are too long to be computed whole.
//!
//! Errors are those that [`super`] defines, with `rms` over the sampled rows. o, lse and dq of a query are computed from
//! all its keys; dk and dv of a key from all its queries, whose lse and delta are taken from the forward that the backward
//! was given: a wrong lse shows in the forward's own rows. The whole of each tensor is searched for NaN.

use ringlab_kernels::reference::{self, QueryStats, Row};
use ringlab_sim::problem::Problem;

use super::relative::{l2_error, relative_error};
use super::{Errors, VerifyError, exact_problem};
use crate::inputs::{InputError, Inputs, SplitMix64};
use crate::outcome::{Forward, Gradients, Outcome, Results};
use crate::parallel;

/// Which rows are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Rows of each tensor: the first and the last of a sequence, and others at random.
    pub rows: usize,
    /// The same seed picks the same rows.
    pub seed: u64,
}

/// Compares some rows of each tensor of a result.
///
/// # Errors
/// Inputs that do not fit the problem, or without the forward that a backward was given.
pub fn verify_rows(
    problem: &Problem,
    inputs: &Inputs,
    outcome: &Outcome,
    sample: &Sample,
) -> Result<Errors, VerifyError> {
    let padding = Errors { wrong_padding_rows: outcome.wrong_padding_rows, ..Errors::default() };
    exact_problem(problem, inputs, |exact| match &outcome.results {
        Results::Forward(result) => forward(exact, result, sample, padding),
        Results::Backward(result) => backward(exact, inputs, result, sample, padding),
    })?
}

type Exact<'a> = reference::Problem<'a, f32>;

fn forward(
    exact: &Exact<'_>,
    result: &Forward,
    sample: &Sample,
    errors: Errors,
) -> Result<Errors, VerifyError> {
    let shape = exact.shape;
    let rows = pick(sample, 0, [shape.batch, shape.heads, shape.q_len]);
    let computed = parallel::map(&rows, |&row| exact.forward_row(row));
    let (o, lse): (Vec<Vec<f64>>, Vec<f64>) = computed.into_iter().unzip();
    let index = |row: &Row| (row.batch * shape.heads + row.head) * shape.q_len + row.token;
    let found: Vec<f32> = rows.iter().map(|row| result.lse[index(row)]).collect();
    let of_o = |at: usize| exact.forward_terms(rows[at]).0;
    let of_lse = |at: usize| exact.forward_terms(rows[at]).1;
    let largest_lse = relative_error("lse", &found, &lse, 1, of_lse)?;
    let o = vectors("o", &result.o, (shape.q_len, shape.heads), &rows, &o, of_o)?;
    Ok(Errors {
        o_max_rel_error: Some(o.largest),
        o_l2_error: Some(o.l2),
        lse_max_rel_error: Some(if has_nan(&result.lse) { f64::INFINITY } else { largest_lse }),
        ..errors
    })
}

fn backward(
    exact: &Exact<'_>,
    inputs: &Inputs,
    result: &Gradients,
    sample: &Sample,
    errors: Errors,
) -> Result<Errors, VerifyError> {
    let (shape, d_o) = (exact.shape, &inputs.d_o[..]);
    let forward = inputs.forward.as_ref().ok_or(InputError::NoForward)?;
    let queries = pick(sample, 1, [shape.batch, shape.heads, shape.q_len]);
    let dq = parallel::map(&queries, |&row| exact.query_gradient(d_o, row));
    let keys = pick(sample, 2, [shape.batch, shape.kv_heads, shape.kv_len]);
    let lse: Vec<f64> = forward.lse.iter().map(|&x| f64::from(x)).collect();
    let delta = deltas(shape, forward, d_o, &keys);
    let stats = QueryStats { lse: &lse, delta: &delta };
    let (dk, dv): (Vec<_>, Vec<_>) =
        parallel::map(&keys, |&key| exact.key_gradient(d_o, stats, key)).into_iter().unzip();
    let key_side = (shape.kv_len, shape.kv_heads);
    let of_query = |at: usize| exact.query_gradient_terms(d_o, queries[at]);
    let of_key = |at: usize| exact.key_gradient_terms(d_o, stats, keys[at]);
    let dq = vectors("dq", &result.dq, (shape.q_len, shape.heads), &queries, &dq, of_query)?;
    let dk = vectors("dk", &result.dk, key_side, &keys, &dk, |at| of_key(at).0)?;
    let dv = vectors("dv", &result.dv, key_side, &keys, &dv, |at| of_key(at).1)?;
    Ok(Errors {
        dq_max_rel_error: Some(dq.largest),
        dk_max_rel_error: Some(dk.largest),
        dv_max_rel_error: Some(dv.largest),
        dq_l2_error: Some(dq.l2),
        dk_l2_error: Some(dk.l2),
        dv_l2_error: Some(dv.l2),
        ..errors
    })
}

/// rowsum(o * do) of every query that sees one of the keys' heads, `[batch][heads][q_len]`; 0 for others.
fn deltas(shape: reference::Shape, forward: &Forward, d_o: &[f32], keys: &[Row]) -> Vec<f64> {
    let (d, group) = (shape.head_dim, shape.heads / shape.kv_heads);
    let sequences: Vec<usize> = (0..shape.batch * shape.heads).collect();
    let needed = |sequence: usize| {
        let (batch, head) = (sequence / shape.heads, sequence % shape.heads);
        keys.iter().any(|key| (key.batch, key.head) == (batch, head / group))
    };
    let of_sequence = |&sequence: &usize| -> Vec<f64> {
        if !needed(sequence) {
            return vec![0.0; shape.q_len];
        }
        let (batch, head) = (sequence / shape.heads, sequence % shape.heads);
        let row = |token: usize| ((batch * shape.q_len + token) * shape.heads + head) * d;
        let sum = |at: usize| -> f64 {
            let both = forward.o[at..at + d].iter().zip(&d_o[at..at + d]);
            both.map(|(&o, &g)| f64::from(o) * f64::from(g)).sum()
        };
        (0..shape.q_len).map(|token| sum(row(token))).collect()
    };
    parallel::map(&sequences, of_sequence).concat()
}

/// Both errors of a tensor.
struct Both {
    largest: f64,
    l2: f64,
}

/// The errors of some rows of a tensor `[batch][tokens][heads][head_dim]`.
fn vectors(
    name: &'static str,
    tensor: &[f32],
    (tokens, heads): (usize, usize),
    rows: &[Row],
    exact: &[Vec<f64>],
    terms: impl Fn(usize) -> f64,
) -> Result<Both, VerifyError> {
    let width = exact.first().map_or(1, Vec::len);
    let found: Vec<f32> = rows
        .iter()
        .flat_map(|row| {
            let at = ((row.batch * tokens + row.token) * heads + row.head) * width;
            tensor.get(at..at + width).unwrap_or_default().iter().copied()
        })
        .collect();
    let exact = exact.concat();
    let (largest, l2) = (relative_error(name, &found, &exact, width, terms)?, l2_error(&found, &exact));
    Ok(if has_nan(tensor) {
        Both { largest: f64::INFINITY, l2: f64::INFINITY }
    } else {
        Both { largest, l2 }
    })
}

/// Whether there is a NaN anywhere.
fn has_nan(tensor: &[f32]) -> bool {
    parallel::any(tensor, |x| x.is_nan())
}

/// The first and the last token of head 0, and others at random.
fn pick(sample: &Sample, tensor: u64, [batch, heads, tokens]: [usize; 3]) -> Vec<Row> {
    let mut random = SplitMix64(sample.seed).after(tensor << 32);
    let mut below = |n: usize| (random.next() % n.max(1) as u64) as usize;
    let ends = [0, tokens - 1].map(|token| Row { batch: 0, head: 0, token });
    let others = (0..sample.rows.saturating_sub(2)).map(|_| Row {
        batch: below(batch),
        head: below(heads),
        token: below(tokens),
    });
    ends.into_iter().chain(others).collect()
}
