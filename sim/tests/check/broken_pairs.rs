//! Plans whose calls do not add up, refused with a pair that is wrong indeed, as the naive execution counts.

use ringlab_sim::check::{Fault, Violation, prove};
use ringlab_sim::mask::{Documents, Mask, Pattern};
use ringlab_sim::plan::{LANES, MaskId, NO_OP, Op, OpKind, Plan, Role, Tensor};
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{Options, Route, Schedule};
use ringlab_sim::timeline::SpanKind;

use crate::common::{backward, causal, coverage, find, forward, list, place, refused};
use crate::mutations::{double, remove};

#[test]
fn an_attend_that_is_dropped() {
    for schedule in [Schedule::Ring, Schedule::Zigzag, Schedule::Striped { block: 1 }, Schedule::DistFlash] {
        let mut plan = causal(schedule, 4, &forward());
        let op = find(&plan, 3, 1, SpanKind::Attend);
        remove(&mut plan, 3, op);
        let violations = refused(&plan);
        let (result, pair, fault) = coverage(&violations)[0];
        assert_eq!((result, fault), (Tensor::Output, Fault::Missing));
        assert_eq!((pair.query_at.0, pair.key_at.0), (3, 2), "{schedule}");
        assert!(violations[0].to_string().ends_with("query head 0, is never computed"), "{}", violations[0]);
    }
}

#[test]
fn a_state_that_is_started_again() {
    let mut plan = causal(Schedule::Ring, 4, &forward());
    let op = find(&plan, 2, 1, SpanKind::Attend);
    let OpKind::Attend { init, .. } = &mut plan.programs[2].ops[op].kind else { panic!("as found") };
    *init = true;
    let (_, pair, fault) = coverage(&refused(&plan))[0];
    assert_eq!((pair.query_at.0, pair.key_at.0, fault), (2, 2, Fault::Missing), "step 0 is lost");
}

#[test]
fn an_attend_that_is_done_twice() {
    let mut plan = causal(Schedule::Zigzag, 4, &forward());
    let op = find(&plan, 1, 2, SpanKind::Attend);
    double(&mut plan, 1, op);
    let (_, pair, fault) = coverage(&refused(&plan))[0];
    let Fault::Doubled { first, second } = fault else { panic!("{fault}") };
    assert_eq!((place(first), place(second), second.op), ((1, 2), (1, 2), first.op + 1));
    assert_eq!((pair.query_at.0, pair.key_at.0), (1, 3));
}

#[test]
fn a_gradient_that_is_added_twice() {
    let mut plan = causal(Schedule::DistFlash, 4, &backward());
    let op = find(&plan, 3, 2, SpanKind::Accumulate);
    double(&mut plan, 3, op);
    let violations = refused(&plan);
    let (result, pair, fault) = coverage(&violations)[0];
    let Fault::Doubled { first, second } = fault else { panic!("{fault}") };
    assert_eq!((result, first, pair.query_at.0), (Tensor::QueryGrad, second, 3));
    assert!(violations[0].to_string().contains("is added twice"), "{}", violations[0]);
}

/// Sums that feed each other: 2^60 ways from the result to the call, and a proof that must not walk them all.
#[test]
fn gradients_that_grow_without_bound() {
    let mut plan = causal(Schedule::DistFlash, 4, &backward());
    let op = find(&plan, 3, 2, SpanKind::Accumulate);
    let OpKind::Accumulate { from, into } = plan.programs[3].ops[op].kind else { panic!("as found") };
    for _ in 0..60 {
        for (from, into) in [(into, from), (from, into)] {
            let sum = Op {
                kind: OpKind::Accumulate { from, into },
                waits: [NO_OP; LANES],
                ..plan.programs[3].ops[op]
            };
            plan.programs[3].ops.push(sum);
        }
    }
    let violations = prove(&plan).unwrap_err();
    assert!(matches!(violations[0], Violation::Coverage { fault: Fault::Doubled { .. }, .. }));
}

#[test]
fn a_claim_that_nothing_is_masked() {
    let mut plan = causal(Schedule::Ring, 4, &forward());
    let op = find(&plan, 1, 0, SpanKind::Attend);
    let OpKind::Attend { mask, .. } = &mut plan.programs[1].ops[op].kind else { panic!("as found") };
    *mask = MaskId::NONE;
    let (_, pair, fault) = coverage(&refused(&plan))[0];
    assert!(matches!(fault, Fault::Masked { at } if place(at) == (1, 0)));
    assert_eq!((pair.query, pair.key), (6, 7));
}

#[test]
fn every_owners_share_of_the_gradients_counts() {
    let options = [
        (Schedule::Ring, Options { route: Route::Direct, ..backward() }),
        (Schedule::Zigzag, backward()),
        (Schedule::Striped { block: 1 }, Options { needed_only: true, ..backward() }),
        (Schedule::DistFlash, backward()),
    ];
    for (schedule, options) in options {
        let plan = causal(schedule, 4, &options);
        for rank in 0..4 {
            let sums = (0..plan.programs[rank].ops.len())
                .filter(|&i| SpanKind::of(&plan.programs[rank].ops[i].kind) == SpanKind::Accumulate);
            for op in sums {
                let mut broken = plan.clone();
                remove(&mut broken, rank, op);
                let violations = refused(&broken);
                assert!(
                    coverage(&violations).iter().all(|(_, _, fault)| *fault == Fault::Missing),
                    "{schedule}: {}",
                    list(&violations)
                );
            }
        }
    }
}

#[test]
fn tokens_without_an_output() {
    let mut plan = causal(Schedule::Ring, 4, &forward());
    let output = plan.programs[2].buffers.iter_mut().find(|b| matches!(b.role, Role::Output(_))).unwrap();
    output.role = Role::Scratch;
    let violations = refused(&plan);
    assert!(violations.iter().any(|v| matches!(
        v,
        Violation::Outputs { tensor: Tensor::Output, rank: 2, slots: (0, 6), heads: (0, 4), count: 0 }
    )));
}

/// Gives the attend of rank 2 at `step` the causal mask with its diagonal moved.
fn with_diagonal(options: &Options, step: u32, diagonal: i64) -> Plan {
    let mut plan = causal(Schedule::Striped { block: 1 }, 4, options);
    plan.masks.push(Mask::shifted(Pattern::Causal, &Documents::single(24), diagonal));
    let kind = if plan.pass == Pass::Forward { SpanKind::Attend } else { SpanKind::AttendBackward };
    let op = find(&plan, 2, step, kind);
    let (OpKind::Attend { mask, .. } | OpKind::AttendBackward { mask, .. }) =
        &mut plan.programs[2].ops[op].kind
    else {
        panic!("an attention call")
    };
    *mask = MaskId(2);
    plan
}

#[test]
fn a_mask_that_is_off_by_one() {
    for options in [forward(), backward()] {
        let (_, pair, fault) = coverage(&refused(&with_diagonal(&options, 0, -1)))[0];
        assert_eq!((pair.query, pair.key, fault), (2, 2, Fault::Missing), "the first pair on the diagonal");
        // At step 3 rank 2 holds the keys of rank 3, each one behind a query.
        let (_, pair, fault) = coverage(&refused(&with_diagonal(&options, 3, 1)))[0];
        assert!(matches!(fault, Fault::Masked { at } if place(at) == (2, 3)));
        assert_eq!((pair.query, pair.key), (2, 3), "the first pair beyond the diagonal");
        // At step 0 every fourth token meets every fourth: there is no pair one beyond the diagonal.
        assert!(prove(&with_diagonal(&options, 0, 1)).is_ok());
    }
}
