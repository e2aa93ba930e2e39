//! Keys and values on the move: who sends which chunk of whose keys at which step, into which of a rank's buffers.

use super::step::{Channel, Travel, owner, shards};
use super::{Options, Route};
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, MessageId, OpId, Rank, Slots, Tensor};

/// The KV traffic of a ring: every rank keeps its own keys and receives the others' into `depth` stages of `chunks`
/// buffers, the stage of one step being the send buffer of the next.
pub(super) struct KvRing {
    route: Route,
    channel: Channel,
    chunks: u64,
    travel: Travel,
    own: Vec<Buf>,
    stages: Vec<Vec<Bufs>>,
    moves: Vec<Option<MessageId>>,
}

impl KvRing {
    /// Allocates own keys and stages on every rank.
    pub fn new(b: &mut PlanBuilder, options: &Options, travel: Travel) -> Self {
        let ranks = b.ranks();
        let blocks = shards(b, true);
        let depth = (options.prefetch.max(1) + 1).min(ranks - 1);
        let chunks = u64::from(options.chunks);
        let parts = b.parts(blocks[0], chunks);
        let own = (0..ranks).map(|r| b.input(r, Tensor::KeyValue, blocks[r as usize])).collect();
        let stages = (0..ranks)
            .map(|r| (0..depth).map(|_| b.scratch_parts(r, Tensor::KeyValue, &parts)).collect())
            .collect();
        let channel = Channel::new(options.transport, 0);
        Self { route: options.route, channel, chunks, travel, own, stages, moves: Vec::new() }
    }

    /// What of each rank's keys travels.
    pub fn travel(&self) -> &Travel {
        &self.travel
    }

    /// Makes the messages that arrive for step `t >= 1`.
    pub fn prepare(&mut self, b: &mut PlanBuilder, t: u32) {
        let ranks = b.ranks();
        self.moves.clear();
        for to in 0..ranks {
            let s = owner(to, t, ranks);
            let from = match self.route {
                Route::Neighbour => owner(to, 1, ranks),
                Route::Direct => s,
            };
            let (first, last) = self.travel.range(t, s);
            for k in 0..self.chunks {
                let (a, z) = self.chunk(b, k);
                let slots = Slots { rank: s, from: a.max(first), to: z.min(last) };
                let message = (slots.from < slots.to).then(|| {
                    let block = b.block(&[slots], true);
                    b.message(from, to, Tensor::KeyValue, block)
                });
                self.moves.push(message);
            }
        }
    }

    /// Pushes what rank `r` sends and receives for step `t`, chunk by chunk, not before `after`.
    pub fn exchange(&self, b: &mut PlanBuilder, r: Rank, t: u32, after: Option<OpId>) {
        let to = match self.route {
            Route::Neighbour => (r + 1) % b.ranks(),
            Route::Direct => (r + t) % b.ranks(),
        };
        let forwards = self.route == Route::Neighbour && t > 1;
        for k in 0..self.chunks {
            let source = if forwards { self.stage(r, t - 1, k) } else { self.own[r as usize] };
            let send = self.moves[(u64::from(to) * self.chunks + k) as usize].map(|m| (m, source.into()));
            let recv =
                self.moves[(u64::from(r) * self.chunks + k) as usize].map(|m| (m, self.stage(r, t, k)));
            self.channel.exchange(b, (r, t), send.as_slice(), recv.as_slice(), after);
        }
    }

    /// The buffers in which rank `r` finds `block` at step `t`.
    pub fn holding(&self, b: &PlanBuilder, r: Rank, t: u32, block: BlockId) -> Bufs {
        let slots = b.slots(block);
        if t == 0 || slots.is_empty() {
            return self.own[r as usize].into();
        }
        let (from, to) = (slots[0].from, slots[slots.len() - 1].to);
        let used = |k: &u64| {
            let (a, z) = self.chunk(b, *k);
            a < to && from < z
        };
        let count = (0..self.chunks).filter(used).count() as u16;
        let first = (0..self.chunks).find(used).unwrap_or(0);
        Bufs { first: self.stage(r, t, first), count }
    }

    fn stage(&self, r: Rank, t: u32, chunk: u64) -> Buf {
        let stages = &self.stages[r as usize];
        Buf(stages[(t as usize - 1) % stages.len()].first.0 + chunk as u16)
    }

    fn chunk(&self, b: &PlanBuilder, k: u64) -> (u64, u64) {
        let c = b.layout().tokens_per_rank();
        (c * k / self.chunks, c * (k + 1) / self.chunks)
    }
}
