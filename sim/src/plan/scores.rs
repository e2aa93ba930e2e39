//! Attention with its scores in memory: a row for each query, with a column for every key of the problem.

use super::{Access, BlockId, Buf, Bufs, MaskId};

/// An operation on score rows. Forward, products fill the rows with scores, one softmax turns them into probabilities in
/// place, and products weigh the values with them. Backward, the probabilities are there; products fill rows of their
/// gradients, one operation turns those into gradients of the scores, and products give dq and dk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// Scores of `q_block` x `kv_block`, in their columns.
    Score {
        /// Hold q of `q_block`, and maybe more.
        q: Bufs,
        /// Hold k of `kv_block`, and maybe more.
        k: Bufs,
        /// The score rows of `q_block`.
        rows: Buf,
        /// Queries.
        q_block: BlockId,
        /// Keys.
        kv_block: BlockId,
        /// Which pairs; the others score minus infinity.
        mask: MaskId,
        /// Whether the rows start here.
        init: bool,
    },
    /// Probabilities of whole rows, and their log-sum-exp.
    Softmax {
        /// Scores, then probabilities.
        rows: Buf,
        /// Written: the log-sum-exp as running maximum, one as running sum, nothing summed up yet.
        state: Buf,
        /// Of which queries.
        block: BlockId,
    },
    /// Adds values, weighed with their probabilities.
    Weigh {
        /// Probabilities.
        rows: Buf,
        /// Hold v of `kv_block`, and maybe more.
        v: Bufs,
        /// Added to.
        state: Buf,
        /// Queries.
        q_block: BlockId,
        /// Keys.
        kv_block: BlockId,
        /// Which pairs.
        mask: MaskId,
    },
    /// Gradients of the probabilities of `q_block` x `kv_block`, in their columns, and of the values.
    WeighBackward {
        /// Probabilities.
        rows: Buf,
        /// Hold do of `q_block`, and maybe more.
        d_o: Bufs,
        /// Hold v of `kv_block`, and maybe more.
        v: Bufs,
        /// The rows of gradients.
        d_rows: Buf,
        /// Written: dv of `kv_block`.
        dv: Buf,
        /// Queries.
        q_block: BlockId,
        /// Keys.
        kv_block: BlockId,
        /// Which pairs; the others have no gradient.
        mask: MaskId,
        /// Whether the rows of gradients start here.
        init: bool,
    },
    /// Gradients of the scores of whole rows.
    SoftmaxBackward {
        /// Probabilities.
        rows: Buf,
        /// Gradients of the probabilities, then of the scores.
        d_rows: Buf,
        /// Of which queries.
        block: BlockId,
    },
    /// dq and dk of a block.
    ScoreBackward {
        /// Gradients of the scores.
        d_rows: Buf,
        /// Hold q of `q_block`, and maybe more.
        q: Bufs,
        /// Hold k of `kv_block`, and maybe more.
        k: Bufs,
        /// Added to.
        dq: Buf,
        /// Written: dk of `kv_block`.
        dk: Buf,
        /// Queries.
        q_block: BlockId,
        /// Keys.
        kv_block: BlockId,
        /// Which pairs.
        mask: MaskId,
        /// Whether dq starts here.
        init: bool,
    },
}

impl Scores {
    /// Calls `f` for every buffer that the operation touches.
    pub(super) fn accesses(&self, mut f: impl FnMut(Buf, Access)) {
        use Access::{Read, Update, Write};
        let update = |init: bool| if init { Write } else { Update };
        match *self {
            Self::Score { q, k, rows, init, .. } => {
                q.iter().chain(k.iter()).for_each(|b| f(b, Read));
                f(rows, update(init));
            }
            Self::Softmax { rows, state, .. } => {
                f(rows, Update);
                f(state, Write);
            }
            Self::Weigh { rows, v, state, .. } => {
                v.iter().chain([rows]).for_each(|b| f(b, Read));
                f(state, Update);
            }
            Self::WeighBackward { rows, d_o, v, d_rows, dv, init, .. } => {
                d_o.iter().chain(v.iter()).chain([rows]).for_each(|b| f(b, Read));
                f(d_rows, update(init));
                f(dv, Write);
            }
            Self::SoftmaxBackward { rows, d_rows, .. } => {
                f(rows, Read);
                f(d_rows, Update);
            }
            Self::ScoreBackward { d_rows, q, k, dq, dk, init, .. } => {
                q.iter().chain(k.iter()).chain([d_rows]).for_each(|b| f(b, Read));
                f(dq, update(init));
                f(dk, Write);
            }
        }
    }

    /// Queries, keys and mask of a product; `None` for operations on whole rows.
    pub fn product(&self) -> Option<(BlockId, BlockId, MaskId)> {
        match *self {
            Self::Score { q_block, kv_block, mask, .. }
            | Self::Weigh { q_block, kv_block, mask, .. }
            | Self::WeighBackward { q_block, kv_block, mask, .. }
            | Self::ScoreBackward { q_block, kv_block, mask, .. } => Some((q_block, kv_block, mask)),
            Self::Softmax { .. } | Self::SoftmaxBackward { .. } => None,
        }
    }

    /// Matrix products of 2 D FLOPs a pair that the operation makes.
    pub fn products(&self) -> u64 {
        match self {
            Self::Score { .. } | Self::Weigh { .. } => 1,
            Self::WeighBackward { .. } | Self::ScoreBackward { .. } => 2,
            Self::Softmax { .. } | Self::SoftmaxBackward { .. } => 0,
        }
    }
}
