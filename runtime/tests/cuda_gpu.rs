//! The CUDA executor on real GPUs: `cargo test -p ringlab-runtime --test cuda_gpu -- --ignored --test-threads 1`.

use std::time::Duration;

use ringlab_runtime::cuda::{self, Copies, CudaError, Devices, Mode, Options, Run};
use ringlab_runtime::inputs::Inputs;
use ringlab_runtime::verify::{Reference, Sample, verify, verify_rows};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::{self, ALL, Schedule};

/// Every schedule but the one that keeps its scores in memory.
fn with_kernels() -> impl Iterator<Item = Schedule> {
    ALL.into_iter().filter(|&s| s != Schedule::RingSelfAttention)
}

/// What bf16 leaves, row by row: 8 bits, and delta from a rounded o where dq of a row of few keys is a difference.
const FORWARD: f64 = 1e-2;
const BACKWARD: f64 = 5e-2;

fn problem(tokens: u64, pattern: Pattern) -> Problem {
    let shape = Shape { heads: 4, kv_heads: 2, head_dim: 128, dtype: Dtype::Bf16, batch: 1 };
    Problem { shape, pattern, documents: vec![tokens] }
}

fn plan(schedule: Schedule, problem: &Problem, ranks: u32, options: &schedule::Options) -> Plan {
    schedule::build(schedule, problem, ranks, options)
        .unwrap_or_else(|e| panic!("{schedule} on {ranks} ranks: {e}"))
}

fn quick() -> Options {
    Options { warmup: 1, repeats: 2, timeout: Duration::from_secs(20), ..Options::default() }
}

struct Case {
    problem: Problem,
    inputs: Inputs,
    exact: Reference,
}

impl Case {
    fn new(problem: Problem) -> Self {
        let inputs = Inputs::random(1, &problem).unwrap().rounded();
        let exact = Reference::with_gradients(&problem, &inputs).unwrap();
        Self { problem, inputs, exact }
    }

    fn check(&self, schedule: Schedule, ranks: u32, options: &schedule::Options, how: &Options) -> [Run; 2] {
        let mut inputs = self.inputs.clone();
        [Pass::Forward, Pass::Backward].map(|pass| {
            let plan = plan(schedule, &self.problem, ranks, &schedule::Options { pass, ..*options });
            let context = format!("{schedule} on {ranks} ranks, {pass}, {options:?}, {how:?}");
            let run = cuda::run(&plan, &inputs, how).unwrap_or_else(|e| panic!("{e}: {context}"));
            let errors = verify(&run.outcome, &self.exact).unwrap();
            let limit = if pass == Pass::Forward { FORWARD } else { BACKWARD };
            assert!(errors.worst() <= limit, "{errors:?}: {context}");
            assert_eq!(run.outcome.bytes_moved, plan.bytes_moved(), "{context}");
            inputs.forward = run.outcome.results.forward().cloned().or(inputs.forward.take());
            run
        })
    }
}

fn options() -> schedule::Options {
    schedule::Options { pad: true, ..schedule::Options::new(Pass::Forward) }
}

/// Ranks that have GPUs here, at most four.
fn gpus() -> u32 {
    u32::try_from(cuda::gpu_count().unwrap()).unwrap().min(4)
}

#[test]
#[ignore = "needs a GPU"]
fn virtual_ranks() {
    for pattern in [Pattern::Causal, Pattern::Full, Pattern::Window(100)] {
        let case = Case::new(problem(768, pattern));
        for schedule in with_kernels().filter(|&s| s != Schedule::DistFlash || pattern != Pattern::Full) {
            let how = Options { devices: Devices::Virtual(0), ..quick() };
            let [forward, _] = case.check(schedule, 4, &options(), &how);
            assert!(forward.measured.is_virtual);
        }
    }
}

#[test]
#[ignore = "needs two GPUs"]
fn every_schedule_over_copy_engines() {
    let case = Case::new(problem(768, Pattern::Causal));
    for schedule in with_kernels() {
        for copies in [Copies::Push, Copies::Pull] {
            for chunks in [1, 3] {
                let plan = schedule::Options { chunks, ..options() };
                case.check(schedule, gpus(), &plan, &Options { copies, ..quick() });
            }
        }
    }
}

