//! Which attention calls reach which result, with the tokens for which they do.

use std::collections::BTreeMap;

use super::contents::{Machine, Node, NodeId};
use super::regions::{RegionId, common_heads, heads_end};
use super::structure::heads_of;
use crate::plan::{Buf, Heads, MaskId, OpId, Plan, Rank, Role, Tensor};

/// The part of an attention call that reaches a result: all pairs of `queries` x `keys` that its mask allows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contribution {
    /// Where it was computed.
    pub rank: Rank,
    /// Which operation computed it.
    pub op: OpId,
    /// Queries.
    pub queries: RegionId,
    /// Keys.
    pub keys: RegionId,
    /// Query heads.
    pub heads: Heads,
    /// Which pairs.
    pub mask: MaskId,
}

/// All contributions to the outputs that hold `result`.
pub(super) fn collect(plan: &Plan, machine: &mut Machine, result: Tensor) -> Vec<Contribution> {
    let mut out = Vec::new();
    for (rank, program) in plan.programs.iter().enumerate() {
        for (i, buffer) in program.buffers.iter().enumerate() {
            let Role::Output(block) = buffer.role else { continue };
            let content = machine.content(rank as Rank, Buf(i as u16));
            if let Some(root) = content.and_then(|c| c.node).filter(|_| buffer.tensor.holds(result)) {
                let mut region = machine.regions.of_block(block);
                if buffer.tensor != result {
                    // All heads of one side stand for all of the other.
                    let count = heads_of(plan, result);
                    region = machine.regions.with_heads(region, Heads { first: 0, count });
                }
                follow(plan, machine, root, region, result, &mut out);
            }
        }
    }
    out
}

/// All contributions to score rows over which a softmax came: it needs every pair of its queries.
pub(super) fn collect_rows(plan: &Plan, machine: &mut Machine) -> Vec<Contribution> {
    let mut out = Vec::new();
    let rows = Tensor::Scores { keys: 0 };
    for (root, region) in machine.completed().to_vec() {
        follow(plan, machine, root, region, rows, &mut out);
    }
    out
}

/// Walks down from a result to the calls that went into it. What is reached again on another way is counted again, but
/// followed twice at most: that is enough to show that it is doubled.
fn follow(
    plan: &Plan,
    machine: &mut Machine,
    root: NodeId,
    region: RegionId,
    result: Tensor,
    out: &mut Vec<Contribution>,
) {
    let mut visits: BTreeMap<(NodeId, RegionId), u8> = BTreeMap::new();
    let mut open = vec![(root, region)];
    while let Some((id, region)) = open.pop() {
        match machine.node(id) {
            Node::Call(rank, op) => out.extend(contribution(plan, machine, (rank, op), region, result)),
            Node::Sum { base, added, region: touched } => {
                let count = visits.entry((id, region)).or_insert(0);
                *count += 1;
                if *count <= 2 {
                    let inside = machine.regions.intersect(region, touched);
                    if !machine.regions.get(inside).is_empty() {
                        open.push((added, inside));
                    }
                    open.push((base, region));
                }
            }
        }
    }
}

/// The part of a call that reaches the tokens and heads `region` of a result.
fn contribution(
    plan: &Plan,
    machine: &mut Machine,
    (rank, op): (Rank, OpId),
    region: RegionId,
    result: Tensor,
) -> Option<Contribution> {
    let (q_block, kv_block, mask) = plan.programs[rank as usize].ops[op as usize].kind.attended()?;
    let regions = &mut machine.regions;
    let (mut queries, mut keys) = (regions.of_block(q_block), regions.of_block(kv_block));
    let of_query = plan.block(q_block).heads;
    let reached = regions.get(region).heads;
    let heads = if result.is_key_side() {
        keys = regions.intersect(keys, region);
        let group = plan.shape.group();
        let first = reached.first * group;
        common_heads(of_query, Heads { first, count: heads_end(reached) * group - first })
    } else {
        queries = regions.intersect(queries, region);
        common_heads(of_query, reached)
    };
    let nothing = heads.count == 0 || regions.get(queries).is_empty() || regions.get(keys).is_empty();
    (!nothing).then_some(Contribution { rank, op, queries, keys, heads, mask })
}
