//! Plans that no ring has: blocks over all ranks, some of the heads, results that come home in pieces.

use ringlab_sim::check::{Fault, Violation, prove};
use ringlab_sim::layout::{Layout, LayoutKind};
use ringlab_sim::mask::{Documents, Pattern};
use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{Buf, Bufs, Heads, Lane, MaskId, OpKind, Plan, Rank, Slots, Tensor, Transport};
use ringlab_sim::problem::Pass;
use ringlab_sim::timeline::SpanKind;

use crate::common::{find, list, place, problem};
use crate::judge::{pairs_are_wrong, verdict};
use crate::mutations::remove;

fn builder(pass: Pass, ranks: u32, documents: Documents) -> PlanBuilder {
    let layout = Layout::new(LayoutKind::Contiguous, ranks, documents).unwrap();
    PlanBuilder::new("by hand".into(), pass, &problem(Pattern::Causal, &[]), layout, Transport::CopyEngine)
}

fn accepted(plan: &Plan) {
    let proof = prove(plan).unwrap_or_else(|violations| panic!("{}", list(&violations)));
    assert_eq!(proof.pairs, plan.unmasked_pairs() * 4);
    assert_eq!(verdict(plan, Pattern::Causal, 8), Ok(()));
}

fn refused(plan: &Plan) -> Vec<Violation> {
    let violations = prove(plan).unwrap_err();
    assert_eq!(pairs_are_wrong(plan, Pattern::Causal, &violations), Ok(()));
    violations
}

/// Pushes a message and both its ends.
fn transfer(b: &mut PlanBuilder, tensor: Tensor, block: u32, from: (Rank, Buf), to: (Rank, Buf)) {
    let message = b.message(from.0, to.0, tensor, block);
    b.push(from.0, Lane::comm(0), 1, 0, OpKind::Send { message, buffer: from.1.into() });
    b.push(to.0, Lane::comm(1), 1, 0, OpKind::Recv { message, buffer: to.1 });
}

/// A backward call over the whole mask: queries and keys with their blocks, where gradients go, and whether it starts dq and dkv.
#[derive(Clone, Copy)]
struct BackwardCall {
    q: (Buf, u32),
    kv: (Bufs, u32),
    dq: Buf,
    dkv: Bufs,
    inits: (bool, bool),
}

/// Pushes a backward call with the row sums that it needs.
fn attend_backward(b: &mut PlanBuilder, r: Rank, step: u32, call: BackwardCall) {
    let BackwardCall { q: (q, q_block), kv: (kv, kv_block), dq, dkv, inits: (init_dq, init_dkv) } = call;
    let delta = b.scratch(r, Tensor::Delta, q_block);
    b.compute(r, step, OpKind::Preprocess { q: q.into(), delta, block: q_block });
    let (dkv_block, mask) = (kv_block, MaskId::PROBLEM);
    let kind = OpKind::AttendBackward {
        q: q.into(),
        delta,
        kv,
        dq,
        dkv,
        q_block,
        kv_block,
        dkv_block,
        mask,
        init_dq,
        init_dkv,
    };
    b.compute(r, step, kind);
}

/// Pushes a forward call over the whole mask, from its start to its end.
fn attend(b: &mut PlanBuilder, r: Rank, (q, q_block): (Buf, u32), (kv, kv_block): (Bufs, u32), out: Buf) {
    let state = b.scratch(r, Tensor::State, q_block);
    let mask = MaskId::PROBLEM;
    b.compute(r, 2, OpKind::Attend { q: q.into(), kv, state, q_block, kv_block, mask, init: true });
    b.compute(r, 2, OpKind::Finish { state, out });
}

/// All pairs of two ranks.
fn both_ways(ranks: u32) -> impl Iterator<Item = (Rank, Rank)> {
    (0..ranks).flat_map(move |r| (0..ranks).map(move |s| (r, s))).filter(|(r, s)| r != s)
}

/// Buffers of `r` for every rank's share, the blocks `shares`, of a tensor: its own, made by `own`, among scratch.
fn gathered(
    b: &mut PlanBuilder,
    (r, tensor): (Rank, Tensor),
    shares: &[u32],
    own: fn(&mut PlanBuilder, Rank, Tensor, u32) -> Buf,
) -> Bufs {
    let buf =
        |(s, &block)| if s == r as usize { own(b, r, tensor, block) } else { b.scratch(r, tensor, block) };
    let bufs: Vec<Buf> = shares.iter().enumerate().map(buf).collect();
    Bufs { first: bufs[0], count: bufs.len() as u16 }
}

