//! BurstAttention's backward (arXiv 2403.09347) on a ring: keys and values, dk and dv stay at home; q, do, lse and delta
//! travel, and dq behind them, each rank adding its share, until after P hops it is home. It moves
//! `(P-1) 2 qo + P qo` where the ring moves about `2 (P-1) kv`, so it is cheaper only without grouped heads. The forward
//! is the ring's.

use super::step::{Channel, classify, owner, shards};
use super::unused::Unused;
use super::zigzag::rule_of_halves;
use super::{Options, Schedule, ring_forward};
use crate::layout::Layout;
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, MaskId, MessageId, OpId, OpKind, Plan, Rank, Tensor};
use crate::problem::{Pass, Problem};

/// Blocks that the queries of one rank and the keys of another meet in.
type Rule = Box<dyn Fn(Rank, Rank) -> (BlockId, BlockId)>;

pub(super) fn build(problem: &Problem, layout: Layout, options: &Options, zigzag: bool) -> Plan {
    let name = Schedule::Burst { zigzag }.to_string();
    let mut b = options.builder(name, problem, layout);
    let rule: Rule = if zigzag {
        Box::new(rule_of_halves(&mut b, problem.pattern))
    } else {
        let (q, kv) = (shards(&mut b, false), shards(&mut b, true));
        Box::new(move |r, s| (q[r as usize], kv[s as usize]))
    };
    if options.pass == Pass::Forward {
        b.note("the forward is the ring's; only the backward moves queries instead of keys");
        return ring_forward::build(b, options, &*rule);
    }
    Unused { prefetch: false, ..Unused::ALL }.note(&mut b, options);
    let rooms = (0..b.ranks()).map(|r| Room::new(&mut b, options, r)).collect();
    Burst {
        overlaps: options.prefetch > 0,
        rule,
        rooms,
        channels: [0, 1].map(|i| Channel::new(options.transport, i)),
    }
    .build(&mut b);
    b.finish()
}

/// Query sides in a rank's buffers.
#[derive(Clone, Copy)]
struct Queries {
    /// q, do and lse, and maybe o.
    side: Buf,
    delta: Buf,
}

/// A rank's buffers.
struct Room {
    q_block: BlockId,
    kv_block: BlockId,
    own: Queries,
    kv: Buf,
    dq: Buf,
    dkv: Buf,
    /// Other ranks' queries, in turn.
    stages: Vec<Queries>,
    /// The rank's share of their dq, and dq on its way, in turn.
    share: [Buf; 2],
    arrived: [Buf; 2],
}

impl Room {
    fn new(b: &mut PlanBuilder, options: &Options, r: Rank) -> Self {
        let (q_block, kv_block) = (b.block(&[b.shard(r)], false), b.block(&[b.shard(r)], true));
        let depth = (options.prefetch.max(1) + 1).min(b.ranks() - 1);
        let own = Queries {
            side: b.input(r, Tensor::QuerySide, q_block),
            delta: b.scratch(r, Tensor::Delta, q_block),
        };
        let stages = (0..depth).map(|_| Queries {
            side: b.scratch(r, Tensor::BackwardQuery, q_block),
            delta: b.scratch(r, Tensor::Delta, q_block),
        });
        let stages = stages.collect();
        let mut two = || [(); 2].map(|()| b.scratch(r, Tensor::QueryGrad, q_block));
        let (share, arrived) = (two(), two());
        Self {
            q_block,
            kv_block,
            own,
            kv: b.input(r, Tensor::KeyValue, kv_block),
            dq: b.output(r, Tensor::QueryGrad, q_block),
            dkv: b.output(r, Tensor::KeyValueGrad, kv_block),
            stages,
            share,
            arrived,
        }
    }

    /// The queries that the rank holds at step t.
    fn queries(&self, t: u32) -> Queries {
        if t == 0 { self.own } else { self.stages[(t as usize - 1) % self.stages.len()] }
    }
}

struct Burst {
    overlaps: bool,
    rule: Rule,
    rooms: Vec<Room>,
    /// Of queries, and of their gradients.
    channels: [Channel; 2],
}

