//! Operations on score rows: matrix products over whole blocks, masked pairs included, and passes over the rows.
//!
//! A product takes its FLOPs at the rate of large matrix products, or its score elements' bytes at the rate of device
//! memory where those take longer. The softmax reads and writes its rows; its gradient reads probabilities and their
//! gradients and writes those of the scores.

use crate::config::cluster::Reached;
use crate::plan::{BlockId, Buf, Plan, Program, Scores};
use crate::units::{Bytes, Flops, SimTime};

/// fp32.
const ELEMENT: f64 = 4.0;

/// How long `op` takes on a device that reaches these rates.
pub(super) fn time(reached: &Reached, plan: &Plan, program: &Program, op: &Scores) -> SimTime {
    let product = |pairs: f64| {
        let flops = Flops(2.0 * f64::from(plan.shape.head_dim) * pairs);
        (flops / reached.matmul).max(Bytes((ELEMENT * pairs) as u64) / reached.hbm)
    };
    let passes = |rows: Buf, passes: u64| program.buffers[usize::from(rows.0)].bytes * passes / reached.hbm;
    match *op {
        Scores::Softmax { rows, .. } => passes(rows, 2),
        Scores::SoftmaxBackward { rows, .. } => passes(rows, 3),
        _ => op.product().map_or(SimTime::ZERO, |(q, kv, _)| product(pairs(plan, q, kv)) * op.products()),
    }
}

/// All pairs of a block, of all heads and sequences.
fn pairs(plan: &Plan, q: BlockId, kv: BlockId) -> f64 {
    let (q, keys) = (plan.block(q), plan.block(kv).tokens.len());
    q.tokens.len() as f64 * keys as f64 * f64::from(q.heads.count) * f64::from(plan.shape.batch)
}
