//! Megatron's tensor and sequence parallelism (arXiv 2205.05198) around one attention layer: contiguous tokens outside;
//! an all-gather of the layer's input, q, k and v of H/P heads from it, attention over all tokens, and a reduce-scatter
//! of the output projection's partial sums. The backward gathers the gradient of the output and reduce-scatters that of
//! the input. Each collective moves (P-1)/P of N tokens of the hidden size, here taken to be H D, in the element type.
//!
//! The projections have no weights here: [`Tensor::Hidden`] and its like say what stands for what. Heads that P does not
//! divide are padded in Megatron; here the ranks with most heads take the time that padding would make all ranks take.

use super::collective::{Collective, allocate};
use super::saved::Saved;
use super::step::{Channel, classify};
use super::unused::Unused;
use super::{Options, Route};
use crate::layout::Layout;
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, Heads, MaskId, OpKind, Plan, Projection, Rank, Tensor};
use crate::problem::{Pass, Problem};

pub(super) fn build(problem: &Problem, layout: Layout, options: &Options) -> Plan {
    let mut b = options.builder("megatron-sp".into(), problem, layout);
    Unused { route: false, ..Unused::ALL }.note(&mut b, options);
    note(&mut b);
    let layer = Layer::new(&mut b, options);
    match options.pass {
        Pass::Forward => layer.forward(&mut b),
        Pass::Backward => layer.backward(&mut b),
    }
    b.finish()
}

fn note(b: &mut PlanBuilder) {
    b.note("q stands for the layer's input, o for its output and dq for the input's gradient; projections take no time");
    let (heads, ranks) = (b.shape().heads, b.ranks());
    let slots = heads.next_multiple_of(ranks);
    if slots > heads {
        let waste = 100.0 * f64::from(slots - heads) / f64::from(slots);
        b.note(format!(
            "{heads} heads are padded to {slots}, a multiple of {ranks}: {waste:.1}% of the attention is on padding"
        ));
    }
}

/// All ranks' shares of one layer.
struct Layer {
    /// Every rank's tokens, with all heads.
    shares: Vec<BlockId>,
    /// All tokens, with all heads.
    hidden: BlockId,
    /// All tokens, with each rank's heads.
    blocks: Vec<(BlockId, BlockId)>,
    gather: Channel,
    scatter: Channel,
    route: Route,
}

/// The query heads of rank r: as many for all, or one more for the first ones.
fn heads_of(b: &PlanBuilder, r: Rank) -> (Heads, Heads) {
    let (heads, ranks, group) = (b.shape().heads, b.ranks(), b.shape().group());
    let first = r * (heads / ranks) + r.min(heads % ranks);
    let count = heads / ranks + u32::from(r < heads % ranks);
    let first_kv = first / group;
    let kv = Heads { first: first_kv, count: (first + count).div_ceil(group) - first_kv };
    (Heads { first, count }, kv)
}

impl Layer {
    fn new(b: &mut PlanBuilder, options: &Options) -> Self {
        let (ranks, tokens, all) = (0..b.ranks(), b.layout().documents().tokens(), b.all_heads(false));
        let shares = ranks.clone().map(|r| b.block_of_heads(&[b.shard(r)], all)).collect();
        let hidden = b.span(&[(0, tokens)], all);
        let blocks = ranks.map(|r| {
            let (q, kv) = heads_of(b, r);
            (b.span(&[(0, tokens)], q), b.span(&[(0, tokens)], kv))
        });
        let blocks = blocks.collect();
        let (gather, scatter) = (Channel::new(options.transport, 0), Channel::new(options.transport, 1));
        Self { shares, hidden, blocks, gather, scatter, route: options.route }
    }

    fn forward(&self, b: &mut PlanBuilder) {
        let (ranks, step) = (0..b.ranks(), b.ranks());
        let x: Vec<Bufs> = ranks.clone().map(|r| allocate(b, r, Tensor::Hidden, &self.shares)).collect();
        self.gather(b, Tensor::Hidden, &x);
        let parts = ranks.map(|r| {
            let (q_block, kv_block) = self.blocks[r as usize];
            let (q, kv) = (b.scratch(r, Tensor::Query, q_block), b.scratch(r, Tensor::KeyValue, kv_block));
            let (input, hidden) = (x[r as usize], self.hidden);
            let inputs = Projection::Inputs { input, hidden, q, q_block, kv, kv_block };
            b.compute(r, step, OpKind::Project(inputs));
            let (state, out) = (b.scratch(r, Tensor::State, q_block), b.scratch(r, Tensor::Output, q_block));
            let mask = classify(b, q_block, kv_block).unwrap_or(MaskId::PROBLEM);
            let (q, kv) = (q.into(), kv.into());
            b.compute(r, step, OpKind::Attend { q, kv, state, q_block, kv_block, mask, init: true });
            b.compute(r, step, OpKind::Finish { state, out });
            let parts = self.parts(b, r, Tensor::LayerOutput);
            b.compute(r, step, OpKind::Project(Projection::Output { out, parts, hidden }));
            parts
        });
        let parts: Vec<Bufs> = parts.collect();
        self.reduce_scatter(b, Tensor::LayerOutput, &parts);
    }

    fn backward(&self, b: &mut PlanBuilder) {
        let (ranks, step) = (0..b.ranks(), b.ranks());
        let d_o = |b: &mut PlanBuilder, r| allocate(b, r, Tensor::OutputGrad, &self.shares);
        let saved = ranks.clone().map(|r| Saved::new(b, r, self.blocks[r as usize], |b| d_o(b, r)));
        let saved: Vec<Saved> = saved.collect();
        let d_o: Vec<Bufs> = saved.iter().map(|s| s.d_o).collect();
        self.gather(b, Tensor::OutputGrad, &d_o);
        let parts = ranks.zip(&saved).map(|(r, saved)| {
            let (q_block, kv_block) = self.blocks[r as usize];
            let (dq, dkv) =
                (b.scratch(r, Tensor::QueryGrad, q_block), b.scratch(r, Tensor::KeyValueGrad, kv_block));
            saved.attend(b, (r, step), (q_block, kv_block), (dq, dkv));
            let (parts, hidden) = (self.parts(b, r, Tensor::HiddenGrad), self.hidden);
            b.compute(r, step, OpKind::Project(Projection::Gradients { dq, dkv, parts, hidden }));
            parts
        });
        let parts: Vec<Bufs> = parts.collect();
        self.reduce_scatter(b, Tensor::HiddenGrad, &parts);
    }

    fn gather(&self, b: &mut PlanBuilder, tensor: Tensor, bufs: &[Bufs]) {
        Collective { channel: self.gather, route: self.route, tensor }.gather(b, &self.shares, bufs);
    }

    fn reduce_scatter(&self, b: &mut PlanBuilder, tensor: Tensor, parts: &[Bufs]) {
        let step = b.ranks();
        let sum = Collective { channel: self.scatter, route: self.route, tensor };
        sum.reduce_scatter(b, step, &self.shares, parts);
    }

    /// Room for the rank's part of every rank's tokens; its own tokens' sum stays.
    fn parts(&self, b: &mut PlanBuilder, r: Rank, tensor: Tensor) -> Bufs {
        let parts = (0..).zip(&self.shares).map(|(s, &share)| match s == r {
            true => b.output(r, tensor, share),
            false => b.scratch(r, tensor, share),
        });
        let parts: Vec<Buf> = parts.collect();
        Bufs { first: parts[0], count: parts.len() as u16 }
    }
}
