//! Backward calls: a launch for each run of keys whose k and v, and whose dk and dv, lie together.

use std::ops::Range;
use std::sync::Arc;

use ringlab_kernels::spec::BackwardSpec;
use ringlab_kernels::tiles::Intervals;
use ringlab_sim::plan::{Buf, Bufs, MaskId, OpId, OpKind, Part, Tensor};

use super::keys::{Bounds, KeyRun};
use super::operand::View;
use super::slices::{Slice, slices};
use super::{Fail, Site, not_held};
use crate::cuda::command::{Command, Kernel};
use crate::cuda::memory::{Piece, Rows};
use crate::region::Region;

/// Keys times kv heads and sequences from which a launch that starts dk and dv keeps a GPU busy although it takes the query
/// heads of a kv head one after the other: four tiles of 128 a multiprocessor.
const MANY_ROWS: usize = 1 << 16;

/// The query side of a call.
struct Queries<'l> {
    q: View,
    d_o: View,
    lse: View,
    delta: View,
    dq: Rows,
    dq_head: usize,
    bounds: &'l Bounds,
}

/// Where dk and dv of some keys of a run lie.
struct Gradients {
    buf: Buf,
    dk: Rows,
    dv: Rows,
    token: usize,
    head: usize,
    keys: Range<usize>,
}

impl Site<'_> {
    pub(super) fn attend_backward(&mut self, op: OpId) -> Result<Vec<Command>, Fail> {
        let OpKind::AttendBackward {
            q,
            delta,
            kv,
            dq,
            dkv,
            q_block,
            kv_block,
            dkv_block,
            mask,
            init_dq,
            init_dkv,
        } = self.kind(op)
        else {
            return Ok(Vec::new());
        };
        self.expect(dq, Tensor::QueryGrad)?;
        let q_region = Arc::clone(self.region(q_block));
        let mut commands = Vec::new();
        if init_dq {
            self.hold(dq, &q_region)?;
            commands.extend(self.zero(dq)?);
        }
        for i in (0..dkv.count).filter(|_| init_dkv) {
            self.hold_part((dkv, i), dkv_block)?;
        }
        let held = self.held(dq)?;
        let dq_head = held.locate(&q_region).ok_or(not_held(dq))?.head;
        // All queries that dq holds: lse and delta have no stride to skip some by.
        let launch = Arc::new(Region { tokens: held.tokens.clone(), heads: q_region.heads });
        let bounds = self.bounds(&launch, &q_region, self.region(kv_block), mask)?;
        let mut view = |bufs: Bufs, part: Part| -> Result<View, Fail> {
            let (view, packing) = self.view(bufs, part, &launch)?;
            commands.extend(packing);
            Ok(view)
        };
        let [q_view, d_o] = [view(q, Part::Query)?, view(q, Part::OutputGrad)?];
        let [lse, delta] = [view(q, Part::Lse)?, view(delta.into(), Part::Delta)?];
        let dq = self.now(dq, Part::QueryGrad)?;
        let queries = Queries { q: q_view, d_o, lse, delta, dq, dq_head, bounds: &bounds };
        let keys = self.keys_with_gradients((kv, dkv), (q_block, kv_block, mask))?;
        let widths = [lse.rows.heads, delta.rows.heads];
        let kv_heads = self.region(kv_block).heads;
        let group = self.common.plan.shape.group();
        let slices =
            slices(q_region.heads, kv_heads, group, self.batch(), &widths).ok_or(not_held(kv.first))?;
        commands.extend(self.launches(&queries, &keys, &slices, init_dkv.then_some(dkv))?);
        Ok(commands)
    }

    /// Launches over all runs of keys and all slices, those of the buffers `begun` the first to write dk and dv: what they do
    /// not write whole is zeroed before.
    fn launches(
        &self,
        queries: &Queries<'_>,
        keys: &[(KeyRun, Gradients)],
        slices: &[Slice],
        begun: Option<Bufs>,
    ) -> Result<Vec<Command>, Fail> {
        let (mut commands, mut started) = (Vec::new(), Vec::new());
        for buf in begun.into_iter().flat_map(Bufs::iter) {
            if self.starts(buf, keys, slices)? {
                started.push(buf);
            } else {
                commands.extend(self.zero(buf)?);
            }
        }
        for (run, gradients) in keys {
            let start = started.contains(&gradients.buf);
            for &slice in slices {
                commands.push(self.backward(queries, (run, gradients), slice, start)?);
            }
        }
        Ok(commands)
    }

    /// Runs of keys, each with where its dk and dv lie.
    fn keys_with_gradients(
        &self,
        (kv, dkv): (Bufs, Bufs),
        call: (u32, u32, MaskId),
    ) -> Result<Vec<(KeyRun, Gradients)>, Fail> {
        // Hidden keys may only come along where their gradients have a place too.
        let mut found = self.matched(kv, dkv, call, true);
        if found.is_none() {
            found = self.matched(kv, dkv, call, false);
        }
        found.ok_or(not_held(dkv.first))
    }

    fn matched(
        &self,
        kv: Bufs,
        dkv: Bufs,
        call: (u32, u32, MaskId),
        widen: bool,
    ) -> Option<Vec<(KeyRun, Gradients)>> {
        let mut all = Vec::new();
        for run in self.key_runs(kv, call, widen).ok()? {
            let region = self.key_region(&run, call.1);
            for Piece { buf, rows, head, runs } in self.find(dkv, Part::KeyGrad, &region)? {
                let dv = self.now(buf, Part::ValueGrad).ok()?;
                for part in runs {
                    let keys = part.to..part.to + part.len;
                    all.push((run.clone(), Gradients { buf, dk: rows, dv, token: part.from, head, keys }));
                }
            }
        }
        Some(all)
    }

    /// Whether the launches of a call can start dk and dv in a buffer, so that nothing need be there before.
    fn starts(&self, buf: Buf, keys: &[(KeyRun, Gradients)], slices: &[Slice]) -> Result<bool, Fail> {
        let held = self.held(buf)?;
        let own = keys.iter().map(|(_, gradients)| gradients).filter(|gradients| gradients.buf == buf);
        let mut runs: Vec<Range<usize>> = own.map(|g| g.token..g.token + g.keys.len()).collect();
        runs.sort_by_key(|run| run.start);
        let heads = held.heads() * self.batch();
        Ok(write_all(&runs, slices, (held.tokens.len(), heads)) && are_busy(&runs, slices))
    }

    fn backward(
        &self,
        queries: &Queries<'_>,
        (run, gradients): (&KeyRun, &Gradients),
        slice: Slice,
        start_dkv: bool,
    ) -> Result<Command, Fail> {
        let Slice { batch, batches, q_head, q_heads, kv_head, kv_heads } = slice;
        let vectors = |view: &View| view.rows.vectors(batch, view.token, view.head + q_head);
        let scalars = |view: &View| view.rows.row(batch, 0, view.head + q_head);
        let gradient = |rows: &Rows| rows.vectors(batch, gradients.token, gradients.head + kv_head);
        let spec = BackwardSpec {
            dims: self.dims(q_heads, kv_heads, batches),
            scale: self.scale(),
            q: vectors(&queries.q),
            d_o: vectors(&queries.d_o),
            lse: scalars(&queries.lse),
            delta: scalars(&queries.delta),
            mask: Intervals { lo: &queries.bounds.lo, hi: &queries.bounds.hi },
            segment: run.part(gradients.keys.clone(), (batch, kv_head), None),
            dq: queries.dq.vectors(batch, 0, queries.dq_head + q_head),
            dk: gradient(&gradients.dk),
            dv: gradient(&gradients.dv).ptr,
            start_dkv,
            deterministic: self.common.deterministic,
        };
        self.launch(&Kernel::Backward(spec))
    }
}

