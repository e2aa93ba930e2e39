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

/// Every rank gets all keys, computes once, and in the backward returns everybody's share of their gradients.
fn all_gather(pass: Pass, ranks: u32) -> Plan {
    let mut b = builder(pass, ranks, Documents::padded_at_end(&[7, 10], ranks.into()));
    let all: Vec<Slots> = (0..ranks).map(|r| b.shard(r)).collect();
    let kv_block = b.block(&all, true);
    let (q, kv): (Vec<u32>, Vec<u32>) =
        all.iter().map(|&s| (b.block(&[s], false), b.block(&[s], true))).unzip();
    let is_backward = pass == Pass::Backward;
    let gathered =
        |b: &mut PlanBuilder, r: Rank, tensor, own: fn(&mut PlanBuilder, Rank, Tensor, u32) -> Buf| {
            let bufs = (0..ranks).map(|s| {
                if s == r { own(b, r, tensor, kv[s as usize]) } else { b.scratch(r, tensor, kv[s as usize]) }
            });
            let bufs: Vec<Buf> = bufs.collect();
            Bufs { first: bufs[0], count: bufs.len() as u16 }
        };
    let keys: Vec<Bufs> =
        (0..ranks).map(|r| gathered(&mut b, r, Tensor::KeyValue, PlanBuilder::input)).collect();
    for (r, s) in (0..ranks).flat_map(|r| (0..ranks).map(move |s| (r, s))).filter(|(r, s)| r != s) {
        let buffer = |rank: Rank| (rank, Buf(keys[rank as usize].first.0 + s as u16));
        transfer(&mut b, Tensor::KeyValue, kv[s as usize], buffer(s), buffer(r));
    }
    let mut shares = Vec::new();
    for r in 0..ranks {
        let (q_block, mask, bufs) = (q[r as usize], MaskId::PROBLEM, keys[r as usize]);
        if is_backward {
            let side = b.input(r, Tensor::QuerySide, q_block);
            let delta = b.scratch(r, Tensor::Delta, q_block);
            let dq = b.output(r, Tensor::QueryGrad, q_block);
            let dkv = gathered(&mut b, r, Tensor::KeyValueGrad, PlanBuilder::output);
            b.compute(r, 2, OpKind::Preprocess { q: side.into(), delta, block: q_block });
            let (dkv_block, kv) = (kv_block, bufs);
            let (init_dq, init_dkv) = (true, true);
            let kind = OpKind::AttendBackward {
                q: side.into(),
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
            b.compute(r, 2, kind);
            shares.push(dkv);
        } else {
            let (side, state) = (b.input(r, Tensor::Query, q_block), b.scratch(r, Tensor::State, q_block));
            let out = b.output(r, Tensor::Output, q_block);
            let kv = bufs;
            b.compute(
                r,
                2,
                OpKind::Attend { q: side.into(), kv, state, q_block, kv_block, mask, init: true },
            );
            b.compute(r, 2, OpKind::Finish { state, out });
        }
    }
    for (r, s) in
        (0..ranks).flat_map(|r| (0..ranks).map(move |s| (r, s))).filter(|(r, s)| is_backward && r != s)
    {
        let part = |rank: Rank| Buf(shares[rank as usize].first.0 + s as u16);
        let from = b.scratch(s, Tensor::KeyValueGrad, kv[s as usize]);
        transfer(&mut b, Tensor::KeyValueGrad, kv[s as usize], (r, part(r)), (s, from));
        b.compute(s, 3, OpKind::Accumulate { from, into: part(s) });
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

/// Two ranks with half the heads each: queries, keys and results travel, every rank computes all tokens.
fn ulysses(lost_heads: bool) -> Plan {
    let mut b = builder(Pass::Forward, 2, Documents::single(10));
    let heads = |r: Rank| (Heads { first: 2 * r, count: 2 }, Heads { first: r, count: 1 });
    let shards = [b.shard(0), b.shard(1)];
    let whole = shards.map(|s| (b.block(&[s], false), b.block(&[s], true)));
    let mut q_own = Vec::new();
    let mut kv = Vec::new();
    for r in 0..2 {
        let (q_block, kv_block) = whole[r as usize];
        q_own.push(b.input(r, Tensor::Query, q_block));
        let mut bufs = [Buf(0); 2];
        for s in 0..2 {
            let own = s == r;
            bufs[s as usize] = if own {
                b.input(r, Tensor::KeyValue, kv_block)
            } else {
                b.scratch(r, Tensor::KeyValue, kv_block)
            };
        }
        kv.push(bufs);
    }
    for r in 0..2 {
        let s = 1 - r;
        let (_, kv_heads) = heads(r);
        let sent = b.block_of_heads(&[shards[s as usize]], kv_heads);
        let (from, to) = ((s, kv[s as usize][s as usize]), (r, kv[r as usize][s as usize]));
        transfer(&mut b, Tensor::KeyValue, sent, from, to);
        let (q_heads, _) = heads(if lost_heads { 0 } else { r });
        let q_block = b.block_of_heads(&[shards[s as usize]], q_heads);
        let q_there = b.scratch(r, Tensor::Query, q_block);
        transfer(&mut b, Tensor::Query, q_block, (s, q_own[s as usize]), (r, q_there));
        let kv_block = b.block_of_heads(&shards, kv_heads);
        for (owner, q) in [(r, q_own[r as usize]), (s, q_there)] {
            let q_block = b.block_of_heads(&[shards[owner as usize]], heads(r).0);
            let state = b.scratch(r, Tensor::State, q_block);
            let kv = Bufs { first: kv[r as usize][0], count: 2 };
            b.compute(
                r,
                2,
                OpKind::Attend {
                    q: q.into(),
                    kv,
                    state,
                    q_block,
                    kv_block,
                    mask: MaskId::PROBLEM,
                    init: true,
                },
            );
            let home = b.output(owner, Tensor::Output, q_block);
            if owner == r {
                b.compute(r, 2, OpKind::Finish { state, out: home });
            } else {
                let out = b.scratch(r, Tensor::Output, q_block);
                b.compute(r, 2, OpKind::Finish { state, out });
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
    let mask = MaskId::PROBLEM;
    let attend = |b: &mut PlanBuilder,
                  r: usize,
                  (q, q_block): (Buf, u32),
                  dq: Buf,
                  kv_block: u32,
                  inits: (bool, bool)| {
        let delta = b.scratch(r as Rank, Tensor::Delta, q_block);
        b.compute(r as Rank, 1, OpKind::Preprocess { q: q.into(), delta, block: q_block });
        let (kv, dkv, dkv_block, (init_dq, init_dkv)) = (keys[r].into(), dkv[r].into(), kv_block, inits);
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
        b.compute(r as Rank, 1, kind);
    };
    for r in 0..2 {
        attend(&mut b, r, (side[r], q[r]), dq[r], kv[r], (true, true));
    }
    let (helped, partial) = (b.scratch(0, Tensor::QuerySide, q[1]), b.scratch(0, Tensor::QueryGrad, q[1]));
    transfer(&mut b, Tensor::QuerySide, q[1], (1, side[1]), (0, helped));
    for half in 0..2 {
        let kv_half = b.part(kv[0], half, 2);
        attend(&mut b, 0, (helped, q[1]), partial, kv_half, (half == 0, false));
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
