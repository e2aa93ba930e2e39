//! Plans whose buffers do not hold what is needed when it is needed, refused with buffer, operations, rank and step.

use ringlab_sim::check::{At, Conflict, Violation, prove};
use ringlab_sim::plan::{Heads, LANES, NO_OP, OpKind, Plan, Tensor};
use ringlab_sim::schedule::{Options, Schedule};
use ringlab_sim::timeline::SpanKind;

use crate::common::{backward, causal, find, forward, list, place, refused};
use crate::mutations::remove;

#[test]
fn a_state_that_is_never_started() {
    let mut plan = causal(Schedule::Ring, 4, &forward());
    let op = find(&plan, 2, 0, SpanKind::Attend);
    let OpKind::Attend { init, .. } = &mut plan.programs[2].ops[op].kind else { panic!("as found") };
    *init = false;
    let violations = refused(&plan);
    assert!(matches!(&violations[0], Violation::Uninitialised { at, .. } if place(*at) == (2, 0)));
}

/// Drops the wait of the first operation of `rank` at `step` of this kind on the compute lane or, for a kernel, on all.
fn without_wait(plan: &mut Plan, rank: usize, step: u32, kind: SpanKind) -> usize {
    let op = find(plan, rank, step, kind);
    assert!(plan.programs[rank].ops[op].waits.iter().any(|&w| w != NO_OP), "it waits for something");
    plan.programs[rank].ops[op].waits = [NO_OP; LANES];
    op
}

fn race(violations: &[Violation]) -> (Conflict, At, At) {
    match violations[0] {
        Violation::Race { conflict, first, second, .. } => (conflict, first, second),
        ref other => panic!("no race: {other}"),
    }
}

#[test]
fn a_buffer_that_is_reused_too_early() {
    let mut plan = causal(Schedule::Ring, 6, &forward());
    let op = without_wait(&mut plan, 5, 3, SpanKind::Recv);
    let violations = refused(&plan);
    let races: Vec<Conflict> = violations.iter().map(|v| race(std::slice::from_ref(v)).0).collect();
    assert!(races.contains(&Conflict::OverwrittenWhileRead), "{}", list(&violations));
    assert!(races.contains(&Conflict::OverwrittenInFlight), "{}", list(&violations));
    assert!(violations.iter().all(|v| race(std::slice::from_ref(v)).2.op as usize == op));
    assert_eq!(place(race(&violations).2), (5, 3));
}

#[test]
fn a_buffer_that_is_read_before_it_arrives() {
    let mut plan = causal(Schedule::Ring, 4, &forward());
    without_wait(&mut plan, 3, 2, SpanKind::Attend);
    let (conflict, first, second) = race(&refused(&plan));
    assert_eq!(
        (conflict, place(first), place(second)),
        (Conflict::ReadBeforeArrival, (3, 2), (3, 2)),
        "the receive of step 2 and the attend of step 2"
    );
}

#[test]
fn a_wait_that_others_imply_is_not_needed() {
    let mut plan = causal(Schedule::Ring, 4, &forward());
    // The finish waits for nothing but its own lane; a second wait for an operation behind another wait adds nothing.
    let attend = find(&plan, 3, 3, SpanKind::Attend);
    let recv = plan.programs[3].ops[attend].waits.iter().copied().find(|&w| w != NO_OP).unwrap();
    let lane = usize::from(plan.programs[3].ops[recv as usize].lane.0);
    let finish = find(&plan, 3, 3, SpanKind::Finish);
    plan.programs[3].ops[finish].waits[lane] = recv;
    assert!(prove(&plan).is_ok());
    plan.programs[3].ops[finish].waits[lane] = NO_OP;
    assert!(prove(&plan).is_ok(), "the attend before it on the lane waits for the same");
}

#[test]
fn a_wrong_block_on_its_way() {
    let mut plan = causal(Schedule::Ring, 4, &forward());
    let send = find(&plan, 1, 1, SpanKind::Send);
    let message = plan.programs[1].ops[send].kind.message().unwrap();
    let other = plan.messages.iter().find(|m| m.from == 2).unwrap().block;
    plan.messages[message as usize].block = other;
    let violations = refused(&plan);
    let Violation::WrongContent { at, needed, held, .. } = &violations[0] else {
        panic!("{}", list(&violations))
    };
    assert_eq!((place(*at), at.kind), ((1, 1), SpanKind::Send));
    assert!(needed.contains("rank 2 slots 0..6") && held.contains("rank 1 slots 0..6"), "{}", violations[0]);
}

#[test]
fn a_block_that_was_there_a_step_ago() {
    let mut plan = causal(Schedule::Ring, 4, &forward());
    let (second, third) = (find(&plan, 3, 2, SpanKind::Attend), find(&plan, 3, 3, SpanKind::Attend));
    let OpKind::Attend { kv: stale, .. } = plan.programs[3].ops[second].kind else { panic!("as found") };
    let OpKind::Attend { kv, .. } = &mut plan.programs[3].ops[third].kind else { panic!("as found") };
    *kv = stale;
    let violations = refused(&plan);
    let Violation::WrongContent { at, held, .. } = &violations[0] else { panic!("{}", list(&violations)) };
    assert_eq!(place(*at), (3, 3));
    assert!(held.contains("rank 1 slots"), "{held}");
}

