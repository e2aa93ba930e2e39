//! What the ring-like schedules share: which pairs a step has, which keys travel, on which lanes.

use super::{Options, Route};
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, Lane, MaskId, MessageId, OpId, OpKind, Rank, Slots, Transport};
use crate::{tiles, work};

/// The mask that a step needs, `None` where it has no pair at all.
pub(super) fn classify(b: &PlanBuilder, q: BlockId, kv: BlockId) -> Option<MaskId> {
    let (mask, q, kv) = (b.mask(), b.tokens(q), b.tokens(kv));
    if tiles::all_full(mask, q, kv) {
        return Some(MaskId::NONE);
    }
    let empty = tiles::all_empty(mask, q, kv) || !work::any_pair(mask, q, kv);
    (!empty).then_some(MaskId::PROBLEM)
}

/// The block of every rank's whole shard.
pub(super) fn shards(b: &mut PlanBuilder, kv_side: bool) -> Vec<BlockId> {
    (0..b.ranks()).map(|r| b.block(&[b.shard(r)], kv_side)).collect()
}

/// Blocks as large as each part of what travels of a shard may be. A part of less than the shard can have a token more than
/// the same part of all of it, so with `needed_only` all are as large as the largest.
pub(super) fn part_sizes(b: &mut PlanBuilder, options: &Options, shard: BlockId) -> Vec<BlockId> {
    let parts = b.parts(shard, u64::from(options.chunks));
    let largest = parts.iter().copied().max_by_key(|&part| b.tokens(part).len());
    match largest.filter(|_| options.needed_only) {
        Some(largest) => vec![largest; parts.len()],
        None => parts,
    }
}

/// The rank whose keys rank `r` holds at step `t`.
pub(super) fn owner(r: Rank, t: u32, ranks: u32) -> Rank {
    (r + ranks - t) % ranks
}

/// The slots of each rank's keys that travel at each step: `[from, to)` of rank s's shard on its way to `s + t`.
pub(super) struct Travel {
    ranks: u32,
    all: u64,
    ranges: Option<Vec<(u64, u64)>>,
}

impl Travel {
    /// Everything, or with `needed_only` what `q_of(r, s)` sees. On the neighbour route a hop carries what any later
    /// rank still needs; with `constant` every hop carries the same, up to the last rank that needs any of it.
    pub fn new(
        b: &PlanBuilder,
        options: &Options,
        constant: bool,
        q_of: impl Fn(Rank, Rank) -> BlockId,
    ) -> Self {
        let (ranks, all) = (b.ranks(), b.layout().tokens_per_rank());
        if !options.needed_only {
            return Self { ranks, all, ranges: None };
        }
        let mut ranges = vec![(0, 0); (ranks * ranks) as usize];
        for s in 0..ranks {
            let column: Vec<(u64, u64)> = (0..ranks)
                .map(|t| {
                    let r = (s + t) % ranks;
                    tiles::visible_slots(b.mask(), b.tokens(q_of(r, s)), b.layout().shard(s))
                })
                .collect();
            let column = match options.route {
                Route::Direct => column,
                Route::Neighbour => suffix_hulls(column, constant),
            };
            for (t, range) in column.into_iter().enumerate() {
                ranges[t * ranks as usize + s as usize] = range;
            }
        }
        Self { ranks, all, ranges: Some(ranges) }
    }

    /// What of rank `s` travels to rank `s + t`.
    pub fn range(&self, t: u32, s: Rank) -> (u64, u64) {
        self.ranges.as_ref().map_or((0, self.all), |r| r[(t * self.ranks + s) as usize])
    }

    /// Whether anything of rank `s` travels to rank `s + t`.
    pub fn any(&self, t: u32, s: Rank) -> bool {
        let (from, to) = self.range(t, s);
        from < to
    }

    /// Whether the keys travel whole.
    pub fn is_everything(&self) -> bool {
        self.ranges.is_none()
    }
}

/// Each entry's hull with all later ones. With `constant`, the hull of all hops in each of them that is not empty.
fn suffix_hulls(mut needs: Vec<(u64, u64)>, constant: bool) -> Vec<(u64, u64)> {
    let hull = |a: (u64, u64), b: (u64, u64)| match (a.0 < a.1, b.0 < b.1) {
        (true, true) => (a.0.min(b.0), a.1.max(b.1)),
        (true, false) => a,
        _ => b,
    };
    for t in (0..needs.len() - 1).rev() {
        needs[t] = hull(needs[t], needs[t + 1]);
    }
    if constant {
        let all = needs.get(1).copied().unwrap_or((0, 0));
        needs.iter_mut().skip(1).filter(|n| n.0 < n.1).for_each(|n| *n = all);
    }
    needs
}

/// The part of `block` inside `range` of its one owner's shard.
pub(super) fn clip(b: &mut PlanBuilder, block: BlockId, range: (u64, u64)) -> BlockId {
    let clipped: Vec<Slots> = b
        .slots(block)
        .iter()
        .map(|s| Slots {
            rank: s.rank,
            from: s.from.clamp(range.0, range.1),
            to: s.to.clamp(range.0, range.1),
        })
        .collect();
    b.block(&clipped, true)
}

/// The lanes of one kind of traffic: copy engines send and receive apart, NCCL in groups on one communicator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Channel {
    send: Lane,
    recv: Lane,
    grouped: bool,
}

impl Channel {
    /// The `i`-th kind of traffic.
    pub fn new(transport: Transport, i: u8) -> Self {
        match transport {
            Transport::CopyEngine => {
                Self { send: Lane::comm(2 * i), recv: Lane::comm(2 * i + 1), grouped: false }
            }
            Transport::Nccl => Self { send: Lane::comm(i), recv: Lane::comm(i), grouped: true },
        }
    }

    /// Pushes what `rank` sends and receives together: messages with their buffers. All wait for `after`.
    pub fn exchange(
        self,
        b: &mut PlanBuilder,
        (rank, step): (Rank, u32),
        sends: &[(MessageId, Bufs)],
        recvs: &[(MessageId, Buf)],
        after: Option<OpId>,
    ) {
        let group = if self.grouped && sends.len() + recvs.len() > 0 { b.group() } else { 0 };
        let sends = sends.iter().map(|&(message, buffer)| (self.send, OpKind::Send { message, buffer }));
        let recvs = recvs.iter().map(|&(message, buffer)| (self.recv, OpKind::Recv { message, buffer }));
        for (lane, kind) in sends.chain(recvs) {
            let op = b.push(rank, lane, step, group, kind);
            if let Some(other) = after {
                b.wait(rank, op, other);
            }
        }
    }
}
