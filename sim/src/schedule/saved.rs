//! What a rank that divides heads has for its backward.

use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, Rank, Tensor};

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

    /// q, lse and do.
    pub fn queries(&self) -> Bufs {
        Bufs { first: self.q, count: self.d_o.count + 2 }
    }

    /// o and do.
    pub fn outputs(&self) -> Bufs {
        Bufs { first: self.out, count: self.d_o.count + 1 }
    }
}
