//! Problems, plans and runs that the tests share.

use ringlab_runtime::cpu::{RunOptions, run};
use ringlab_runtime::inputs::Inputs;
use ringlab_runtime::outcome::{Forward, Gradients, Outcome};
use ringlab_runtime::verify::{Errors, Reference, verify};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::{Options, Route, Schedule, build};

/// What f32 leaves of a result that is exact otherwise.
pub const TOLERANCE: f64 = 1e-5;

pub const SCHEDULES: [Schedule; 7] = [
    Schedule::Ring,
    Schedule::Zigzag,
    Schedule::Striped { block: 1 },
    Schedule::Striped { block: 2 },
    Schedule::Striped { block: 4 },
    Schedule::DistFlash,
    Schedule::RingSelfAttention,
];

pub fn shape(heads: u32, kv_heads: u32, head_dim: u32, batch: u32) -> Shape {
    Shape { heads, kv_heads, head_dim, dtype: Dtype::Fp32, batch }
}

pub fn problem(shape: Shape, pattern: Pattern, documents: &[u64]) -> Problem {
    Problem { shape, pattern, documents: documents.to_vec() }
}

/// Whether the schedule is defined for the mask.
pub fn allows(schedule: Schedule, pattern: Pattern) -> bool {
    schedule != Schedule::DistFlash || pattern != Pattern::Full
}

/// Default options, padding what does not fit.
pub fn options(pass: Pass) -> Options {
    Options { pad: true, ..Options::new(pass) }
}

pub fn plan(schedule: Schedule, problem: &Problem, ranks: u32, options: &Options) -> Plan {
    build(schedule, problem, ranks, options).unwrap_or_else(|e| panic!("{schedule} on {ranks} ranks: {e}"))
}

pub fn outcome(plan: &Plan, inputs: &Inputs) -> Outcome {
    run(plan, inputs, &RunOptions::default())
        .unwrap_or_else(|e| panic!("{} on {}: {e}", plan.name, plan.ranks()))
}

/// o and lse of a forward with these options.
pub fn forward(
    schedule: Schedule,
    problem: &Problem,
    ranks: u32,
    options: &Options,
    inputs: &Inputs,
) -> Forward {
    let options = Options { pass: Pass::Forward, ..*options };
    let outcome = outcome(&plan(schedule, problem, ranks, &options), inputs);
    outcome.results.forward().expect("a forward").clone()
}

/// dq, dk and dv of a backward with these options, of inputs that have their forward.
pub fn backward(
    schedule: Schedule,
    problem: &Problem,
    ranks: u32,
    options: &Options,
    inputs: &Inputs,
) -> Gradients {
    let options = Options { pass: Pass::Backward, ..*options };
    let outcome = outcome(&plan(schedule, problem, ranks, &options), inputs);
    outcome.results.gradients().expect("gradients").clone()
}

/// Inputs and their exact result.
pub struct Case {
    pub problem: Problem,
    pub inputs: Inputs,
    pub exact: Reference,
}

impl Case {
    pub fn new(problem: Problem, seed: u64) -> Self {
        let inputs = Inputs::random(seed, &problem).unwrap();
        let exact = Reference::with_gradients(&problem, &inputs).unwrap();
        Self { problem, inputs, exact }
    }

    /// Runs forward and backward and checks both: error, padding rows, and that the plan's bytes, and some, moved.
    pub fn check(&self, schedule: Schedule, ranks: u32, options: &Options) -> [Errors; 2] {
        let mut inputs = self.inputs.clone();
        [Pass::Forward, Pass::Backward].map(|pass| {
            let plan = plan(schedule, &self.problem, ranks, &Options { pass, ..*options });
            let outcome = outcome(&plan, &inputs);
            let context = format!("{schedule} on {ranks} ranks, {pass}, {:?}, {options:?}", self.problem);
            assert_eq!(outcome.bytes_moved, plan.bytes_moved(), "bytes: {context}");
            let errors = verify(&outcome, &self.exact).unwrap();
            assert!(errors.worst() <= TOLERANCE, "{errors:?}: {context}");
            inputs.forward = outcome.results.forward().cloned().or(inputs.forward.take());
            errors
        })
    }
}

/// Every way of moving messages, with the default first.
pub fn ways() -> Vec<Options> {
    let mut ways = Vec::new();
    for transport in [Transport::CopyEngine, Transport::Nccl] {
        for route in [Route::Neighbour, Route::Direct] {
            for chunks in [1, 3] {
                for prefetch in [1, 0, 2] {
                    for needed_only in [false, true] {
                        let options = options(Pass::Forward);
                        ways.push(Options { transport, route, chunks, prefetch, needed_only, ..options });
                    }
                }
            }
        }
    }
    ways
}
