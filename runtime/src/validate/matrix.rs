//! Which points a machine is validated on, and in which order.
//!
//! A machine whose points take milliseconds runs every schedule at every size. GPUs run a selection in which each thing
//! that a prediction depends on is varied by itself, from causal attention of 64Ki tokens with heads of 128; more than two
//! of them another one.

mod many;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use ringlab_sim::plan::Transport;
use ringlab_sim::problem::{Pass, Shape};
use ringlab_sim::schedule::{ALL, Schedule};

use super::Point;
use crate::machine::{Coverage, Launching, Machine, MachineKernel};

pub use many::ranks;

/// Blocks of the striped layouts, in tokens; single tokens come from the schedule list.
const STRIPES: [u64; 2] = [64, 128];
/// Schedules of which sizes are varied: one that is out of balance, and two that are in balance by chunks and by tokens.
const FEW: [Schedule; 3] = [Schedule::Ring, Schedule::Zigzag, Schedule::Striped { block: 1 }];
/// Schedules whose transfers differ: around a ring, to any rank, all at once, all to all.
const TRANSFERS: [Schedule; 5] = [
    Schedule::Ring,
    Schedule::Zigzag,
    Schedule::DistFlash,
    Schedule::AllGather { zigzag: false },
    Schedule::Ulysses,
];
/// Ranks of virtual points unless the filter names some.
const VIRTUAL: [u32; 3] = [4, 8, 16];
/// Ranks of the one virtual point that is to show many steps.
const MANY: u32 = 64;
/// Messages a transfer is cut into where fused launches are to find keys in parts.
const PARTS: u32 = 4;

/// Which part of the matrix is run; an empty list is no restriction.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Filter {
    /// Schedules.
    pub schedules: Vec<Schedule>,
    /// Tokens N.
    pub sequences: Vec<u64>,
    /// Passes.
    pub passes: Vec<Pass>,
    /// Ranks P of real devices; none if empty.
    pub cp: Vec<u32>,
    /// Ranks P of virtual ones; if empty, the default numbers on up to two devices and none on more.
    pub virtual_cp: Vec<u32>,
    /// Key/value heads.
    pub kv_heads: Vec<u32>,
    /// Head dimensions.
    pub head_dims: Vec<u32>,
    /// Transports.
    pub transports: Vec<Transport>,
    /// Ways of launching.
    pub launchings: Vec<Launching>,
}

fn allows<T: PartialEq>(list: &[T], value: &T) -> bool {
    list.is_empty() || list.contains(value)
}

impl Filter {
    /// Whether it leaves a point that was run: as in the matrix, but for ranks, of which those of real devices and virtual ones
    /// are each restricted only by a list that names some.
    pub fn leaves(&self, point: &Point) -> bool {
        let ranks = if point.launching == Launching::Virtual { &self.virtual_cp } else { &self.cp };
        allows(ranks, &point.cp) && self.allows(point)
    }

    fn allows(&self, point: &Point) -> bool {
        allows(&self.schedules, &point.schedule)
            && allows(&self.sequences, &point.seq_len)
            && allows(&self.passes, &point.pass)
            && allows(&self.kv_heads, &point.shape.kv_heads)
            && allows(&self.head_dims, &point.shape.head_dim)
            && allows(&self.transports, &point.transport)
            && allows(&self.launchings, &point.launching)
    }
}

/// The points of `machine` that `filter` leaves, in the order in which they are run: by turns from all classes, so that a
/// run that is cut short has some of each, the shortest of a class first. Points without a plan (heads that cannot be
/// shared out) are not in it, and none is twice.
pub fn matrix(machine: &dyn Machine, filter: &Filter) -> Vec<Point> {
    let mut points = match machine.coverage() {
        Coverage::Full => full(machine, filter),
        Coverage::Selected => selected(machine, filter),
    };
    points.retain(|point| filter.allows(point) && point.plan().is_ok_and(|plan| machine.takes(&plan)));
    by_turns(points)
}

/// Every schedule over the machine's sequence lengths, kernels and ways; with grouped kv heads at the middle length.
fn full(machine: &dyn Machine, filter: &Filter) -> Vec<Point> {
    let sizes = machine.sizes();
    let middle = sizes.sequences.get(sizes.sequences.len() / 2).copied();
    let mut points = Vec::new();
    // A kernel of some calls only shares its points with the one of all others.
    for kernel in machine.kernels().into_iter().filter(|kernel| kernel.used_for.is_none()) {
        let base = Base { machine, kernel: &kernel };
        for &seq_len in &sizes.sequences {
            let shapes =
                if Some(seq_len) == middle { vec![base.plain(), base.grouped()] } else { vec![base.plain()] };
            for (shape, schedule) in
                shapes.into_iter().flat_map(|s| schedules().into_iter().map(move |x| (s, x)))
            {
                for &cp in &filter.cp {
                    points.push(Point { schedule, seq_len, shape, ..base.point(cp) });
                }
            }
        }
    }
    points
}

/// What points of one kernel have in common.
struct Base<'a> {
    machine: &'a dyn Machine,
    kernel: &'a MachineKernel,
}

