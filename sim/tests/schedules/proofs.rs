//! Plans are proven at every number of ranks, for every mask, for heads of every grouping.

use proptest::prelude::*;
use ringlab_sim::mask::Pattern;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{ALL, Options, Route};

use crate::support::{causal, problem, proves, shape, ways, windows_and_grids};

const PATTERNS: [Pattern; 4] = [Pattern::Full, Pattern::Causal, Pattern::Window(1), Pattern::Window(13)];

#[test]
fn every_number_of_ranks_and_mask() {
    let mut proven = 0;
    for ranks in 1..=16 {
        for documents in [&[192][..], &[9, 8, 8, 12, 8, 12], &[1, 70, 3]] {
            for pattern in PATTERNS {
                let problem = problem(shape(ranks * 2, ranks), pattern, documents);
                for schedule in ALL {
                    for options in ways() {
                        proven += usize::from(proves(schedule, &problem, ranks, &options).is_some());
                    }
                }
            }
        }
    }
    let cases = 16 * 3 * PATTERNS.len() * ways().len();
    let without_full_masks = cases * 3 / 4;
    assert_eq!(
        proven,
        cases * (ALL.len() - 1) + without_full_masks,
        "only DistFlashAttn refuses, and only full masks"
    );
}

#[test]
fn every_grouping_of_heads() {
    let mut by_schedule = vec![0; ALL.len()];
    for ranks in 1..=16 {
        for (kv_heads, group) in [(1, 16), (2, 12), (4, 4), (8, 5), (12, 1), (3, 5)] {
            for (i, &schedule) in ALL.iter().enumerate() {
                for pass in [Pass::Forward, Pass::Backward] {
                    let problem = causal(shape(kv_heads * group, kv_heads), 96);
                    let plan = proves(schedule, &problem, ranks, &Options::new(pass));
                    by_schedule[i] += usize::from(plan.is_some());
                }
            }
        }
    }
    assert!(by_schedule.iter().all(|&n| n >= 40), "{by_schedule:?}");
}

#[test]
fn every_window_and_grid() {
    let mut proven = 0;
    for ranks in 1..=16 {
        for (documents, pattern) in
            [(&[192][..], Pattern::Causal), (&[9, 30, 12], Pattern::Full), (&[70, 3], Pattern::Window(13))]
        {
            let problem = problem(shape(ranks * 2, ranks), pattern, documents);
            for schedule in windows_and_grids(ranks) {
                for (gpus_per_node, prefetch) in [(8, 1), (6, 0), (4, 2)] {
                    for way in ways().into_iter().filter(|w| w.route == Route::Neighbour) {
                        let options = Options { gpus_per_node, prefetch, ..way };
                        assert!(
                            proves(schedule, &problem, ranks, &options).is_some(),
                            "{schedule} on {ranks}"
                        );
                        proven += 1;
                    }
                }
            }
        }
    }
    assert_eq!(
        proven,
        3 * 3 * 4 * 4 * (1..=16).map(|n| (1..=n).filter(|d| n % d == 0).count()).sum::<usize>()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(400), ..ProptestConfig::default() })]
    #[test]
    fn random_problems(
        choice in any::<prop::sample::Index>(), pattern in 0usize..3, width in 1u64..60, ranks in 1u32..17,
        documents in prop::collection::vec(1u64..40, 1..5), kv_heads in 1u32..9, group in 1u32..7,
        way in prop::sample::select(ways())
    ) {
        let pattern = [Pattern::Full, Pattern::Causal, Pattern::Window(width)][pattern];
        let schedules = [&ALL[..], &windows_and_grids(ranks)].concat();
        let schedule = *choice.get(&schedules);
        proves(schedule, &problem(shape(kv_heads * group, kv_heads), pattern, &documents), ranks, &way);
    }
}

#[test]
fn uneven_chunks_of_what_is_needed() {
    // Parts of a narrower range may be a token longer than those of the whole shard with the same number.
    let mut proven = 0;
    for (ranks, documents, pattern) in [
        (3, &[134][..], Pattern::Full),
        (6, &[1009], Pattern::Full),
        (7, &[1, 1, 1, 19, 1, 1, 1, 1, 71, 8, 63], Pattern::Causal),
        (8, &[2048], Pattern::Window(300)),
    ] {
        let problem = problem(shape(4, 2), pattern, documents);
        for schedule in ALL {
            for chunks in [2, 3, 6, 13] {
                for pass in [Pass::Forward, Pass::Backward] {
                    for route in [Route::Neighbour, Route::Direct] {
                        let options =
                            Options { chunks, route, needed_only: true, pad: true, ..Options::new(pass) };
                        proven += usize::from(proves(schedule, &problem, ranks, &options).is_some());
                    }
                }
            }
        }
    }
    assert!(proven > 400, "{proven}");
}
