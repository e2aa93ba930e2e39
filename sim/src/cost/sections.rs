//! Calls whose heads go through the queue in sections: how many heads a section has, and how long such a call takes.
//!
//! A section's work items are handed out longest first, those of all its heads side by side, and the next section's follow.
//! Behind the last section there is nothing that evens out its end: a call takes at least the SMs' time of the sections before
//! it and its heaviest item. And where items fall in length, each second round of all SMs evens out the one before it, but not an odd
//! one. So the last two sections are dealt out, in bundles to groups of SMs.

use std::collections::VecDeque;

use super::Heads;
use crate::config::cluster::{Dtype, Sections};
use crate::tiles::TileProfile;
use crate::units::Bytes;

/// Groups of SMs that items are dealt out to; a group takes as many at a time as it has SMs. Of an H200, groups of six are as near
/// to the queue as single SMs are.
const GROUPS: u64 = 22;
/// Rounds of all SMs beyond which sections end evenly, whatever their number.
const ROUNDS: u64 = 16;

/// Keys and values of one kv head.
pub fn keys_and_values(keys: u64, head_dim: u32, dtype: Dtype) -> Bytes {
    dtype.size() * (2 * keys * u64::from(head_dim))
}

impl Heads {
    /// The same in sections by `rule`, where `group` heads at a time share keys and values of `bytes`, and a head has
    /// `tiles` query tiles: as many heads as the cache keeps keys and values of, but enough items for all SMs; sections of
    /// equal size, the last one aside, and a multiple of the heads of a group.
    pub fn in_sections(self, rule: Sections, (group, bytes): (u64, Bytes), tiles: u64, sms: u32) -> Self {
        let cached = (rule.cache.0 / bytes.0.max(1)).saturating_mul(group);
        let filling = (u64::from(rule.items_an_sm) * u64::from(sms)).div_ceil(tiles.max(1));
        let wanted = cached.max(filling).max(group).min(self.separate).max(1);
        let sections = self.separate.div_ceil(wanted).max(1);
        let section = self.separate.div_ceil(sections).next_multiple_of(group.max(1));
        Self { section: Some(section), ..self }
    }
}

/// A call's work items: `rows` of each of `heads`, of which `section` are dealt out side by side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    rows: u64,
    heads: u64,
    section: u64,
    sms: u64,
}

/// Of the work items of one head: how long the first and the last one take, and their sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Lengths {
    pub heaviest: f64,
    pub lightest: f64,
    pub total: f64,
}

impl Lengths {
    /// Sum of these lengths, each as often as `times` says.
    pub fn add_up(&self, times: &Self) -> f64 {
        times.heaviest * self.heaviest + times.lightest * self.lightest + times.total * self.total
    }
}

impl Queue {
    /// That of a call of such heads; nothing where they are one queue, or there is nothing to do.
    pub fn of(profile: &TileProfile, heads: Heads, sms: u32) -> Option<Self> {
        let (rows, section, heads) = (profile.rows, heads.section?.max(1), heads.separate);
        (rows > 0 && heads > 0).then(|| Self { rows, heads, section, sms: u64::from(sms.max(1)) })
    }

    /// How often each length counts in the time from the first item's start to the last one's end: the latest of what the
    /// whole work takes with the lightest item in idle slots, the last section's heaviest item, and the ends of its groups
    /// of SMs.
    pub fn times(&self, lengths: &Lengths) -> Lengths {
        let items = self.rows * self.heads;
        let idle = self.of_an_sm(items.next_multiple_of(self.sms) - items);
        let work = Lengths { heaviest: 0.0, lightest: idle, total: self.of_an_sm(self.heads) };
        let last = self.heads - (self.heads.div_ceil(self.section) - 1) * self.section;
        // Equal items have no order.
        let are_equal = lengths.lightest >= lengths.heaviest;
        let (before, dealt_out) =
            if are_equal { (0, None) } else { (self.heads - last, self.dealt_out(lengths, last)) };
        let heaviest = Lengths { heaviest: 1.0, ..self.start(before) };
        let latest = |a: &Lengths, b: &Lengths| lengths.add_up(a).total_cmp(&lengths.add_up(b));
        [Some(heaviest), dealt_out, Some(work)].into_iter().flatten().max_by(latest).unwrap_or(work)
    }

    fn of_an_sm(&self, all: u64) -> f64 {
        all as f64 / self.sms as f64
    }

