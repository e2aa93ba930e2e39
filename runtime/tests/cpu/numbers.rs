//! Rounding: no growth with the number of ranks, no overflow, the same bits every time.

use ringlab_runtime::inputs::Inputs;
use ringlab_runtime::outcome::Results;
use ringlab_runtime::verify::{Reference, verify};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Partials;
use ringlab_sim::problem::{Dtype, Pass, Shape};
use ringlab_sim::schedule::{Options, Schedule};

use crate::support::{Case, SCHEDULES, TOLERANCE, backward, forward, options, outcome, plan, problem, shape};

#[test]
fn the_gradient_error_does_not_grow_with_the_number_of_ranks() {
    let case = Case::new(problem(shape(2, 1, 32, 1), Pattern::Causal, &[512]), 11);
    let worst = |schedule, ranks| {
        let [_, backward] = case.check(schedule, ranks, &options(Pass::Forward));
        backward.worst()
    };
    let one_kernel = worst(Schedule::Ring, 1);
    for schedule in [Schedule::Ring, Schedule::Zigzag, Schedule::Striped { block: 1 }, Schedule::DistFlash] {
        for ranks in [2, 4, 8, 16] {
            let error = worst(schedule, ranks);
            assert!(
                error <= 2.0 * one_kernel,
                "{schedule} on {ranks} ranks: {error:e}, one kernel {one_kernel:e}"
            );
        }
    }
}

#[test]
fn flat_attention_is_exact() {
    let n = 1024u16;
    let problem = problem(shape(1, 1, 8, 1), Pattern::Causal, &[u64::from(n)]);
    let mut inputs = Inputs::random(1, &problem).unwrap();
    inputs.q.fill(0.0);
    inputs.v.fill(2.0);
    for schedule in SCHEDULES {
        for ranks in [1, 8] {
            let result = forward(schedule, &problem, ranks, &options(Pass::Forward), &inputs);
            // Weights that are normalised before they weigh are rounded.
            let slack = if schedule == Schedule::RingSelfAttention { TOLERANCE } else { 0.0 };
            assert!(result.o.iter().all(|&o| (f64::from(o) - 2.0).abs() <= slack), "{schedule} on {ranks}");
            for (lse, keys) in result.lse.iter().zip(1..=n) {
                assert!(
                    (f64::from(*lse) - f64::from(keys).ln()).abs() < 1e-6,
                    "{schedule}: {lse} for {keys} keys"
                );
            }
        }
    }
}

#[test]
fn scores_that_differ_by_hundreds() {
    let problem = problem(shape(2, 2, 16, 1), Pattern::Causal, &[96]);
    let mut inputs = Inputs::random(5, &problem).unwrap();
    inputs.q.iter_mut().for_each(|x| *x *= 100.0);
    let exact = Reference::forward(&problem, &inputs).unwrap();
    for schedule in SCHEDULES {
        for ranks in [1, 4, 7] {
            let outcome = outcome(&plan(schedule, &problem, ranks, &options(Pass::Forward)), &inputs);
            let error = verify(&outcome, &exact).unwrap().worst();
            // Scores of a few hundred carry an f32 rounding error of about 1e-5, which is a relative one of p.
            assert!(error <= 1e-4, "{schedule} on {ranks}: {error:e}");
        }
    }
}

#[test]
fn the_same_inputs_give_the_same_bits() {
    let problem = problem(shape(4, 2, 16, 1), Pattern::Causal, &[96]);
    let inputs = Inputs::random(5, &problem).unwrap();
    assert_eq!(inputs, Inputs::random(5, &problem).unwrap());
    assert_ne!(inputs.q, Inputs::random(6, &problem).unwrap().q);
    for schedule in SCHEDULES {
        let run = || {
            let result = forward(schedule, &problem, 8, &options(Pass::Forward), &inputs);
            let inputs = inputs.clone().with_forward(result.clone());
            (result, backward(schedule, &problem, 8, &options(Pass::Forward), &inputs))
        };
        let first = run();
        (0..5).for_each(|_| assert_eq!(run(), first, "{schedule}"));
    }
}

/// Gradients that are rounded at every hop lose what bf16 cannot hold, the more the more hops; fp32 loses nothing.
#[test]
fn partial_results_in_the_element_type_are_rounded_at_every_hop() {
    let bf16 = Shape { dtype: Dtype::Bf16, ..shape(2, 1, 16, 1) };
    let case = Case::new(problem(bf16, Pattern::Causal, &[96]), 11);
    let error = |partials, ranks| {
        let result = forward(Schedule::Ring, &case.problem, ranks, &options(Pass::Forward), &case.inputs);
        let inputs = case.inputs.clone().with_forward(result);
        let options = Options { partials, ..options(Pass::Backward) };
        let plan = plan(Schedule::Ring, &case.problem, ranks, &options);
        let outcome = outcome(&plan, &inputs);
        assert_eq!(outcome.bytes_moved, plan.bytes_moved());
        verify(&outcome, &case.exact).unwrap().dk_max_rel_error.unwrap()
    };
    let unit = 1.0 / 256.0;
    for ranks in [2, 8] {
        assert!(error(Partials::Fp32, ranks) < TOLERANCE);
        let rounded = error(Partials::Element, ranks);
        assert!(rounded > unit / 8.0 && rounded < unit * f64::from(ranks), "{ranks} ranks: {rounded:e}");
    }
    assert!(error(Partials::Element, 8) > error(Partials::Element, 2));
}

/// dq and dk are differences of keys and queries that are nearly equal: an f32 sum of such terms cannot be better than
/// 6e-8 of the terms, which is far from 1e-5 of the result.
#[test]
fn what_cancels_is_held_against_its_terms() {
    let problem = problem(shape(1, 1, 1, 1), Pattern::Causal, &[2]);
    let mut inputs = Inputs::random(1, &problem).unwrap();
    (inputs.q, inputs.k) = (vec![1.0, 0.3], vec![1.7, 1.700_1]);
    (inputs.v, inputs.d_o) = (vec![0.9, -1.1], vec![0.7, 1.3]);
    let exact = Reference::with_gradients(&problem, &inputs).unwrap();
    let result = forward(Schedule::Ring, &problem, 1, &options(Pass::Forward), &inputs);
    let inputs = inputs.with_forward(result);
    let plan = plan(Schedule::Ring, &problem, 1, &options(Pass::Backward));
    let mut result = outcome(&plan, &inputs);
    let errors = verify(&result, &exact).unwrap();
    assert!(errors.dq_l2_error.unwrap() > TOLERANCE, "nothing cancels: {errors:?}");
    assert!(errors.worst() <= TOLERANCE, "{errors:?}");
    let Results::Backward(gradients) = &mut result.results else { panic!("a backward") };
    gradients.dq.iter_mut().for_each(|x| *x *= 1.1);
    let wrong = verify(&result, &exact).unwrap();
    assert!(wrong.dq_max_rel_error.unwrap() > TOLERANCE, "a tenth more is not rounding: {wrong:?}");
}
