//! Plans whose parts do not fit each other: refused, never a panic.

use ringlab_sim::check::{Violation, prove};
use ringlab_sim::plan::{Buf, Buffer, Bufs, Lane, MaskId, Op, OpKind, Plan, Role, Tensor, Transport};
use ringlab_sim::schedule::{Options, Schedule};
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::units::Bytes;

use crate::common::{backward, causal, find, forward, list, refused};

#[test]
fn buffers_that_promise_too_much() {
    let valid = causal(Schedule::Ring, 4, &forward());
    let input = |p: &mut Plan, change: fn(&mut Buffer, u32)| {
        let block = p.blocks.iter().position(|b| b.slots[0].rank == 3 && b.heads.count == 2).unwrap() as u32;
        let scratch = p.programs[1]
            .buffers
            .iter_mut()
            .find(|b| b.role == Role::Scratch && b.tensor == Tensor::KeyValue)
            .unwrap();
        change(scratch, block);
        refused(p)
    };
    let violations = input(&mut valid.clone(), |buffer, block| buffer.role = Role::Input(block));
    assert!(
        matches!(&violations[0], Violation::Buffer { place, what } if place.rank == 1 && what.contains("rank 3")),
        "{}",
        list(&violations)
    );
    let violations = input(&mut valid.clone(), |buffer, _| buffer.bytes = Bytes(8));
    assert!(
        violations
            .iter()
            .any(|v| matches!(v, Violation::TooLarge { at, room: Bytes(8), .. } if at.rank == 1)),
        "{}",
        list(&violations)
    );
}

/// Breaks one thing about an operation.
type Break = fn(&mut Op);

#[test]
fn indices_that_point_nowhere() {
    let valid = causal(Schedule::Ring, 3, &backward());
    let attend = find(&valid, 1, 0, SpanKind::AttendBackward);
    let send = find(&valid, 1, 1, SpanKind::Send);
    let breaks: [(usize, Break); 12] = [
        (attend, |op| op.lane = Lane(17)),
        (attend, |op| op.lane = Lane(2)),
        (send, |op| op.lane = Lane::COMPUTE),
        (attend, |op| op.waits[1] = 60_000),
        (attend, |op| op.waits[0] = 12),
        (attend, |op| set(op, |q_block, _, _, _| *q_block = 99)),
        (attend, |op| set(op, |_, mask, _, _| *mask = MaskId(9))),
        (attend, |op| set(op, |_, _, kv, _| kv.first.0 = u16::MAX)),
        (attend, |op| set(op, |_, _, kv, _| kv.count = 0)),
        (attend, |op| set(op, |_, _, _, dkv| dkv.count = u16::MAX)),
        (attend, |op| set(op, |_, _, kv, _| kv.first.0 = 0)),
        (send, |op| op.kind = OpKind::Send { message: 10_000, buffer: Buf(0).into() }),
    ];
    for (i, (op, change)) in breaks.into_iter().enumerate() {
        let mut plan = valid.clone();
        change(&mut plan.programs[1].ops[op]);
        let violations = refused(&plan);
        assert!(
            matches!(&violations[0], Violation::Op { at, .. } if at.rank == 1 && at.op as usize == op),
            "{i}: {}",
            list(&violations)
        );
    }
}

fn set(op: &mut Op, change: impl Fn(&mut u32, &mut MaskId, &mut Bufs, &mut Bufs)) {
    let OpKind::AttendBackward { q_block, mask, kv, dkv, .. } = &mut op.kind else { panic!("as found") };
    change(q_block, mask, kv, dkv);
}

#[test]
fn blocks_masks_and_programs_that_do_not_fit() {
    let valid = causal(Schedule::Striped { block: 2 }, 3, &forward());
    let other = |plan: &mut Plan| {
        let tokens = plan.blocks.iter().map(|b| b.tokens.clone()).find(|t| *t != plan.blocks[0].tokens);
        plan.blocks[0].tokens = tokens.expect("blocks differ");
    };
    let breaks: [fn(&mut Plan); 7] = [
        |plan| drop(plan.programs.pop()),
        |plan| plan.masks.truncate(1),
        |plan| plan.masks[1] = plan.masks[0].clone(),
        |plan| plan.blocks[0].slots[0].to = 1_000,
        |plan| plan.blocks[0].slots[0].rank = 77,
        other,
        |plan| plan.messages[0].to = 77,
    ];
    for (i, change) in breaks.into_iter().enumerate() {
        let mut plan = valid.clone();
        change(&mut plan);
        let violations = prove(&plan).unwrap_err();
        let is_it = matches!(violations[0], Violation::Plan { .. } | Violation::Block { .. });
        assert!(is_it, "{i}: {}", list(&violations));
    }
}

#[test]
fn a_sum_into_itself_and_a_group_torn_apart() {
    let mut plan = causal(Schedule::DistFlash, 4, &backward());
    let op = find(&plan, 3, 2, SpanKind::Accumulate);
    let OpKind::Accumulate { from, into } = &mut plan.programs[3].ops[op].kind else { panic!("a sum") };
    *from = *into;
    assert!(matches!(&refused(&plan)[0], Violation::Op { at, .. } if (at.rank, at.op as usize) == (3, op)));

    let mut plan = causal(Schedule::Ring, 4, &Options { transport: Transport::Nccl, ..forward() });
    let (first, last) = (find(&plan, 2, 1, SpanKind::Send), find(&plan, 2, 3, SpanKind::Send));
    plan.programs[2].ops[last].group = plan.programs[2].ops[first].group;
    assert!(matches!(&refused(&plan)[0], Violation::Op { at, .. } if (at.rank, at.op as usize) == (2, last)));
}

#[test]
fn a_result_in_two_outputs() {
    let mut plan = causal(Schedule::Ring, 2, &forward());
    let finish = find(&plan, 1, 1, SpanKind::Finish);
    let OpKind::Finish { state, out } = plan.programs[1].ops[finish].kind else { panic!("a finish") };
    let (op, buffer) = (plan.programs[1].ops[finish], plan.programs[1].buffers[usize::from(out.0)]);
    let out = Buf(plan.programs[1].buffers.len() as u16);
    plan.programs[1].buffers.push(buffer);
    plan.programs[1].ops.push(Op { kind: OpKind::Finish { state, out }, ..op });
    let twice = |v: &Violation| matches!(v, Violation::Outputs { rank: 1, slots: (0, 12), count: 2, .. });
    assert!(prove(&plan).unwrap_err().iter().any(twice));
}
