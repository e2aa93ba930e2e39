//! Attention calls: a kernel's work items, and how long they keep the SMs of a device.
//!
//! A work item is one query tile of one head and sequence, or one key tile of all query heads that share a kv head. For each
//! of its query heads it takes `prologue + epilogue + carries * carry + (full + partial * partial_cost) * t`,
//! where `t = tile_q * tile_kv * flops_per_pair / (rate / SMs)` is the time of a full tile on one SM. Items go to the
//! SMs longest first, so that the last wave holds the lightest ones; a call takes
//! `(sum of items + idle slots of the last wave * lightest item) / SMs`, and never less than its heaviest item, and a
//! constant that every call has. Equal
//! items in whole waves make this exact.

use super::items::LastRound;
use super::whole_picoseconds;
use crate::config::cluster::{Grid, Items, KernelRow};
use crate::tiles::{RowTiles, TileProfile, TileShape};
use crate::units::SimTime;

const PS_PER_SEC: f64 = 1e12;

/// A kernel's times on one SM, in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kernel {
    tile: TileShape,
    full_tile: f64,
    partial_tile: f64,
    /// Prologue and epilogue of an item.
    fixed: f64,
    carry: f64,
    /// Of a call of any size.
    around: f64,
    boost: f64,
    linked: f64,
    items: Items,
    grid: Grid,
    sms: u32,
}

/// Heads of a call, times sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Heads with work items of their own.
    pub separate: u64,
    /// Query heads that one work item goes through.
    pub shared: u64,
}

impl Heads {
    /// Each with work items of its own.
    pub fn separate(heads: u64) -> Self {
        Self { separate: heads, shared: 1 }
    }
}

/// The work items of one attention call, in picoseconds of one SM.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Call {
    /// Number of items.
    pub items: u64,
    /// Sum over the items.
    pub total: f64,
    /// The item with fewest tiles.
    pub lightest: f64,
    /// The item with most tiles.
    pub heaviest: f64,
    /// Time before the first item and after the last, on the clock and not on an SM.
    pub around: f64,
    /// Sum over the visited tiles, each of a full one's time: what multiplies matrices.
    pub tiles: f64,
    /// Items beyond whole rounds that are cut into parts, and how long the parts take.
    pub last: Option<(u64, f64)>,
}

impl Kernel {
    /// The kernel of `row` on a device of `sms` SMs.
    pub fn new(row: &KernelRow, sms: u32) -> Self {
        let tile = TileShape { q: u64::from(row.tile_q.max(1)), kv: u64::from(row.tile_kv.max(1)) };
        let flops = (tile.q * tile.kv * row.pass.flops_per_pair(row.head_dim)) as f64;
        let full_tile = flops * PS_PER_SEC * f64::from(sms) / row.rate.0;
        Self {
            tile,
            full_tile,
            partial_tile: full_tile * row.partial_tile_cost,
            fixed: (row.prologue + row.epilogue).0 as f64,
            carry: row.carry.0 as f64,
            around: row.call.0 as f64,
            boost: row.boost.unwrap_or(f64::INFINITY),
            linked: row.linked.unwrap_or(1.0),
            items: row.items,
            grid: row.grid,
            sms: sms.max(1),
        }
    }

    /// Queries and keys of a tile.
    pub fn tile(&self) -> TileShape {
        self.tile
    }

    /// How its work items reach the SMs.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// The most by which a clock after a rest speeds it up, the device's boost aside.
    pub fn boost(&self) -> f64 {
        self.boost
    }

    /// How many times as long its calls take on a rank that exchanges messages with other GPUs.
    pub fn linked(&self) -> f64 {
        self.linked
    }

    /// Whether carrying a state costs anything.
    pub fn has_carry(&self) -> bool {
        self.carry > 0.0
    }

    /// What its work items are.
    pub fn items(&self) -> Items {
        self.items
    }

    /// A call over `heads` with these tiles each, which reads and leaves a carried state `carries` times in all.
    pub fn call(&self, profile: &TileProfile, heads: Heads, carries: u32) -> Call {
        let tiles = |t: RowTiles| t.full as f64 * self.full_tile + t.partial as f64 * self.partial_tile;
        let fixed = self.fixed + f64::from(carries) * self.carry;
        let shared = heads.shared as f64;
        let total = profile.rows as f64 * fixed + tiles(profile.total);
        let last = LastRound::of(self.items, self.grid, profile, heads, self.sms).map(|last| {
            let RowTiles { full, partial } = profile.heaviest;
            let tile = tiles(profile.heaviest) / (full + partial) as f64;
            (last.items, last.rounds as f64 * shared * (fixed + last.tiles as f64 * tile))
        });
        Call {
            last,
            items: profile.rows * heads.separate,
            total: total * shared * heads.separate as f64,
            lightest: (fixed + tiles(profile.lightest)) * shared,
            heaviest: (fixed + tiles(profile.heaviest)) * shared,
            around: self.around,
            tiles: (profile.total.full + profile.total.partial) as f64
                * self.full_tile
                * shared
                * heads.separate as f64,
        }
    }
}

