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
    /// Ranks P; `None` is all devices.
    pub cp: Option<u32>,
}

/// Every schedule that a machine of at least two devices can run, over its sequence lengths, kernels, transports and ways
/// of launching; with grouped kv heads at the middle length. Points without a plan (heads that cannot be shared out) are
/// not in it.
pub fn matrix(machine: &dyn Machine, filter: &Filter) -> Vec<Point> {
    let (sizes, devices) = (machine.sizes(), machine.identity().devices);
    let cp = filter.cp.unwrap_or(devices);
    let middle = sizes.sequences.get(sizes.sequences.len() / 2).copied();
    let allowed = |list: &[u64], n: u64| list.is_empty() || list.contains(&n);
    let mut points = Vec::new();
    for kernel in machine.kernels() {
        if !filter.passes.is_empty() && !filter.passes.contains(&kernel.pass) {
            continue;
        }
        for &seq_len in sizes.sequences.iter().filter(|&&n| allowed(&filter.sequences, n)) {
            for schedule in schedules(filter) {
                let (heads, head_dim, dtype) = (sizes.heads, kernel.head_dim, kernel.dtype);
                let shape = Shape { heads, kv_heads: heads, head_dim, dtype, batch: 1 };
                let grouped = Shape { kv_heads: sizes.grouped_kv_heads, ..shape };
                let shapes = if Some(seq_len) == middle { vec![shape, grouped] } else { vec![shape] };
                for shape in shapes {
                    let point = |transport, launching| Point {
                        schedule,
                        pass: kernel.pass,
                        cp,
                        seq_len,
                        shape,
                        transport,
                        launching,
                    };
                    points.push(point(Transport::CopyEngine, Launching::Stepwise));
                    if machine.has_nccl() {
                        points.push(point(Transport::Nccl, Launching::Stepwise));
                    }
                    if machine.has_fused() && kernel.pass == Pass::Forward {
                        points.push(point(Transport::CopyEngine, Launching::Fused));
                    }
                }
            }
        }
    }
    points.retain(|point| point.plan().is_ok());
    points
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
        let filter = Filter { cp: Some(2), ..Filter::default() };
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
            cp: Some(4),
        };
        let points = matrix(&CpuMachine::new(), &filter);
        assert_eq!(points.len(), 2, "plain and grouped heads");
        assert!(points.iter().all(|p| p.cp == 4 && p.seq_len == 512 && p.schedule == Schedule::Zigzag));
    }
}