impl Base<'_> {
    fn plain(&self) -> Shape {
        self.kernel.shape(self.machine.sizes().heads)
    }

    fn grouped(&self) -> Shape {
        Shape { kv_heads: self.machine.sizes().grouped_kv_heads, ..self.plain() }
    }

    /// A ring of copy engines at the middle length.
    fn point(&self, cp: u32) -> Point {
        let sequences = self.machine.sizes().sequences;
        Point {
            schedule: Schedule::Ring,
            pass: self.kernel.pass,
            cp,
            seq_len: sequences.get(sequences.len() / 2).copied().unwrap_or(0),
            shape: self.plain(),
            transport: Transport::CopyEngine,
            launching: Launching::Stepwise,
            chunks: 1,
        }
    }
}

/// The selection for GPUs.
fn selected(machine: &dyn Machine, filter: &Filter) -> Vec<Point> {
    let mut points = Vec::new();
    let widest = machine.kernels().iter().map(|k| k.head_dim).max();
    for kernel in machine.kernels() {
        let base = Base { machine, kernel: &kernel };
        let is_widest = Some(kernel.head_dim) == widest;
        for &cp in &filter.cp {
            let point = base.point(cp);
            if cp > 2 {
                points.extend(if is_widest { many::points(&base, cp) } else { Vec::new() });
            } else if is_widest {
                points.extend(on_devices(machine, &base, &point));
            } else {
                points.extend(FEW.map(|schedule| Point { schedule, ..point.clone() }));
            }
        }
        let wants_virtual = !filter.virtual_cp.is_empty() || machine.identity().devices <= 2;
        if is_widest && wants_virtual && machine.has_virtual() {
            points.extend(virtually(&base, &filter.virtual_cp));
        }
    }
    points
}

/// Points of two ranks, each on a device of its own, around `point`.
fn on_devices(machine: &dyn Machine, base: &Base<'_>, point: &Point) -> Vec<Point> {
    let with = |schedule| Point { schedule, ..point.clone() };
    let sequences = machine.sizes().sequences;
    let is_forward = point.pass == Pass::Forward;
    let (longest, others) = match sequences.split_last() {
        Some((longest, others)) => (Some(*longest), others),
        None => (None, &[][..]),
    };
    let mut points: Vec<Point> = schedules().into_iter().map(with).collect();
    for &seq_len in others {
        points.extend(FEW.map(|schedule| Point { seq_len, ..with(schedule) }));
    }
    if let Some(seq_len) = longest.filter(|_| is_forward) {
        points.extend([Schedule::Ring, Schedule::Zigzag].map(|s| Point { seq_len, ..with(s) }));
    }
    points.extend(
        [Schedule::Ring, Schedule::Zigzag, Schedule::Ulysses]
            .map(|s| Point { shape: base.grouped(), ..with(s) }),
    );
    if machine.has_nccl() {
        points.extend(TRANSFERS.map(|s| Point { transport: Transport::Nccl, ..with(s) }));
    }
    if machine.has_fused() && is_forward {
        for seq_len in [sequences.get(1).copied(), Some(point.seq_len)].into_iter().flatten() {
            let fused = |schedule| Point { seq_len, launching: Launching::Fused, ..with(schedule) };
            points.extend(FEW.map(fused));
            let in_parts =
                |schedule| Point { launching: Launching::FusedQueries, chunks: PARTS, ..fused(schedule) };
            points.extend(FEW.map(in_parts));
        }
    }
    points
}

/// Points of all ranks on one device.
fn virtually(base: &Base<'_>, given: &[u32]) -> Vec<Point> {
    let on = |cp, schedule| Point { schedule, launching: Launching::Virtual, ..base.point(cp) };
    let ranks = if given.is_empty() { &VIRTUAL[..] } else { given };
    let each =
        ranks.iter().flat_map(|&cp| FEW.into_iter().chain([Schedule::DistFlash]).map(move |s| on(cp, s)));
    let many = (given.is_empty() && base.kernel.pass == Pass::Forward).then(|| on(MANY, Schedule::Zigzag));
    each.chain(many).collect()
}

fn schedules() -> Vec<Schedule> {
    let stripes = STRIPES.iter().map(|&block| Schedule::Striped { block });
    ALL.iter().copied().chain(stripes).collect()
}

/// Points by turns from all classes.
fn by_turns(points: Vec<Point>) -> Vec<Point> {
    let mut classes: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for point in points {
        let class = classes.entry(point.class()).or_default();
        if !class.contains(&point) {
            class.push(point);
        }
    }
    let mut classes: Vec<Vec<Point>> = classes.into_values().collect();
    for class in &mut classes {
        class.sort_by_key(|p| p.seq_len);
    }
    let turns = classes.iter().map(Vec::len).max().unwrap_or(0);
    let order = spread(classes.len());
    let all = (0..turns).flat_map(|turn| order.iter().map(move |&class| (class, turn)));
    all.filter_map(|(class, turn)| classes[class].get(turn).cloned()).collect()
}

/// 0 to n - 1 such that the first ones, however many, lie spread over all: by reversed bits (van der Corput).
fn spread(n: usize) -> Vec<usize> {
    let bits = n.next_power_of_two().trailing_zeros();
    let reversed = |i: usize| if bits == 0 { 0 } else { i.reverse_bits() >> (usize::BITS - bits) };
    (0..n.next_power_of_two()).map(reversed).filter(|&i| i < n).collect()
}
