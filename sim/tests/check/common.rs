//! Problems and options that the tests share.

use ringlab_sim::check::{At, Fault, Pair, Violation, prove};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Op, Plan, Tensor, Transport};
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::{Options, Route, Schedule, build};
use ringlab_sim::timeline::SpanKind;

use crate::judge::pairs_are_wrong;

/// Four query heads on two kv heads.
pub fn problem(pattern: Pattern, documents: &[u64]) -> Problem {
    let shape = Shape { heads: 4, kv_heads: 2, head_dim: 8, dtype: Dtype::Bf16, batch: 1 };
    Problem { shape, pattern, documents: documents.to_vec() }
}

/// The plan, padded where it has to be.
pub fn plan(
    schedule: Schedule,
    pattern: Pattern,
    documents: &[u64],
    ranks: u32,
    options: &Options,
) -> Option<Plan> {
    let options = Options { pad: true, ..*options };
    build(schedule, &problem(pattern, documents), ranks, &options).ok()
}

/// Every combination of pass, transport, route and `needed_only`, without chunks.
pub fn all_options() -> Vec<Options> {
    let mut all = Vec::new();
    for pass in [Pass::Forward, Pass::Backward] {
        for transport in [Transport::CopyEngine, Transport::Nccl] {
            for route in [Route::Neighbour, Route::Direct] {
                for needed_only in [false, true] {
                    all.push(Options { transport, route, needed_only, ..Options::new(pass) });
                }
            }
        }
    }
    all
}

/// Violations, one a line.
pub fn list(violations: &[Violation]) -> String {
    let lines: Vec<String> = violations.iter().map(|v| format!("  {v}")).collect();
    lines.join("\n")
}

pub fn causal(schedule: Schedule, ranks: u32, options: &Options) -> Plan {
    let plan = plan(schedule, Pattern::Causal, &[24], ranks, options).expect("a causal plan");
    assert!(prove(&plan).is_ok());
    plan
}

pub fn forward() -> Options {
    Options::new(Pass::Forward)
}

pub fn backward() -> Options {
    Options::new(Pass::Backward)
}

/// Why the plan is refused; the pairs that are named are wrong in the way that is said.
pub fn refused(plan: &Plan) -> Vec<Violation> {
    let violations = prove(plan).expect_err("a broken plan is refused");
    pairs_are_wrong(plan, Pattern::Causal, &violations).unwrap();
    assert!(violations.len() <= 20);
    violations
}

/// The first operation of `rank` at `step` of this kind.
pub fn find(plan: &Plan, rank: usize, step: u32, kind: SpanKind) -> usize {
    let is_it = |op: &Op| op.step == step && SpanKind::of(&op.kind) == kind;
    plan.programs[rank].ops.iter().position(is_it).expect("there is such an operation")
}

pub fn coverage(violations: &[Violation]) -> Vec<(Tensor, Pair, Fault)> {
    let all = violations.iter().map(|v| match v {
        Violation::Coverage { result, pair, fault } => (*result, *pair, *fault),
        other => panic!("not about pairs: {other}"),
    });
    all.collect()
}

pub fn place(at: At) -> (u32, u32) {
    (at.rank, at.step)
}
