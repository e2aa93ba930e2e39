//! Ring Self-Attention (Li et al., "Sequence Parallelism: Long Sequence Training from System Perspective", arXiv
//! 2105.13120, section 3.2): contiguous tokens, and a row of scores in memory for each of a rank's c queries, with a
//! column for each of the N keys.
//!
//! Forward, t = 0 .. P-1: rank r scores its queries with the keys of rank `s = (r - t) mod P`, which go round the ring;
//! then the softmax of whole rows; then, t = P .. 2P-1, it weighs the values of rank s, which go round likewise. There is
//! no running softmax, and no block is skipped, whatever the mask. Backward the values go round first, then the keys; dv
//! and dk are summed up over all ranks. Memory is O(c N) a head: the rows forward, and backward those of their gradients
//! beside the probabilities that the forward left.

use super::collective::{Collective, share_of};
use super::step::{Channel, classify, owner, shards};
use super::unused::Unused;
use super::{Options, Route};
use crate::layout::Layout;
use crate::mask::Pattern;
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, MaskId, OpId, OpKind, Plan, Rank, Scores, Tensor};
use crate::problem::{Pass, Problem};

pub(super) fn build(problem: &Problem, layout: Layout, options: &Options) -> Plan {
    let mut b = options.builder("ring-self-attention".into(), problem, layout);
    Unused { prefetch: false, ..Unused::ALL }.note(&mut b, options);
    if problem.pattern != Pattern::Full {
        b.note("no block is skipped: masked pairs are computed too");
    }
    let (q, kv) = (shards(&mut b, false), shards(&mut b, true));
    match options.pass {
        Pass::Forward => forward(&mut b, options, &q, &kv),
        Pass::Backward => backward(&mut b, options, &q, &kv),
    }
    b.finish()
}

fn forward(b: &mut PlanBuilder, options: &Options, q: &[BlockId], kv: &[BlockId]) {
    let (ranks, rows_of_all) = (b.ranks(), rows(b));
    let keys_and_values = inputs(b, Tensor::KeyValue, kv);
    let queries = inputs(b, Tensor::Query, q);
    let scores: Vec<Buf> = (0..ranks).map(|r| b.scratch(r, rows_of_all, q[r as usize])).collect();
    let states: Vec<Buf> = (0..ranks).map(|r| b.scratch(r, Tensor::State, q[r as usize])).collect();
    let out: Vec<Buf> = (0..ranks).map(|r| b.output(r, Tensor::Output, q[r as usize])).collect();

    let keys = Ring::new(b, options, (Tensor::Key, 0), &keys_and_values, kv);
    keys.each_step(b, |b, at| {
        let (r, q_block, kv_block) = (at.rank as usize, q[at.rank as usize], kv[at.owner as usize]);
        let (q, k, rows, init) = (queries[r].into(), at.holding, scores[r], at.first);
        Scores::Score { q, k, rows, q_block, kv_block, mask: mask(b, q_block, kv_block), init }
    });
    for r in 0..ranks as usize {
        let softmax = Scores::Softmax { rows: scores[r], state: states[r], block: q[r] };
        b.compute(r as Rank, ranks - 1, OpKind::Scores(softmax));
    }
    let values = Ring::new(b, options, (Tensor::Value, ranks), &keys_and_values, kv);
    values.each_step(b, |b, at| {
        let (r, q_block, kv_block) = (at.rank as usize, q[at.rank as usize], kv[at.owner as usize]);
        let (rows, v, state) = (scores[r], at.holding, states[r]);
        Scores::Weigh { rows, v, state, q_block, kv_block, mask: mask(b, q_block, kv_block) }
    });
    for r in 0..ranks as usize {
        b.compute(r as Rank, 2 * ranks - 1, OpKind::Finish { state: states[r], out: out[r] });
    }
}

fn backward(b: &mut PlanBuilder, options: &Options, q: &[BlockId], kv: &[BlockId]) {
    let (ranks, rows_of_all) = (b.ranks(), rows(b));
    let keys_and_values = inputs(b, Tensor::KeyValue, kv);
    let queries: Vec<Buf> = (0..ranks).map(|r| b.saved(r, Tensor::Query, q[r as usize])).collect();
    let d_out = inputs(b, Tensor::OutputGrad, q);
    let probabilities: Vec<Buf> = (0..ranks).map(|r| b.saved(r, rows_of_all, q[r as usize])).collect();
    let d_rows: Vec<Buf> = (0..ranks).map(|r| b.scratch(r, rows_of_all, q[r as usize])).collect();
    let dq: Vec<Buf> = (0..ranks).map(|r| b.output(r, Tensor::QueryGrad, q[r as usize])).collect();

    let dv = gradients(b, Tensor::ValueGrad, kv);
    let values = Ring::new(b, options, (Tensor::Value, 0), &keys_and_values, kv);
    values.each_step(b, |b, at| {
        let (r, q_block, kv_block) = (at.rank as usize, q[at.rank as usize], kv[at.owner as usize]);
        Scores::WeighBackward {
            rows: probabilities[r],
            d_o: d_out[r].into(),
            v: at.holding,
            d_rows: d_rows[r],
            dv: share_of(dv[r], at.owner),
            q_block,
            kv_block,
            mask: mask(b, q_block, kv_block),
            init: at.first,
        }
    });
    sum_up(b, options, (Tensor::ValueGrad, ranks), kv, &dv);
    for r in 0..ranks as usize {
        let (rows, d_rows, block) = (probabilities[r], d_rows[r], q[r]);
        b.compute(r as Rank, ranks - 1, OpKind::Scores(Scores::SoftmaxBackward { rows, d_rows, block }));
    }
    let dk = gradients(b, Tensor::KeyGrad, kv);
    let keys = Ring::new(b, options, (Tensor::Key, ranks), &keys_and_values, kv);
    keys.each_step(b, |b, at| {
        let (r, q_block, kv_block) = (at.rank as usize, q[at.rank as usize], kv[at.owner as usize]);
        Scores::ScoreBackward {
            d_rows: d_rows[r],
            q: queries[r].into(),
            k: at.holding,
            dq: dq[r],
            dk: share_of(dk[r], at.owner),
            q_block,
            kv_block,
            mask: mask(b, q_block, kv_block),
            init: at.first,
        }
    });
    sum_up(b, options, (Tensor::KeyGrad, 2 * ranks), kv, &dk);
    b.note("dk and dv: a reduce-scatter; the released code's all-reduce sends twice as much, half of it read by nobody");
}

