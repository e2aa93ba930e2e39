//! Problems and runs that the tests share.

use std::sync::Arc;
use std::time::Duration;

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Rank};
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::{self, Schedule};

use super::world::{FakeGpu, Trouble, World};
use crate::cuda::device::Gpu;
use crate::cuda::prepare::{Member, Members, Session};
use crate::cuda::{CudaError, Options, Run};
use crate::inputs::Inputs;
use crate::verify::{Errors, Reference, verify};

/// What fp16 leaves of a result that is exact otherwise: half a unit in the last place of 11 bits, and some for sums of
/// rounded parts.
pub const TOLERANCE: f64 = 5e-3;

pub fn shape(heads: u32, kv_heads: u32, batch: u32) -> Shape {
    Shape { heads, kv_heads, head_dim: 64, dtype: Dtype::Fp16, batch }
}

pub fn problem(shape: Shape, pattern: Pattern, documents: &[u64]) -> Problem {
    Problem { shape, pattern, documents: documents.to_vec() }
}

pub fn plan_of(schedule: Schedule, problem: &Problem, ranks: u32, options: &schedule::Options) -> Plan {
    schedule::build(schedule, problem, ranks, options)
        .unwrap_or_else(|e| panic!("{schedule} on {ranks} ranks: {e}"))
}

/// One warm-up and one measured run of each kind.
pub fn quick() -> Options {
    Options { warmup: 1, repeats: 1, timeout: Duration::from_millis(200), ..Options::default() }
}

pub fn members(ranks: u32, seed: u64, trouble: Trouble) -> Members {
    let world = World::new(ranks as usize, seed, trouble);
    let gpu =
        |rank: Rank| Arc::new(FakeGpu { world: Arc::clone(&world), index: rank as usize }) as Arc<dyn Gpu>;
    let all = (0..ranks).map(|rank| Member { rank, gpu: gpu(rank) }).collect();
    Members { all, are_virtual: false, by_barrier: false }
}

/// All ranks on one GPU.
pub fn virtual_members(ranks: u32, seed: u64) -> Members {
    let world = World::new(1, seed, Trouble::default());
    let gpu = Arc::new(FakeGpu { world, index: 0 }) as Arc<dyn Gpu>;
    let all = (0..ranks).map(|rank| Member { rank, gpu: Arc::clone(&gpu) }).collect();
    Members { all, are_virtual: true, by_barrier: false }
}

pub fn run(plan: &Plan, inputs: &Inputs, options: &Options, seed: u64) -> Result<Run, CudaError> {
    let members = members(plan.ranks(), seed, Trouble::default());
    Session::new(plan, inputs, options, members)?.run()
}

/// Inputs and their exact result.
pub struct Case {
    pub problem: Problem,
    pub inputs: Inputs,
    pub exact: Reference,
}

impl Case {
    pub fn new(problem: Problem, seed: u64) -> Self {
        let inputs = Inputs::random(seed, &problem).unwrap().rounded();
        let exact = Reference::with_gradients(&problem, &inputs).unwrap();
        Self { problem, inputs, exact }
    }

    pub fn errors(&self, run: &Run) -> Errors {
        verify(&run.outcome, &self.exact).unwrap()
    }

    /// Runs forward and backward with `go` and checks both.
    pub fn check_with(
        &self,
        schedule: Schedule,
        ranks: u32,
        options: &schedule::Options,
        go: impl Fn(&Plan, &Inputs) -> Result<Run, CudaError>,
    ) {
        let mut inputs = self.inputs.clone();
        for pass in [Pass::Forward, Pass::Backward] {
            let plan = plan_of(schedule, &self.problem, ranks, &schedule::Options { pass, ..*options });
            let context = format!("{schedule} on {ranks} ranks, {pass}, {options:?}, {:?}", self.problem);
            let run = go(&plan, &inputs).unwrap_or_else(|e| panic!("{e}: {context}"));
            let errors = self.errors(&run);
            assert!(errors.worst() <= TOLERANCE, "{errors:?}: {context}");
            assert_eq!(run.outcome.bytes_moved, plan.bytes_moved(), "{context}");
            inputs.forward = run.outcome.results.forward().cloned().or(inputs.forward.take());
        }
    }

    pub fn check(
        &self,
        schedule: Schedule,
        ranks: u32,
        options: &schedule::Options,
        how: &Options,
        seed: u64,
    ) {
        self.check_with(schedule, ranks, options, |plan, inputs| run(plan, inputs, how, seed));
    }
}
