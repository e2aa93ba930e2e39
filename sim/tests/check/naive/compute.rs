//! What operations do with what they read.

use std::collections::{BTreeMap, BTreeSet};

use ringlab_sim::plan::{BlockId, Bufs, MaskId, OpKind, Projection, Tensor};

use super::held::{Counts, Held, Point, counts, sum, zeros};
use super::{Machine, Running, heads, points, rows, tokens};
use crate::judge::allows;

impl Machine<'_> {
    /// What an operation writes, in the order of its writes; `None` if it does not find what it needs.
    pub(super) fn compute(&self, rank: usize, running: &Running) -> Option<Vec<Held>> {
        let reads: Vec<&Held> = running.reads.iter().map(|(_, _, held)| held).collect();
        match self.ops(rank)[running.op].kind {
            OpKind::Attend { q, q_block, kv_block, mask, init, .. } => {
                let (queries, inputs) = (usize::from(q.count), reads.len() - usize::from(!init));
                self.have_parts(rank, &running.reads[..queries], q_block, &["q"])?;
                self.have(&reads[queries..inputs], kv_block)?;
                let mut state = if init { zeros(points(self.plan, q_block)) } else { counts(reads[inputs])? };
                self.attend(q_block, kv_block, mask, |q, k| {
                    *state.get_mut(&q)?.entry(k).or_default() += 1;
                    Some(())
                })?;
                points(self.plan, q_block)
                    .iter()
                    .all(|p| state.contains_key(p))
                    .then_some(vec![Held::Result(state)])
            }
            OpKind::AttendBackward { .. } => self.attend_backward(rank, running, &reads),
            OpKind::Preprocess { block, .. } => {
                self.have_parts(rank, &running.reads, block, &["o", "do"])?;
                Some(vec![Held::Data(points(self.plan, block))])
            }
            OpKind::Merge { .. } => {
                let (from, into) = (counts(reads[0])?, counts(reads[1])?);
                from.keys().eq(into.keys()).then(|| vec![Held::Result(sum(&from, into))])
            }
            OpKind::Accumulate { .. } => Some(vec![Held::Result(sum(&counts(reads[0])?, counts(reads[1])?))]),
            OpKind::Finish { .. } => match reads[0] {
                Held::Result(counts) | Held::Begun(counts) => Some(vec![Held::Result(counts.clone())]),
                _ => None,
            },
            OpKind::Project(projection) => self.project(&projection, &reads),
            OpKind::Scores(op) => self.scores(rank, &op, running, &reads),
            OpKind::Send { .. } => Some(Vec::new()),
            OpKind::Recv { .. } => Some(vec![reads[0].clone()]),
        }
    }

    fn attend_backward(&self, rank: usize, running: &Running, reads: &[&Held]) -> Option<Vec<Held>> {
        let OpKind::AttendBackward {
            q, kv, dkv, q_block, kv_block, dkv_block, mask, init_dq, init_dkv, ..
        } = self.ops(rank)[running.op].kind
        else {
            return None;
        };
        let (qs, kvs) = (usize::from(q.count), usize::from(kv.count));
        self.have_parts(rank, &running.reads[..qs], q_block, &["q", "do", "lse"])?;
        self.have(&reads[qs..=qs], q_block)?;
        self.have(&reads[qs + 1..=qs + kvs], kv_block)?;
        let mut rest = reads[qs + 1 + kvs..].iter();
        let mut dq = if init_dq { zeros(points(self.plan, q_block)) } else { counts(rest.next()?)? };
        let n = usize::from(dkv.count);
        let mut parts = Vec::new();
        for part in self.shares(dkv_block, n)? {
            let part: BTreeSet<Point> =
                part.iter().flat_map(|&x| heads(self.plan, dkv_block).map(move |h| (x, h))).collect();
            let held = if init_dkv { zeros(part.clone()) } else { counts(rest.next()?)? };
            if !part.iter().all(|p| held.contains_key(p)) {
                return None;
            }
            parts.push((part, held));
        }
        if !points(self.plan, q_block).iter().all(|p| dq.contains_key(p)) {
            return None;
        }
        if !points(self.plan, kv_block).iter().all(|p| parts.iter().any(|(part, _)| part.contains(p))) {
            return None;
        }
        self.attend(q_block, kv_block, mask, |q, k| {
            *dq.get_mut(&q)?.entry(k).or_default() += 1;
            let part = parts.iter_mut().find(|(part, _)| part.contains(&k))?;
            *part.1.get_mut(&k)?.entry(q).or_default() += 1;
            Some(())
        })?;
        let dkv = parts.into_iter().map(|(_, held)| Held::Result(held));
        Some([Held::Result(dq)].into_iter().chain(dkv).collect())
    }

    /// What a projection writes: plain rows, or rows of all heads that are empty but for the heads it has.
    fn project(&self, projection: &Projection, reads: &[&Held]) -> Option<Vec<Held>> {
        let spread = |tensor, parts: Bufs, hidden, known: &Counts| -> Option<Vec<Held>> {
            let shares = self.shares(hidden, usize::from(parts.count))?;
            let part = |share: Vec<u64>| {
                let all = rows(self.plan, tensor, hidden).into_iter().filter(|(x, _)| share.contains(x));
                let row = |p: Point| (p, known.get(&p).cloned().unwrap_or_default());
                let tokens: BTreeSet<u64> = known.keys().map(|(x, _)| *x).collect();
                share.iter().all(|x| tokens.contains(x)).then(|| Held::Result(all.map(row).collect()))
            };
            shares.into_iter().map(part).collect()
        };
        match *projection {
            Projection::Inputs { hidden, q_block, kv_block, .. } => {
                self.have(reads, hidden)?;
                let (queries, all) = (tokens(self.plan, q_block), tokens(self.plan, hidden));
                let inside =
                    queries == tokens(self.plan, kv_block) && queries.iter().all(|x| all.contains(x));
                let written = [q_block, kv_block].map(|block| Held::Data(points(self.plan, block)));
                inside.then(|| written.to_vec())
            }
            Projection::Output { parts, hidden, .. } => {
                spread(Tensor::LayerOutput, parts, hidden, &counts(reads[0])?)
            }
            Projection::Gradients { parts, hidden, .. } => {
                let (mut known, keys) = (counts(reads[0])?, counts(reads[1])?);
                let shifted = keys.into_iter().map(|((x, h), row)| ((x, self.plan.shape.heads + h), row));
                known.extend(shifted);
                spread(Tensor::HiddenGrad, parts, hidden, &known)
            }
        }
    }

    /// A block's tokens, whole or owner by owner, each owner's in equal parts.
    fn shares(&self, block: BlockId, n: usize) -> Option<Vec<Vec<u64>>> {
        let all = tokens(self.plan, block);
        if n == 1 {
            return Some(vec![all]);
        }
        let mut by_owner: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for x in all {
            by_owner.entry(self.plan.layout.locate(x)?.0).or_default().push(x);
        }
        let each = if by_owner.is_empty() { n } else { n / by_owner.len() };
        let mut parts: Vec<Vec<u64>> = by_owner
            .into_values()
            .flat_map(|own| {
                (0..each).map(move |i| own[own.len() * i / each..own.len() * (i + 1) / each].to_vec())
            })
            .collect();
        (parts.len() <= n).then(|| {
            parts.resize(n, Vec::new());
            parts
        })
    }

    /// Calls `f` for every pair of a block that a mask allows.
    pub(super) fn attend(
        &self,
        q_block: BlockId,
        kv_block: BlockId,
        mask: MaskId,
        mut f: impl FnMut(Point, Point) -> Option<()>,
    ) -> Option<()> {
        let group = self.plan.shape.heads / self.plan.shape.kv_heads;
        let (q_heads, k_heads) = (heads(self.plan, q_block), heads(self.plan, kv_block));
        let used: BTreeSet<u32> = q_heads.clone().map(|h| h / group).collect();
        if used != k_heads.collect() {
            return None;
        }
        for q in tokens(self.plan, q_block) {
            for k in tokens(self.plan, kv_block) {
                let allowed = match mask {
                    MaskId::PROBLEM => allows(self.plan, self.pattern, q, k),
                    MaskId::NONE => true,
                    other => self.plan.mask(other).allows(q, k),
                };
                for h in q_heads.clone().filter(|_| allowed) {
                    f((q, h), (k, h / group))?;
                }
            }
        }
        Some(())
    }

    /// Whether the buffers that were read have all of the block, of each array that is named.
    pub(super) fn have_parts(
        &self,
        rank: usize,
        reads: &[(usize, u64, Held)],
        block: BlockId,
        names: &[&str],
    ) -> Option<()> {
        let tensor = |buffer: usize| self.plan.programs[rank].buffers[buffer].tensor;
        names.iter().try_for_each(|name| {
            let with = reads.iter().filter(|(b, _, _)| arrays(tensor(*b)).contains(name));
            self.have(&with.map(|(_, _, held)| held).collect::<Vec<_>>(), block)
        })
    }

    pub(super) fn have(&self, held: &[&Held], block: BlockId) -> Option<()> {
        let mut all = BTreeSet::new();
        for held in held {
            let Held::Data(data) = held else { return None };
            all.extend(data.iter().copied());
        }
        points(self.plan, block).is_subset(&all).then_some(())
    }
}

/// What a query-side tensor consists of.
fn arrays(tensor: Tensor) -> &'static [&'static str] {
    match tensor {
        Tensor::Query => &["q"],
        Tensor::KeyValue => &["k", "v"],
        Tensor::Key => &["k"],
        Tensor::Value => &["v"],
        Tensor::Output => &["o", "lse"],
        Tensor::OutputGrad => &["do"],
        Tensor::BackwardQuery => &["q", "do", "lse"],
        Tensor::QuerySide => &["q", "o", "do", "lse"],
        _ => &[],
    }
}