/// Score rows of all keys.
fn rows(b: &PlanBuilder) -> Tensor {
    let keys = b.layout().documents().tokens();
    Tensor::Scores { keys: u32::try_from(keys).unwrap_or(u32::MAX) }
}

/// Every rank's own tokens of `tensor`.
fn inputs(b: &mut PlanBuilder, tensor: Tensor, blocks: &[BlockId]) -> Vec<Buf> {
    (0..b.ranks()).map(|r| b.input(r, tensor, blocks[r as usize])).collect()
}

/// The mask of a block; one that it leaves nothing of is computed all the same.
fn mask(b: &PlanBuilder, q: BlockId, kv: BlockId) -> MaskId {
    classify(b, q, kv).unwrap_or(MaskId::PROBLEM)
}

/// On every rank a buffer for its queries' part of the gradient of each rank's keys or values; its own stays.
fn gradients(b: &mut PlanBuilder, tensor: Tensor, kv: &[BlockId]) -> Vec<Bufs> {
    let of_rank = |b: &mut PlanBuilder, r: Rank| {
        let bufs = (0..).zip(kv).map(|(s, &block)| match s == r {
            true => b.output(r, tensor, block),
            false => b.scratch(r, tensor, block),
        });
        let bufs: Vec<Buf> = bufs.collect();
        Bufs { first: bufs[0], count: bufs.len() as u16 }
    };
    (0..b.ranks()).map(|r| of_rank(b, r)).collect()
}

/// Sums up all ranks' parts of gradients at their owners.
fn sum_up(
    b: &mut PlanBuilder,
    options: &Options,
    (tensor, step): (Tensor, u32),
    kv: &[BlockId],
    parts: &[Bufs],
) {
    let sum = Collective { channel: Channel::new(options.transport, 1), route: Route::Neighbour, tensor };
    sum.reduce_scatter(b, step, kv, parts);
}

/// One round of keys, or of values.
struct Ring<'a> {
    tensor: Tensor,
    /// Its first step.
    from: u32,
    overlaps: bool,
    channel: Channel,
    own: &'a [Buf],
    blocks: &'a [BlockId],
    /// By rank, for the steps in turn.
    stages: Vec<Vec<Buf>>,
}

/// A rank at a step of a ring.
struct At {
    rank: Rank,
    /// Whose keys or values it holds.
    owner: Rank,
    holding: Bufs,
    first: bool,
}

impl<'a> Ring<'a> {
    fn new(
        b: &mut PlanBuilder,
        options: &Options,
        (tensor, from): (Tensor, u32),
        own: &'a [Buf],
        blocks: &'a [BlockId],
    ) -> Self {
        let depth = (options.prefetch.max(1) + 1).min(b.ranks() - 1);
        let stages = (0..b.ranks()).map(|r| (0..depth).map(|_| b.scratch(r, tensor, blocks[0])).collect());
        let (overlaps, stages) = (options.prefetch > 0, stages.collect());
        Self { tensor, from, overlaps, channel: Channel::new(options.transport, 0), own, blocks, stages }
    }

    /// Goes round once: at every step every rank does `what` with what it holds, while that travels on.
    fn each_step(&self, b: &mut PlanBuilder, what: impl Fn(&mut PlanBuilder, &At) -> Scores) {
        let ranks = b.ranks();
        for t in 0..ranks {
            if self.overlaps {
                self.pass_on(b, t, &[]);
            }
            let mut done = Vec::new();
            for rank in 0..ranks {
                let at =
                    At { rank, owner: owner(rank, t, ranks), holding: self.holding(rank, t), first: t == 0 };
                let op = what(b, &at);
                done.push(b.compute(rank, self.from + t, OpKind::Scores(op)));
            }
            if !self.overlaps {
                self.pass_on(b, t, &done);
            }
        }
    }

    fn holding(&self, r: Rank, t: u32) -> Bufs {
        let stages = &self.stages[r as usize];
        if t == 0 { self.own[r as usize].into() } else { stages[(t as usize - 1) % stages.len()].into() }
    }

    /// To the next rank what is held at step t, not before `after`.
    fn pass_on(&self, b: &mut PlanBuilder, t: u32, after: &[OpId]) {
        let ranks = b.ranks();
        if t + 1 == ranks {
            return;
        }
        let messages: Vec<_> = (0..ranks)
            .map(|r| b.message(r, (r + 1) % ranks, self.tensor, self.blocks[owner(r, t, ranks) as usize]))
            .collect();
        for r in 0..ranks {
            let send = (messages[r as usize], self.holding(r, t));
            let recv = (messages[owner(r, 1, ranks) as usize], self.holding(r, t + 1).first);
            self.channel.exchange(b, (r, self.from + t), &[send], &[recv], after.get(r as usize).copied());
        }
    }
}
