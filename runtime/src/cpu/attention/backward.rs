//! The backward call: with `p = exp(s - lse)` and `ds = p (do v^T - delta)`, it adds `scale ds k` to dq, `scale ds^T q`
//! to dk and `p^T do` to dv (FlashAttention-2, arXiv 2307.08691, algorithm 2).

use ringlab_sim::plan::Part;

use super::{Call, KeyGradients, Operand, for_each_tile};
use crate::cpu::math::{add_combination, add_scaled, dot};
use crate::cpu::memory::Storage;
use crate::cpu::state::TILE;
use crate::region::Placement;

/// Queries whose dk and dv are summed up before they are added, so that rounding does not grow with their number.
const QUERIES: usize = 256;

/// The query side of a call: q, do and lse, and delta with where the call's queries lie in it.
pub(in crate::cpu) struct Queries<'a> {
    pub side: Operand<'a>,
    pub delta: (&'a Storage, &'a Placement),
}

/// Adds the call's gradients to dq, at `dq_at`, and to dk and dv.
pub(in crate::cpu) fn attend_backward(
    call: &Call<'_>,
    queries: &Queries<'_>,
    keys: &Operand<'_>,
    (dq, dq_at): (&mut Storage, &Placement),
    dkv: &mut KeyGradients,
) {
    let (d, scale, ranges) = (call.shape.head_dim as usize, call.scale(), call.key_ranges());
    for batch in 0..call.shape.batch as usize {
        for g in 0..keys.region.heads() {
            let (k, v) = (keys.pack(Part::Key, batch, g), keys.pack(Part::Value, batch, g));
            let blocks = (0..ranges.len()).step_by(QUERIES);
            let blocks = call.query_heads(g).flat_map(|head| blocks.clone().map(move |first| (head, first)));
            for (head, first) in blocks {
                let (mut dk, mut dv) = (vec![0.0; k.len()], vec![0.0; v.len()]);
                for_each_tile(&ranges[first..ranges.len().min(first + QUERIES)], |i, tile| {
                    let query = queries.get(batch, first + i, head, scale);
                    let row = dq.index(batch, dq_at.tokens[first + i], dq_at.head + head);
                    let tile = tile.start * d..tile.end * d;
                    let grads = (&mut dk[tile.clone()], &mut dv[tile.clone()]);
                    query.add_gradients((&k[tile.clone()], &v[tile]), dq.row_mut(0, row), grads);
                });
                dkv.add(batch, g, (&dk, &dv), d);
            }
        }
    }
}

impl Queries<'_> {
    fn get(&self, batch: usize, i: usize, head: usize, scale: f32) -> Query<'_> {
        let (side, (delta, delta_at)) = (&self.side, self.delta);
        let delta_row = delta.index(batch, delta_at.tokens[i], delta_at.head + head);
        Query {
            scale,
            q: side.row(Part::Query, batch, i, head),
            d_o: side.row(Part::OutputGrad, batch, i, head),
            lse: side.row(Part::Lse, batch, i, head)[0],
            delta: delta.row(0, delta_row)[0],
        }
    }
}

struct Query<'a> {
    scale: f32,
    q: &'a [f32],
    d_o: &'a [f32],
    lse: f32,
    delta: f32,
}

impl Query<'_> {
    /// Gradients of at most [`TILE`] keys.
    fn add_gradients(&self, (k, v): (&[f32], &[f32]), dq: &mut [f32], (dk, dv): (&mut [f32], &mut [f32])) {
        let d = self.q.len();
        let mut ds = [0.0; TILE];
        let rows = k.chunks_exact(d).zip(v.chunks_exact(d));
        let grads = dk.chunks_exact_mut(d).zip(dv.chunks_exact_mut(d));
        for ((ds, (k, v)), (dk, dv)) in ds.iter_mut().zip(rows).zip(grads) {
            let p = (self.scale * dot(self.q, k) - self.lse).exp();
            *ds = self.scale * p * (dot(self.d_o, v) - self.delta);
            add_scaled(dk, *ds, self.q);
            add_scaled(dv, p, self.d_o);
        }
        add_combination(dq, &ds[..k.len() / d], k);
    }
}
