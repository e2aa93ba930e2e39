//! Attention with its scores in memory. Rows have a column for every position; columns that the mask forbids score minus
//! infinity, weigh nothing and have no gradient, so that what padding holds is never read.

use ringlab_sim::mask::Mask;
use ringlab_sim::plan::{BlockId, Buf, Part, Plan, Scores, Tensor};

use super::attention::Call;
use super::error::Cause;
use super::math::{add_combination, add_scaled, dot};
use super::memory::Storage;
use super::operations::{hold, not_held, place};
use super::rank::Runner;

use super::state::{TILE, larger};
use crate::region::{Placement, Region};

/// Queries whose gradients are summed up before they are added, so that rounding does not grow with their number.
const QUERIES: usize = 256;

/// Rows of a product's queries: the memory and where they lie in it.
struct Rows<'a> {
    storage: &'a Storage,
    at: Placement,
}

impl Rows<'_> {
    fn get(&self, batch: usize, token: usize, head: usize) -> &[f32] {
        row(self.storage, &self.at, (batch, token, head))
    }
}

fn row<'s>(storage: &'s Storage, at: &Placement, (batch, token, head): (usize, usize, usize)) -> &'s [f32] {
    storage.row(0, storage.index(batch, at.tokens[token], at.head + head))
}

fn row_mut<'s>(
    storage: &'s mut Storage,
    at: &Placement,
    (batch, token, head): (usize, usize, usize),
) -> &'s mut [f32] {
    let index = storage.index(batch, at.tokens[token], at.head + head);
    storage.row_mut(0, index)
}

