//! One attention call of a rank: its queries, its keys wherever they lie, and the mask as key ranges.

mod backward;
mod forward;

use std::ops::Range;

use ringlab_sim::mask::Mask;
use ringlab_sim::plan::Part;
use ringlab_sim::problem::Shape;

use super::math::add_scaled;
use super::memory::Storage;
use super::state::TILE;
use crate::region::{Region, Spread};

pub(super) use backward::{Queries, attend_backward};
pub(super) use forward::attend;

/// The planes of [`ringlab_sim::plan::Tensor::KeyValueGrad`].
const K: usize = 0;
const V: usize = 1;

/// Tokens and heads of one block that an operation reads, each of its parts spread over one or more buffers.
pub(super) struct Operand<'a> {
    region: &'a Region,
    parts: Vec<PartOf<'a>>,
}

/// One part of an operand: the buffers that have it, as which of their planes, and where.
struct PartOf<'a> {
    part: Part,
    held: Vec<(&'a Storage, usize)>,
    spread: Spread,
}

impl<'a> Operand<'a> {
    /// `None` if `buffers` do not hold every token and head of `region` just once, for each of `parts`.
    pub fn find(region: &'a Region, buffers: &[&'a Storage], parts: &[Part]) -> Option<Self> {
        let find = |&part: &Part| {
            let held = buffers.iter().filter_map(|b| b.plane(part).map(|plane| (*b, plane)));
            let held: Vec<(&Storage, usize)> = held.collect();
            let regions =
                held.iter().map(|(b, _)| b.held().map(AsRef::as_ref)).collect::<Option<Vec<_>>>()?;
            Some(PartOf { part, spread: Spread::find(region, &regions)?, held })
        };
        Some(Self { region, parts: parts.iter().map(find).collect::<Option<_>>()? })
    }

    /// The row of a token and head, both counted within the block.
    pub fn row(&self, part: Part, batch: usize, token: usize, head: usize) -> &'a [f32] {
        let of = self.parts.iter().find(|p| p.part == part);
        of.map_or(&[], |of| {
            let (buffer, token) = of.spread.at[token];
            let (storage, plane) = of.held[buffer];
            storage.row(plane, storage.index(batch, token, of.spread.heads[buffer] + head))
        })
    }

    /// One head of one sequence, `[tokens][width]`.
    pub fn pack(&self, part: Part, batch: usize, head: usize) -> Vec<f32> {
        (0..self.region.tokens.len()).flat_map(|t| self.row(part, batch, t, head)).copied().collect()
    }
}

/// dk and dv of one block, spread over one or more buffers.
pub(super) struct KeyGradients {
    parts: Vec<Storage>,
    spread: Spread,
}

impl KeyGradients {
    /// `None` if the parts do not hold every key and head of `region` just once.
    pub fn find(region: &Region, parts: Vec<Storage>) -> Option<Self> {
        let held = parts.iter().map(|p| p.held().map(AsRef::as_ref)).collect::<Option<Vec<_>>>()?;
        Some(Self { spread: Spread::find(region, &held)?, parts })
    }

    /// The buffers again.
    pub fn into_parts(self) -> Vec<Storage> {
        self.parts
    }

    /// Adds dk and dv, `[keys][head_dim]`, of one head of one sequence.
    fn add(&mut self, batch: usize, head: usize, (dk, dv): (&[f32], &[f32]), d: usize) {
        let rows = dk.chunks_exact(d).zip(dv.chunks_exact(d));
        for (&(part, token), (dk, dv)) in self.spread.at.iter().zip(rows) {
            let storage = &mut self.parts[part];
            let row = storage.index(batch, token, self.spread.heads[part] + head);
            add_scaled(storage.row_mut(K, row), 1.0, dk);
            add_scaled(storage.row_mut(V, row), 1.0, dv);
        }
    }
}

/// Sizes and mask of one call.
pub(super) struct Call<'a> {
    pub shape: &'a Shape,
    pub q: &'a Region,
    pub kv: &'a Region,
    /// `None` where every pair counts.
    pub mask: Option<&'a Mask>,
}

impl Call<'_> {
    /// The keys of each query, as a range of the block's keys; empty for a query that attends none of them.
    pub(super) fn key_ranges(&self) -> Vec<Range<usize>> {
        let keys = &self.kv.tokens;
        let Some(mask) = self.mask else { return vec![0..keys.len(); self.q.tokens.len()] };
        let before = |x: u64| keys.partition_point(|&k| k < x);
        let range = |&q: &u64| mask.interval(q).map_or(0..0, |(lo, end)| before(lo)..before(end));
        self.q.tokens.iter().map(range).collect()
    }

    /// Whether the kv head of every query head is there.
    pub fn has_kv_heads(&self) -> bool {
        let (q, kv) = (self.q.heads, self.kv.heads);
        (q.first..q.first + q.count).all(|h| {
            let g = h / self.shape.group();
            kv.first <= g && g < kv.first + kv.count
        })
    }

    /// The query heads, within the block, that read the block's kv head `g`.
    pub(super) fn query_heads(&self, g: usize) -> impl Iterator<Item = usize> {
        let (first, group) = (self.q.heads.first, self.shape.group());
        let global = self.kv.heads.first + g as u32;
        (0..self.q.heads.count).filter(move |h| (first + h) / group == global).map(|h| h as usize)
    }

    pub(super) fn scale(&self) -> f32 {
        (self.shape.head_dim as f32).sqrt().recip()
    }
}

/// Cuts the keys into tiles, and calls `f` with each query that attends any of a tile and with what it attends there.
/// Going by tiles keeps their keys in the cache for all queries.
fn for_each_tile(ranges: &[Range<usize>], mut f: impl FnMut(usize, Range<usize>)) {
    let end = ranges.iter().map(|r| r.end).max().unwrap_or(0);
    for tile in (0..end).step_by(TILE) {
        for (i, range) in ranges.iter().enumerate() {
            let (from, to) = (range.start.max(tile), range.end.min(tile + TILE));
            if from < to {
                f(i, from..to);
            }
        }
    }
}
