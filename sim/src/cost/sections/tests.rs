//! The estimate against the queue itself, dealt out item by item in the kernels' order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;
use crate::config::cluster::{Grid, Items, KernelRow, Pass};
use crate::cost::{Kernel, weights};
use crate::mask::{Documents, Mask, Pattern};
use crate::tiles::{self, RowTiles, TileShape};
use crate::tokens::{Progression, TokenSet};
use crate::units::{FlopsPerSec, SimTime};

const SMS: u32 = 132;
const HOPPER: Sections = Sections { cache: Bytes(32 << 20), items_an_sm: 4 };

/// As measured of 128 x 128 tiles on an H200: a full tile takes 1.44 us on one SM.
fn row(sections: Option<Sections>) -> KernelRow {
    KernelRow {
        name: "test".into(),
        head_dim: 128,
        dtype: Dtype::Bf16,
        pass: Pass::Forward,
        tile_q: 128,
        tile_kv: 128,
        rate: FlopsPerSec(769e12),
        partial_tile_cost: 1.98,
        prologue: SimTime(1_000_000),
        epilogue: SimTime(1_000_000),
        call: SimTime(9_400_000),
        carry: SimTime::ZERO,
        items: Items::QueryTiles,
        grid: Grid::PersistentQueue,
        source: "test".into(),
        boost: None,
        linked: None,
        used_for: None,
        sections,
    }
}

/// Queries against keys under a mask.
struct Blocks {
    mask: Mask,
    q: TokenSet,
    kv: TokenSet,
}

impl Blocks {
    /// All tokens of documents of these lengths against themselves.
    fn square(pattern: Pattern, documents: &[u64]) -> Self {
        let mask = Mask::new(pattern, &Documents::padded(documents, 1));
        let all = TokenSet::new([Progression::contiguous(0, documents.iter().sum())]);
        Self { mask, q: all.clone(), kv: all }
    }

    fn profile(&self, tile: TileShape) -> TileProfile {
        tiles::profile(&self.mask, &self.q, &self.kv, tile)
    }

    /// How long the work items of one head take, in the order of their tiles.
    fn items(&self, row: &KernelRow, sms: u32) -> Vec<u64> {
        let tile = TileShape { q: u64::from(row.tile_q), kv: u64::from(row.tile_kv) };
        let rows = 0..self.q.len().div_ceil(tile.q);
        let rows = rows.map(|i| tiles::row_tiles(&self.mask, &self.q, &self.kv, tile, i));
        let mut rows: Vec<RowTiles> = rows.filter(|t| t.full + t.partial > 0).collect();
        rows.sort_by_key(|t| Reverse(t.full + t.partial));
        let flops = f64::from(row.tile_q * row.tile_kv * 4 * row.head_dim);
        let full = 1e12 * flops * f64::from(sms) / row.rate.0;
        let fixed = (row.prologue + row.epilogue).0 as f64;
        let length = |t: RowTiles| fixed + full * (t.full as f64 + row.partial_tile_cost * t.partial as f64);
        rows.into_iter().map(|t| length(t).round() as u64).collect()
    }
}

/// Every item on the SM that is free first, in the order of `locate` in kernels/cuda/hopper/fwd_schedule.cuh.
fn dealt_out(items: &[u64], heads: u64, section: u64, sms: u32) -> u64 {
    let mut free: BinaryHeap<Reverse<u64>> = (0..sms).map(|_| Reverse(0)).collect();
    let mut end = 0;
    for first in (0..heads).step_by(section as usize) {
        for item in items {
            for _ in first..heads.min(first + section) {
                let Reverse(start) = free.pop().unwrap();
                end = end.max(start + item);
                free.push(Reverse(start + item));
            }
        }
    }
    end
}

/// Predicted over dealt out, less 1: with sections, and as one queue. Of a call of `heads` heads in groups of `group`.
fn errors(blocks: &Blocks, (heads, group): (u64, u64)) -> [f64; 2] {
    let [kernel, one] = [Some(HOPPER), None].map(|sections| Kernel::new(&row(sections), SMS));
    let profile = blocks.profile(kernel.tile());
    let in_sections = kernel.query_heads(&profile, (heads, group), blocks.kv.len());
    let row = row(Some(HOPPER));
    let truth = dealt_out(&blocks.items(&row, SMS), heads, in_sections.section.unwrap(), SMS) + row.call.0;
    let calls = [kernel.call(&profile, in_sections, 0), one.call(&profile, Heads::separate(heads), 0)];
    calls.map(|call| call.time(SMS).0 as f64 / truth as f64 - 1.0)
}

