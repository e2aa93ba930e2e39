//! DeepSpeed-Ulysses (arXiv 2309.14509): an all-to-all of q, k and v from c tokens and all heads to all tokens and H/P
//! heads, one attention call, and an all-to-all of o back. The forward leaves q, k, v, o and lse, cut by heads, for the
//! backward, which moves do there and dq, dk and dv back.

use super::Options;
use super::heads::HeadGroups;
use super::saved::Saved;
use super::step::{Channel, classify};
use super::unused::Unused;
use crate::layout::Layout;
use crate::plan::builder::PlanBuilder;
use crate::plan::{Buf, Bufs, MaskId, OpKind, Plan, Rank, Tensor};
use crate::problem::{Pass, Problem};

pub(super) fn build(problem: &Problem, layout: Layout, options: &Options) -> Plan {
    let mut b = options.builder("ulysses".into(), problem, layout);
    Unused::ALL.note(&mut b, options);
    let everyone: Vec<Rank> = (0..b.ranks()).collect();
    let groups = HeadGroups::new(&mut b, Channel::new(options.transport, 0), |_| everyone.clone());
    match options.pass {
        Pass::Forward => forward(&mut b, &groups),
        Pass::Backward => backward(&mut b, &groups),
    }
    b.finish()
}

fn forward(b: &mut PlanBuilder, groups: &HeadGroups) {
    let ranks = 0..b.ranks();
    let q: Vec<Bufs> = ranks.clone().map(|r| groups.allocate(b, r, Tensor::Query)).collect();
    let kv: Vec<Bufs> = ranks.clone().map(|r| groups.allocate(b, r, Tensor::KeyValue)).collect();
    groups.gather(b, 0, Tensor::Query, &q);
    groups.gather(b, 0, Tensor::KeyValue, &kv);
    let out: Vec<Buf> = ranks.clone().map(|r| groups.result(b, r, Tensor::Output)).collect();
    for r in ranks {
        let (i, me) = (r as usize, groups.of(r));
        let (q_block, kv_block) = (me.q_block, me.kv_block);
        let state = b.scratch(r, Tensor::State, q_block);
        let mask = classify(b, q_block, kv_block).unwrap_or(MaskId::PROBLEM);
        let attend = OpKind::Attend { q: q[i], kv: kv[i], state, q_block, kv_block, mask, init: true };
        b.compute(r, 1, attend);
        b.compute(r, 1, OpKind::Finish { state, out: out[i] });
    }
    groups.scatter(b, 2, Tensor::Output, &out);
}

fn backward(b: &mut PlanBuilder, groups: &HeadGroups) {
    let ranks = 0..b.ranks();
    let saved: Vec<Saved> = ranks.clone().map(|r| groups.saved(b, r)).collect();
    let d_o: Vec<Bufs> = saved.iter().map(|s| s.d_o).collect();
    groups.gather(b, 0, Tensor::OutputGrad, &d_o);
    let dq: Vec<Buf> = ranks.clone().map(|r| groups.result(b, r, Tensor::QueryGrad)).collect();
    let dkv: Vec<Buf> = ranks.clone().map(|r| groups.result(b, r, Tensor::KeyValueGrad)).collect();
    for r in ranks {
        let (i, me) = (r as usize, groups.of(r));
        saved[i].attend(b, (r, 1), (me.q_block, me.kv_block), (dq[i], dkv[i]));
    }
    groups.scatter(b, 2, Tensor::QueryGrad, &dq);
    groups.scatter(b, 2, Tensor::KeyValueGrad, &dkv);
}