/// Every rank gets all keys, computes once, and in the backward returns everybody's share of their gradients.
fn all_gather(pass: Pass, ranks: u32) -> Plan {
    let mut b = builder(pass, ranks, Documents::padded_at_end(&[7, 10], ranks.into()));
    let all: Vec<Slots> = (0..ranks).map(|r| b.shard(r)).collect();
    let kv_block = b.block(&all, true);
    let (q, kv): (Vec<u32>, Vec<u32>) =
        all.iter().map(|&s| (b.block(&[s], false), b.block(&[s], true))).unzip();
    let keys: Vec<Bufs> =
        (0..ranks).map(|r| gathered(&mut b, (r, Tensor::KeyValue), &kv, PlanBuilder::input)).collect();
    let share = |bufs: Bufs, s: Rank| Buf(bufs.first.0 + s as u16);
    for (r, s) in both_ways(ranks) {
        let [from, to] = [s, r].map(|rank| (rank, share(keys[rank as usize], s)));
        transfer(&mut b, Tensor::KeyValue, kv[s as usize], from, to);
    }
    let mut gradients = Vec::new();
    for (r, (&q_block, &bufs)) in (0..).zip(q.iter().zip(&keys)) {
        let kv_of_all = (bufs, kv_block);
        if pass == Pass::Forward {
            let q = (b.input(r, Tensor::Query, q_block), q_block);
            let out = b.output(r, Tensor::Output, q_block);
            attend(&mut b, r, q, kv_of_all, out);
        } else {
            let q = (b.input(r, Tensor::QuerySide, q_block), q_block);
            let dq = b.output(r, Tensor::QueryGrad, q_block);
            let dkv = gathered(&mut b, (r, Tensor::KeyValueGrad), &kv, PlanBuilder::output);
            attend_backward(&mut b, r, 2, BackwardCall { q, kv: kv_of_all, dq, dkv, inits: (true, true) });
            gradients.push(dkv);
        }
    }
    for (r, s) in both_ways(gradients.len() as u32) {
        let from = b.scratch(s, Tensor::KeyValueGrad, kv[s as usize]);
        let [sent, into] = [r, s].map(|rank| share(gradients[rank as usize], s));
        transfer(&mut b, Tensor::KeyValueGrad, kv[s as usize], (r, sent), (s, from));
        b.compute(s, 3, OpKind::Accumulate { from, into });
    }
    b.finish()
}

#[test]
fn all_keys_at_once() {
    for ranks in [1, 2, 3, 5] {
        accepted(&all_gather(Pass::Forward, ranks));
        accepted(&all_gather(Pass::Backward, ranks));
    }
}

#[test]
fn all_keys_at_once_but_one_share_of_their_gradients_is_lost() {
    let mut plan = all_gather(Pass::Backward, 3);
    let op = find(&plan, 0, 3, SpanKind::Accumulate);
    remove(&mut plan, 0, op);
    let violations = refused(&plan);
    assert!(violations.iter().all(|v| matches!(v,
        Violation::Coverage { result: Tensor::KeyValueGrad, pair, fault: Fault::Missing }
 if pair.key_at.0 == 0)));
}

/// Query and key/value heads of one of two ranks with half of them each.
fn half_of_heads(r: Rank) -> (Heads, Heads) {
    (Heads { first: 2 * r, count: 2 }, Heads { first: r, count: 1 })
}

/// Queries of both ranks, and on each its keys and a place for the other's, all heads of them.
fn inputs_of_two(b: &mut PlanBuilder, shards: [Slots; 2]) -> ([Buf; 2], [Bufs; 2]) {
    let [q, kv] = [false, true].map(|is_kv| shards.map(|s| b.block(&[s], is_kv)));
    let mut of_rank = |r: Rank| {
        let q = b.input(r, Tensor::Query, q[r as usize]);
        (q, gathered(b, (r, Tensor::KeyValue), &[kv[r as usize]; 2], PlanBuilder::input))
    };
    let ((q_0, kv_0), (q_1, kv_1)) = (of_rank(0), of_rank(1));
    ([q_0, q_1], [kv_0, kv_1])
}

/// Two ranks with half the heads each: queries, keys and results travel, every rank computes all tokens.
fn ulysses(lost_heads: bool) -> Plan {
    let mut b = builder(Pass::Forward, 2, Documents::single(10));
    let shards = [b.shard(0), b.shard(1)];
    let (q_own, kv) = inputs_of_two(&mut b, shards);
    for (r, s) in both_ways(2) {
        let (q_heads, kv_heads) = half_of_heads(r);
        let sent = b.block_of_heads(&[shards[s as usize]], kv_heads);
        let [from, to] = [s, r].map(|rank| (rank, Buf(kv[rank as usize].first.0 + s as u16)));
        transfer(&mut b, Tensor::KeyValue, sent, from, to);
        let sent_heads = if lost_heads { half_of_heads(0).0 } else { q_heads };
        let q_block = b.block_of_heads(&[shards[s as usize]], sent_heads);
        let q_there = b.scratch(r, Tensor::Query, q_block);
        transfer(&mut b, Tensor::Query, q_block, (s, q_own[s as usize]), (r, q_there));
        let keys = (kv[r as usize], b.block_of_heads(&shards, kv_heads));
        for (owner, q) in [(r, q_own[r as usize]), (s, q_there)] {
            let q_block = b.block_of_heads(&[shards[owner as usize]], q_heads);
            let home = b.output(owner, Tensor::Output, q_block);
            if owner == r {
                attend(&mut b, r, (q, q_block), keys, home);
            } else {
                let out = b.scratch(r, Tensor::Output, q_block);
                attend(&mut b, r, (q, q_block), keys, out);
                transfer(&mut b, Tensor::Output, q_block, (r, out), (owner, home));
            }
        }
    }
    b.finish()
}