/// Root mean square and largest error, with sections and as one queue, over lengths from 1Ki to 64Ki, several numbers of
/// heads and groups of them.
fn over_all(blocks: impl Fn(u64) -> Blocks) -> [(f64, f64); 2] {
    let lengths = [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 14, 16, 18, 20, 22, 24, 28, 32, 40, 48, 64];
    let heads = [(8, 1), (12, 1), (16, 1), (32, 1), (32, 4), (32, 8), (40, 1)];
    let all: Vec<_> = lengths
        .iter()
        .flat_map(|ki| {
            let blocks = blocks(ki << 10);
            heads.map(|heads| errors(&blocks, heads))
        })
        .collect();
    [0, 1].map(|i| {
        let squares: f64 = all.iter().map(|e| e[i] * e[i]).sum();
        let largest = all.iter().map(|e| e[i].abs()).fold(0.0, f64::max);
        ((squares / all.len() as f64).sqrt(), largest)
    })
}

#[test]
fn causal_calls_take_what_their_queue_takes() {
    let [(error, worst), (one, worst_of_one)] = over_all(|n| Blocks::square(Pattern::Causal, &[n]));
    assert!(error < 0.005 && worst < 0.02, "{error} {worst}");
    assert!(one > 0.014 && worst_of_one > 0.08, "as one queue {one} {worst_of_one}");
}

#[test]
fn calls_without_a_mask_are_one_queue() {
    let [(error, worst), one] = over_all(|n| Blocks::square(Pattern::Full, &[n]));
    assert!(worst < 1e-7, "{error} {worst}");
    assert_eq!((error, worst), one);
}

#[test]
fn items_that_do_not_fall_evenly_are_nearer_than_as_one_queue() {
    for window in [512, 1024, 4096, 8192] {
        let [(error, _), (one, _)] = over_all(|n| Blocks::square(Pattern::Window(window), &[n]));
        assert!(error < 0.015 && error < 0.5 * one, "window {window}: {error}, as one queue {one}");
    }
    // Documents of these lengths in turn, the last one cut.
    let documents = |n: u64| {
        let mut left = n;
        let lengths = [700, 3000, 1500, 9000, 5000].into_iter().cycle();
        let cut = lengths.map_while(|length: u64| {
            let length = length.min(left);
            left -= length;
            (length > 0).then_some(length)
        });
        Blocks::square(Pattern::Causal, &cut.collect::<Vec<_>>())
    };
    let [(error, _), (one, _)] = over_all(documents);
    assert!(error < 0.011 && error < 0.25 * one, "documents: {error}, as one queue {one}");
}

#[test]
fn a_last_section_of_one_head_ends_with_its_longest_item() {
    // Items of 1 to 192 tiles of a nanosecond each; 15 heads come before the last one.
    let mut ideal = row(Some(HOPPER));
    ideal.rate = FlopsPerSec(128.0 * 128.0 * 4.0 * 128.0 * f64::from(SMS) * 1e9);
    (ideal.prologue, ideal.epilogue, ideal.call, ideal.partial_tile_cost) =
        (SimTime::ZERO, SimTime::ZERO, SimTime::ZERO, 1.0);
    let kernel = Kernel::new(&ideal, SMS);
    let profile = Blocks::square(Pattern::Causal, &[24 << 10]).profile(kernel.tile());
    let heads = kernel.query_heads(&profile, (16, 1), 24 << 10);
    assert_eq!(heads.section, Some(3));
    let tiles = kernel.call(&profile, heads, 0).time(SMS).0 as f64 / 1000.0;
    let work = 192.0 * 193.0 / 2.0 / 132.0;
    assert!(tiles > 15.0 * work + 192.0 - 1.0, "{tiles}");
    assert!(tiles < 1.002 * (15.0 * work + 192.0), "{tiles}");
    // All heads would take this long if none ended later than the others.
    assert!(tiles > 1.02 * 16.0 * work, "{tiles}");
}

#[test]
fn sections_are_whole_groups_that_fit_the_cache() {
    let section = |tokens: u64, heads, group| {
        let bytes = keys_and_values(tokens, 128, Dtype::Bf16);
        Heads::separate(heads).in_sections(HOPPER, (group, bytes), tokens.div_ceil(128), SMS).section
    };
    // 1 MiB of keys and values a head: all 16 fit.
    assert_eq!(section(2 << 10, 16, 1), Some(16));
    // 6 MiB: 5 fit, but four items an SM take 5.5; two sections of 6, and one of 4.
    assert_eq!(section(12 << 10, 16, 1), Some(6));
    // 8 MiB: 4 fit, but four items an SM take 5 heads; four equal sections.
    assert_eq!(section(16 << 10, 16, 1), Some(4));
    assert_eq!(section(64 << 10, 16, 1), Some(2));
    // 8 MiB that four heads share: 16 fit.
    assert_eq!(section(16 << 10, 32, 4), Some(16));
    // Groups of 4 stay together even where one kv head is more than fits.
    assert_eq!(section(256 << 10, 8, 4), Some(4));
    assert_eq!(section(256 << 10, 2, 4), Some(4));
    assert_eq!(Heads::separate(0).in_sections(HOPPER, (0, Bytes(0)), 0, SMS).section, Some(0));
}

