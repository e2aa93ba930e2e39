//! What a rank that divides heads has for its backward.

use super::step::classify;
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, MaskId, OpKind, Rank, Tensor};

/// q, o and lse, k and v of a rank's heads, as its forward left them, and do, which is still to be exchanged. q, o and do
/// lie in neighbouring buffers.
pub(super) struct Saved {
    q: Buf,
    out: Buf,
    /// do.
    pub d_o: Bufs,
    /// k and v.
    pub kv: Buf,
}

impl Saved {
    /// Of queries and keys `(q_block, kv_block)`; `d_o` allocates the buffers of do.
    pub fn new(
        b: &mut PlanBuilder,
        r: Rank,
        (q_block, kv_block): (BlockId, BlockId),
        d_o: impl FnOnce(&mut PlanBuilder) -> Bufs,
    ) -> Self {
        let kv = b.saved(r, Tensor::KeyValue, kv_block);
        let (q, out) = (b.saved(r, Tensor::Query, q_block), b.saved(r, Tensor::Output, q_block));
        Self { q, out, d_o: d_o(b), kv }
    }

    /// The only backward call of rank r, in `step`, with the row sums that it needs; it starts dq and dkv.
    pub fn attend(
        &self,
        b: &mut PlanBuilder,
        (r, step): (Rank, u32),
        (q_block, kv_block): (BlockId, BlockId),
        (dq, dkv): (Buf, Buf),
    ) {
        let delta = b.scratch(r, Tensor::Delta, q_block);
        b.compute(r, step, OpKind::Preprocess { q: self.outputs(), delta, block: q_block });
        let kind = OpKind::AttendBackward {
            q: self.queries(),
            delta,
            kv: self.kv.into(),
            dq,
            dkv: dkv.into(),
            q_block,
            kv_block,
            dkv_block: kv_block,
            mask: classify(b, q_block, kv_block).unwrap_or(MaskId::PROBLEM),
            init_dq: true,
            init_dkv: true,
        };
        b.compute(r, step, kind);
    }

    /// q, lse and do.
    pub fn queries(&self) -> Bufs {
        Bufs { first: self.q, count: self.d_o.count + 2 }
    }

    /// o and do.
    pub fn outputs(&self) -> Bufs {
        Bufs { first: self.out, count: self.d_o.count + 1 }
    }
}
