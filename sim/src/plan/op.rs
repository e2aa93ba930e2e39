//! Operations: what they do, what they touch, what they wait for.

use super::{BlockId, Buf, Bufs, LANES, Lane, MaskId, MessageId, OpId, Scores};
use crate::problem::Pass;

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// Attention of `q_block` over `kv_block`, into the running state.
    Attend {
        /// Hold q of `q_block`, and maybe more.
        q: Bufs,
        /// Hold k and v of `kv_block`, and maybe more.
        kv: Bufs,
        /// The state that is updated.
        state: Buf,
        /// Queries.
        q_block: BlockId,
        /// Keys.
        kv_block: BlockId,
        /// Which pairs.
        mask: MaskId,
        /// Whether the state starts here.
        init: bool,
    },
    /// Gradients of the same block: adds to dq, and to dk and dv.
    AttendBackward {
        /// Together hold q, do and lse of `q_block`.
        q: Bufs,
        /// rowsum(o * do) of the same queries.
        delta: Buf,
        /// Hold `kv_block`.
        kv: Bufs,
        /// Added to.
        dq: Buf,
        /// Added to.
        dkv: Bufs,
        /// Queries.
        q_block: BlockId,
        /// Keys.
        kv_block: BlockId,
        /// What `dkv` covers: buffer i holds part i of it, by [`super::part_of`].
        dkv_block: BlockId,
        /// Which pairs.
        mask: MaskId,
        /// Whether dq starts here.
        init_dq: bool,
        /// Whether dk and dv start here.
        init_dkv: bool,
    },
    /// delta = rowsum(o * do).
    Preprocess {
        /// Together hold o and do of `block`.
        q: Bufs,
        /// The result.
        delta: Buf,
        /// Of which queries.
        block: BlockId,
    },
    /// Merges a partial state into another one.
    Merge {
        /// Read.
        from: Buf,
        /// Updated.
        into: Buf,
    },
    /// Adds gradients to gradients.
    Accumulate {
        /// Read.
        from: Buf,
        /// Updated.
        into: Buf,
    },
    /// o / l and lse from the state.
    Finish {
        /// Read.
        state: Buf,
        /// Written.
        out: Buf,
    },
    /// Dense work around attention, where ranks that divide the heads meet.
    Project(Projection),
    /// Attention with its scores in memory.
    Scores(Scores),
    /// Sends a message's block out of a buffer.
    Send {
        /// Which message.
        message: MessageId,
        /// Hold the message's block, and maybe more; only what is never summed up may lie in several.
        buffer: Bufs,
    },
    /// Receives a message into a buffer, which then holds its block and nothing else.
    Recv {
        /// Which message.
        message: MessageId,
        /// Overwritten.
        buffer: Buf,
    },
}

/// A projection of a rank's own heads. Its time is not attention's, and is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projection {
    /// q, k and v from the layer's input.
    Inputs {
        /// Together hold the input of `hidden`.
        input: Bufs,
        /// Tokens, with all heads.
        hidden: BlockId,
        /// Written: q of `q_block`.
        q: Buf,
        /// Tokens of `hidden` with the rank's query heads.
        q_block: BlockId,
        /// Written: k and v of `kv_block`.
        kv: Buf,
        /// The same tokens with the rank's kv heads.
        kv_block: BlockId,
    },
    /// The rank's part of the layer's output, from o.
    Output {
        /// o and lse of the rank's heads.
        out: Buf,
        /// Written: buffer i is part i of `hidden`, by [`super::part_of`].
        parts: Bufs,
        /// Tokens, with all heads.
        hidden: BlockId,
    },
    /// The rank's part of the gradient of the layer's input.
    Gradients {
        /// dq of the rank's heads.
        dq: Buf,
        /// dk and dv of them, by the same attention call.
        dkv: Buf,
        /// Written: buffer i is part i of `hidden`, by [`super::part_of`].
        parts: Bufs,
        /// Tokens, with all heads.
        hidden: BlockId,
    },
}

impl Projection {
    fn accesses(&self, mut f: impl FnMut(Buf, Access)) {
        use Access::{Read, Write};
        match *self {
            Self::Inputs { input, q, kv, .. } => {
                input.iter().for_each(|b| f(b, Read));
                f(q, Write);
                f(kv, Write);
            }
            Self::Output { out, parts, .. } => {
                f(out, Read);
                parts.iter().for_each(|b| f(b, Write));
            }
            Self::Gradients { dq, dkv, parts, .. } => {
                f(dq, Read);
                f(dkv, Read);
                parts.iter().for_each(|b| f(b, Write));
            }
        }
    }
}

/// How an operation touches a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only reads.
    Read,
    /// Overwrites.
    Write,
    /// Reads and writes.
    Update,
}

impl OpKind {
    /// Calls `f` for every buffer that the operation touches.
    pub fn accesses(&self, mut f: impl FnMut(Buf, Access)) {
        use Access::{Read, Update, Write};
        let update = |init: bool| if init { Write } else { Update };
        match *self {
            Self::Attend { q, kv, state, init, .. } => {
                q.iter().chain(kv.iter()).for_each(|b| f(b, Read));
                f(state, update(init));
            }
            Self::AttendBackward { q, delta, kv, dq, dkv, init_dq, init_dkv, .. } => {
                q.iter().chain([delta]).chain(kv.iter()).for_each(|b| f(b, Read));
                f(dq, update(init_dq));
                dkv.iter().for_each(|b| f(b, update(init_dkv)));
            }
            Self::Preprocess { q, delta, .. } => {
                q.iter().for_each(|b| f(b, Read));
                f(delta, Write);
            }
            Self::Merge { from, into } | Self::Accumulate { from, into } => {
                f(from, Read);
                f(into, Update);
            }
            Self::Finish { state, out } => {
                f(state, Read);
                f(out, Write);
            }
            Self::Project(projection) => projection.accesses(f),
            Self::Scores(scores) => scores.accesses(f),
            Self::Send { buffer, .. } => buffer.iter().for_each(|b| f(b, Read)),
            Self::Recv { buffer, .. } => f(buffer, Write),
        }
    }

    /// Queries, keys and mask of an attention call, or of a product on score rows.
    pub fn attended(&self) -> Option<(BlockId, BlockId, MaskId)> {
        match *self {
            Self::Attend { q_block, kv_block, mask, .. }
            | Self::AttendBackward { q_block, kv_block, mask, .. } => Some((q_block, kv_block, mask)),
            Self::Scores(scores) => scores.product(),
            _ => None,
        }
    }

    /// FLOPs that the operation does for each unmasked pair of a query head.
    pub fn flops_per_pair(&self, head_dim: u32) -> u64 {
        match self {
            Self::Attend { .. } => Pass::Forward.flops_per_pair(head_dim),
            Self::AttendBackward { .. } => Pass::Backward.flops_per_pair(head_dim),
            Self::Scores(scores) => 2 * u64::from(head_dim) * scores.products(),
            _ => 0,
        }
    }

    /// The message that is sent or received.
    pub fn message(&self) -> Option<MessageId> {
        match *self {
            Self::Send { message, .. } | Self::Recv { message, .. } => Some(message),
            _ => None,
        }
    }
}

/// One operation of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// What it does.
    pub kind: OpKind,
    /// Where it runs, after all earlier operations of that lane.
    pub lane: Lane,
    /// Neighbouring operations of a lane with the same group, not 0, are posted together and end together.
    pub group: u32,
    /// The schedule's step t that it belongs to.
    pub step: u32,
    /// For each lane, the last operation there that must have ended before this one starts; [`super::NO_OP`] for none.
    pub waits: [OpId; LANES],
}
