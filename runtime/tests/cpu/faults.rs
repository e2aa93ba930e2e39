//! A rank that dies, leaves, stands still or never sends makes all the others end in time, with an error that names it.

use std::time::{Duration, Instant};

use ringlab_runtime::cpu::{Cause, Fault, RankFailure, RunError, RunOptions, check_ranks, run};
use ringlab_runtime::inputs::{InputError, Inputs};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{OpKind, Plan};
use ringlab_sim::problem::{Pass, Problem};
use ringlab_sim::schedule::Schedule;

use crate::support::{options, plan, problem, shape};

/// What starting threads and computing may add to a time-out on a busy machine.
const SLACK: Duration = Duration::from_secs(5);

fn small() -> Problem {
    problem(shape(2, 1, 4, 1), Pattern::Causal, &[32])
}

fn fails(plan: &Plan, options: &RunOptions) -> (RankFailure, Vec<RankFailure>) {
    let inputs = Inputs::random(1, &small()).unwrap();
    match run(plan, &inputs, options) {
        Err(RunError::Ranks { root, others }) => (root, others),
        other => panic!("expected failed ranks, not {other:?}"),
    }
}

/// Injects the fault at every operation of rank 1; every other rank that ends must blame that place.
fn check_every_operation(schedule: Schedule, fault: Fault, timeout: Duration, limit: Duration, every: usize) {
    let plan = plan(schedule, &small(), 4, &options(Pass::Forward));
    for op in (0..plan.programs[1].ops.len() as u32).step_by(every) {
        let start = Instant::now();
        let (root, others) = fails(&plan, &RunOptions { timeout, fault: Some((1, op, fault)) });
        assert!(start.elapsed() < limit, "{schedule}, operation {op}: {:?}", start.elapsed());
        for failure in [&root].into_iter().chain(&others) {
            let culprit = failure.culprit();
            assert_eq!((culprit.rank, culprit.op), (1, op), "{schedule}, {fault:?}: {failure}");
        }
        let text = RunError::Ranks { root: root.clone(), others }.to_string();
        let step = plan.programs[1].ops[op as usize].step;
        assert!(text.contains(&format!("rank 1 at step {step}, operation {op}")), "{text}");
    }
}

#[test]
fn a_rank_that_panics() {
    for schedule in [Schedule::Ring, Schedule::DistFlash] {
        check_every_operation(schedule, Fault::Panic, Duration::from_secs(60), SLACK, 1);
    }
}

#[test]
fn a_rank_that_exits() {
    for schedule in [Schedule::Zigzag, Schedule::DistFlash] {
        check_every_operation(schedule, Fault::Exit, Duration::from_secs(60), SLACK, 1);
    }
}

#[test]
fn a_rank_that_never_arrives_or_stops_on_the_way() {
    let timeout = Duration::from_millis(500);
    for schedule in [Schedule::Ring, Schedule::DistFlash] {
        check_every_operation(schedule, Fault::Stall, timeout, 2 * timeout + SLACK, 7);
    }
}

#[test]
fn the_last_rank_alone_cannot_hang_either() {
    let plan = plan(Schedule::Ring, &small(), 1, &options(Pass::Forward));
    let timeout = Duration::from_millis(50);
    let (root, others) = fails(&plan, &RunOptions { timeout, fault: Some((0, 0, Fault::Stall)) });
    assert_eq!((root.cause, others.len()), (Cause::Stalled, 0));
}

#[test]
fn a_send_that_the_plan_lacks() {
    let mut plan = plan(Schedule::Ring, &small(), 4, &options(Pass::Forward));
    plan.programs[2].ops.retain(|op| !matches!(op.kind, OpKind::Send { .. }));
    let start = Instant::now();
    let (root, _) = fails(&plan, &RunOptions::default());
    assert!(matches!(root.cause, Cause::NeverSent { sender, .. } if sender.rank == 2), "{root}");
    assert_eq!(root.place.rank, 3, "the receiver reports it");
    assert!(start.elapsed() < SLACK, "long before the time-out");
}

#[test]
fn ranks_that_wait_for_each_other() {
    let mut plan = plan(Schedule::Ring, &small(), 2, &options(Pass::Forward));
    for program in &mut plan.programs {
        program.ops.sort_by_key(|op| !matches!(op.kind, OpKind::Recv { .. }));
    }
    let timeout = Duration::from_millis(100);
    let (root, others) = fails(&plan, &RunOptions { timeout, fault: None });
    assert!(matches!(root.cause, Cause::TimedOut { after, .. } if after == timeout), "{root}");
    assert_eq!(others.len(), 1);
}

#[test]
fn keys_that_never_came_cannot_be_read() {
    let mut plan = plan(Schedule::Ring, &small(), 4, &options(Pass::Forward));
    let first_recv =
        plan.programs[3].ops.iter().position(|op| matches!(op.kind, OpKind::Recv { .. })).unwrap();
    plan.programs[3].ops.remove(first_recv);
    let (root, _) = fails(&plan, &RunOptions::default());
    assert!(matches!(root.cause, Cause::NotHeld { .. }) && root.place.rank == 3, "{root}");
}

#[test]
fn a_result_that_nobody_writes() {
    let mut plan = plan(Schedule::Ring, &small(), 2, &options(Pass::Forward));
    plan.programs[1].ops.retain(|op| !matches!(op.kind, OpKind::Finish { .. }));
    let inputs = Inputs::random(1, &small()).unwrap();
    let error = run(&plan, &inputs, &RunOptions::default()).unwrap_err();
    assert!(matches!(error, RunError::Unwritten { rank: 1, .. }), "{error}");
}

#[test]
fn inputs_that_do_not_fit_are_refused_before_anything_runs() {
    let refused = |pass, inputs: &Inputs| {
        let plan = plan(Schedule::Ring, &small(), 2, &options(pass));
        match run(&plan, inputs, &RunOptions::default()) {
            Err(RunError::Inputs(error)) => error,
            other => panic!("expected refused inputs, not {other:?}"),
        }
    };
    let good = Inputs::random(1, &small()).unwrap();
    assert_eq!(refused(Pass::Backward, &good), InputError::NoForward);
    let short = Inputs { k: good.k[1..].to_vec(), ..good.clone() };
    assert_eq!(refused(Pass::Forward, &short), InputError::Length { name: "k", expected: 128, actual: 127 });
    let longer = Inputs::random(1, &problem(small().shape, Pattern::Causal, &[33])).unwrap();
    let error = refused(Pass::Forward, &longer).to_string();
    assert!(
        error.contains("the plan is for 32 tokens") && error.contains("the inputs are 33 tokens"),
        "{error}"
    );
}

#[test]
fn more_ranks_than_threads_serve_are_refused() {
    let problem = problem(shape(1, 1, 4, 1), Pattern::Causal, &[513]);
    let plan = plan(Schedule::Ring, &problem, 513, &options(Pass::Forward));
    let inputs = Inputs::random(1, &problem).unwrap();
    let refused = run(&plan, &inputs, &RunOptions::default()).unwrap_err();
    assert_eq!(refused, RunError::TooManyRanks { ranks: 513 });
    assert!(refused.to_string().contains("at most 512"), "{refused}");
    assert_eq!(check_ranks(512), Ok(()));
}
