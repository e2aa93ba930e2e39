//! The forward call.

use ringlab_sim::plan::Part;

use super::{Call, Operand, for_each_tile};
use crate::cpu::memory::Storage;
use crate::region::Placement;

/// Attends the call's queries over `keys`, into the state at `state_at`.
pub(in crate::cpu) fn attend(
    call: &Call<'_>,
    queries: &Operand<'_>,
    keys: &Operand<'_>,
    (state, state_at): (&mut Storage, &Placement),
) {
    let (d, scale, ranges) = (call.shape.head_dim as usize, call.scale(), call.key_ranges());
    for batch in 0..call.shape.batch as usize {
        for g in 0..keys.region.heads() {
            let (k, v) = (keys.pack(Part::Key, batch, g), keys.pack(Part::Value, batch, g));
            for head in call.query_heads(g) {
                let q = queries.pack(Part::Query, batch, head);
                for_each_tile(&ranges, |i, tile| {
                    let query = &q[i * d..(i + 1) * d];
                    let row = state.index(batch, state_at.tokens[i], state_at.head + head);
                    let tile = tile.start * d..tile.end * d;
                    state.state_row(row).absorb(scale, query, &k[tile.clone()], &v[tile]);
                });
            }
        }
    }
}
