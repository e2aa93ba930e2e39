//! Problems and options that the tests share.

use ringlab_sim::check::Violation;
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::{Options, Route, Schedule, build};

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
    violations.iter().map(|v| format!("  {v}\n")).collect()
}
