//! Ring Attention (arXiv 2310.01889): rank r owns tokens `[r c, (r+1) c)`; at step t it computes with the keys and
//! values of rank `s = (r - t) mod P`. Under a causal mask t = 0 is the diagonal, `t <= r` is a full block, and `t > r`
//! has nothing to compute, but forwards all the same.

use super::step::shards;
use super::{Options, ring_backward, ring_forward};
use crate::layout::Layout;
use crate::plan::Plan;
use crate::plan::builder::PlanBuilder;
use crate::problem::{Pass, Problem};

pub(super) fn build(problem: &Problem, layout: Layout, options: &Options) -> Plan {
    let builder = options.builder("ring".into(), problem, layout);
    build_whole_shards(builder, options)
}

/// The ring loop with a rank's whole shard against the whole shard that it holds.
pub(super) fn build_whole_shards(mut b: PlanBuilder, options: &Options) -> Plan {
    let (q, kv) = (shards(&mut b, false), shards(&mut b, true));
    let rule = |r: u32, s: u32| (q[r as usize], kv[s as usize]);
    match options.pass {
        Pass::Forward => ring_forward::build(b, options, &rule),
        Pass::Backward => ring_backward::build(b, options, &rule),
    }
}
