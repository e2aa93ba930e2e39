use super::*;
use crate::config::cluster::{Dtype, Pass};
use crate::mask::{Documents, Mask, Pattern};
use crate::tiles;
use crate::tokens::{Progression, TokenSet};
use crate::units::FlopsPerSec;
use proptest::prelude::*;
use std::cmp::Reverse;

fn row(tile_q: u32, tile_kv: u32, sms: u32) -> KernelRow {
    KernelRow {
        name: "test".into(),
        head_dim: 64,
        dtype: Dtype::Bf16,
        pass: Pass::Forward,
        tile_q,
        tile_kv,
        // A full tile takes 1000 ps on one SM.
        rate: FlopsPerSec(f64::from(tile_q * tile_kv * 4 * 64) * 1e9 * f64::from(sms)),
        partial_tile_cost: 1.5,
        prologue: SimTime(700),
        epilogue: SimTime(300),
        call: SimTime::ZERO,
        carry: SimTime::ZERO,
        items: Items::QueryTiles,
        grid: Grid::Persistent,
        source: "test".into(),
        boost: None,
        linked: None,
        used_for: None,
        sections: None,
    }
}

fn causal(rows: u64, tile: u64) -> TileProfile {
    let n = rows * tile;
    let all = TokenSet::new([Progression::contiguous(0, n)]);
    let mask = Mask::new(Pattern::Causal, &Documents::single(n));
    tiles::profile(&mask, &all, &all, TileShape { q: tile, kv: tile })
}

/// Rows of so many full tiles.
fn equal(rows: u64, tiles: u64) -> TileProfile {
    let each = RowTiles { full: tiles, partial: 0 };
    let total = RowTiles { full: rows * tiles, partial: 0 };
    TileProfile { rows, blank: 0, total, empty: 0, heaviest: each, lightest: each }
}

/// Every item of a causal square on the SM that is free first, longest first.
fn longest_first(rows: u64, repeats: u64, sms: usize) -> u64 {
    let mut items: Vec<u64> =
        (0..repeats).flat_map(|_| (0..rows).map(|full| 1000 + full * 1000 + 1500)).collect();
    items.sort_unstable_by_key(|&i| Reverse(i));
    let mut free = vec![0; sms];
    for item in items {
        *free.iter_mut().min().unwrap() += item;
    }
    free.into_iter().max().unwrap()
}

#[test]
fn equal_items_in_waves_are_exact() {
    let kernel = Kernel::new(&row(128, 128, 132), 132);
    let profile = equal(33, 10);
    // One item is 1 + 10 ns.
    assert_eq!(kernel.call(&profile, Heads::separate(4), 0).time(132), SimTime(11_000));
    assert_eq!(kernel.call(&profile, Heads::separate(8), 0).time(132), SimTime(22_000));
    assert_eq!(
        kernel.call(&profile, Heads::separate(9), 0).time(132),
        SimTime(33_000),
        "33 items more need another wave"
    );
    assert_eq!(kernel.call(&profile, Heads::separate(1), 0).time(132), SimTime(11_000));
}

#[test]
fn single_pairs_on_one_sm_are_exact_work() {
    let mut ideal = row(1, 1, 1);
    (ideal.prologue, ideal.epilogue, ideal.partial_tile_cost) = (SimTime::ZERO, SimTime::ZERO, 1.0);
    let call = Kernel::new(&ideal, 1).call(&causal(100, 1), Heads::separate(3), 0);
    assert_eq!(call.time(1), SimTime(3 * 1000 * 100 * 101 / 2));
}

#[test]
fn every_call_has_its_constant_once() {
    let with = KernelRow { call: SimTime(5000), ..row(64, 64, 8) };
    let (profile, heads) = (causal(20, 64), Heads::separate(6));
    let time = |row: &KernelRow, carries| Kernel::new(row, 8).call(&profile, heads, carries).time(8).0;
    assert_eq!(time(&with, 0), time(&row(64, 64, 8), 0) + 5000);
    // 120 items in 15 whole waves, each with two carries of 400 ps more.
    let carrying = KernelRow { carry: SimTime(400), ..with.clone() };
    assert_eq!(time(&carrying, 2), time(&with, 0) + 15 * 2 * 400);
}