#[test]
fn rows_that_see_no_key_fill_a_section_too() {
    // 8 MiB a head: 4 fit. Four items an SM are 528, 17 heads of 32 rows; two sections.
    let each = RowTiles { full: 1, partial: 0 };
    let total = RowTiles { full: 16, partial: 0 };
    let profile = TileProfile { rows: 16, blank: 16, total, empty: 0, heaviest: each, lightest: each };
    let kernel = Kernel::new(&row(Some(HOPPER)), SMS);
    assert_eq!(kernel.query_heads(&profile, (32, 1), 16 << 10).section, Some(16));
}

#[test]
fn no_rate_takes_for_ever_and_nothing_takes_no_time() {
    let kernel = Kernel::new(&KernelRow { rate: FlopsPerSec(0.0), ..row(Some(HOPPER)) }, SMS);
    for pattern in [Pattern::Causal, Pattern::Full] {
        let profile = Blocks::square(pattern, &[24 << 10]).profile(kernel.tile());
        let heads = kernel.query_heads(&profile, (16, 1), 24 << 10);
        assert_eq!(kernel.call(&profile, heads, 0).time(SMS), SimTime::NEVER);
        let none = kernel.query_heads(&profile, (0, 1), 24 << 10);
        assert_eq!(kernel.call(&profile, none, 0).time(SMS), SimTime::ZERO);
    }
    let nothing = TileProfile::default();
    let heads = kernel.query_heads(&nothing, (16, 1), 0);
    assert_eq!(kernel.call(&nothing, heads, 0).time(SMS), SimTime::ZERO);
    let huge = Sections { cache: Bytes(u64::MAX), items_an_sm: u32::MAX };
    assert_eq!(Heads::separate(16).in_sections(huge, (4, Bytes(2)), 1, SMS).section, Some(16));
}

#[test]
fn weights_times_constants_are_the_time_of_a_call() {
    // A work item's own time is a full tile's, of a microsecond.
    let full = 1e6;
    let row = KernelRow {
        rate: FlopsPerSec(128.0 * 128.0 * 4.0 * 128.0 * f64::from(SMS) * 1e6),
        partial_tile_cost: 1.5,
        prologue: SimTime(1_000_000),
        epilogue: SimTime::ZERO,
        call: SimTime::ZERO,
        ..row(Some(HOPPER))
    };
    let kernel = Kernel::new(&row, SMS);
    for (ki, heads) in [(4, 16), (5, 16), (11, 8), (12, 16), (16, 16), (24, 16), (24, 8), (24, 32)] {
        let blocks = Blocks::square(Pattern::Causal, &[ki << 10]);
        let profile = blocks.profile(kernel.tile());
        let heads = kernel.query_heads(&profile, (heads, 1), ki << 10);
        let [item, whole, partial] = weights(&profile, heads, SMS, (row.items, row.grid));
        let time = full * (item + whole + 1.5 * partial);
        let exact = kernel.call(&profile, heads, 0).time(SMS).0 as f64;
        assert!((time / exact - 1.0).abs() < 1e-5, "{ki}Ki: {time} for {exact}");
    }
}

proptest! {
    /// Whatever the sections, both are within one item of work that is spread evenly.
    #[test]
    fn a_call_is_within_an_item_of_its_queue(
        tokens in 1u64..6000, heads in 1u64..40, section in 1u64..40, sms in 1u32..140, window in 1u64..6000
    ) {
        let (row, blocks) = (row(None), Blocks::square(Pattern::Window(window), &[tokens]));
        let kernel = Kernel::new(&row, sms);
        let profile = blocks.profile(kernel.tile());
        let call = kernel.call(&profile, Heads { section: Some(section), ..Heads::separate(heads) }, 0);
        let time = (call.time(sms) .0 - row.call.0) as f64;
        let exact = dealt_out(&blocks.items(&row, sms), heads, section, sms) as f64;
        prop_assert!(time * 1.000_001 >= call.total / f64::from(sms), "below the work");
        prop_assert!((time - exact).abs() <= call.heaviest + call.lightest, "{} for {}", time, exact);
    }
}
