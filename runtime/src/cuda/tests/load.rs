//! What is measured, after how much load.

use std::time::Duration;

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{self, Schedule};

use super::support::{Case, members, plan_of, problem, quick, run, shape};
use super::world::Trouble;
use crate::cuda::prepare::{Members, Session};
use crate::cuda::{CudaError, Options, Recording};

fn case() -> Case {
    Case::new(problem(shape(2, 2, 1), Pattern::Causal, &[32]), 5)
}

fn forward(transport: Transport) -> schedule::Options {
    schedule::Options { transport, ..schedule::Options::new(Pass::Forward) }
}

#[test]
fn runs_follow_each_other_for_as_long_as_was_asked_for() {
    let case = case();
    let plan = plan_of(Schedule::Zigzag, &case.problem, 2, &forward(Transport::CopyEngine));
    let sustain = Duration::from_millis(60);
    let loaded = run(&plan, &case.inputs, &Options { sustain, ..quick() }, 3).unwrap();
    assert!(loaded.measured.loaded_s >= 0.06, "{}", loaded.measured.loaded_s);
    // The warm-up's only run loads kernels, and does not count.
    let at_once = run(&plan, &case.inputs, &quick(), 3).unwrap();
    assert!(at_once.measured.loaded_s < 0.01, "{}", at_once.measured.loaded_s);
    assert!(loaded.measured.duty > 0.0, "{}", loaded.measured.duty);
}

#[test]
fn recorded_runs_alone_give_results_and_times() {
    let case = case();
    let how = Options { recording: Recording::Operations, repeats: 3, ..quick() };
    case.check(Schedule::Zigzag, 2, &forward(Transport::CopyEngine), &how, 4);
    let plan = plan_of(Schedule::Ring, &case.problem, 2, &forward(Transport::CopyEngine));
    let run = run(&plan, &case.inputs, &how, 4).unwrap();
    assert_eq!((run.measured.makespans.len(), run.measured.unrecorded.len()), (3, 0));
    let last = run.outcome.timeline.makespan;
    assert!(last <= run.measured.makespan() && 2 * last.0 > run.measured.makespan().0, "{:?}", run.measured);
}

#[test]
fn several_processes_cannot_agree_on_a_load() {
    let case = case();
    let plan = plan_of(Schedule::Ring, &case.problem, 2, &forward(Transport::Nccl));
    let one = members(2, 1, Trouble::default()).all.into_iter().take(1).collect();
    let members = Members { all: one, are_virtual: false, by_barrier: true };
    let how = Options { sustain: Duration::from_millis(1), ..quick() };
    assert!(matches!(Session::new(&plan, &case.inputs, &how, members), Err(CudaError::Sustained)));
}
