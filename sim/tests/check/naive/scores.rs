//! Score rows: while products fill them they count pairs; a softmax wants them complete, and leaves plain data.

use std::collections::{BTreeMap, BTreeSet};

use ringlab_sim::plan::{BlockId, Scores};

use super::held::{Counts, Held, Point, counts, zeros};
use super::{Machine, Running, points};
use crate::judge::allows;

impl Machine<'_> {
    pub(super) fn scores(
        &self,
        rank: usize,
        op: &Scores,
        running: &Running,
        reads: &[&Held],
    ) -> Option<Vec<Held>> {
        let (all, last) = (&running.reads, reads.len() - 1);
        match *op {
            Scores::Score { q, q_block, kv_block, init, .. } => {
                let (queries, inputs) = (usize::from(q.count), reads.len() - usize::from(!init));
                self.have_parts(rank, &all[..queries], q_block, &["q"])?;
                self.have_parts(rank, &all[queries..inputs], kv_block, &["k"])?;
                let before = if init { None } else { Some(reads[last]) };
                Some(vec![self.by_query(op, before, counts)?])
            }
            Scores::Softmax { block, .. } => {
                let all = self.whole_rows(&counts(reads[0])?, block)?;
                let state = Held::Begun(zeros(all.clone()));
                Some(vec![Held::Data(all), state])
            }
            Scores::Weigh { v, q_block, kv_block, .. } => {
                let values = usize::from(v.count);
                self.have_parts(rank, &all[..values], kv_block, &["v"])?;
                self.have(&reads[values..=values], q_block)?;
                let begun = |held: &Held| match held {
                    Held::Begun(counts) => Some(counts.clone()),
                    _ => None,
                };
                let Held::Result(state) = self.by_query(op, Some(reads[last]), begun)? else { return None };
                Some(vec![Held::Begun(state)])
            }
            Scores::WeighBackward { d_o, v, q_block, kv_block, init, .. } => {
                let (d_o, v) = (usize::from(d_o.count), usize::from(v.count));
                self.have_parts(rank, &all[..d_o], q_block, &["do"])?;
                self.have_parts(rank, &all[d_o..d_o + v], kv_block, &["v"])?;
                self.have(&reads[d_o + v..=d_o + v], q_block)?;
                let before = if init { None } else { Some(reads[last]) };
                Some(vec![self.by_query(op, before, counts)?, self.by_key(op)?])
            }
            Scores::SoftmaxBackward { block, .. } => {
                self.have(&reads[..1], block)?;
                Some(vec![Held::Data(self.whole_rows(&counts(reads[1])?, block)?)])
            }
            Scores::ScoreBackward { q, k, q_block, kv_block, init, .. } => {
                let (q, k) = (usize::from(q.count), usize::from(k.count));
                self.have_parts(rank, &all[..q], q_block, &["q"])?;
                self.have_parts(rank, &all[q..q + k], kv_block, &["k"])?;
                self.have(&reads[q + k..=q + k], q_block)?;
                let before = if init { None } else { Some(reads[last]) };
                Some(vec![self.by_query(op, before, counts)?, self.by_key(op)?])
            }
        }
    }

    /// The points of the rows that a softmax takes, if they are there; notes it if they are not complete.
    fn whole_rows(&self, rows: &Counts, block: BlockId) -> Option<BTreeSet<Point>> {
        let all = points(self.plan, block);
        if !all.iter().all(|p| rows.get(p) == Some(&self.row(*p))) {
            self.wrong_rows.set(true);
        }
        all.iter().all(|p| rows.contains_key(p)).then_some(all)
    }

    /// What a complete row has counted.
    fn row(&self, (q, h): Point) -> BTreeMap<Point, u32> {
        let group = self.plan.shape.heads / self.plan.shape.kv_heads;
        let keys = 0..self.plan.layout.documents().tokens();
        keys.filter(|&k| allows(self.plan, self.pattern, q, k)).map(|k| ((k, h / group), 1)).collect()
    }

    /// The pairs of a product, added to what was there.
    fn by_query(
        &self,
        op: &Scores,
        before: Option<&Held>,
        read: impl Fn(&Held) -> Option<Counts>,
    ) -> Option<Held> {
        let (q_block, kv_block, mask) = op.product()?;
        let all = points(self.plan, q_block);
        let mut rows = before.map_or_else(|| Some(zeros(all.clone())), read)?;
        self.attend(q_block, kv_block, mask, |q, k| {
            *rows.get_mut(&q)?.entry(k).or_default() += 1;
            Some(())
        })?;
        all.iter().all(|p| rows.contains_key(p)).then_some(Held::Result(rows))
    }

    fn by_key(&self, op: &Scores) -> Option<Held> {
        let (q_block, kv_block, mask) = op.product()?;
        let mut rows = zeros(points(self.plan, kv_block));
        self.attend(q_block, kv_block, mask, |q, k| {
            *rows.get_mut(&k)?.entry(q).or_default() += 1;
            Some(())
        })?;
        Some(Held::Result(rows))
    }
}
