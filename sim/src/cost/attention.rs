//! Attention calls: a kernel's work items, and how long they keep the SMs of a device.
//!
//! A work item is one query tile of one head and sequence, or one key tile of all query heads that share a kv head. For each
//! of its query heads it takes `prologue + epilogue + carries * carry + (full + partial * partial_cost) * t`,
//! where `t = tile_q * tile_kv * flops_per_pair / (rate / SMs)` is the time of a full tile on one SM. Items go to the
//! SMs longest first, so that the last wave holds the lightest ones; a call takes
//! `(sum of items + idle slots of the last wave * lightest item) / SMs`, and never less than its heaviest item, and a
//! constant that every call has. Equal items in whole waves make this exact. Where a row's heads go in sections, see
//! `sections.rs`.

use super::items::LastRound;
use super::sections::{Lengths, Queue, keys_and_values};
use super::whole_picoseconds;
use crate::config::cluster::{Grid, Items, KernelRow, Sections};
use crate::tiles::{RowTiles, TileProfile, TileShape};
use crate::units::{Bytes, SimTime};

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
    /// With the bytes of a key and its value.
    sections: Option<(Sections, Bytes)>,
    sms: u32,
}

/// A kernel's constants, bit by bit.
pub(super) type KernelKey = [u64; 5];

/// Heads of a call, times sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Heads with work items of their own.
    pub separate: u64,
    /// Query heads that one work item goes through.
    pub shared: u64,
    /// Heads whose items are handed out before those of the others; without, all items are one queue.
    pub section: Option<u64>,
}

impl Heads {
    /// Each with work items of its own.
    pub fn separate(heads: u64) -> Self {
        Self { separate: heads, shared: 1, section: None }
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
    /// From the first item's start to the last one's end, where heads go in sections.
    pub in_sections: Option<f64>,
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
            sections: row.sections.map(|rule| (rule, keys_and_values(1, row.head_dim, row.dtype))),
            sms: sms.max(1),
        }
    }

    /// What the time of a call depends on besides its work items and the SMs.
    pub(super) fn key(&self) -> KernelKey {
        [self.full_tile, self.partial_tile, self.fixed, self.carry, self.around].map(f64::to_bits)
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
    pub(crate) fn linked(&self) -> f64 {
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

    /// Query heads that each have work items of their own, in a call with these tiles each over `keys` keys; `group` of them share
    /// keys and values.
    pub(super) fn query_heads(&self, profile: &TileProfile, (heads, group): (u64, u64), keys: u64) -> Heads {
        let heads = Heads::separate(heads);
        let Some((rule, key)) = self.sections else { return heads };
        heads.in_sections(rule, (group, key * keys), profile.rows + profile.blank, self.sms)
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
        let lengths = Lengths {
            heaviest: fixed + tiles(profile.heaviest),
            lightest: fixed + tiles(profile.lightest),
            total,
        };
        let in_sections =
            Queue::of(profile, heads, self.sms).map(|queue| lengths.add_up(&queue.times(&lengths)) * shared);
        Call {
            last,
            in_sections,
            items: profile.rows * heads.separate,
            total: total * shared * heads.separate as f64,
            lightest: lengths.lightest * shared,
            heaviest: lengths.heaviest * shared,
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
        if let Some(time) = self.in_sections {
            return whole_picoseconds(time + self.around);
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
    let queue = Queue::of(profile, heads, sms);
    let sms = u64::from(sms.max(1));
    let items = profile.rows * heads.separate;
    let shared = heads.shared as f64;
    if let Some(last) = last {
        let RowTiles { full, partial } = profile.heaviest;
        let whole = ((items - last.items) / sms) as f64;
        let part = last.tiles as f64 / (full + partial) as f64;
        let of = |one: u64| shared * (whole + last.rounds as f64 * part) * one as f64;
        return [shared * (whole + last.rounds as f64), of(full), of(partial)];
    }
    // Which items a call waits for depends on the constants; where they are not known yet, prologue and epilogue count as a
    // full tile, and a partial tile as one and a half.
    let typical = |[fixed, full, partial]: [f64; 3]| fixed + full + 1.5 * partial;
    let of = |rows: u64, tiles: RowTiles| [rows, tiles.full, tiles.partial].map(|n| n as f64);
    let (total, heaviest, lightest) =
        (of(profile.rows, profile.total), of(1, profile.heaviest), of(1, profile.lightest));
    if let Some(queue) = queue {
        let lengths =
            Lengths { heaviest: typical(heaviest), lightest: typical(lightest), total: typical(total) };
        let times = queue.times(&lengths);
        let of = |i: usize| {
            let lengths = Lengths { heaviest: heaviest[i], lightest: lightest[i], total: total[i] };
            shared * lengths.add_up(&times)
        };
        return [of(0), of(1), of(2)];
    }
    // As in [`Call::time`], a call takes no less than its heaviest item.
    let idle = (items.next_multiple_of(sms) - items) as f64;
    let spread =
        [0, 1, 2].map(|i| shared * (total[i] * heads.separate as f64 + idle * lightest[i]) / sms as f64);
    let heaviest = heaviest.map(|n| n * shared);
    if typical(spread) < typical(heaviest) { heaviest } else { spread }
}

#[cfg(test)]
mod tests;
