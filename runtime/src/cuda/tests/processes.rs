//! Ranks in several processes, which share nothing but NCCL: sessions of some ranks each, on one made-up machine.

use std::sync::Arc;
use std::thread;

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{self, Schedule};

use super::support::{Case, TOLERANCE, members, plan_of, problem, quick, shape};
use super::world::Trouble;
use crate::cuda::prepare::{Members, Session};
use crate::cuda::{CudaError, Options, Run};
use crate::inputs::Inputs;
use crate::outcome::{Outcome, Results};
use crate::verify::verify;

/// Runs ranks 0 and 1 in one process and the others in another.
fn run(plan: &Plan, inputs: &Inputs) -> Vec<Result<Run, CudaError>> {
    let all = members(plan.ranks(), 7, Trouble::default());
    let how = Options { timeout: std::time::Duration::from_secs(10), ..quick() };
    let parts = [0..2, 2..plan.ranks() as usize];
    thread::scope(|scope| {
        let processes = parts.map(|part| {
            let members = all.all[part]
                .iter()
                .map(|m| crate::cuda::prepare::Member { rank: m.rank, gpu: Arc::clone(&m.gpu) });
            let members = Members { all: members.collect(), are_virtual: false, by_barrier: true };
            let how = &how;
            scope.spawn(move || Session::new(plan, inputs, how, members)?.run())
        });
        processes.into_iter().map(|p| p.join().unwrap()).collect()
    })
}

/// Takes each number from the process that has it.
fn join(a: &mut [f32], b: &[f32]) {
    for (a, &b) in a.iter_mut().zip(b) {
        assert!(a.is_nan() || b.is_nan(), "a row of two processes");
        if a.is_nan() {
            *a = b;
        }
    }
}

fn together(mut runs: Vec<Run>) -> Outcome {
    let second = runs.pop().unwrap().outcome;
    let mut first = runs.pop().unwrap().outcome;
    match (&mut first.results, &second.results) {
        (Results::Forward(a), Results::Forward(b)) => {
            join(&mut a.o, &b.o);
            join(&mut a.lse, &b.lse);
        }
        (Results::Backward(a), Results::Backward(b)) => {
            join(&mut a.dq, &b.dq);
            join(&mut a.dk, &b.dk);
            join(&mut a.dv, &b.dv);
        }
        _ => panic!("different passes"),
    }
    first
}

#[test]
fn give_each_their_rows() {
    let case = Case::new(problem(shape(4, 4, 1), Pattern::Causal, &[32]), 13);
    for schedule in [Schedule::Zigzag, Schedule::Ulysses, Schedule::MegatronSp] {
        let mut inputs = case.inputs.clone();
        for pass in [Pass::Forward, Pass::Backward] {
            let options = schedule::Options { transport: Transport::Nccl, ..schedule::Options::new(pass) };
            let plan = plan_of(schedule, &case.problem, 4, &options);
            let runs: Result<Vec<Run>, CudaError> = run(&plan, &inputs).into_iter().collect();
            let runs = runs.unwrap();
            assert_eq!(runs[1].measured.ranks, [2, 3]);
            assert!(runs[1].outcome.timeline.spans.iter().all(|s| s.rank >= 2));
            let outcome = together(runs);
            let errors = verify(&outcome, &case.exact).unwrap();
            assert!(errors.worst() <= TOLERANCE, "{schedule} {pass}: {errors:?}");
            inputs.forward = outcome.results.forward().cloned().or(inputs.forward.take());
        }
    }
}