#[test]
#[ignore = "needs two GPUs"]
fn every_mode() {
    let case = Case::new(problem(1024, Pattern::Causal));
    let room = schedule::Options { prefetch: gpus() - 1, ..options() };
    for mode in [Mode::Stepwise, Mode::FusedQueries, Mode::FusedSegments] {
        let [forward, _] = case.check(Schedule::Zigzag, gpus(), &room, &Options { mode, ..quick() });
        assert_eq!(forward.measured.mode, mode);
        assert_eq!((forward.measured.makespans.len(), forward.measured.unrecorded.len()), (2, 2));
        assert!(forward.outcome.timeline.makespan.0 > 0);
    }
}

#[test]
#[ignore = "needs two GPUs and NCCL"]
fn every_schedule_through_nccl() {
    let case = Case::new(problem(768, Pattern::Causal));
    let nccl = schedule::Options { transport: Transport::Nccl, ..options() };
    for schedule in with_kernels() {
        case.check(schedule, gpus(), &nccl, &quick());
    }
}

#[test]
#[ignore = "needs two GPUs"]
fn equal_inputs_give_equal_bits() {
    let case = Case::new(problem(1024, Pattern::Causal));
    let how = Options { deterministic: true, ..quick() };
    let results = || case.check(Schedule::Zigzag, gpus(), &options(), &how).map(|run| run.outcome.results);
    assert_eq!(results(), results());
}

#[test]
#[ignore = "needs two GPUs"]
fn rows_of_a_long_sequence() {
    let problem = problem(32 << 10, Pattern::Causal);
    let mut inputs = Inputs::random(2, &problem).unwrap().rounded();
    for pass in [Pass::Forward, Pass::Backward] {
        let plan = plan(Schedule::Zigzag, &problem, gpus(), &schedule::Options { pass, ..options() });
        let run = cuda::run(&plan, &inputs, &quick()).unwrap();
        let errors = verify_rows(&problem, &inputs, &run.outcome, &Sample { rows: 64, seed: 3 }).unwrap();
        assert!(errors.worst() <= BACKWARD, "{errors:?}");
        inputs.forward = run.outcome.results.forward().cloned().or(inputs.forward.take());
    }
}

#[test]
#[ignore = "needs a GPU"]
fn set_ups_that_cannot_run_are_refused() {
    let problem = problem(768, Pattern::Causal);
    let inputs = Inputs::random(1, &problem).unwrap();
    let count = cuda::gpu_count().unwrap();
    let ranks = u32::try_from(count + 1).unwrap();
    let many = plan(Schedule::Striped { block: 1 }, &problem, ranks, &options());
    assert!(matches!(cuda::run(&many, &inputs, &quick()), Err(CudaError::TooFewGpus { .. })));
    let two = plan(Schedule::Ring, &problem, 2, &options());
    let shared = Options { devices: Devices::List(vec![0, 0]), ..quick() };
    assert!(matches!(cuda::run(&two, &inputs, &shared), Err(CudaError::SharedGpu { gpu: 0 })));
}

/// Where there is no driver or no NCCL, the errors say what to install, and nothing panics.
#[test]
fn missing_libraries_are_errors_with_a_hint() {
    let problem = problem(768, Pattern::Causal);
    let inputs = Inputs::random(1, &problem).unwrap();
    let plan = plan(Schedule::Ring, &problem, 2, &options());
    if let Err(error) = cuda::gpu_count() {
        assert!(error.to_string().contains("install the NVIDIA driver"), "{error}");
        let error = cuda::run(&plan, &inputs, &quick()).unwrap_err();
        assert!(error.to_string().contains("install the NVIDIA driver"), "{error}");
    }
    if !cuda::has_nccl() {
        assert!(matches!(cuda::unique_id(), Err(CudaError::NoNccl)));
    }
}
