//! What transfers take from attention calls: SMs, and a share of the memory's bandwidth.
//!
//! An NCCL transfer is a kernel, which holds SMs of both its GPUs while it moves; a copy engine holds none. A call that
//! runs beside transfers that hold n of N SMs, and cost it the share s of its speed besides, goes on at (1 - s)(N - n)/N of
//! its speed. A persistent grid has one thread block for every SM. If each has its share of the work and it starts while
//! SMs are held, the blocks that find no room begin when those transfers have ended, and the call so ends its whole time
//! after them; or they follow the blocks that found room, in as many rounds as that takes, if that is sooner. If they take
//! their work from a queue, blocks that come late find less to do, and the call is only slowed down; a transfer that needs
//! SMs finds none before such a call has ended ([`super::grants`]).
//!
//! On H200 (cuDNN, persistent; calls of 8Ki and 16Ki tokens) 94% of an NCCL exchange posted with a call was exposed, and
//! 33% and 20% of one posted after it; for many short thread blocks 39% and 66%, and 19% and 15%; of copies 0 to 29%.

use super::program::STRIDE;
use crate::config::cluster::Grid;

const NEVER: u64 = u64::MAX;
const NO_LANE: u32 = u32::MAX;
const ALL_FOUND_ROOM: u128 = u128::MAX;
/// Speeds are in parts of one SM, so that they stay whole where a share of them is lost.
const PARTS: u32 = 1 << 20;

/// Who holds how many SMs, and how far each rank's call is.
#[derive(Debug, Clone, Default)]
pub(super) struct Sms {
    total: u32,
    ranks: Vec<RankSms>,
    lanes: Vec<Most>,
    /// By transfer and side: how many calls its rank had started when it began to move.
    calls_before: Vec<[u32; 2]>,
}

#[derive(Debug, Clone, Copy)]
struct RankSms {
    held: u32,
    /// Transfers that hold them.
    moving: u32,
    /// Calls that have started.
    calls: u32,
    /// The lane of the call that runs.
    call: u32,
    /// How its work items reach the SMs.
    grid: Grid,
    /// What is left of it at `since`, in picoseconds of one SM, times [`PARTS`].
    left: u128,
    since: u64,
    /// Transfers that it waits for.
    in_way: u32,
    /// What is left of it if the blocks that found no room only follow those that did, in picoseconds times [`PARTS`];
    /// [`ALL_FOUND_ROOM`] if there are none.
    in_rounds: u128,
    /// Parts of its speed that it loses to transfers, whatever they hold.
    losses: Most,
}

/// The demand of the most demanding of some transfers: a lane's are one kernel, and one memory serves all of a GPU. There
/// are at most two kinds: inside a node and between nodes.
#[derive(Debug, Clone, Copy, Default)]
struct Most {
    kinds: [Kind; 2],
}

#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    demand: u32,
    count: u32,
}

/// One side of a transfer that holds up calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder {
    /// The slot of the transfer.
    pub flow: u32,
    /// Which side, 0 or 1.
    pub side: usize,
    /// Its lane.
    pub lane: u32,
    /// SMs that it holds.
    pub sms: u32,
    /// Share of its speed that a call loses beside it.
    pub loss: f64,
}

impl Holder {
    fn lost_parts(&self) -> u32 {
        (f64::from(PARTS) * self.loss).round() as u32
    }
}

/// That the call of a lane now ends at another time; [`u64::MAX`] while that is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NewEnd {
    pub lane: u32,
    pub end: u64,
}

impl Sms {
    /// Devices of `total` SMs, all free.
    pub fn reset(&mut self, ranks: u32, total: u32) {
        let idle = RankSms {
            held: 0,
            moving: 0,
            calls: 0,
            call: NO_LANE,
            grid: Grid::PerItem,
            left: 0,
            since: 0,
            in_way: 0,
            in_rounds: ALL_FOUND_ROOM,
            losses: Most::default(),
        };
        self.total = total;
        self.ranks.clear();
        self.ranks.resize(ranks as usize, idle);
        self.lanes.clear();
        self.lanes.resize(ranks as usize * STRIDE, Most::default());
        self.calls_before.clear();
    }

    /// A call that takes `duration` on all SMs starts on `lane`; returns when it ends as things are.
    pub fn start_call(&mut self, lane: u32, duration: u64, now: u64, grid: Grid) -> NewEnd {
        let rank = &mut self.ranks[lane as usize / STRIDE];
        rank.calls += 1;
        rank.call = lane;
        rank.grid = grid;
        rank.left = u128::from(duration) * u128::from(self.total) * u128::from(PARTS);
        rank.since = now;
        rank.in_way = if grid == Grid::Persistent { rank.moving } else { 0 };
        rank.in_rounds = ALL_FOUND_ROOM;
        if rank.in_way > 0 {
            let rounds = self.total.div_ceil(self.total.saturating_sub(rank.held).max(1));
            rank.in_rounds = u128::from(duration) * u128::from(rounds) * u128::from(PARTS);
        }
        rank.end(self.total, now)
    }

