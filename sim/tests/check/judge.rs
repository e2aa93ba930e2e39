//! Whether a plan is right and whether what is said of it is so, as the naive execution shows.

use std::collections::BTreeMap;

use ringlab_sim::check::{Fault, Violation};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{LANES, MessageId, OpKind, Plan, Rank, Tensor, Transport};
use ringlab_sim::problem::Pass;

use crate::common::list;
use crate::naive::{Counts, Results, count, name, run};

/// Whether a query attends a key, by the definition of the masks.
pub fn allows(plan: &Plan, pattern: Pattern, q: u64, k: u64) -> bool {
    let real = |x: u64| plan.layout.documents().iter().position(|d| (d.start..d.start + d.len).contains(&x));
    let same = real(q).is_some() && real(q) == real(k);
    same && match pattern {
        Pattern::Full => true,
        Pattern::Causal => k <= q,
        Pattern::Window(w) => k <= q && q - k < w,
    }
}

/// What the results must be.
pub fn expected(plan: &Plan, pattern: Pattern) -> Results {
    let n = plan.layout.documents().tokens();
    let group = plan.shape.heads / plan.shape.kv_heads;
    let (mut by_query, mut by_key) = (Counts::new(), Counts::new());
    for h in 0..plan.shape.heads {
        for q in 0..n {
            let row = by_query.entry((q, h)).or_default();
            for k in 0..n {
                let column = by_key.entry((k, h / group)).or_default();
                if allows(plan, pattern, q, k) {
                    row.insert((k, h / group), 1);
                    column.insert((q, h), 1);
                }
            }
        }
    }
    match plan.pass {
        Pass::Forward => BTreeMap::from([("o", by_query)]),
        Pass::Backward if keys_and_values_apart(plan) => {
            BTreeMap::from([("dq", by_query), ("dk", by_key.clone()), ("dv", by_key)])
        }
        Pass::Backward => BTreeMap::from([("dq", by_query), ("dk and dv", by_key)]),
    }
}

/// Whether dk and dv are results of their own.
fn keys_and_values_apart(plan: &Plan) -> bool {
    plan.programs.iter().any(|p| p.buffers.iter().any(|b| b.tensor == Tensor::ValueGrad))
}

/// The messages from one rank to another on one lane, in the order of the operations at one end.
fn sequence(plan: &Plan, at: Rank, lane: u8, (from, to): (Rank, Rank), sends: bool) -> Vec<MessageId> {
    let ops = plan.programs[at as usize].ops.iter().filter(|op| op.lane.0 == lane);
    let messages = ops.filter_map(|op| match op.kind {
        OpKind::Send { message, .. } if sends => Some(message),
        OpKind::Recv { message, .. } if !sends => Some(message),
        _ => None,
    });
    messages.filter(|&m| (plan.message(m).from, plan.message(m).to) == (from, to)).collect()
}

/// Whether a communicator, which matches sends and receives in order, brings every message where it belongs.
fn communicators_agree(plan: &Plan) -> bool {
    let pairs = (0..plan.ranks()).flat_map(|a| (0..plan.ranks()).map(move |b| (a, b)));
    let mut lanes = pairs.flat_map(|pair| (1..LANES as u8).map(move |lane| (pair, lane)));
    lanes.all(|((from, to), lane)| {
        sequence(plan, from, lane, (from, to), true) == sequence(plan, to, lane, (from, to), false)
    })
}

/// Runs the plan in several orders; wrong if it is wrong in any.
pub fn verdict(plan: &Plan, pattern: Pattern, runs: u64) -> Result<(), String> {
    if plan.transport == Transport::Nccl && !communicators_agree(plan) {
        return Err("communicators are used in different order".into());
    }
    let expected = expected(plan, pattern);
    for seed in 1..=runs {
        let turns = plan.transport == Transport::Nccl && seed % 2 == 0;
        if run(plan, pattern, seed, turns)? != expected {
            return Err("pairs are missing, doubled or masked".into());
        }
    }
    Ok(())
}

/// Whether the pairs that violations name are wrong in the way they say.
pub fn pairs_are_wrong(plan: &Plan, pattern: Pattern, violations: &[Violation]) -> Result<(), String> {
    // What had gone into score rows is gone at the end: of them only that they are wrong is seen.
    let named = violations.iter().filter_map(|v| match v {
        Violation::Coverage { result: Tensor::Scores { .. }, .. } => None,
        Violation::Coverage { result, pair, fault } => Some((name(*result), *pair, *fault)),
        _ => None,
    });
    if !violations.iter().any(|v| matches!(v, Violation::Coverage { .. })) {
        return Ok(());
    }
    let (results, wrong_rows) = count(plan, pattern, 1, false)?;
    let of_rows = |v: &Violation| matches!(v, Violation::Coverage { result: Tensor::Scores { .. }, .. });
    if wrong_rows != violations.iter().any(of_rows) {
        return Err(format!("score rows are wrong: {wrong_rows}; but {}", list(violations)));
    }
    for (result, pair, fault) in named {
        let kv_head = pair.head / plan.shape.group();
        let (query, key) = ((pair.query, pair.head), (pair.key, kv_head));
        let row = if ["dk and dv", "dk", "dv"].contains(&result) { (key, query) } else { (query, key) };
        let times = results.get(result).and_then(|r| r.get(&row.0)?.get(&row.1)).copied().unwrap_or(0);
        let allowed = allows(plan, pattern, pair.query, pair.key);
        let true_fault = match fault {
            Fault::Missing => allowed && times == 0,
            Fault::Doubled { .. } => times > 1,
            Fault::Masked { .. } => !allowed && times > 0,
        };
        let located = plan.layout.locate(pair.query) == Some(pair.query_at)
            && plan.layout.locate(pair.key) == Some(pair.key_at);
        if !true_fault || !located {
            return Err(format!("{pair} counts {times} times in {result}, allowed: {allowed}; not {fault}"));
        }
    }
    Ok(())
}
