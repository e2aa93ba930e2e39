//! A sequence too long for the whole reference: single rows are compared.

use crate::gpu::Device;
use crate::reference::{QueryStats, Row, relative_l2};
use crate::spec::{Dims, Dtype, HeadDim};

use super::check::Outcome;
use super::ranks::{HostOutput, Mode, Ranks};
use super::tensors::Inputs;
use super::{LabError, Layout, Mask};

/// Long enough that keys and values of all heads outgrow the L2 cache, and the heads are worked on in sections.
const LEN: usize = 32768;
const DIMS: Dims = Dims { dtype: Dtype::Bf16, head_dim: HeadDim::D128, heads: 8, kv_heads: 4, batch: 1 };
/// Rows of each tensor that are compared, spread over tokens and heads.
const ROWS: usize = 24;

pub(super) fn check(device: &Device, report: &mut impl FnMut(&Outcome)) -> Result<(), LabError> {
    let inputs = Inputs::random(DIMS, LEN, Mask::Causal, 17);
    let ranks = Ranks::new(device, &inputs, Layout::Zigzag, 1)?;
    let output = ranks.forward(Mode::Fused)?;
    let gradients = ranks.backward(false)?;
    let problem = inputs.problem();
    let (mut o, mut dq, mut dk, mut dv) =
        (Pair::default(), Pair::default(), Pair::default(), Pair::default());
    for row in rows(DIMS.heads) {
        o.add(&output.o, DIMS.heads, row, &problem.forward_row(row).0);
        dq.add(&gradients.dq, DIMS.heads, row, &problem.query_gradient(&inputs.d_o, row));
    }
    let delta = delta(&output, &inputs);
    let stats = QueryStats { lse: &output.lse, delta: &delta };
    for row in rows(DIMS.kv_heads) {
        let (key, value) = problem.key_gradient(&inputs.d_o, stats, row);
        dk.add(&gradients.dk, DIMS.kv_heads, row, &key);
        dv.add(&gradients.dv, DIMS.kv_heads, row, &value);
    }
    let errors = vec![
        ("o", o.error(), 4e-3),
        ("dq", dq.error(), 8e-3),
        ("dk", dk.error(), 8e-3),
        ("dv", dv.error(), 8e-3),
    ];
    report(&Outcome {
        name: format!("bf16 d128 8/4 heads {LEN} tokens causal, {ROWS} rows of each"),
        errors,
    });
    Ok(())
}

/// Rows at both ends and in between, of every head in turn.
fn rows(heads: usize) -> impl Iterator<Item = Row> {
    (0..ROWS).map(move |index| Row { batch: 0, head: index % heads, token: index * (LEN - 1) / (ROWS - 1) })
}

/// Row sums of `o * do` of one sequence, `[heads][len]`.
pub(super) fn delta(output: &HostOutput, inputs: &Inputs) -> Vec<f64> {
    let (width, heads) = (inputs.dims.head_dim.elements(), inputs.dims.heads);
    let start = |head: usize, token: usize| (token * heads + head) * width;
    let sum = |at: usize| (at..at + width).map(|e| output.o[e] * f64::from(inputs.d_o[e])).sum();
    (0..heads).flat_map(|head| (0..inputs.len).map(move |token| sum(start(head, token)))).collect()
}

/// Compared rows, end to end.
#[derive(Default)]
pub(super) struct Pair {
    actual: Vec<f64>,
    expected: Vec<f64>,
}

impl Pair {
    /// Adds one row of the dense tensor `actual`, `[len][heads][head_dim]`.
    pub fn add(&mut self, actual: &[f64], heads: usize, row: Row, expected: &[f64]) {
        let start = (row.token * heads + row.head) * expected.len();
        self.actual.extend_from_slice(&actual[start..start + expected.len()]);
        self.expected.extend_from_slice(expected);
    }

    pub fn error(&self) -> f64 {
        relative_l2(&self.actual, &self.expected)
    }
}
