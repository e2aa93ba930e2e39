//! The forward: each rank attends the keys that it holds, step by step, into one state.

use super::keys::Keys;
use super::{Rule, Site, Tour};
use crate::plan::builder::PlanBuilder;
use crate::plan::{Buf, MaskId, OpId, OpKind, Rank, Tensor};
use crate::schedule::Options;
use crate::schedule::step::classify;

/// The states of all ranks' queries.
pub(in crate::schedule) fn forward(
    b: &mut PlanBuilder,
    options: &Options,
    tour: &Tour,
    sites: &[Site],
    rule: &Rule,
) -> Vec<Buf> {
    let states: Vec<Buf> =
        (0..).zip(sites).map(|(r, site)| b.scratch(r, Tensor::State, site.q_block)).collect();
    let keys = Keys::new(b, options, tour, sites);
    let mut done: Vec<Option<OpId>> = vec![None; sites.len()];
    for step in tour.steps() {
        keys.during(b, step);
        for (r, site) in sites.iter().enumerate() {
            let (rank, first) = (r as Rank, step.t == 0);
            let (q_block, kv_block) = rule(rank, tour.owner(rank, step));
            let Some(mask) = classify(b, q_block, kv_block).or(first.then_some(MaskId::PROBLEM)) else {
                continue;
            };
            let (kv, state) = (keys.holding(rank, step), states[r]);
            let attend = OpKind::Attend { q: site.q, kv, state, q_block, kv_block, mask, init: first };
            done[r] = Some(b.compute(rank, step.t, attend));
        }
        keys.after(b, step, &done);
    }
    states
}