impl Call {
    /// Share of the time of `sms` SMs, while the call lasts, in which matrices are multiplied: from 0 to 1. What else an SM
    /// does takes little power.
    pub fn activity(&self, sms: u32) -> f64 {
        let time = self.time(sms).0 as f64 * f64::from(sms.max(1));
        if time > 0.0 { (self.tiles / time).min(1.0) } else { 0.0 }
    }

    /// How long the call takes on `sms` SMs; nothing without items.
    pub fn time(&self, sms: u32) -> SimTime {
        if self.items == 0 {
            return SimTime::ZERO;
        }
        let sms = u64::from(sms.max(1));
        if let Some((items, time)) = self.last {
            return whole_picoseconds(
                ((self.items - items) / sms) as f64 * self.lightest + time + self.around,
            );
        }
        let idle = self.items.next_multiple_of(sms) - self.items;
        let spread = (self.total + idle as f64 * self.lightest) / sms as f64;
        whole_picoseconds(spread.max(self.heaviest) + self.around)
    }
}

/// How often a call over `heads`, on `sms` SMs, takes the time of (a work item's prologue and epilogue, a full tile, a
/// partial tile): the factors with which a call's time is linear in a kernel's constants.
pub fn weights(profile: &TileProfile, heads: Heads, sms: u32, (item, grid): (Items, Grid)) -> [f64; 3] {
    let last = LastRound::of(item, grid, profile, heads, sms);
    let sms = u64::from(sms.max(1));
    let items = profile.rows * heads.separate;
    if let Some(last) = last {
        let RowTiles { full, partial } = profile.heaviest;
        let whole = ((items - last.items) / sms) as f64;
        let part = last.tiles as f64 / (full + partial) as f64;
        let of = |one: u64| heads.shared as f64 * (whole + last.rounds as f64 * part) * one as f64;
        return [heads.shared as f64 * (whole + last.rounds as f64), of(full), of(partial)];
    }
    let idle = items.next_multiple_of(sms) - items;
    let shared = heads.shared as f64;
    let spread =
        |total: u64, lightest: u64| shared * (total * heads.separate + idle * lightest) as f64 / sms as f64;
    let RowTiles { full, partial } = profile.heaviest;
    let spread = [
        spread(profile.rows, 1),
        spread(profile.total.full, profile.lightest.full),
        spread(profile.total.partial, profile.lightest.partial),
    ];
    let heaviest = [1, full, partial].map(|n| (n * heads.shared) as f64);
    // As in [`Call::time`], a call takes no less than its heaviest item. Which of the two it is depends on the constants;
    // where they are not known yet, prologue and epilogue count as a full tile, and a partial tile as one and a half.
    let typical = |[fixed, full, partial]: [f64; 3]| fixed + full + 1.5 * partial;
    if typical(spread) < typical(heaviest) { heaviest } else { spread }
}

#[cfg(test)]
mod tests {
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
        }
    }

    fn causal(rows: u64, tile: u64) -> TileProfile {
        let n = rows * tile;
        let all = TokenSet::new([Progression::contiguous(0, n)]);
        let mask = Mask::new(Pattern::Causal, &Documents::single(n));
        tiles::profile(&mask, &all, &all, TileShape { q: tile, kv: tile })
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
        let profile = TileProfile {
            rows: 33,
            blank: 0,
            total: RowTiles { full: 33 * 10, partial: 0 },
            empty: 0,
            heaviest: RowTiles { full: 10, partial: 0 },
            lightest: RowTiles { full: 10, partial: 0 },
        };
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
        let each = RowTiles { full: 128, partial: 0 };
        let total = RowTiles { full: 64 * 128, partial: 0 };
        let profile = TileProfile { rows: 64, blank: 0, total, empty: 0, heaviest: each, lightest: each };
        let heads = Heads::separate(32);
        let time = Kernel::new(&queue, 132).call(&profile, heads, 0).time(132).0;
        assert_eq!(time, (15 * 129 + 3 * 27) * 1000);
        let [fixed, full, partial] = weights(&profile, heads, 132, (Items::KeyTiles, Grid::PersistentQueue));
        assert_eq!([fixed, full, partial], [18.0, 15.0 * 128.0 + 3.0 * 26.0, 0.0]);
        let plain = Kernel::new(&row(64, 64, 132), 132).call(&profile, heads, 0).time(132).0;
        assert_eq!(plain, 16 * 129 * 1000);
    }

    #[test]
    fn nothing_to_do_takes_no_time_and_no_rate_takes_for_ever() {
        let kernel = Kernel::new(&row(64, 64, 8), 8);
        assert_eq!(kernel.call(&TileProfile::default(), Heads::separate(8), 0).time(8), SimTime::ZERO);
        let stopped = KernelRow { rate: FlopsPerSec(0.0), ..row(64, 64, 8) };
        assert_eq!(
            Kernel::new(&stopped, 8).call(&causal(4, 64), Heads::separate(1), 0).time(8),
            SimTime::NEVER
        );
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
}
