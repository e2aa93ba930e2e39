//! Double ring (LoongTrain, arXiv 2406.18485): zigzag tokens, the ring cut into windows of w ranks. Keys go around inside
//! a window while those of the next window's start are on their way between windows, all w ranks sending at once to
//! their own place in the next window; with w GPUs a node that is w network cards instead of one.
//!
//! Windows smaller than a node leave it from one place and enter the next node at another. The rail variant visits the
//! windows in an order in which keys leave a node only for the same place of another, so that they keep to their rail.

use super::step::shards;
use super::tour::{Gradients, Site, Tour, backward, forward};
use super::unused::Unused;
use super::zigzag::rule_of_halves;
use super::{Options, Schedule};
use crate::layout::Layout;
use crate::plan::builder::PlanBuilder;
use crate::plan::{OpKind, Plan, Rank, Tensor};
use crate::problem::{Pass, Problem};

pub(super) fn build(
    problem: &Problem,
    layout: Layout,
    options: &Options,
    (schedule, window, rail): (Schedule, u32, bool),
) -> Plan {
    let mut b = options.builder(schedule.to_string(), problem, layout);
    Unused { prefetch: false, ..Unused::ALL }.note(&mut b, options);
    let (ranks, node) = (b.ranks(), options.gpus_per_node);
    if window == ranks {
        b.note("one window: the same as zigzag");
    }
    let cut = window < node && node.is_multiple_of(window) && ranks.is_multiple_of(node);
    if rail && !cut {
        b.note("rail: no effect, windows are not parts of nodes");
    }
    let order =
        if rail && cut { rail_order(ranks / node, node / window) } else { (0..ranks / window).collect() };
    let ring = order.iter().flat_map(|&g| g * window..(g + 1) * window).collect();
    let tour = Tour::new(vec![ring], window);
    let tensor = if options.pass == Pass::Forward { Tensor::Query } else { Tensor::QuerySide };
    let sites: Vec<Site> = sites(&mut b, tensor);
    let rule = rule_of_halves(&mut b, problem.pattern);
    match options.pass {
        Pass::Forward => {
            let states = forward(&mut b, options, &tour, &sites, &rule);
            for (r, (state, site)) in (0..).zip(states.into_iter().zip(&sites)) {
                let out = b.output(r, Tensor::Output, site.q_block);
                b.compute(r, ranks - 1, OpKind::Finish { state, out });
            }
        }
        Pass::Backward => {
            let gradients: Vec<Gradients> = (0..).zip(&sites).map(|(r, s)| gradients(&mut b, r, s)).collect();
            backward(&mut b, options, (&tour, &sites), &gradients, &rule);
        }
    }
    b.finish()
}

fn sites(b: &mut PlanBuilder, tensor: Tensor) -> Vec<Site> {
    let blocks: Vec<_> = shards(b, false).into_iter().zip(shards(b, true)).collect();
    let site = |(r, (q_block, kv_block))| Site {
        q: b.input(r, tensor, q_block).into(),
        q_block,
        kv: b.input(r, Tensor::KeyValue, kv_block).into(),
        kv_block,
    };
    (0..).zip(blocks).map(site).collect()
}

fn gradients(b: &mut PlanBuilder, r: Rank, site: &Site) -> Gradients {
    let delta = b.scratch(r, Tensor::Delta, site.q_block);
    b.compute(r, 0, OpKind::Preprocess { q: site.q, delta, block: site.q_block });
    let dq = b.output(r, Tensor::QueryGrad, site.q_block);
    Gradients { delta, dq, dkv: b.output(r, Tensor::KeyValueGrad, site.kv_block) }
}

/// The windows of `nodes` nodes of `parts` windows each, in an order in which each next one is of the same node, or the
/// same part of another; the first comes after the last.
fn rail_order(nodes: u32, parts: u32) -> Vec<u32> {
    let mut order = Vec::new();
    // Up and down the parts of one node after the other, which closes where the nodes are even.
    let (alone, pair) =
        if nodes.is_multiple_of(2) || nodes == 1 { (nodes, None) } else { (nodes - 2, Some(nodes - 2)) };
    for node in 0..alone {
        let up = (0..parts).map(|part| node * parts + part);
        if node % 2 == 0 { order.extend(up) } else { order.extend(up.rev()) }
    }
    // Else the last two nodes are taken together, part by part down, from one to the other and back.
    if let Some(first) = pair {
        for (i, part) in (0..parts).rev().enumerate() {
            let two = [first, first + 1].map(|node| node * parts + part);
            if i % 2 == 0 { order.extend(two) } else { order.extend(two.into_iter().rev()) }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_rails_a_node_is_left_only_for_the_same_place() {
        for nodes in 1..=9 {
            for parts in 1..=8 {
                let order = rail_order(nodes, parts);
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..nodes * parts).collect::<Vec<_>>());
                for (&a, &b) in order.iter().zip(order.iter().cycle().skip(1)) {
                    assert!(
                        a / parts == b / parts || a % parts == b % parts,
                        "{a} -> {b} of {nodes} x {parts}"
                    );
                }
            }
        }
    }
}