impl Runner<'_> {
    pub(super) fn scores(&mut self, op: &Scores) -> Result<(), Cause> {
        match *op {
            Scores::Score { .. } => self.score(op),
            Scores::Softmax { rows, state, block } => self.softmax(rows, state, block),
            Scores::Weigh { .. } => self.weigh(op),
            Scores::WeighBackward { .. } => self.weigh_backward(op),
            Scores::SoftmaxBackward { rows, d_rows, block } => self.softmax_backward(rows, d_rows, block),
            Scores::ScoreBackward { .. } => self.score_backward(op),
        }
    }

    fn score(&mut self, op: &Scores) -> Result<(), Cause> {
        let Scores::Score { q, k, rows, q_block, init, .. } = *op else { return Ok(()) };
        let mut target = self.rows_to_write(rows, q_block, init)?;
        let call = self.product(op, k.first)?;
        let at = place(&target, call.q, rows)?;
        let queries = self.operand(q, call.q, &[Part::Query])?;
        let keys = self.operand(k, call.kv, &[Part::Key])?;
        let ranges = call.key_ranges();
        each_row(&call, |(batch, g, head)| {
            let k = keys.pack(Part::Key, batch, g);
            for (i, range) in ranges.iter().enumerate() {
                let query = queries.row(Part::Query, batch, i, head);
                let row = row_mut(&mut target, &at, (batch, i, head));
                let columns = call.kv.tokens.iter().zip(k.chunks_exact(query.len())).enumerate();
                for (j, (&column, key)) in columns {
                    let allowed = range.contains(&j);
                    row[column as usize] =
                        if allowed { call.scale() * dot(query, key) } else { f32::NEG_INFINITY };
                }
            }
        });
        self.memory.put(rows, target);
        Ok(())
    }

    fn softmax(&mut self, rows: Buf, state: Buf, block: BlockId) -> Result<(), Cause> {
        let region = &self.shared.regions[block as usize];
        let mut scores = self.rows_to_write(rows, block, false)?;
        let mut begun = self.memory.take(state, Tensor::State)?;
        hold(&mut begun, region, state)?;
        begun.fill(0, 0.0);
        let (from, to) = (place(&scores, region, rows)?, place(&begun, region, state)?);
        for batch in 0..self.shared.plan.shape.batch as usize {
            for (token, head) in region.rows() {
                let scores = row_mut(&mut scores, &from, (batch, token, head));
                let index = begun.index(batch, to.tokens[token], to.head + head);
                let state = begun.state_row(index);
                (*state.m, *state.l) = normalise(scores);
            }
        }
        self.memory.put(rows, scores);
        self.memory.put(state, begun);
        Ok(())
    }

    fn weigh(&mut self, op: &Scores) -> Result<(), Cause> {
        let Scores::Weigh { rows, v, state, .. } = *op else { return Ok(()) };
        let mut target = self.memory.take(state, Tensor::State)?;
        let call = self.product(op, v.first)?;
        let at = place(&target, call.q, state)?;
        let weights = self.rows_to_read(rows, call.q)?;
        let values = self.operand(v, call.kv, &[Part::Value])?;
        let ranges = call.key_ranges();
        each_row(&call, |(batch, g, head)| {
            let v = values.pack(Part::Value, batch, g);
            for (i, range) in ranges.iter().enumerate() {
                let weights = weights.get(batch, i, head);
                let index = target.index(batch, at.tokens[i], at.head + head);
                let out = target.state_row(index);
                let d = out.o.len();
                for from in range.clone().step_by(TILE) {
                    let to = range.end.min(from + TILE);
                    let tile: Vec<f32> =
                        call.kv.tokens[from..to].iter().map(|&k| weights[k as usize]).collect();
                    add_combination(out.o, &tile, &v[from * d..to * d]);
                }
            }
        });
        self.memory.put(state, target);
        Ok(())
    }

    fn weigh_backward(&mut self, op: &Scores) -> Result<(), Cause> {
        let Scores::WeighBackward { rows, d_o, v, d_rows, dv, q_block, kv_block, init, .. } = *op else {
            return Ok(());
        };
        let mut target = self.rows_to_write(d_rows, q_block, init)?;
        let mut sums = self.zeroed(Tensor::ValueGrad, (dv.into(), 0), kv_block)?;
        let call = self.product(op, v.first)?;
        let at = place(&target, call.q, d_rows)?;
        let weights = self.rows_to_read(rows, call.q)?;
        let d_out = self.operand(d_o, call.q, &[Part::OutputGrad])?;
        let values = self.operand(v, call.kv, &[Part::Value])?;
        let ranges = call.key_ranges();
        each_row(&call, |(batch, g, head)| {
            let v = values.pack(Part::Value, batch, g);
            let gradient = |i: usize| d_out.row(Part::OutputGrad, batch, i, head);
            for (i, range) in ranges.iter().enumerate() {
                let (d_o, row) = (gradient(i), row_mut(&mut target, &at, (batch, i, head)));
                for (j, (&column, v)) in call.kv.tokens.iter().zip(v.chunks_exact(d_o.len())).enumerate() {
                    row[column as usize] = if range.contains(&j) { dot(d_o, v) } else { 0.0 };
                }
            }
            add_by_key(&call, &ranges, (&mut sums, batch, g), |i| {
                (weights.get(batch, i, head), gradient(i), 1.0)
            });
        });
        self.memory.put(d_rows, target);
        self.memory.put(dv, sums);
        Ok(())
    }

    /// `ds = p (dp - sum p dp)`.
    fn softmax_backward(&mut self, rows: Buf, d_rows: Buf, block: BlockId) -> Result<(), Cause> {
        let region = &self.shared.regions[block as usize];
        let mut target = self.rows_to_write(d_rows, block, false)?;
        let at = place(&target, region, d_rows)?;
        let weights = self.rows_to_read(rows, region)?;
        for batch in 0..self.shared.plan.shape.batch as usize {
            for (token, head) in region.rows() {
                let p = weights.get(batch, token, head);
                let dp = row_mut(&mut target, &at, (batch, token, head));
                let mean = dot(p, dp);
                dp.iter_mut().zip(p).for_each(|(dp, p)| *dp = p * (*dp - mean));
            }
        }
        self.memory.put(d_rows, target);
        Ok(())
    }

    fn score_backward(&mut self, op: &Scores) -> Result<(), Cause> {
        let Scores::ScoreBackward { d_rows, q, k, dq, dk, kv_block, init, .. } = *op else { return Ok(()) };
        let mut target = self.memory.take(dq, Tensor::QueryGrad)?;
        let mut sums = self.zeroed(Tensor::KeyGrad, (dk.into(), 0), kv_block)?;
        let call = self.product(op, k.first)?;
        if init {
            let Scores::ScoreBackward { q_block, .. } = *op else { return Ok(()) };
            hold(&mut target, &self.shared.regions[q_block as usize], dq)?;
            target.fill(0, 0.0);
        }
        let at = place(&target, call.q, dq)?;
        let gradients = self.rows_to_read(d_rows, call.q)?;
        let queries = self.operand(q, call.q, &[Part::Query])?;
        let keys = self.operand(k, call.kv, &[Part::Key])?;
        let (ranges, scale) = (call.key_ranges(), call.scale());
        each_row(&call, |(batch, g, head)| {
            let k = keys.pack(Part::Key, batch, g);
            for (i, range) in ranges.iter().enumerate() {
                let ds = gradients.get(batch, i, head);
                let dq = row_mut(&mut target, &at, (batch, i, head));
                let d = dq.len();
                for from in range.clone().step_by(TILE) {
                    let to = range.end.min(from + TILE);
                    let tile = call.kv.tokens[from..to].iter().map(|&k| scale * ds[k as usize]);
                    add_combination(dq, &tile.collect::<Vec<f32>>(), &k[from * d..to * d]);
                }
            }
            let query = |i| queries.row(Part::Query, batch, i, head);
            add_by_key(&call, &ranges, (&mut sums, batch, g), |i| {
                (gradients.get(batch, i, head), query(i), scale)
            });
        });
        self.memory.put(dq, target);
        self.memory.put(dk, sums);
        Ok(())
    }

    fn product(&self, op: &Scores, keys: Buf) -> Result<Call<'_>, Cause> {
        let (q, kv, mask) = op.product().ok_or(not_held(keys))?;
        let regions = &self.shared.regions;
        self.call(&regions[q as usize], &regions[kv as usize], mask).ok_or(not_held(keys))
    }

    /// Takes score rows out of the memory, for `block` if they start here.
    fn rows_to_write(&mut self, rows: Buf, block: BlockId, init: bool) -> Result<Storage, Cause> {
        let tensor = self.memory.tensor(rows)?;
        let mut storage = self.memory.take(rows, tensor)?;
        if init {
            hold(&mut storage, &self.shared.regions[block as usize], rows)?;
        }
        Ok(storage)
    }

    fn rows_to_read(&self, rows: Buf, region: &Region) -> Result<Rows<'_>, Cause> {
        let storage = self.memory.get(rows, self.memory.tensor(rows)?)?;
        Ok(Rows { at: place(storage, region, rows)?, storage })
    }
}

