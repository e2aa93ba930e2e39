//! The forward call.

use super::{Call, K, Keys, V, for_each_tile};
use crate::cpu::memory::Storage;
use crate::cpu::region::Placement;

/// Attends the call's queries, at `q_at` of the query buffer, over `keys`, into the state at `state_at`.
pub(in crate::cpu) fn attend(
    call: &Call<'_>,
    (q, q_at): (&Storage, &Placement),
    keys: &Keys<'_>,
    (state, state_at): (&mut Storage, &Placement),
) {
    let (d, scale, ranges) = (call.shape.head_dim as usize, call.scale(), call.key_ranges());
    for batch in 0..call.shape.batch as usize {
        for g in 0..keys.region.heads() {
            let (k, v) = (keys.pack(K, batch, g), keys.pack(V, batch, g));
            for head in call.query_heads(g) {
                for_each_tile(&ranges, |i, tile| {
                    let query = q.row(0, q.index(batch, q_at.tokens[i], q_at.head + head));
                    let row = state.index(batch, state_at.tokens[i], state_at.head + head);
                    let tile = tile.start * d..tile.end * d;
                    state.state_row(row).absorb(scale, query, &k[tile.clone()], &v[tile]);
                });
            }
        }
    }
}