#[test]
fn half_the_heads_of_all_tokens() {
    accepted(&ulysses(false));
    let violations = refused(&ulysses(true));
    let Violation::WrongContent { at, needed, held, .. } = &violations[0] else {
        panic!("{}", list(&violations))
    };
    assert_eq!(place(*at), (1, 2));
    assert!(needed.ends_with("heads 2..4") && held.ends_with("heads 0..2"), "{}", violations[0]);
}

#[test]
fn half_the_heads_are_lost_on_the_way_home() {
    let mut plan = ulysses(false);
    let attend = find(&plan, 1, 2, SpanKind::Attend);
    let OpKind::Attend { mask, .. } = &mut plan.programs[1].ops[attend].kind else { panic!("an attend") };
    *mask = MaskId::NONE;
    let violations = refused(&plan);
    let Violation::Coverage { pair, fault: Fault::Masked { at }, .. } = violations[0] else {
        panic!("{}", list(&violations))
    };
    assert_eq!((pair.head, place(at)), (2, (1, 2)), "the first head of the second rank");
}

/// Rank 0 computes dq of rank 1's queries over its own keys in two calls, and returns it in four pieces: halves of the
/// tokens, halves of the heads. With `again`, rank 1 adds the first piece twice.
fn returned_in_pieces(again: bool) -> Plan {
    let mut b = builder(Pass::Backward, 2, Documents::single(8));
    let shards = [b.shard(0), b.shard(1)];
    let (q, kv) = (shards.map(|s| b.block(&[s], false)), shards.map(|s| b.block(&[s], true)));
    let side = [0, 1].map(|r: Rank| b.input(r, Tensor::QuerySide, q[r as usize]));
    let keys = [0, 1].map(|r: Rank| b.input(r, Tensor::KeyValue, kv[r as usize]));
    let dq = [0, 1].map(|r: Rank| b.output(r, Tensor::QueryGrad, q[r as usize]));
    let dkv = [0, 1].map(|r: Rank| b.output(r, Tensor::KeyValueGrad, kv[r as usize]));
    for r in 0..2 {
        let (q, kv) = ((side[r], q[r]), (keys[r].into(), kv[r]));
        let call = BackwardCall { q, kv, dq: dq[r], dkv: dkv[r].into(), inits: (true, true) };
        attend_backward(&mut b, r as Rank, 1, call);
    }
    let (helped, partial) = (b.scratch(0, Tensor::QuerySide, q[1]), b.scratch(0, Tensor::QueryGrad, q[1]));
    transfer(&mut b, Tensor::QuerySide, q[1], (1, side[1]), (0, helped));
    for half in 0..2 {
        let (q, kv) = ((helped, q[1]), (keys[0].into(), b.part(kv[0], half, 2)));
        let call = BackwardCall { q, kv, dq: partial, dkv: dkv[0].into(), inits: (half == 0, false) };
        attend_backward(&mut b, 0, 1, call);
    }
    for (i, first) in (0..2).flat_map(|i| [0, 2].map(|first| (i, first))) {
        let slots = [Slots { rank: 1, from: 2 * i, to: 2 * i + 2 }];
        let block = b.block_of_heads(&slots, Heads { first, count: 2 });
        let from = b.scratch(1, Tensor::QueryGrad, block);
        transfer(&mut b, Tensor::QueryGrad, block, (0, partial), (1, from));
        for _ in 0..if again && (i, first) == (0, 0) { 2 } else { 1 } {
            b.compute(1, 2, OpKind::Accumulate { from, into: dq[1] });
        }
    }
    b.finish()
}

#[test]
fn a_result_that_comes_home_in_pieces() {
    accepted(&returned_in_pieces(false));
    for violation in refused(&returned_in_pieces(true)) {
        let Violation::Coverage { result, pair, fault: Fault::Doubled { first, second } } = violation else {
            panic!("{violation}")
        };
        assert_eq!((result, first, place(first)), (Tensor::QueryGrad, second, (0, 1)));
        assert!(pair.query_at.1 < 2 && pair.head == 0, "{pair}");
    }
}

#[test]
fn a_piece_that_does_not_come_home() {
    let mut plan = returned_in_pieces(false);
    let last = plan.programs[1].ops.len() - 1;
    remove(&mut plan, 1, last);
    for violation in refused(&plan) {
        let Violation::Coverage { pair, fault: Fault::Missing, .. } = violation else {
            panic!("{violation}")
        };
        assert!(pair.query_at.1 >= 2 && pair.head == 2, "{pair}");
    }
}
