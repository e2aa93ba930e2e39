//! The backward ring: keys and values travel as in the forward. dk and dv of the keys of rank s travel behind them, each
//! rank adding its share, until they are home after P hops. Where only needed keys travel, or on the direct route, a
//! rank keeps its own share; on the direct route the others' shares go straight home. With chunks the last step's calls are
//! cut like them, so that all but the last part of the last hop travels beside a call.

use super::kv_ring::KvRing;
use super::ring_forward::{StepRule, step_attention};
use super::step::{Channel, Travel, classify, clip, owner, part_sizes, shards};
use super::{Options, Route};
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, MaskId, MessageId, OpId, OpKind, Plan, Rank, Slots, Tensor};

/// A rank's buffers.
struct Buffers {
    q_block: BlockId,
    q: Buf,
    delta: Buf,
    dq: Buf,
    dkv: Bufs,
    /// Own shares of other ranks' gradients, by step parity.
    share: [Bufs; 2],
    /// Gradients that arrive to be added to, by step parity.
    arrived: [Bufs; 2],
    /// Own gradients coming home.
    home: Bufs,
}

/// Gradients on their way: whose they are, where they lie, and the parts that hold any, by buffer.
#[derive(Clone)]
struct Load {
    owner: Rank,
    bufs: Bufs,
    parts: Vec<(u16, BlockId)>,
}

/// One call of a step and the parts of `dkv` that it writes.
struct Call {
    kv_block: BlockId,
    mask: MaskId,
    dkv: Bufs,
    dkv_block: BlockId,
    parts: Vec<(u16, BlockId)>,
}

struct Backward<'a> {
    options: &'a Options,
    rule: &'a StepRule<'a>,
    ring: KvRing,
    channel: Channel,
    buffers: Vec<Buffers>,
    keeps_own_share: bool,
    /// Per rank, what the last step left there to be sent on.
    loads: Vec<Option<Load>>,
    /// Per rank, what arrived for this step.
    arrivals: Vec<Option<Load>>,
    /// Per rank, its own gradients that arrived and are still to be added.
    homecoming: Vec<Option<Load>>,
}

pub(super) fn build(mut b: PlanBuilder, options: &Options, rule: &StepRule) -> Plan {
    let ranks = b.ranks();
    let nothing = || vec![None; ranks as usize];
    let keeps_own_share = ranks == 1 || options.needed_only || options.route == Route::Direct;
    let travel = Travel::new(&b, options, true, |r, s| rule(r, s).0);
    let mut back = Backward {
        options,
        rule,
        channel: Channel::new(options.transport, 1),
        buffers: allocate(&mut b, options, keeps_own_share),
        ring: KvRing::new(&mut b, options, travel),
        keeps_own_share,
        loads: nothing(),
        arrivals: nothing(),
        homecoming: nothing(),
    };
    for (r, buffers) in back.buffers.iter().enumerate() {
        b.compute(
            r as Rank,
            0,
            OpKind::Preprocess { q: buffers.q.into(), delta: buffers.delta, block: buffers.q_block },
        );
    }
    for t in 0..ranks {
        back.step(&mut b, t);
    }
    back.hand_on(&mut b, ranks);
    (0..ranks).for_each(|r| back.add_homecoming(&mut b, r, ranks));
    b.finish()
}

fn allocate(b: &mut PlanBuilder, options: &Options, keeps_own_share: bool) -> Vec<Buffers> {
    let (q_blocks, kv_blocks) = (shards(b, false), shards(b, true));
    let n = u64::from(options.chunks);
    let sizes = part_sizes(b, options, kv_blocks[0]);
    let parts = |b: &mut PlanBuilder, r| b.scratch_parts(r, Tensor::KeyValueGrad, &sizes);
    let mut buffers = Vec::new();
    for r in 0..b.ranks() {
        let (q_block, kv_block) = (q_blocks[r as usize], kv_blocks[r as usize]);
        let q = b.input(r, Tensor::QuerySide, q_block);
        let delta = b.scratch(r, Tensor::Delta, q_block);
        let dq = b.output(r, Tensor::QueryGrad, q_block);
        let out_parts = if keeps_own_share { 1 } else { n };
        let out = b.parts(kv_block, out_parts);
        let out: Vec<Buf> = out.into_iter().map(|part| b.output(r, Tensor::KeyValueGrad, part)).collect();
        let dkv = Bufs { first: out[0], count: out.len() as u16 };
        let share = [parts(b, r), parts(b, r)];
        let arrived = [parts(b, r), parts(b, r)];
        buffers.push(Buffers { q_block, q, delta, dq, dkv, share, arrived, home: parts(b, r) });
    }
    buffers
}

/// The parts of `block`, cut for so many buffers, that hold anything.
fn parts(b: &mut PlanBuilder, block: BlockId, count: u16) -> Vec<(u16, BlockId)> {
    let all = b.parts(block, u64::from(count));
    (0..).zip(all).filter(|&(_, part)| !b.tokens(part).is_empty()).collect()
}

fn nth(bufs: Bufs, k: u16) -> Buf {
    Buf(bufs.first.0 + k)
}

