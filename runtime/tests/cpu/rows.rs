//! Sampled rows give the errors of whole results.

use ringlab_runtime::outcome::Results;
use ringlab_runtime::verify::{Sample, verify, verify_rows};
use ringlab_sim::mask::Pattern;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::Schedule;

use crate::support::{Case, TOLERANCE, forward, options, outcome, plan, problem, shape};

#[test]
fn of_a_right_result_are_right_and_of_a_wrong_one_wrong() {
    let case = Case::new(problem(shape(4, 2, 8, 2), Pattern::Causal, &[40, 24]), 3);
    let sample = Sample { rows: 200, seed: 1 };
    let mut inputs = case.inputs.clone();
    for pass in [Pass::Forward, Pass::Backward] {
        let options = ringlab_sim::schedule::Options { pass, ..options(pass) };
        let mut outcome = outcome(&plan(Schedule::Zigzag, &case.problem, 2, &options), &inputs);
        let errors = verify_rows(&case.problem, &inputs, &outcome, &sample).unwrap();
        assert!(errors.worst() <= TOLERANCE, "{errors:?}");
        let whole = verify(&outcome, &case.exact).unwrap();
        assert_eq!(errors.o_max_rel_error.is_some(), whole.o_max_rel_error.is_some());
        assert_eq!(errors.dk_max_rel_error.is_some(), whole.dk_max_rel_error.is_some());
        inputs.forward = outcome.results.forward().cloned().or(inputs.forward.take());
        match &mut outcome.results {
            Results::Forward(result) => result.o[..8].fill(1.0),
            Results::Backward(result) => result.dk[..8].iter_mut().for_each(|x| *x *= 1.1),
        }
        let errors = verify_rows(&case.problem, &inputs, &outcome, &sample).unwrap();
        assert!(errors.worst() > 0.01, "the first row of a tensor is always looked at: {errors:?}");
    }
}

#[test]
fn a_nan_anywhere_is_found() {
    let case = Case::new(problem(shape(2, 2, 8, 1), Pattern::Full, &[64]), 4);
    let plan = plan(Schedule::Ring, &case.problem, 2, &options(Pass::Forward));
    let mut outcome = outcome(&plan, &case.inputs);
    if let Results::Forward(result) = &mut outcome.results {
        result.o[777] = f32::NAN;
    }
    let errors = verify_rows(&case.problem, &case.inputs, &outcome, &Sample { rows: 2, seed: 1 }).unwrap();
    assert_eq!(errors.worst(), f64::INFINITY);
}

#[test]
fn a_wrong_lse_of_the_forward_shows() {
    let case = Case::new(problem(shape(2, 1, 8, 1), Pattern::Causal, &[32]), 5);
    let mut result = forward(Schedule::Ring, &case.problem, 2, &options(Pass::Forward), &case.inputs);
    result.lse.iter_mut().for_each(|x| *x += 0.5);
    let inputs = case.inputs.clone().with_forward(result);
    let outcome = outcome(&plan(Schedule::Ring, &case.problem, 2, &options(Pass::Backward)), &inputs);
    let errors = verify_rows(&case.problem, &inputs, &outcome, &Sample { rows: 16, seed: 2 }).unwrap();
    assert!(errors.dq_max_rel_error.unwrap() > 0.1, "dq is computed without that lse: {errors:?}");
}