#[test]
fn delta_of_other_queries() {
    let mut plan = causal(Schedule::DistFlash, 4, &backward());
    let helper = find(&plan, 0, 1, SpanKind::AttendBackward);
    let own = find(&plan, 0, 0, SpanKind::AttendBackward);
    let OpKind::AttendBackward { delta: wrong, .. } = plan.programs[0].ops[own].kind else {
        panic!("as found")
    };
    let OpKind::AttendBackward { delta, .. } = &mut plan.programs[0].ops[helper].kind else {
        panic!("as found")
    };
    *delta = wrong;
    let violations = refused(&plan);
    assert!(matches!(&violations[0], Violation::WrongContent { at, place: p, .. }
        if place(*at) == (0, 1) && p.tensor == Tensor::Delta));
}

#[test]
fn heads_of_another_group() {
    let mut plan = causal(Schedule::Ring, 2, &forward());
    let op = find(&plan, 1, 0, SpanKind::Attend);
    let OpKind::Attend { kv_block, .. } = plan.programs[1].ops[op].kind else { panic!("as found") };
    let mut half = plan.block(kv_block).clone();
    half.heads = Heads { first: 1, count: 1 };
    plan.blocks.push(half);
    let id = plan.blocks.len() as u32 - 1;
    let OpKind::Attend { kv_block, .. } = &mut plan.programs[1].ops[op].kind else { panic!("as found") };
    *kv_block = id;
    let violations = refused(&plan);
    let Violation::Heads { at, keys, needed, group: 2, .. } = &violations[0] else {
        panic!("{}", list(&violations))
    };
    assert_eq!((place(*at), keys.as_str(), needed.as_str()), ((1, 0), "1..2", "0..2"));
}

#[test]
fn an_input_that_is_overwritten() {
    let mut plan = causal(Schedule::Ring, 2, &Options { prefetch: 0, ..forward() });
    let (send, recv) = (find(&plan, 1, 1, SpanKind::Send), find(&plan, 1, 1, SpanKind::Recv));
    let OpKind::Send { buffer: input, .. } = plan.programs[1].ops[send].kind else { panic!("a send") };
    let recv = &mut plan.programs[1].ops[recv];
    recv.waits[1] = send as u32;
    let OpKind::Recv { buffer, .. } = &mut recv.kind else { panic!("a receive") };
    *buffer = input.first;
    let violations = refused(&plan);
    let is_it = |v: &Violation| matches!(v, Violation::InputOverwritten { at, .. } if place(*at) == (1, 1));
    assert!(violations.iter().any(is_it), "{}", list(&violations));
}

#[test]
fn an_output_that_is_not_written() {
    let mut plan = causal(Schedule::Ring, 2, &forward());
    let finish = find(&plan, 1, 1, SpanKind::Finish);
    remove(&mut plan, 1, finish);
    let violations = refused(&plan);
    assert!(matches!(&violations[0], Violation::NoResult { place, .. } if place.rank == 1));
}

/// The block of the first half of another block's tokens.
fn first_half(plan: &mut Plan, block: u32) -> u32 {
    let mut half = plan.block(block).clone();
    let count = half.tokens.len() / 2;
    half.slots[0].to = half.slots[0].from + count;
    half.tokens = half.tokens.slice(0, count);
    plan.blocks.push(half);
    plan.blocks.len() as u32 - 1
}

#[test]
fn an_output_that_is_half_written() {
    let mut plan = causal(Schedule::Ring, 1, &forward());
    let half = first_half(&mut plan, 0);
    let op = find(&plan, 0, 0, SpanKind::Attend);
    let OpKind::Attend { q_block, .. } = &mut plan.programs[0].ops[op].kind else { panic!("an attend") };
    *q_block = half;
    let violations = refused(&plan);
    let [Violation::NoResult { needed, held, .. }] = violations.as_slice() else {
        panic!("{}", list(&violations))
    };
    assert!(needed.contains("slots 0..24") && held.contains("slots 0..12"), "{}", violations[0]);
}

#[test]
fn gradients_of_fewer_keys_than_are_attended() {
    let mut plan = causal(Schedule::Ring, 1, &backward());
    let op = find(&plan, 0, 0, SpanKind::AttendBackward);
    let OpKind::AttendBackward { dkv_block: old, .. } = plan.programs[0].ops[op].kind else {
        panic!("an attend")
    };
    let half = first_half(&mut plan, old);
    let OpKind::AttendBackward { dkv_block, .. } = &mut plan.programs[0].ops[op].kind else {
        panic!("an attend")
    };
    *dkv_block = half;
    let violations = refused(&plan);
    assert!(matches!(&violations[0], Violation::WrongContent { at, place: p, .. }
        if place(*at) == (0, 0) && p.tensor == Tensor::KeyValueGrad));
}

#[test]
fn a_merge_of_other_queries() {
    let mut plan = causal(Schedule::DistFlash, 4, &forward());
    let state = plan.messages.iter().position(|m| m.tensor == Tensor::State).unwrap();
    let half = plan.messages[state].block;
    let half = first_half(&mut plan, half);
    plan.messages[state].block = half;
    plan.messages[state].bytes.0 /= 2;
    let violations = refused(&plan);
    assert!(matches!(&violations[0], Violation::WrongContent { at, .. }
        if at.kind == SpanKind::Merge && at.rank == plan.messages[state].to));
}