/// Calls `f(batch, kv head, query head)` for every query head of a call, counted within its blocks.
fn each_row(call: &Call<'_>, mut f: impl FnMut((usize, usize, usize))) {
    for batch in 0..call.shape.batch as usize {
        for g in 0..call.kv.heads() {
            for head in call.query_heads(g) {
                f((batch, g, head));
            }
        }
    }
}

/// Adds to each key's gradient `factor * row[key] * x` of the queries that attend it; `of` gives row, x and factor.
fn add_by_key<'r>(
    call: &Call<'_>,
    ranges: &[std::ops::Range<usize>],
    (sums, batch, g): (&mut Storage, usize, usize),
    of: impl Fn(usize) -> (&'r [f32], &'r [f32], f32),
) {
    let d = call.shape.head_dim as usize;
    for first in (0..ranges.len()).step_by(QUERIES) {
        let mut partial = vec![0.0; call.kv.tokens.len() * d];
        for (i, range) in ranges.iter().enumerate().skip(first).take(QUERIES) {
            let (row, x, factor) = of(i);
            for j in range.clone() {
                let weight = factor * row[call.kv.tokens[j] as usize];
                add_scaled(&mut partial[j * d..(j + 1) * d], weight, x);
            }
        }
        for (j, partial) in partial.chunks_exact(d).enumerate() {
            let index = sums.index(batch, j, g);
            add_scaled(sums.row_mut(0, index), 1.0, partial);
        }
    }
}

/// Turns a row of scores into probabilities; returns its log-sum-exp and 1, or minus infinity and 0 for a row without
/// keys.
fn normalise(row: &mut [f32]) -> (f32, f32) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, larger);
    if max == f32::NEG_INFINITY {
        row.fill(0.0);
        return (max, 0.0);
    }
    for s in &mut *row {
        *s = (*s - max).exp();
    }
    let sum: f32 = row.chunks(TILE).map(|tile| tile.iter().sum::<f32>()).sum();
    for p in &mut *row {
        *p /= sum;
    }
    (max + sum.ln(), 1.0)
}

/// Fills rows with the probabilities that a forward left: `exp(s - lse)` where the mask allows, else 0. Rows of padding
/// stay NaN. `q`, `k` and `lse` give the rows and the number of a real token and a query head.
pub(super) fn restore<'r>(
    plan: &Plan,
    storage: &mut Storage,
    region: &Region,
    real: &[Option<usize>],
    of: impl Fn(usize, usize, usize, Part) -> &'r [f32],
) {
    let scale = (plan.shape.head_dim as f32).sqrt().recip();
    let mask: &Mask = plan.mask(ringlab_sim::plan::MaskId::PROBLEM);
    for batch in 0..plan.shape.batch as usize {
        for (token, head) in region.rows() {
            let position = region.tokens[token];
            let Some(query) = real[position as usize] else { continue };
            let head_of_all = region.heads.first as usize + head;
            let (q, lse) =
                (of(batch, query, head_of_all, Part::Query), of(batch, query, head_of_all, Part::Lse)[0]);
            let index = storage.index(batch, token, head);
            let row = storage.row_mut(0, index);
            row.fill(0.0);
            let (from, to) = mask.interval(position).unwrap_or((0, 0));
            for column in from..to {
                let Some(key) = real[column as usize] else { continue };
                let k = of(batch, key, head_of_all, Part::Key);
                row[column as usize] = (scale * dot(q, k) - lse).exp();
            }
        }
    }
}
