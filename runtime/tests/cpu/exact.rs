//! o, lse, dq, dk and dv equal the f64 reference for every schedule, number of ranks, mask, head grouping and way of
//! moving messages.

use ringlab_sim::mask::Pattern;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::Schedule;

use crate::support::{Case, SCHEDULES, allows, options, plan, problem, shape, ways};

const RANKS: [u32; 8] = [1, 2, 3, 4, 5, 7, 8, 16];
/// cu_seqlens [0, 9, 17, 25, 37, 45, 57]: padded for zigzag, second halves of documents are all padding.
const DOCUMENTS: [u64; 6] = [9, 8, 8, 12, 8, 12];

fn check_all(case: &Case) {
    for schedule in SCHEDULES.into_iter().filter(|&s| allows(s, case.problem.pattern)) {
        for ranks in RANKS {
            case.check(schedule, ranks, &options(Pass::Forward));
        }
    }
}

#[test]
fn causal() {
    check_all(&Case::new(problem(shape(2, 2, 16, 1), Pattern::Causal, &[96]), 1));
}

#[test]
fn full() {
    check_all(&Case::new(problem(shape(2, 2, 16, 1), Pattern::Full, &[96]), 2));
}

#[test]
fn window() {
    for width in [1, 7, 40] {
        check_all(&Case::new(problem(shape(2, 1, 8, 1), Pattern::Window(width), &[96]), 3));
    }
}

#[test]
fn packed_documents() {
    for pattern in [Pattern::Causal, Pattern::Full, Pattern::Window(5)] {
        check_all(&Case::new(problem(shape(2, 2, 8, 1), pattern, &DOCUMENTS), 4));
    }
}

#[test]
fn grouped_heads_and_batches() {
    for (heads, kv_heads, batch) in [(8, 2, 1), (4, 1, 1), (4, 2, 2), (3, 3, 2)] {
        check_all(&Case::new(problem(shape(heads, kv_heads, 20, batch), Pattern::Causal, &[64]), 5));
    }
}

#[test]
fn lengths_that_need_padding() {
    for tokens in [7, 61, 131] {
        let case = Case::new(problem(shape(2, 1, 8, 1), Pattern::Causal, &[tokens]), 6);
        for schedule in SCHEDULES {
            for ranks in RANKS.into_iter().filter(|&r| u64::from(r) <= tokens) {
                case.check(schedule, ranks, &options(Pass::Forward));
            }
        }
    }
}

#[test]
fn every_way_of_moving_messages() {
    let causal = problem(shape(2, 1, 8, 1), Pattern::Causal, &[96]);
    let window = problem(shape(2, 1, 8, 1), Pattern::Window(20), &[96]);
    let packed = problem(shape(2, 2, 8, 2), Pattern::Causal, &DOCUMENTS);
    for case in [causal, window, packed].map(|p| Case::new(p, 7)) {
        for schedule in SCHEDULES {
            for ranks in [1, 2, 5, 8] {
                for way in &ways() {
                    case.check(schedule, ranks, way);
                }
            }
        }
    }
}

#[test]
fn a_half_chunk_of_nothing_but_padding_is_among_the_cases() {
    let plan = plan(
        Schedule::Zigzag,
        &problem(shape(2, 2, 8, 1), Pattern::Causal, &DOCUMENTS),
        2,
        &options(Pass::Forward),
    );
    let starts: Vec<u64> = plan.layout.documents().iter().map(|d| d.start).collect();
    assert_eq!(starts, [0, 12, 20, 28, 40, 48]);
    let first = plan.layout.documents().iter().next().unwrap();
    let last_chunk = first.start + first.padded - first.padded / 4;
    assert!(last_chunk >= first.start + first.len, "the last of the first document's four chunks is padding");
}
