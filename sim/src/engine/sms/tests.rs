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

/// A transfer on lane `lane`.
fn transfer(flow: u32, lane: u32, sms: u32) -> Holder {
    Holder { flow, side: 0, lane, sms, loss: 0.0 }
}

#[test]
fn a_call_slows_down_while_sms_are_held() {
    let mut sms = device();
    let other = transfer(0, 1, 4);
    assert_eq!(sms.start_call(CALL, 1000, 0, Grid::Persistent), ends(1000));
    // 100 of 1000 done; 900 left at 6/10.
    assert_eq!(sms.hold(other, 100), Some(ends(1600)));
    // 300 of those 900 in 500.
    assert_eq!(sms.release(other, 600), Some(ends(1200)));
}

#[test]
fn a_group_holds_the_sms_of_its_most_demanding_transfer() {
    let mut sms = device();
    let (near, far, apart) = (transfer(0, 1, 5), transfer(1, 1, 2), transfer(2, 2, 3));
    sms.start_call(CALL, 1000, 0, Grid::Persistent);
    assert_eq!(sms.hold(near, 0), Some(ends(2000)));
    assert_eq!(sms.hold(far, 0), Some(ends(2000)), "the same kernel");
    // 50 of 1000 done.
    assert_eq!(sms.release(near, 100), Some(ends(100 + 950 * 10 / 8 + 1)));
    assert_eq!(sms.hold(near, 100), Some(ends(2000)));
    assert_eq!(sms.release(far, 100), Some(ends(2000)));
    assert_eq!(sms.hold(apart, 100), Some(ends(100 + 950 * 10 / 2)), "another kernel");
    assert_eq!(sms.release(near, 100), Some(ends(100 + 950 * 10 / 7 + 1)));
    assert_eq!(sms.release(apart, 100), Some(ends(1050)));
}

#[test]
fn a_persistent_call_waits_for_the_transfers_that_it_met() {
    let mut sms = device();
    let (met, later) = (transfer(0, 1, 4), transfer(1, 2, 4));
    sms.hold(met, 0);
    // In two rounds at the latest: six blocks, then the other four.
    assert_eq!(sms.start_call(CALL, 1000, 0, Grid::Persistent), ends(2000));
    assert_eq!(sms.hold(later, 300), Some(ends(2000)));
    // The second came later: it slows the call down, and does not stop it. By itself that would be 500 + 1667.
    assert_eq!(sms.release(met, 500), Some(ends(2000)));
    // At 6/10 for 600: 360 done.
    assert_eq!(sms.release(later, 1100), Some(ends(1100 + 640)));
}

#[test]
fn a_transfer_that_comes_and_goes_beside_the_one_that_was_met_ends_no_wait() {
    let mut sms = device();
    let (met, later) = (transfer(0, 1, 4), transfer(1, 2, 4));
    sms.hold(met, 0);
    sms.start_call(CALL, 1000, 0, Grid::Persistent);
    sms.hold(later, 100);
    // In two rounds still; without a wait it would be 200 + 1667.
    assert_eq!(sms.release(later, 200), Some(ends(2000)));
    assert_eq!(sms.release(met, 500), Some(ends(1500)));
}

#[test]
fn what_holds_no_sm_is_in_the_way_of_no_call() {
    let mut sms = device();
    let copy = Holder { loss: 0.5, ..transfer(0, 1, 0) };
    sms.hold(copy, 0);
    assert_eq!(sms.start_call(CALL, 1000, 0, Grid::Persistent), ends(2000));
    assert_eq!(sms.release(copy, 1000), Some(ends(1500)));
}

#[test]
fn sms_are_held_from_when_they_are_reserved() {
    let mut sms = device();
    sms.start_call(CALL, 1000, 0, Grid::PerItem);
    // 500 are left at 6/10, 300 of them in 500; what begins to move holds the same SMs.
    assert_eq!(sms.reserve(1, 4, 500), Some(ends(500 + 834)));
    let begun = transfer(0, 1, 4);
    assert_eq!(sms.hold(begun, 1000), Some(ends(1334)));
    sms.unreserve(1, 4);
    assert_eq!(sms.release(begun, 1000), Some(ends(1200)));
}

#[test]
fn only_a_queue_keeps_all_sms_and_only_while_its_call_runs() {
    for grid in [Grid::Persistent, Grid::PersistentQueue, Grid::PerItem] {
        let mut sms = device();
        sms.start_call(CALL, 1000, 0, grid);
        assert_eq!(sms.is_full(1), grid == Grid::PersistentQueue, "{grid:?}");
        sms.end_call(CALL);
        assert!(!sms.is_full(1), "{grid:?}");
    }
}

#[test]
fn what_begins_when_another_of_its_group_ends_is_not_met_in_any_order() {
    let (met, next) = (transfer(0, 1, 4), transfer(1, 1, 4));
    for next_first in [false, true] {
        let mut sms = device();
        sms.hold(met, 0);
        sms.start_call(CALL, 1000, 0, Grid::Persistent);
        let end = if next_first {
            sms.hold(next, 500);
            sms.release(met, 500)
        } else {
            sms.release(met, 500);
            sms.hold(next, 500)
        };
        assert_eq!(end, Some(ends(2000)), "next first: {next_first}");
        // 600 at 6/10.
        assert_eq!(sms.release(next, 1100), Some(ends(1100 + 640)), "next first: {next_first}");
    }
}

#[test]
fn blocks_that_find_no_room_follow_those_that_did() {
    // Of 10 blocks 10 - n at a time: 2, 3 and 10 rounds of 1000.
    for (held, end) in [(4, 2000), (6, 3000), (9, 10_000)] {
        let mut sms = device();
        let met = transfer(0, 1, held);
        sms.hold(met, 0);
        assert_eq!(sms.start_call(CALL, 1000, 0, Grid::Persistent), ends(end));
        assert_eq!(sms.release(met, 900), Some(ends(1900)), "they begin at once where the transfer ends");
    }
    let mut sms = device();
    sms.hold(Holder { loss: 0.5, ..transfer(0, 1, 4) }, 0);
    assert_eq!(sms.start_call(CALL, 1000, 0, Grid::Persistent), ends(4000), "at half the speed");
    sms.end_call(CALL);
    assert_eq!(sms.start_call(CALL, 1000, 4000, Grid::Persistent), ends(8000), "the next one meets it too");
}

#[test]
fn short_thread_blocks_take_what_is_free() {
    let mut sms = device();
    let other = transfer(0, 1, 5);
    sms.hold(other, 0);
    assert_eq!(sms.start_call(CALL, 1000, 0, Grid::PerItem), ends(2000));
    assert_eq!(sms.release(other, 1000), Some(ends(1500)));
    sms.end_call(CALL);
    assert_eq!(sms.hold(other, 2000), None, "nothing runs");
}

#[test]
fn a_call_never_stops_for_good() {
    let mut sms = device();
    sms.hold(transfer(0, 1, 30), 0);
    assert_eq!(sms.start_call(CALL, 1000, 0, Grid::PerItem), ends(10_000));
}
