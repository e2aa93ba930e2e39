//! The keys of a call as a kernel takes them, and which of them each query attends.

use std::ops::Range;

use ringlab_kernels::spec::{KeySegment, ReadyFlag};
use ringlab_sim::plan::{Bufs, MaskId, OpId, Part};
use ringlab_sim::tokens::{Progression, TokenSet};
use ringlab_sim::work;

use super::{Fail, Site, not_held};
use crate::cpu::Cause;
use crate::cuda::memory::Rows;
use crate::region::Region;

/// Consecutive keys of one buffer.
#[derive(Debug, Clone)]
pub(super) struct KeyRun {
    k: Rows,
    v: Rows,
    /// The first of them in the buffer.
    token: usize,
    /// The block's first kv head in the buffer.
    head: usize,
    /// Their positions.
    pub positions: Vec<i32>,
    /// The receive that brings them, if one does.
    pub received: Option<OpId>,
}

impl KeyRun {
    /// As a segment, from a sequence and a kv head of the block on.
    pub fn segment(&self, (batch, head): (usize, usize), ready: Option<ReadyFlag>) -> KeySegment<'_> {
        self.part(0..self.positions.len(), (batch, head), ready)
    }

    /// Some of the keys, likewise.
    pub fn part(
        &self,
        keys: Range<usize>,
        (batch, head): (usize, usize),
        ready: Option<ReadyFlag>,
    ) -> KeySegment<'_> {
        let at = |rows: &Rows| rows.vectors(batch, self.token + keys.start, self.head + head);
        let (k, v) = (at(&self.k), at(&self.v));
        KeySegment { k: k.ptr, v: v.ptr, strides: k.strides, positions: &self.positions[keys], ready }
    }
}

/// Attended positions of each query: an interval, empty where the first is above the last.
pub(super) struct Bounds {
    pub lo: Vec<i32>,
    pub hi: Vec<i32>,
}

pub(super) fn position(x: u64) -> Result<i32, Fail> {
    i32::try_from(x).map_err(|_| Fail::Unsupported("kernels number at most 2147483647 positions"))
}

impl Site<'_> {
    /// The keys of a block in some buffers. With `widen`, keys that lie between them and are not of the block come along
    /// where the mask hides them from every query anyway.
    pub(super) fn key_runs(
        &self,
        kv: Bufs,
        (q_block, kv_block, mask): (u32, u32, MaskId),
        widen: bool,
    ) -> Result<Vec<KeyRun>, Fail> {
        let plan = self.common.plan;
        let wanted = self.region(kv_block);
        let pieces = self.find(kv, Part::Key, wanted).ok_or(not_held(kv.first))?;
        let queries = &plan.block(q_block).tokens;
        let mut all = Vec::new();
        for piece in pieces {
            let (held, v) = (self.held(piece.buf)?, self.now(piece.buf, Part::Value)?);
            let runs: Vec<Range<usize>> = piece.runs.iter().map(|r| r.from..r.from + r.len).collect();
            let hidden = |range: &Range<usize>| {
                let keys = token_set(&held.tokens[range.clone()]);
                let own: u128 =
                    runs.iter().map(|r| pairs(self, mask, queries, &held.tokens[r.clone()])).sum();
                mask != MaskId::NONE && work::pairs(plan.mask(mask), queries, &keys) == own
            };
            let whole = runs[0].start..runs[runs.len() - 1].end;
            let runs = if runs.len() > 1 && widen && hidden(&whole) { vec![whole] } else { runs };
            for run in runs {
                let positions =
                    held.tokens[run.clone()].iter().map(|&x| position(x)).collect::<Result<_, _>>()?;
                let received = self.received[usize::from(piece.buf.0)];
                all.push(KeyRun {
                    k: piece.rows,
                    v,
                    token: run.start,
                    head: piece.head,
                    positions,
                    received,
                });
            }
        }
        Ok(all)
    }

    /// What the queries of `launch` attend where only those of `q_block` take part, over the hull of `kv_block`.
    pub(super) fn bounds(
        &self,
        launch: &Region,
        q: &Region,
        kv: &Region,
        mask: MaskId,
    ) -> Result<Bounds, Fail> {
        let (Some(&first), Some(&last)) = (kv.tokens.first(), kv.tokens.last()) else {
            return Err(Cause::NotHeld { buffer: 0 }.into());
        };
        let plan = self.common.plan;
        let none = (mask == MaskId::NONE).then_some((first, last + 1));
        let mut bounds = Bounds { lo: Vec::new(), hi: Vec::new() };
        let mut taking_part = q.tokens.iter().peekable();
        for &token in &launch.tokens {
            let takes_part = taking_part.next_if_eq(&&token).is_some();
            let interval = none.or_else(|| plan.mask(mask).interval(token)).filter(|_| takes_part);
            let (lo, end) = interval.map_or((1, 0), |(lo, end)| (lo.max(first), end.min(last + 1)));
            let (lo, hi) = if lo < end { (position(lo)?, position(end - 1)?) } else { (1, 0) };
            bounds.lo.push(lo);
            bounds.hi.push(hi);
        }
        Ok(bounds)
    }

    /// The buffers that a run's dk and dv lie in.
    pub(super) fn key_region(&self, run: &KeyRun, kv_block: u32) -> Region {
        let tokens = run.positions.iter().map(|&p| u64::from(p.cast_unsigned())).collect();
        Region { tokens, heads: self.region(kv_block).heads }
    }

    /// The flag of the receive that filled the buffers of a run, if the launch of `op` has to wait for it itself.
    pub(super) fn ready(&self, run: &KeyRun) -> Option<ReadyFlag> {
        let flag = self.arrived.get(&run.received?)?;
        Some(ReadyFlag { ptr: *flag, value: crate::cuda::device::RAISED, limit: self.ready_limit })
    }
}

fn pairs(site: &Site<'_>, mask: MaskId, queries: &TokenSet, keys: &[u64]) -> u128 {
    work::pairs(site.common.plan.mask(mask), queries, &token_set(keys))
}

/// Rising positions as a set.
fn token_set(positions: &[u64]) -> TokenSet {
    let runs = positions.chunk_by(|a, b| a + 1 == *b);
    TokenSet::new(runs.map(|run| Progression::contiguous(run[0], run.len() as u64)))
}
