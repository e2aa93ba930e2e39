//! The selection for more than two GPUs: schedules in each of their forms, for all GPUs and for some of them.
//!
//! Each thing is varied by itself from causal attention of 64Ki tokens with 32 query and 8 key/value heads by copy engines.

#[cfg(test)]
mod tests;

use ringlab_sim::plan::Transport;
use ringlab_sim::problem::Shape;
use ringlab_sim::schedule::Schedule;

use super::{Base, FEW, TRANSFERS};
use crate::validate::Point;

/// Query heads, and key/value heads where they are shared: those of Llama 3 8B.
const HEADS: (u32, u32) = (32, 8);
/// Tokens from which all else is varied, in Ki.
const MIDDLE: u64 = 64;
/// Lengths that several schedules run besides, in Ki tokens.
const LENGTHS: [u64; 2] = [32, 128];
/// One that few run, and those of which a pass takes seconds, in Ki tokens.
const LONG: u64 = 256;
const LONGEST: [u64; 2] = [512, 1024];
/// Lengths are multiples of so many tokens a rank: two chunks of a tile each.
const UNIT: u64 = 256;
/// Schedules whose form does not depend on the number of ranks.
const PLAIN: [Schedule; 8] = [
    Schedule::Ring,
    Schedule::Zigzag,
    Schedule::Striped { block: 1 },
    Schedule::Striped { block: 64 },
    Schedule::DistFlash,
    Schedule::AllGather { zigzag: false },
    Schedule::AllGather { zigzag: true },
    Schedule::Ulysses,
];

/// The numbers of ranks that are validated on so many GPUs: all of them and, of more than two, every smaller power of two from
/// 4 on, and 3, 5 and 7 for what is special about an odd number.
pub fn ranks(gpus: u32) -> Vec<u32> {
    let is_taken = |p: &u32| p.is_power_of_two() || (p % 2 == 1 && *p < 8);
    std::iter::once(gpus).chain((3..gpus).rev().filter(is_taken)).collect()
}

/// The points of `cp` ranks, of a pass that `base` says.
pub(super) fn points(base: &Base<'_>, cp: u32) -> Vec<Point> {
    let (heads, kv_heads) = HEADS;
    let shape = Shape { kv_heads, ..base.kernel.shape(heads) };
    let at = |kib| Point { seq_len: length(kib, cp), shape, ..base.point(cp) };
    let middle = at(MIDDLE);
    let unshared = Point { shape: Shape { kv_heads: heads, ..shape }, ..middle.clone() };
    let nccl = Point { transport: Transport::Nccl, ..middle.clone() };
    let (windows, grids) = (windows(cp), grids(cp));
    let every = [&PLAIN[..], &windows, &grids].concat();
    let mut groups: Vec<(Vec<Schedule>, Point)> = Vec::new();
    if cp == base.machine.identity().devices {
        let two_levels = windows.last().into_iter().chain(grids.last()).copied();
        let each_way: Vec<Schedule> = TRANSFERS.into_iter().chain(two_levels).collect();
        groups.extend([(every, middle), (each_way.clone(), unshared), (each_way, nccl)]);
        let sizes = [&TRANSFERS[..], &[Schedule::Striped { block: 1 }]].concat();
        groups.extend(LENGTHS.map(|kib| (sizes.clone(), at(kib))));
        groups.push((FEW.to_vec(), at(LONG)));
        groups.extend(LONGEST.map(|kib| (vec![Schedule::Zigzag], at(kib))));
    } else if cp % 2 == 1 {
        groups.extend([middle, at(2 * MIDDLE), nccl].map(|point| (vec![Schedule::DistFlash], point)));
    } else {
        groups.push((every, middle));
        groups.extend([unshared, nccl].map(|point| (vec![Schedule::Zigzag, Schedule::Ulysses], point)));
        groups.push((FEW.to_vec(), at(2 * MIDDLE)));
        groups.push((vec![Schedule::Zigzag], at(LONGEST[0])));
    }
    let each = |(list, point): (Vec<Schedule>, Point)| {
        list.into_iter().map(move |schedule| Point { schedule, ..point.clone() })
    };
    let has = |point: &Point| point.transport != Transport::Nccl || base.machine.has_nccl();
    groups.into_iter().flat_map(each).filter(has).collect()
}

/// So many Ki tokens, or a little less that every schedule can share out.
fn length(kib: u64, cp: u32) -> u64 {
    let unit = UNIT * u64::from(cp);
    (kib << 10) / unit * unit
}

/// Double rings of more than one window of more than one rank, of the narrowest first.
fn windows(cp: u32) -> Vec<Schedule> {
    let ring = |window| Schedule::DoubleRing { window: Some(window), rail: false };
    parts(cp).map(ring).collect()
}

/// Ulysses groups of more than one rank in rings of more than one, the smallest groups first.
fn grids(cp: u32) -> Vec<Schedule> {
    parts(cp).map(|u| Schedule::Usp { grid: Some((u, cp / u)), across: false }).collect()
}

/// Divisors but 1 and the number itself.
fn parts(cp: u32) -> impl Iterator<Item = u32> {
    (2..cp).filter(move |part| cp.is_multiple_of(*part))
}
