//! Operations on score rows: their buffers, blocks and masks.

use super::{block_use_fault, buffers_fault, parts_fault};
use crate::plan::{BlockId, Buf, Bufs, MaskId, Part, Plan, Program, Scores, Tensor};

/// Whether buffers, blocks and mask of an operation exist and are of the kind it needs.
pub(super) fn fault(plan: &Plan, program: &Program, op: &Scores) -> Option<String> {
    use Tensor::{KeyGrad, QueryGrad, State, ValueGrad};
    let buffer = |buf: Buf, tensor| buffers_fault(program, buf.into(), tensor);
    let rows = |buf: Buf| buffer(buf, rows(plan));
    let parts = |bufs: Bufs, part| parts_fault(program, bufs, &[part]);
    let queries = |block: BlockId| block_use_fault(plan, block, plan.shape.heads);
    let product = op.product().and_then(|(q, kv, mask)| {
        let keys = block_use_fault(plan, kv, plan.shape.kv_heads);
        queries(q).or(keys).or_else(|| mask_fault(plan, mask))
    });
    let operands = match *op {
        Scores::Score { q, k, rows: to, .. } => {
            parts(q, Part::Query).or_else(|| parts(k, Part::Key)).or_else(|| rows(to))
        }
        Scores::Softmax { rows: of, state, block } => {
            rows(of).or_else(|| buffer(state, State)).or_else(|| queries(block))
        }
        Scores::Weigh { rows: of, v, state, .. } => {
            rows(of).or_else(|| parts(v, Part::Value)).or_else(|| buffer(state, State))
        }
        Scores::WeighBackward { rows: of, d_o, v, d_rows, dv, .. } => rows(of)
            .or_else(|| parts(d_o, Part::OutputGrad).or_else(|| parts(v, Part::Value)))
            .or_else(|| rows(d_rows).or_else(|| buffer(dv, ValueGrad)))
            .or_else(|| same_fault(of, d_rows)),
        Scores::SoftmaxBackward { rows: of, d_rows, block } => {
            rows(of).or_else(|| rows(d_rows)).or_else(|| queries(block)).or_else(|| same_fault(of, d_rows))
        }
        Scores::ScoreBackward { d_rows, q, k, dq, dk, .. } => rows(d_rows)
            .or_else(|| parts(q, Part::Query).or_else(|| parts(k, Part::Key)))
            .or_else(|| buffer(dq, QueryGrad).or_else(|| buffer(dk, KeyGrad))),
    };
    operands.or(product)
}

/// Score rows of this plan: a column for every key.
pub(super) fn rows(plan: &Plan) -> Tensor {
    Tensor::Scores { keys: u32::try_from(plan.layout.documents().tokens()).unwrap_or(u32::MAX) }
}

fn mask_fault(plan: &Plan, id: MaskId) -> Option<String> {
    (usize::from(id.0) >= plan.masks.len()).then(|| format!("there is no mask {}", id.0))
}

fn same_fault(rows: Buf, d_rows: Buf) -> Option<String> {
    (rows == d_rows).then(|| format!("buffer {} cannot hold both probabilities and their gradients", rows.0))
}
