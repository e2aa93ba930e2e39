//! Backward calls: a launch for each run of keys whose k and v, and whose dk and dv, lie together.

use std::sync::Arc;

use ringlab_kernels::spec::BackwardSpec;
use ringlab_kernels::tiles::Intervals;
use ringlab_sim::plan::{Buf, Bufs, MaskId, OpId, OpKind, Part, Tensor};

use super::keys::{Bounds, KeyRun};
use super::operand::View;
use super::slices::{Slice, slices};
use super::{Fail, Site, Work, not_held};
use crate::cuda::command::{Command, Kernel};
use crate::cuda::memory::{Piece, Rows};
use crate::region::Region;

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
    keys: std::ops::Range<usize>,
}

impl Site<'_> {
    pub(super) fn attend_backward(&mut self, op: OpId) -> Result<Work, Fail> {
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
            return Ok(Work::default());
        };
        self.expect(dq, Tensor::QueryGrad)?;
        let q_region = Arc::clone(self.region(q_block));
        let mut commands = Vec::new();
        if init_dq {
            self.hold(dq, &q_region)?;
            commands.extend(self.zero(dq)?);
        }
        for i in (0..dkv.count).filter(|_| init_dkv) {
            commands.extend(self.zero_part((dkv, i), dkv_block)?);
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
        let mut early: Vec<(Buf, usize)> = Vec::new();
        for (run, gradients) in &keys {
            for &slice in &slices {
                commands.push(self.backward(&queries, (run, gradients), slice)?);
            }
            early.retain(|(buf, _)| *buf != gradients.buf);
            early.push((gradients.buf, commands.len()));
        }
        Ok(Work { commands, early })
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

    fn backward(
        &self,
        queries: &Queries<'_>,
        (run, gradients): (&KeyRun, &Gradients),
        slice: Slice,
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
            start_dkv: false,
            deterministic: self.common.deterministic,
        };
        self.launch(&Kernel::Backward(spec))
    }
}