impl Burst {
    fn build(&self, b: &mut PlanBuilder) {
        let ranks = b.ranks();
        for (r, room) in (0..).zip(&self.rooms) {
            let q = room.own.side.into();
            b.compute(r, 0, OpKind::Preprocess { q, delta: room.own.delta, block: room.q_block });
        }
        let mut loads: Vec<Buf> = Vec::new();
        for t in 0..ranks {
            if self.overlaps {
                self.pass_queries(b, t, &[]);
            }
            let arrived = self.pass_gradients(b, t, &loads);
            let shares: Vec<Option<OpId>> = (0..ranks).map(|r| self.attend(b, r, t)).collect();
            loads =
                (0..ranks).map(|r| self.combine(b, r, t, shares[r as usize].is_some(), &arrived)).collect();
            if !self.overlaps {
                self.pass_queries(b, t, &shares);
            }
        }
        self.pass_gradients(b, ranks, &loads);
    }

    /// Sends the queries of step t on for step t + 1, not before `after`.
    fn pass_queries(&self, b: &mut PlanBuilder, t: u32, after: &[Option<OpId>]) {
        let ranks = b.ranks();
        if t + 1 == ranks {
            return;
        }
        let messages = (0..ranks).map(|r| {
            let block = self.rooms[owner(r, t, ranks) as usize].q_block;
            [Tensor::BackwardQuery, Tensor::Delta].map(|tensor| b.message(r, (r + 1) % ranks, tensor, block))
        });
        let messages: Vec<[MessageId; 2]> = messages.collect();
        for r in 0..ranks {
            let room = &self.rooms[r as usize];
            let (held, next, from) = (room.queries(t), room.queries(t + 1), owner(r, 1, ranks));
            let [side, delta] = messages[r as usize];
            let sends: [(MessageId, Bufs); 2] = [(side, held.side.into()), (delta, held.delta.into())];
            let [side, delta] = messages[from as usize];
            let after = after.get(r as usize).copied().flatten();
            self.channels[0].exchange(b, (r, t), &sends, &[(side, next.side), (delta, next.delta)], after);
        }
    }

    /// Step t's attention on rank r: the queries that it holds over its own keys.
    fn attend(&self, b: &mut PlanBuilder, r: Rank, t: u32) -> Option<OpId> {
        let (ranks, room) = (b.ranks(), &self.rooms[r as usize]);
        let (q_block, kv_block) = (self.rule)(owner(r, t, ranks), r);
        let mask = classify(b, q_block, kv_block).or((t == 0).then_some(MaskId::PROBLEM))?;
        let queries = room.queries(t);
        let call = OpKind::AttendBackward {
            q: queries.side.into(),
            delta: queries.delta,
            kv: room.kv.into(),
            dq: if ranks == 1 { room.dq } else { room.share[t as usize % 2] },
            dkv: room.dkv.into(),
            q_block,
            kv_block,
            dkv_block: room.kv_block,
            mask,
            init_dq: true,
            init_dkv: t == 0,
        };
        Some(b.compute(r, t, call))
    }

    /// The dq that rank r has after step t: what arrived, with its share added; at first its share alone.
    fn combine(&self, b: &mut PlanBuilder, r: Rank, t: u32, has_share: bool, arrived: &[Buf]) -> Buf {
        let from = self.rooms[r as usize].share[t as usize % 2];
        let Some(&into) = arrived.get(r as usize) else { return from };
        if has_share {
            b.compute(r, t, OpKind::Accumulate { from, into });
        }
        into
    }

    /// Sends what the last step left of dq to the next rank; where it arrives there, or home after step P - 1.
    fn pass_gradients(&self, b: &mut PlanBuilder, t: u32, loads: &[Buf]) -> Vec<Buf> {
        let ranks = b.ranks();
        if t == 0 || ranks == 1 {
            return Vec::new();
        }
        let arrive = |room: &Room| if t == ranks { room.dq } else { room.arrived[t as usize % 2] };
        let arrived: Vec<Buf> = self.rooms.iter().map(arrive).collect();
        let messages = (0..ranks).map(|r| {
            let block = self.rooms[owner(r, t - 1, ranks) as usize].q_block;
            b.message(r, (r + 1) % ranks, Tensor::QueryGrad, block)
        });
        let messages: Vec<MessageId> = messages.collect();
        for r in 0..ranks {
            let send = (messages[r as usize], loads[r as usize].into());
            let recv = (messages[owner(r, 1, ranks) as usize], arrived[r as usize]);
            self.channels[1].exchange(b, (r, t), &[send], &[recv], None);
        }
        arrived
    }
}