#[test]
fn weights_times_constants_are_the_time_of_a_call() {
    for (rows, repeats, sms) in [(33, 4, 132), (7, 3, 16), (1, 1, 132), (40, 16, 132)] {
        let (kernel, profile) = (Kernel::new(&row(64, 64, sms), sms), causal(rows, 64));
        let [fixed, full, partial] =
            weights(&profile, Heads::separate(repeats), sms, (Items::QueryTiles, Grid::Persistent));
        let time = fixed * 1000.0 + full * 1000.0 + partial * 1500.0;
        let exact = kernel.call(&profile, Heads::separate(repeats), 0).time(sms).0 as f64;
        assert!((time - exact).abs() <= 1.0, "{time} for {exact}");
    }
}

#[test]
fn a_last_round_of_parts_takes_their_time() {
    // 2048 equal items on 132 SMs: 15 rounds of 1 + 128, and three of 1 + 26.
    let queue = KernelRow { items: Items::KeyTiles, grid: Grid::PersistentQueue, ..row(64, 64, 132) };
    let profile = equal(64, 128);
    let heads = Heads::separate(32);
    let time = Kernel::new(&queue, 132).call(&profile, heads, 0).time(132).0;
    assert_eq!(time, (15 * 129 + 3 * 27) * 1000);
    let [fixed, full, partial] = weights(&profile, heads, 132, (Items::KeyTiles, Grid::PersistentQueue));
    assert_eq!([fixed, full, partial], [18.0, 15.0 * 128.0 + 3.0 * 26.0, 0.0]);
    let plain = Kernel::new(&row(64, 64, 132), 132).call(&profile, heads, 0).time(132).0;
    assert_eq!(plain, 16 * 129 * 1000);
}

#[test]
fn a_call_whose_last_round_is_cut_has_its_constant_once() {
    let queue = KernelRow { items: Items::KeyTiles, grid: Grid::PersistentQueue, ..row(64, 64, 132) };
    let with = KernelRow { call: SimTime(5000), ..queue.clone() };
    let profile = equal(64, 128);
    let time = |row: &KernelRow| Kernel::new(row, 132).call(&profile, Heads::separate(32), 0).time(132).0;
    assert_eq!((time(&queue), time(&with)), (2_016_000, 2_021_000));
}

/// A work item of two heads of ten full tiles takes 2 x 11 ns, of which it multiplies for 2 x 10.
#[test]
fn items_of_several_heads_take_and_multiply_as_long_as_all_of_them() {
    let row = KernelRow { items: Items::KeyTiles, ..row(64, 64, 10) };
    let heads = Heads { separate: 1, shared: 2, section: None };
    let call = |rows| Kernel::new(&row, 10).call(&equal(rows, 10), heads, 0);
    assert_eq!(call(10).time(10), SimTime(22_000));
    assert!((call(10).activity(10) - 10.0 / 11.0).abs() < 1e-12);
    assert_eq!(call(12).time(10), SimTime(44_000), "eight idle slots of a second round");
    assert!((call(12).activity(10) - 0.6 * 10.0 / 11.0).abs() < 1e-12);
}

#[test]
fn nothing_to_do_takes_no_time_and_no_rate_takes_for_ever() {
    let kernel = Kernel::new(&row(64, 64, 8), 8);
    assert_eq!(kernel.call(&TileProfile::default(), Heads::separate(8), 0).time(8), SimTime::ZERO);
    let stopped = KernelRow { rate: FlopsPerSec(0.0), ..row(64, 64, 8) };
    assert_eq!(Kernel::new(&stopped, 8).call(&causal(4, 64), Heads::separate(1), 0).time(8), SimTime::NEVER);
    let ideal = KernelRow { rate: FlopsPerSec(f64::INFINITY), ..row(64, 64, 8) };
    assert_eq!(
        Kernel::new(&ideal, 8).call(&causal(4, 64), Heads::separate(2), 0).time(8),
        SimTime(1000),
        "only the prologue"
    );
}

proptest! {
    #[test]
    fn a_call_is_near_the_longest_first_schedule(rows in 1u64..40, repeats in 1u64..40, sms in 1u32..140) {
        let kernel = Kernel::new(&row(64, 64, sms), sms);
        let call = kernel.call(&causal(rows, 64), Heads::separate(repeats), 0);
        let (time, exact) = (call.time(sms).0, longest_first(rows, repeats, sms as usize));
        prop_assert!(time as f64 >= call.total / f64::from(sms), "below the work bound");
        prop_assert!(time as f64 >= call.heaviest, "below the heaviest item");
        // List scheduling is within one item of the optimum, and so is the closed form.
        prop_assert!(time.abs_diff(exact) as f64 <= call.heaviest, "{} for {}", time, exact);
    }
}
