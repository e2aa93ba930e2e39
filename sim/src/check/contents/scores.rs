//! Score rows: scores while products fill them, and from the softmax on probabilities; likewise their gradients.
//!
//! Products may come in any order, but a softmax needs its rows complete, and what weighs or is multiplied needs it done.
//! Whether rows are complete is a question of coverage: it is kept for the proof which products had gone into them.

use super::{Content, Machine, NodeId};
use crate::check::regions::RegionId;
use crate::check::terms::At;
use crate::check::violation::{Findings, Violation};
use crate::plan::{BlockId, Buf, Bufs, Part, Scores};

impl Machine<'_> {
    pub(super) fn scores(&mut self, at: At, op: &Scores, found: &mut Findings) {
        match *op {
            Scores::Score { q, k, rows, q_block, kv_block, init, .. } => {
                self.product(at, (q, q_block, Part::Query), (k, kv_block, Part::Key), found);
                self.fill(at, rows, q_block, init, found);
            }
            Scores::Softmax { rows, state, block } => {
                self.complete(at, rows, block, found);
                let region = self.regions.of_block(block);
                self.write(at, state, Content { normalised: true, ..Content::plain(region) }, found);
            }
            Scores::Weigh { rows, v, state, q_block, kv_block, .. } => {
                self.value_side(at, (v, kv_block, Part::Value), (q_block, kv_block), found);
                self.probabilities(at, rows, q_block, found);
                if self.is_normalised(at, state) == Some(false) {
                    refuse(at, "it weighs values into a state that no softmax has begun", found);
                }
                let region = self.regions.of_block(q_block);
                self.add_call(at, state, region, false, found);
            }
            Scores::WeighBackward { rows, d_o, v, d_rows, dv, q_block, kv_block, init, .. } => {
                self.product(at, (d_o, q_block, Part::OutputGrad), (v, kv_block, Part::Value), found);
                self.probabilities(at, rows, q_block, found);
                self.fill(at, d_rows, q_block, init, found);
                let keys = self.regions.of_block(kv_block);
                self.add_call(at, dv, keys, true, found);
            }
            Scores::SoftmaxBackward { rows, d_rows, block } => {
                self.probabilities(at, rows, block, found);
                self.complete(at, d_rows, block, found);
            }
            Scores::ScoreBackward { d_rows, q, k, dq, dk, q_block, kv_block, init, .. } => {
                self.product(at, (q, q_block, Part::Query), (k, kv_block, Part::Key), found);
                self.probabilities(at, d_rows, q_block, found);
                let (queries, keys) = (self.regions.of_block(q_block), self.regions.of_block(kv_block));
                self.add_call(at, dq, queries, init, found);
                self.add_call(at, dk, keys, true, found);
            }
        }
    }

    /// Rows that a softmax found, and which products had gone into them.
    pub(in crate::check) fn completed(&self) -> &[(NodeId, RegionId)] {
        &self.completed
    }

    fn product(
        &self,
        at: At,
        (q, q_block, q_part): (Bufs, BlockId, Part),
        keys: (Bufs, BlockId, Part),
        found: &mut Findings,
    ) {
        self.held_parts(at, q, &[q_part], self.regions.of_block(q_block), found);
        self.value_side(at, keys, (q_block, keys.1), found);
    }

    fn value_side(
        &self,
        at: At,
        (bufs, block, part): (Bufs, BlockId, Part),
        blocks: (BlockId, BlockId),
        found: &mut Findings,
    ) {
        self.held_parts(at, bufs, &[part], self.regions.of_block(block), found);
        self.matching_heads(at, blocks, found);
    }

    /// A product goes into rows, which no softmax may have seen.
    fn fill(&mut self, at: At, rows: Buf, q_block: BlockId, init: bool, found: &mut Findings) {
        if !init && self.is_normalised(at, rows) == Some(true) {
            refuse(at, "it adds to rows after their softmax", found);
        }
        let region = self.regions.of_block(q_block);
        self.add_call(at, rows, region, init, found);
    }

    /// A softmax of whole rows.
    fn complete(&mut self, at: At, rows: Buf, block: BlockId, found: &mut Findings) {
        let region = self.regions.of_block(block);
        let Some(content) = self.held(at, rows.into(), region, found) else { return };
        match content.node {
            Some(node) if !content.normalised => self.completed.push((node, region)),
            _ => refuse(at, "it finds no scores in its rows", found),
        }
        let content = Content { normalised: true, ..Content::plain(region) };
        self.buffers[at.rank as usize][usize::from(rows.0)] = Some(content);
    }

    fn probabilities(&self, at: At, rows: Buf, q_block: BlockId, found: &mut Findings) {
        self.held(at, rows.into(), self.regions.of_block(q_block), found);
        if self.is_normalised(at, rows) == Some(false) {
            refuse(at, "it reads rows before their softmax", found);
        }
    }

    /// Whether a buffer's content has been through a softmax; `None` if it holds nothing.
    pub(super) fn is_normalised(&self, at: At, buffer: Buf) -> Option<bool> {
        self.content(at.rank, buffer).map(|c| c.normalised)
    }
}

pub(super) fn refuse(at: At, what: &str, found: &mut Findings) {
    found.push(Violation::Op { at, what: what.into() });
}