impl Backward<'_> {
    fn step(&mut self, b: &mut PlanBuilder, t: u32) {
        let ranks = b.ranks();
        let next = (t + 1 < ranks).then_some(t + 1);
        let overlap = self.options.prefetch > 0;
        if let Some(next) = next {
            self.ring.prepare(b, next);
        }
        if let Some(next) = next.filter(|_| overlap) {
            (0..ranks).for_each(|r| self.ring.exchange(b, r, next, None));
        }
        if self.options.route == Route::Neighbour {
            self.hand_on(b, t);
        }
        for r in 0..ranks {
            let (share, op) = self.attend(b, r, t);
            self.add_homecoming(b, r, t);
            self.loads[r as usize] = self.arrivals[r as usize].take().or(share);
            if let Some(next) = next.filter(|_| !overlap) {
                self.ring.exchange(b, r, next, op);
            }
        }
        if self.options.route == Route::Direct {
            self.hand_on(b, t);
        }
    }

    /// Step t's attention on rank r, added to what arrived for it: its share of the gradients of the keys it holds, if it
    /// has any to hand on, and its last call.
    fn attend(&self, b: &mut PlanBuilder, r: Rank, t: u32) -> (Option<Load>, Option<OpId>) {
        let Some((q_block, kv_block, mask)) = step_attention(b, &self.ring, r, t, self.rule) else {
            return (None, None);
        };
        let buffers = &self.buffers[r as usize];
        let stays = t == 0 && self.keeps_own_share;
        let dkv = if stays { buffers.dkv } else { buffers.share[t as usize % 2] };
        let mut share = Load { owner: owner(r, t, b.ranks()), bufs: dkv, parts: Vec::new() };
        let mut last = None;
        for call in self.calls(b, (r, t), (q_block, kv_block, mask), dkv) {
            let op = OpKind::AttendBackward {
                q: buffers.q.into(),
                delta: buffers.delta,
                kv: self.ring.holding(b, r, t, call.kv_block),
                dq: buffers.dq,
                dkv: call.dkv,
                q_block,
                kv_block: call.kv_block,
                dkv_block: call.dkv_block,
                mask: call.mask,
                init_dq: t == 0,
                init_dkv: true,
            };
            last = Some(b.compute(r, t, op));
            if let Some(arrived) = &self.arrivals[r as usize] {
                for &(k, _) in &call.parts {
                    b.compute(r, t, OpKind::Accumulate { from: nth(dkv, k), into: nth(arrived.bufs, k) });
                }
            }
            share.parts.extend(call.parts);
        }
        ((!stays).then_some(share), last)
    }

    /// The calls of a step: one, or, in the last, one for each part of the keys with any pair.
    fn calls(
        &self,
        b: &mut PlanBuilder,
        (r, t): (Rank, u32),
        (q_block, kv_block, mask): (BlockId, BlockId, MaskId),
        dkv: Bufs,
    ) -> Vec<Call> {
        let s = owner(r, t, b.ranks());
        let (from, to) = if t == 0 { (0, b.shard(s).to) } else { self.ring.travel().range(t, s) };
        let dkv_block = b.block(&[Slots { rank: s, from, to }], true);
        let parts = parts(b, dkv_block, dkv.count);
        if t == 0 || t + 1 < b.ranks() || dkv.count == 1 {
            return vec![Call { kv_block, mask, dkv, dkv_block, parts }];
        }
        let mut calls = Vec::new();
        for (k, part) in parts {
            let Some(&Slots { from, to, .. }) = b.slots(part).first() else { continue };
            let kv_block = clip(b, kv_block, (from, to));
            if let Some(mask) = classify(b, q_block, kv_block) {
                let dkv = nth(dkv, k).into();
                calls.push(Call { kv_block, mask, dkv, dkv_block: part, parts: vec![(k, part)] });
            }
        }
        calls
    }

    /// Sends what the ranks hold to the next rank of the ring that wants it at step t, or home.
    fn hand_on(&mut self, b: &mut PlanBuilder, t: u32) {
        let ranks = b.ranks();
        let mut sends: Vec<Vec<(MessageId, Bufs)>> = vec![Vec::new(); ranks as usize];
        let mut recvs: Vec<Vec<(MessageId, Buf)>> = vec![Vec::new(); ranks as usize];
        for r in 0..ranks {
            let Some(load) = self.loads[r as usize].take() else { continue };
            let hops =
                self.options.route == Route::Neighbour && t < ranks && self.ring.travel().any(t, load.owner);
            let to = if hops { (r + 1) % ranks } else { load.owner };
            let bufs = self.destination(to, t, hops);
            for &(k, part) in &load.parts {
                let message = b.message(r, to, Tensor::KeyValueGrad, part);
                sends[r as usize].push((message, nth(load.bufs, k).into()));
                recvs[to as usize].push((message, nth(bufs, k)));
            }
            let load = Load { bufs, ..load };
            if hops {
                self.arrivals[to as usize] = Some(load);
            } else if self.keeps_own_share {
                self.homecoming[to as usize] = Some(load);
            }
        }
        for r in 0..ranks {
            self.channel.exchange(b, (r, t), &sends[r as usize], &recvs[r as usize], None);
        }
    }

    /// Where gradients arrive on rank `to`: to be handed on, added to its own, or, with every share in them, for good.
    fn destination(&self, to: Rank, t: u32, hops: bool) -> Bufs {
        let buffers = &self.buffers[to as usize];
        match (self.options.route, hops) {
            (_, true) | (Route::Direct, _) => buffers.arrived[t as usize % 2],
            _ if self.keeps_own_share => buffers.home,
            _ => buffers.dkv,
        }
    }

    /// Adds gradients that came home to rank r's own.
    fn add_homecoming(&mut self, b: &mut PlanBuilder, r: Rank, t: u32) {
        if let Some(load) = self.homecoming[r as usize].take() {
            let into = self.buffers[r as usize].dkv.first;
            for (k, _) in load.parts {
                b.compute(r, t, OpKind::Accumulate { from: nth(load.bufs, k), into });
            }
        }
    }
}
