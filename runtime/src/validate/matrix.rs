//! Which points a machine is validated on.

use ringlab_sim::plan::Transport;
use ringlab_sim::problem::{Pass, Shape};
use ringlab_sim::schedule::{ALL, Schedule};

use super::Point;
use crate::machine::{Launching, Machine};

/// Blocks of the striped layouts, in tokens; single tokens come from the schedule list.
const STRIPES: [u64; 2] = [64, 128];

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
    /// Ranks P of virtual ones; none if empty.
    pub virtual_cp: Vec<u32>,
}

/// Every schedule over the machine's sequence lengths, kernels, transports and ways of launching; with grouped kv heads at
/// the middle length. Points without a plan (heads that cannot be shared out) are not in it.
pub fn matrix(machine: &dyn Machine, filter: &Filter) -> Vec<Point> {
    let sizes = machine.sizes();
    let middle = sizes.sequences.get(sizes.sequences.len() / 2).copied();
    let mut points = Vec::new();
    // A kernel of some calls only shares its points with the one of all others.
    for kernel in machine.kernels().into_iter().filter(|kernel| kernel.used_for.is_none()) {
        if !filter.passes.is_empty() && !filter.passes.contains(&kernel.pass) {
            continue;
        }
        let allowed = |n: &u64| filter.sequences.is_empty() || filter.sequences.contains(n);
        for seq_len in sizes.sequences.iter().copied().filter(allowed) {
            let (heads, head_dim, dtype) = (sizes.heads, kernel.head_dim, kernel.dtype);
            let plain = Shape { heads, kv_heads: heads, head_dim, dtype, batch: 1 };
            let grouped = Shape { kv_heads: sizes.grouped_kv_heads, ..plain };
            let shapes = if Some(seq_len) == middle { vec![plain, grouped] } else { vec![plain] };
            for (shape, schedule) in
                shapes.into_iter().flat_map(|s| schedules(filter).into_iter().map(move |x| (s, x)))
            {
                for (cp, transport, launching) in ways(machine, filter, kernel.pass) {
                    points.push(Point {
                        schedule,
                        pass: kernel.pass,
                        cp,
                        seq_len,
                        shape,
                        transport,
                        launching,
                    });
                }
            }
        }
    }
    points.retain(|point| point.plan().is_ok_and(|plan| machine.takes(&plan)));
    points
}

/// How a pass can be executed.
fn ways(machine: &dyn Machine, filter: &Filter, pass: Pass) -> Vec<(u32, Transport, Launching)> {
    let mut ways = Vec::new();
    for &cp in &filter.cp {
        ways.push((cp, Transport::CopyEngine, Launching::Stepwise));
        if machine.has_nccl() {
            ways.push((cp, Transport::Nccl, Launching::Stepwise));
        }
        if machine.has_fused() && pass == Pass::Forward {
            ways.push((cp, Transport::CopyEngine, Launching::Fused));
        }
    }
    if machine.has_virtual() {
        ways.extend(filter.virtual_cp.iter().map(|&cp| (cp, Transport::CopyEngine, Launching::Virtual)));
    }
    ways
}

fn schedules(filter: &Filter) -> Vec<Schedule> {
    let stripes = STRIPES.iter().filter_map(|block| format!("striped:{block}").parse().ok());
    let all: Vec<Schedule> = ALL.iter().copied().chain(stripes).collect();
    all.into_iter().filter(|s| filter.schedules.is_empty() || filter.schedules.contains(s)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::probes::{self, Ways};
    use crate::machine::CpuMachine;
    use ringlab_sim::mask::Pattern;
    use ringlab_sim::plan::Plan;

    #[test]
    fn what_is_calibrated_is_not_validated() {
        let machine = CpuMachine::new();
        let filter = Filter { cp: vec![2], ..Filter::default() };
        let points = matrix(&machine, &filter);
        assert!(points.len() > 40, "{}", points.len());
        let plans: Vec<Plan> = points.iter().map(|p| p.plan().unwrap()).collect();
        for plan in &plans {
            assert!(!plan.name.starts_with(probes::PREFIX), "{}", plan.name);
            assert!(plan.ranks() > 1 && plan.programs.iter().any(|p| p.ops.len() > 2), "{}", plan.name);
        }
        let shape = points[0].shape;
        let probes = [
            probes::call(shape, Pass::Forward, Pattern::Causal, 256, 2),
            probes::call(shape, Pass::Backward, Pattern::Full, 256, 2),
            probes::carried(shape, 256, 2),
            probes::message(shape, 256, Ways::Both, Transport::CopyEngine),
        ];
        for probe in probes.map(Option::unwrap) {
            assert!(probe.name.starts_with(probes::PREFIX));
            let attends = probe.op_count() > 2 * probe.messages.len();
            assert!(
                !attends || probe.messages.is_empty(),
                "{} attends and sends, as schedules do",
                probe.name
            );
            assert!(plans.iter().all(|p| p.programs != probe.programs));
        }
    }

    #[test]
    fn a_filter_leaves_what_it_names() {
        let filter = Filter {
            schedules: vec![Schedule::Zigzag],
            sequences: vec![512],
            passes: vec![Pass::Forward],
            cp: vec![4],
            virtual_cp: vec![8],
        };
        let points = matrix(&CpuMachine::new(), &filter);
        assert_eq!(points.len(), 2, "plain and grouped heads; threads have no virtual ranks");
        assert!(points.iter().all(|p| p.cp == 4 && p.seq_len == 512 && p.schedule == Schedule::Zigzag));
    }
}
