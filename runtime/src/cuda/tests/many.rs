//! Four and eight GPUs, and odd numbers of them: every form of every schedule, by copies and by NCCL.

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{self, ALL, Schedule};

use super::support::{Case, problem, quick, shape};
use crate::cuda::{Copies, Options};

/// Forms that the list of all schedules does not name.
const FORMS: [&str; 10] = [
    "striped:2",
    "double-ring:2",
    "double-ring:4",
    "double-ring:2:rail",
    "double-ring:4:rail",
    "usp:2x2",
    "usp:2x4",
    "usp:4x2",
    "usp:2x4:across",
    "usp:8x1",
];

fn schedules() -> impl Iterator<Item = Schedule> {
    let named = FORMS.iter().map(|name| name.parse().unwrap());
    ALL.into_iter().filter(|&schedule| schedule != Schedule::RingSelfAttention).chain(named)
}

/// Runs all that can be planned on so many ranks, and counts them.
fn check_all(case: &Case, ranks: u32, transport: Transport) -> usize {
    let options = schedule::Options { pad: true, transport, ..schedule::Options::new(Pass::Forward) };
    let planned = |&schedule: &Schedule| schedule::build(schedule, &case.problem, ranks, &options).is_ok();
    let all: Vec<Schedule> = schedules().filter(planned).collect();
    for (i, &schedule) in all.iter().enumerate() {
        let copies = if i % 2 == 0 { Copies::Push } else { Copies::Pull };
        case.check(schedule, ranks, &options, &Options { copies, ..quick() }, u64::from(ranks));
    }
    all.len()
}

#[test]
fn eight_and_four_gpus() {
    let case = Case::new(problem(shape(8, 4, 1), Pattern::Causal, &[32]), 21);
    for transport in [Transport::CopyEngine, Transport::Nccl] {
        assert_eq!(check_all(&case, 8, transport), 12 + 9, "all but usp:2x2");
        assert_eq!(check_all(&case, 4, transport), 12 + 6, "all but four grids of eight");
    }
}

#[test]
fn odd_numbers_of_gpus() {
    // 41 tokens are padded to 5 and to 7 ranks, and to twice as many chunks.
    let case = Case::new(problem(shape(7, 7, 1), Pattern::Causal, &[41]), 22);
    for transport in [Transport::CopyEngine, Transport::Nccl] {
        for ranks in [5, 7] {
            assert!(check_all(&case, ranks, transport) > 8, "{ranks}");
        }
    }
}
