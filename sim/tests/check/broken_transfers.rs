//! Plans whose messages go wrong or wait for each other, refused with pair of ranks, rank and step.

use ringlab_sim::check::{Reason, Violation, prove};
use ringlab_sim::layout::{Layout, LayoutKind};
use ringlab_sim::mask::{Documents, Pattern};
use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{Buf, Lane, Op, OpKind, Slots, Tensor, Transport};
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{Options, Schedule};
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::units::Bytes;

use crate::common::{causal, find, forward, list, place, problem, refused};
use crate::mutations::{double, remove, swap};

#[test]
fn a_message_that_is_never_sent() {
    let mut plan = causal(Schedule::Ring, 4, &forward());
    let op = find(&plan, 1, 2, SpanKind::Send);
    remove(&mut plan, 1, op);
    let violations = refused(&plan);
    let [Violation::NotSent { wire, received: Some(at) }] = violations.as_slice() else {
        panic!("{violations:?}")
    };
    assert_eq!((wire.from, wire.to, place(*at)), (1, 2, (2, 2)));
}

#[test]
fn a_message_that_is_never_received() {
    let mut plan = causal(Schedule::DistFlash, 4, &forward());
    let op = find(&plan, 0, 1, SpanKind::Recv);
    remove(&mut plan, 0, op);
    let violations = refused(&plan);
    let [Violation::NotReceived { wire, sent }] = violations.as_slice() else { panic!("{violations:?}") };
    assert_eq!((wire.from, wire.to, place(*sent)), (3, 0, (3, 1)));
}

#[test]
fn a_message_that_is_sent_twice() {
    let mut plan = causal(Schedule::Ring, 4, &forward());
    let op = find(&plan, 1, 2, SpanKind::Send);
    double(&mut plan, 1, op);
    let violations = refused(&plan);
    assert!(matches!(&violations[0], Violation::Repeated { first, second, .. }
        if place(*first) == (1, 2) && second.op == first.op + 1));
}

#[test]
fn a_message_on_the_wrong_rank_or_of_the_wrong_size() {
    let mut plan = causal(Schedule::Ring, 4, &forward());
    plan.messages[0].to = 3;
    plan.messages[1].bytes = Bytes(1);
    let violations = refused(&plan);
    assert!(violations.iter().any(|v| matches!(v, Violation::WrongRank { at, .. } if at.rank == 0)));
    assert!(violations.iter().any(|v| matches!(v, Violation::MessageBytes { found: Bytes(1), .. })));
}

#[test]
fn all_ranks_send_first() {
    for ranks in [2, 3, 8] {
        let mut plan = causal(Schedule::Ring, ranks, &Options { transport: Transport::Nccl, ..forward() });
        plan.programs.iter_mut().flat_map(|p| p.ops.iter_mut()).for_each(|op| op.group = 0);
        let violations = refused(&plan);
        let [Violation::CircularWait { cycle }] = violations.as_slice() else {
            panic!("{}", list(&violations))
        };
        assert_eq!(cycle.0.len(), 2 * ranks as usize, "a send and a queued receive on every rank");
        for two in cycle.0.windows(2) {
            assert_eq!(two[0].of.rank, two[1].op.rank);
        }
        assert!(cycle.0.iter().all(|hop| hop.op.step == 1));
        let text = violations[0].to_string();
        assert!(
            text.contains("rank 0 step 1 op 0 (send) needs its other end, rank 1 step 1 op 1 (recv)"),
            "{text}"
        );
    }
}

#[test]
fn two_messages_that_overtake_each_other() {
    let mut plan = causal(Schedule::Ring, 4, &Options { chunks: 2, ..forward() });
    let first = find(&plan, 1, 1, SpanKind::Send);
    let is_send = |op: &Op| SpanKind::of(&op.kind) == SpanKind::Send;
    let second = plan.programs[1].ops.iter().skip(first + 1).position(is_send).unwrap() + first + 1;
    swap(&mut plan, 1, first, second);
    let violations = refused(&plan);
    let order = violations.iter().find_map(|v| match v {
        Violation::MessageOrder { from, to, sends, receives, .. } => Some((*from, *to, *sends, *receives)),
        _ => None,
    });
    let (from, to, sends, receives) = order.unwrap();
    assert_eq!((from, to, place(sends.0), place(receives.1)), (1, 2, (1, 1), (2, 1)));
    assert!(sends.0.op < sends.1.op && receives.1.op < receives.0.op);
}