/// Whether launches over rising runs of a buffer's tokens, each cut into `slices`, write every row of it once: it holds so
/// many tokens, and so many heads over all sequences.
fn write_all(runs: &[Range<usize>], slices: &[Slice], (tokens, heads): (usize, usize)) -> bool {
    let end = runs.iter().try_fold(0, |end, run| (run.start == end).then_some(run.end));
    // Slices share no kv head of a sequence.
    end == Some(tokens) && slices.iter().map(|slice| slice.kv_heads * slice.batches).sum::<usize>() == heads
}

/// Whether each of the launches has work for a whole GPU although it takes the query heads of a kv head in turn.
fn are_busy(runs: &[Range<usize>], slices: &[Slice]) -> bool {
    let rows = |run: &Range<usize>, slice: &Slice| run.len() * slice.kv_heads * slice.batches;
    let is_busy = |slice: &Slice| {
        slice.q_heads == slice.kv_heads || runs.iter().all(|run| rows(run, slice) >= MANY_ROWS)
    };
    slices.iter().all(is_busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(q_heads: usize, kv_heads: usize, batches: usize) -> Slice {
        Slice { batch: 0, batches, q_head: 0, q_heads, kv_head: 0, kv_heads }
    }

    fn runs(ends: &[(usize, usize)]) -> Vec<Range<usize>> {
        ends.iter().map(|&(start, end)| start..end).collect()
    }

    #[test]
    fn every_row_once_or_not_at_all() {
        let writes = |ends: &[(usize, usize)], slices: &[Slice]| write_all(&runs(ends), slices, (10, 8));
        let all = [slice(4, 4, 2)];
        assert!(writes(&[(0, 10)], &all));
        assert!(writes(&[(0, 4), (4, 10)], &all));
        let wrong: [&[(usize, usize)]; 6] =
            [&[(0, 9)], &[(1, 10)], &[(0, 4), (5, 10)], &[(0, 5), (4, 10)], &[(0, 10), (0, 10)], &[]];
        for ends in wrong {
            assert!(!writes(ends, &all), "{ends:?}");
        }
        // One of two sequences; half of the heads; both halves in launches of their own.
        assert!(!writes(&[(0, 10)], &[slice(4, 4, 1)]));
        assert!(!writes(&[(0, 10)], &[slice(2, 2, 2)]));
        assert!(writes(&[(0, 10)], &[slice(2, 2, 2), slice(2, 2, 2)]));
    }

    #[test]
    fn shared_kv_heads_need_many_rows() {
        assert!(are_busy(&runs(&[(0, 1), (1, 3)]), &[slice(4, 4, 1)]));
        // 65536 rows over two kv heads of one sequence are 32768 tokens.
        let shared = [slice(8, 2, 1)];
        assert!(are_busy(&runs(&[(0, 32768)]), &shared));
        assert!(!are_busy(&runs(&[(0, 32767)]), &shared));
        assert!(!are_busy(&runs(&[(0, 32768), (32768, 32800)]), &shared));
    }
}
