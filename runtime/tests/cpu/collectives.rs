//! Schedules that exchange by collectives equal the f64 reference: every mask, grouping of heads and number of ranks that
//! they can take.

#![allow(clippy::single_match_else, reason = "what is refused comes first")]

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{ALL, BuildError, Options, Route, Schedule, build};

use crate::support::{Case, options, problem, shape};

const PATTERNS: [Pattern; 4] = [Pattern::Causal, Pattern::Full, Pattern::Window(5), Pattern::Window(40)];
const DOCUMENTS: [&[u64]; 3] = [&[96], &[61], &[9, 8, 8, 12, 8, 12]];

/// Schedules that are not among `SCHEDULES`, which the other tests have.
fn others() -> Vec<Schedule> {
    ALL.into_iter().filter(|s| !crate::support::SCHEDULES.contains(s)).collect()
}

/// Runs the case if the schedule can take it; whether it can.
fn check(case: &Case, schedule: Schedule, ranks: u32, options: &Options) -> bool {
    match build(schedule, &case.problem, ranks, options) {
        Err(BuildError::Heads { .. } | BuildError::FewHeads { .. }) => false,
        _ => {
            case.check(schedule, ranks, options);
            true
        }
    }
}

#[test]
fn every_mask_and_number_of_ranks() {
    for ranks in [1, 2, 3, 4, 5, 8] {
        for (i, documents) in DOCUMENTS.into_iter().enumerate() {
            for pattern in PATTERNS {
                let case = Case::new(problem(shape(ranks, ranks, 8, 1), pattern, documents), i as u64);
                for schedule in others() {
                    assert!(check(&case, schedule, ranks, &options(Pass::Forward)), "{schedule} on {ranks}");
                }
            }
        }
    }
}

#[test]
fn grouped_heads_and_batches() {
    let mut run = vec![0; others().len()];
    for (kv_heads, group, batch) in [(1, 8, 1), (2, 4, 1), (4, 2, 2), (8, 1, 1), (2, 6, 1), (8, 5, 1)] {
        let case =
            Case::new(problem(shape(kv_heads * group, kv_heads, 12, batch), Pattern::Causal, &[64]), 5);
        for ranks in [1, 2, 4, 8] {
            for (i, schedule) in others().into_iter().enumerate() {
                run[i] += usize::from(check(&case, schedule, ranks, &options(Pass::Forward)));
            }
        }
    }
    assert!(run.iter().all(|&n| n >= 20), "{run:?}");
}

#[test]
fn every_way_of_moving_messages() {
    for pattern in [Pattern::Causal, Pattern::Window(20)] {
        let case = Case::new(problem(shape(8, 4, 8, 1), pattern, &[33, 50]), 7);
        for ranks in [2, 4, 8] {
            for transport in [Transport::CopyEngine, Transport::Nccl] {
                for route in [Route::Neighbour, Route::Direct] {
                    for prefetch in [0, 1, 2] {
                        for schedule in others() {
                            let way = Options { transport, route, prefetch, ..options(Pass::Forward) };
                            assert!(check(&case, schedule, ranks, &way));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_window_and_grid() {
    for (ranks, kv_heads) in [(4, 4), (6, 12), (8, 4), (12, 12)] {
        for (pattern, documents) in
            [(Pattern::Causal, &[96][..]), (Pattern::Full, &[40, 33]), (Pattern::Window(9), &[61])]
        {
            let case = Case::new(problem(shape(24, kv_heads, 8, 1), pattern, documents), 9);
            for d in (1..=ranks).filter(|d| ranks % d == 0) {
                for flag in [false, true] {
                    let way = Options { gpus_per_node: 4, ..options(Pass::Forward) };
                    case.check(Schedule::DoubleRing { window: Some(d), rail: flag }, ranks, &way);
                    let usp = Schedule::Usp { grid: Some((d, ranks / d)), across: flag };
                    check(&case, usp, ranks, &way);
                }
            }
        }
    }
}