/// An empty plan by hand for `ranks` ranks of four tokens, with their keys as inputs and room for another's.
fn by_hand(ranks: u32, transport: Transport) -> (PlanBuilder, Vec<(u32, Buf, Buf)>) {
    let documents = Documents::single(u64::from(4 * ranks));
    let layout = Layout::new(LayoutKind::Contiguous, ranks, documents).unwrap();
    let problem = problem(Pattern::Causal, &[]);
    let mut b = PlanBuilder::new("by hand".into(), Pass::Forward, &problem, layout, transport);
    let keys = (0..ranks).map(|rank| {
        let block = b.block(&[Slots { rank, from: 0, to: 4 }], true);
        (block, b.input(rank, Tensor::KeyValue, block), b.scratch(rank, Tensor::KeyValue, block))
    });
    let keys = keys.collect();
    (b, keys)
}

#[test]
fn communicators_in_different_order_on_two_ranks() {
    let (mut b, keys) = by_hand(2, Transport::Nccl);
    let (block, own, _) = keys[0];
    let messages = [0, 1].map(|_| b.message(0, 1, Tensor::KeyValue, block));
    for i in [0, 1] {
        b.push(
            0,
            Lane::comm(i),
            1,
            0,
            OpKind::Send { message: messages[usize::from(i)], buffer: own.into() },
        );
    }
    for i in [1, 0] {
        let buffer = b.scratch(1, Tensor::KeyValue, block);
        b.push(1, Lane::comm(i), 1, 0, OpKind::Recv { message: messages[usize::from(i)], buffer });
    }
    let violations = prove(&b.finish()).unwrap_err();
    let [Violation::CommunicatorOrder { here, there }] = violations.as_slice() else {
        panic!("{}", list(&violations))
    };
    assert_eq!(
        [here.0, here.1, there.0, there.1].map(|at| (at.rank, at.op)),
        [(0, 0), (0, 1), (1, 1), (1, 0)]
    );
}

/// Three ranks, three communicators, each used by two: 0 uses a then c, 1 uses b then a, 2 uses c then b. No two ranks
/// share two communicators, so no two ranks disagree, but if each finishes one before the next all three wait.
#[test]
fn communicators_that_interlock() {
    let (mut b, keys) = by_hand(3, Transport::Nccl);
    let lane = |i: u32| Lane::comm(i as u8);
    // Communicator i carries a message from rank i to rank i + 1, which posts it after its own.
    for (i, &(block, ..)) in (0..).zip(&keys) {
        assert_eq!(b.message(i, (i + 1) % 3, Tensor::KeyValue, block), i);
    }
    for (r, &(_, own, other)) in (0..).zip(&keys) {
        let before = (r + 2) % 3;
        b.push(r, lane(r), 1, 0, OpKind::Send { message: r, buffer: own.into() });
        b.push(r, lane(before), 1, 0, OpKind::Recv { message: before, buffer: other });
    }
    let violations = prove(&b.finish()).unwrap_err();
    let [Violation::Interlock { cycle }] = violations.as_slice() else { panic!("{}", list(&violations)) };
    assert_eq!(cycle.0.len(), 6);
    assert_eq!(cycle.0.iter().filter(|hop| hop.reason == Reason::Turn).count(), 3);
}

#[test]
fn all_ranks_receive_before_they_send() {
    let (mut b, keys) = by_hand(2, Transport::CopyEngine);
    for (r, &(block, ..)) in (0..).zip(&keys) {
        assert_eq!(b.message(r, 1 - r, Tensor::KeyValue, block), r);
    }
    for (r, &(_, own, other)) in (0..).zip(&keys) {
        let recv = b.push(r, Lane::comm(1), 1, 0, OpKind::Recv { message: 1 - r, buffer: other });
        let send = b.push(r, Lane::comm(0), 2, 0, OpKind::Send { message: r, buffer: own.into() });
        b.wait(r, send, recv);
    }
    let violations = prove(&b.finish()).unwrap_err();
    let [Violation::CircularWait { cycle }] = violations.as_slice() else { panic!("{}", list(&violations)) };
    let hops: Vec<_> = cycle.0.iter().map(|hop| (place(hop.op), hop.reason, place(hop.of))).collect();
    let expected = [
        ((0, 2), Reason::Wait, (0, 1)),
        ((0, 1), Reason::Partner, (1, 2)),
        ((1, 2), Reason::Wait, (1, 1)),
        ((1, 1), Reason::Partner, (0, 2)),
    ];
    assert_eq!(hops, expected, "{}", violations[0]);
}

#[test]
fn two_ends_on_different_communicators() {
    let mut plan = causal(Schedule::Ring, 2, &Options { transport: Transport::Nccl, ..forward() });
    for op in plan.programs[1].ops.iter_mut().filter(|op| op.lane == Lane::comm(0)) {
        op.lane = Lane::comm(1);
    }
    for op in &mut plan.programs[1].ops {
        op.waits.swap(1, 2);
    }
    let violations = refused(&plan);
    assert!(matches!(violations[0], Violation::Communicators { lanes: (Lane(1), Lane(2)), .. }));
}