    /// The call of `lane` has ended.
    pub fn end_call(&mut self, lane: u32) {
        self.ranks[lane as usize / STRIDE].call = NO_LANE;
    }

    /// Whether a transfer on `lane` finds no SM before the call of its rank has ended.
    pub fn is_full(&self, lane: u32) -> bool {
        let rank = &self.ranks[lane as usize / STRIDE];
        rank.call != NO_LANE && rank.grid == Grid::PersistentQueue
    }

    /// A transfer that waits for its other side takes `sms` SMs of `lane`'s rank.
    pub fn reserve(&mut self, lane: u32, sms: u32, now: u64) -> Option<NewEnd> {
        let rank = &mut self.ranks[lane as usize / STRIDE];
        rank.go_on(self.total, now);
        rank.held += self.lanes[lane as usize].add(sms);
        (rank.call != NO_LANE).then(|| rank.end(self.total, now))
    }

    /// It has begun to move in this instant, and its SMs are counted with it.
    pub fn unreserve(&mut self, lane: u32, sms: u32) {
        self.ranks[lane as usize / STRIDE].held -= self.lanes[lane as usize].remove(sms);
    }

    /// A transfer begins to move.
    pub fn hold(&mut self, holder: Holder, now: u64) -> Option<NewEnd> {
        let Holder { flow, side, lane, sms, .. } = holder;
        let rank = &mut self.ranks[lane as usize / STRIDE];
        if self.calls_before.len() <= flow as usize {
            self.calls_before.resize(flow as usize + 1, [0; 2]);
        }
        self.calls_before[flow as usize][side] = rank.calls;
        rank.go_on(self.total, now);
        if sms > 0 {
            rank.moving += 1;
            rank.held += self.lanes[lane as usize].add(sms);
        }
        rank.losses.add(holder.lost_parts());
        (rank.call != NO_LANE).then(|| rank.end(self.total, now))
    }

    /// A transfer has ended.
    pub fn release(&mut self, holder: Holder, now: u64) -> Option<NewEnd> {
        let Holder { flow, side, lane, sms, .. } = holder;
        let rank = &mut self.ranks[lane as usize / STRIDE];
        rank.go_on(self.total, now);
        rank.losses.remove(holder.lost_parts());
        if sms > 0 {
            rank.moving -= 1;
            rank.held -= self.lanes[lane as usize].remove(sms);
        }
        if sms > 0 && rank.in_way > 0 && self.calls_before[flow as usize][side] < rank.calls {
            rank.in_way -= 1;
        }
        (rank.call != NO_LANE).then(|| rank.end(self.total, now))
    }
}

impl Most {
    fn demand(&self) -> u32 {
        self.kinds.iter().filter(|k| k.count > 0).map(|k| k.demand).max().unwrap_or(0)
    }

    /// One more transfer of `demand`; returns by how much the largest demand grows.
    fn add(&mut self, demand: u32) -> u32 {
        let before = self.demand();
        let [first, second] = &mut self.kinds;
        let is_first = first.demand == demand || (first.count == 0 && second.demand != demand);
        let kind = if is_first { first } else { second };
        kind.demand = demand;
        kind.count += 1;
        self.demand() - before
    }

    /// One transfer of `demand` less; returns by how much the largest demand shrinks.
    fn remove(&mut self, demand: u32) -> u32 {
        let before = self.demand();
        if let Some(kind) = self.kinds.iter_mut().find(|k| k.demand == demand && k.count > 0) {
            kind.count -= 1;
        }
        before - self.demand()
    }
}

impl RankSms {
    /// Speed of one SM, in parts: it never stops for good.
    fn parts(&self) -> u128 {
        u128::from(PARTS.saturating_sub(self.losses.demand()).max(1))
    }

    /// Speed left to the call, in parts of one SM.
    fn speed(&self, total: u32) -> u128 {
        u128::from(total.saturating_sub(self.held).max(1)) * self.parts()
    }

    fn go_on(&mut self, total: u32, now: u64) {
        if self.in_rounds != ALL_FOUND_ROOM {
            self.in_rounds = self.in_rounds.saturating_sub(u128::from(now - self.since) * self.parts());
        }
        if self.in_way == 0 {
            let done = u128::from(now - self.since) * self.speed(total);
            self.left = self.left.saturating_sub(done);
        }
        self.since = now;
    }

    fn end(&self, total: u32, now: u64) -> NewEnd {
        let after = |time: u128| now.saturating_add(time.try_into().unwrap_or(NEVER));
        let waited = if self.in_way > 0 { NEVER } else { after(self.left.div_ceil(self.speed(total))) };
        let in_rounds = match self.in_rounds {
            ALL_FOUND_ROOM => NEVER,
            left => after(left.div_ceil(self.parts())),
        };
        NewEnd { lane: self.call, end: waited.min(in_rounds) }
    }
}

#[cfg(test)]
mod tests;
