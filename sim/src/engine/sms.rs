//! SMs that transfers take from attention calls.
//!
//! An NCCL transfer is a kernel, which holds SMs of both its GPUs while it moves; a copy engine holds none. A call that
//! runs beside transfers that hold n of N SMs goes on at (N - n)/N of its speed. A persistent grid has one thread block
//! for every SM, each with its share of the work: if it starts while SMs are held, the blocks that find no room begin
//! when those transfers have ended, and the call so ends its whole time after them.
//!
//! On H200 (cuDNN, persistent; calls of 8Ki and 16Ki tokens) 94% of an NCCL exchange posted with a call was exposed, and
//! 33% and 20% of one posted after it; for many short thread blocks 39% and 66%, and 19% and 15%; of copies 0 to 29%.

use super::program::STRIDE;

const NEVER: u64 = u64::MAX;
const NO_LANE: u32 = u32::MAX;

/// Who holds how many SMs, and how far each rank's call is.
#[derive(Debug, Clone, Default)]
pub(super) struct Sms {
    total: u32,
    ranks: Vec<RankSms>,
    lanes: Vec<LaneSms>,
}

#[derive(Debug, Clone, Copy)]
struct RankSms {
    held: u32,
    /// The lane of the call that runs.
    call: u32,
    /// What is left of it at `since`, in picoseconds of one SM.
    left: u128,
    since: u64,
    /// Lanes whose transfers it waits for.
    in_way: u32,
}

/// A lane's transfers in hand: one kernel.
#[derive(Debug, Clone, Copy, Default)]
struct LaneSms {
    moving: u32,
    held: u32,
    in_way: bool,
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
        let idle = RankSms { held: 0, call: NO_LANE, left: 0, since: 0, in_way: 0 };
        self.total = total;
        self.ranks.clear();
        self.ranks.resize(ranks as usize, idle);
        self.lanes.clear();
        self.lanes.resize(ranks as usize * STRIDE, LaneSms::default());
    }

    /// A call that takes `duration` on all SMs starts on `lane`; returns when it ends as things are.
    pub fn start_call(&mut self, lane: u32, duration: u64, now: u64, persistent: bool) -> NewEnd {
        let first = lane as usize / STRIDE * STRIDE;
        let mut in_way = 0;
        for other in self.lanes[first..first + STRIDE].iter_mut().filter(|l| persistent && l.held > 0) {
            other.in_way = true;
            in_way += 1;
        }
        let left = u128::from(duration) * u128::from(self.total);
        let rank = &mut self.ranks[lane as usize / STRIDE];
        *rank = RankSms { call: lane, left, since: now, in_way, ..*rank };
        rank.end(self.total, now)
    }

    /// The call of `lane` has ended.
    pub fn end_call(&mut self, lane: u32) {
        self.ranks[lane as usize / STRIDE].call = NO_LANE;
    }

    /// A transfer of `lane` that holds `sms` SMs begins to move.
    pub fn hold(&mut self, lane: u32, sms: u32, now: u64) -> Option<NewEnd> {
        let of_lane = &mut self.lanes[lane as usize];
        of_lane.moving += 1;
        let more = sms.saturating_sub(of_lane.held);
        of_lane.held += more;
        let rank = &mut self.ranks[lane as usize / STRIDE];
        rank.go_on(self.total, now);
        rank.held += more;
        (more > 0 && rank.call != NO_LANE).then(|| rank.end(self.total, now))
    }

    /// A transfer of `lane` has ended.
    pub fn release(&mut self, lane: u32, now: u64) -> Option<NewEnd> {
        let of_lane = &mut self.lanes[lane as usize];
        of_lane.moving -= 1;
        if of_lane.moving > 0 {
            return None;
        }
        let LaneSms { held, in_way, .. } = std::mem::take(of_lane);
        let rank = &mut self.ranks[lane as usize / STRIDE];
        rank.go_on(self.total, now);
        rank.held -= held;
        rank.in_way -= u32::from(in_way);
        (rank.call != NO_LANE).then(|| rank.end(self.total, now))
    }
}

impl RankSms {
    /// SMs left to the call: it never stops for good.
    fn free(&self, total: u32) -> u32 {
        total.saturating_sub(self.held).max(1)
    }

    fn go_on(&mut self, total: u32, now: u64) {
        if self.in_way == 0 {
            let done = u128::from(now - self.since) * u128::from(self.free(total));
            self.left = self.left.saturating_sub(done);
        }
        self.since = now;
    }

    fn end(&self, total: u32, now: u64) -> NewEnd {
        let time = self.left.div_ceil(u128::from(self.free(total)));
        let end = if self.in_way > 0 { NEVER } else { now.saturating_add(time.try_into().unwrap_or(NEVER)) };
        NewEnd { lane: self.call, end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: u32 = 0;

    fn device() -> Sms {
        let mut sms = Sms::default();
        sms.reset(1, 10);
        sms
    }

    fn ends(end: u64) -> NewEnd {
        NewEnd { lane: CALL, end }
    }

    #[test]
    fn a_call_slows_down_while_sms_are_held() {
        let mut sms = device();
        assert_eq!(sms.start_call(CALL, 1000, 0, true), ends(1000));
        // 100 of 1000 done; 900 left at 6/10.
        assert_eq!(sms.hold(1, 4, 100), Some(ends(1600)));
        // 300 of those 900 in 500.
        assert_eq!(sms.release(1, 600), Some(ends(1200)));
    }

    #[test]
    fn a_group_holds_its_sms_once() {
        let mut sms = device();
        sms.start_call(CALL, 1000, 0, true);
        assert_eq!(sms.hold(1, 5, 0), Some(ends(2000)));
        assert_eq!(sms.hold(1, 5, 0), None, "the same kernel");
        assert_eq!(sms.release(1, 100), None, "half of it still moves");
        assert_eq!(sms.release(1, 200), Some(ends(1100)));
        sms.hold(1, 5, 200);
        assert_eq!(sms.hold(2, 3, 200), Some(ends(200 + 900 * 10 / 2)), "another one");
    }

    #[test]
    fn a_persistent_call_waits_for_the_transfers_that_it_met() {
        let mut sms = device();
        sms.hold(1, 4, 0);
        assert_eq!(sms.start_call(CALL, 1000, 0, true), ends(NEVER));
        assert_eq!(sms.hold(2, 4, 300), Some(ends(NEVER)));
        // The second came later: it slows the call down, and does not stop it.
        assert_eq!(sms.release(1, 500), Some(ends(500 + 1667)));
        // At 6/10 for 600: 360 done.
        assert_eq!(sms.release(2, 1100), Some(ends(1100 + 640)));
    }

    #[test]
    fn short_thread_blocks_take_what_is_free() {
        let mut sms = device();
        sms.hold(1, 5, 0);
        assert_eq!(sms.start_call(CALL, 1000, 0, false), ends(2000));
        assert_eq!(sms.release(1, 1000), Some(ends(1500)));
        sms.end_call(CALL);
        assert_eq!(sms.hold(1, 5, 2000), None, "nothing runs");
    }

    #[test]
    fn a_call_never_stops_for_good() {
        let mut sms = device();
        sms.hold(1, 30, 0);
        assert_eq!(sms.start_call(CALL, 1000, 0, false), ends(10_000));
    }
}