    /// When the first SM is free of the sections of `heads` heads: those that took an item more ended with a lightest one.
    fn start(&self, heads: u64) -> Lengths {
        let late = self.rows * heads % self.sms;
        Lengths { heaviest: 0.0, lightest: -self.of_an_sm(late), total: self.of_an_sm(heads) }
    }

    /// The end of the last section, of `last` heads, dealt out after the one before it; nothing where it has so many rounds
    /// that they even out.
    fn dealt_out(&self, lengths: &Lengths, last: u64) -> Option<Lengths> {
        let fits = |heads: u64| self.rows * heads <= ROUNDS * self.sms;
        let ahead = if last < self.heads && fits(last + self.section) { self.section } else { 0 };
        if !fits(last) {
            return None;
        }
        let sizes = Sizes::of(lengths, self.rows);
        let [first, second] = [ahead, last].map(|heads| (self.rows * heads) as f64);
        let covered = |items: f64| {
            if items <= first {
                sizes.covered(items, first)
            } else {
                sizes.mean * first + sizes.covered(items - first, second)
            }
        };
        let groups = GROUPS.min(self.sms);
        let bundles = (self.rows * (ahead + last) * groups).div_ceil(self.sms);
        let mut ends = Ends::new(lengths, self.starts(self.heads - last - ahead, groups));
        let (mut from, mut covered_before) = (0.0, 0.0);
        for bundle in 1..=bundles {
            let to = ((bundle * self.sms) as f64 / groups as f64).min(first + second);
            let covered = covered(to);
            let more = (covered - covered_before) / (to - from) - sizes.mean;
            ends.hand_out(Lengths { heaviest: more, lightest: -more, total: 1.0 / self.rows as f64 });
            (from, covered_before) = (to, covered);
        }
        ends.latest()
    }

    /// When groups of SMs are free of the sections of `heads` heads, the latest first.
    fn starts(&self, heads: u64, groups: u64) -> impl Iterator<Item = Lengths> {
        let late = (self.rows * heads % self.sms * groups + self.sms / 2) / self.sms;
        let (share, total) = (late as f64 / groups as f64, self.of_an_sm(heads));
        let start = move |extra: f64| Lengths { heaviest: 0.0, lightest: extra - share, total };
        (0..groups).map(move |group| start(if group < late { 1.0 } else { 0.0 }))
    }
}

/// When groups of SMs end, the latest first.
struct Ends<'l> {
    lengths: &'l Lengths,
    ends: VecDeque<(f64, Lengths)>,
}

impl<'l> Ends<'l> {
    fn new(lengths: &'l Lengths, starts: impl Iterator<Item = Lengths>) -> Self {
        Self { lengths, ends: starts.map(|times| (lengths.add_up(&times), times)).collect() }
    }

    /// Lets the group that is free first take an item more.
    fn hand_out(&mut self, item: Lengths) {
        let Some((at, mut times)) = self.ends.pop_back() else { return };
        times.heaviest += item.heaviest;
        times.lightest += item.lightest;
        times.total += item.total;
        let at = at + self.lengths.add_up(&item);
        self.ends.insert(self.ends.partition_point(|other| other.0 >= at), (at, times));
    }

    fn latest(&self) -> Option<Lengths> {
        self.ends.front().map(|end| end.1)
    }
}

/// Items longest first, as lengths between the lightest (0) and the heaviest (1): all heaviest and then falling evenly, or
/// falling evenly and then all lightest, whichever has the right mean.
struct Sizes {
    mean: f64,
    /// Shares of the items that are heaviest, and that fall.
    level: f64,
    falling: f64,
}

impl Sizes {
    fn of(lengths: &Lengths, rows: u64) -> Self {
        let above = lengths.total / rows as f64 - lengths.lightest;
        let mean = (above / (lengths.heaviest - lengths.lightest)).clamp(0.0, 1.0);
        let level = (2.0 * mean - 1.0).max(0.0);
        Self { mean, level, falling: (2.0 * mean).min(1.0) - level }
    }

    /// Sum over the first `items` of `all`.
    fn covered(&self, items: f64, all: f64) -> f64 {
        let share = items / all;
        if share <= self.level {
            return items;
        }
        let fallen = (share - self.level).min(self.falling);
        let lost = if fallen > 0.0 { fallen / (2.0 * self.falling) } else { 0.0 };
        all * (self.level + fallen * (1.0 - lost))
    }
}

#[cfg(test)]
mod tests;
