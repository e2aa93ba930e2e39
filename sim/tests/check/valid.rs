//! Whatever the schedules build is correct.

use ringlab_sim::check::prove;
use ringlab_sim::mask::Pattern;
use ringlab_sim::schedule::{Options, Schedule};

use crate::common::{all_options, list, plan};

const SCHEDULES: [Schedule; 5] = [
    Schedule::Ring,
    Schedule::Zigzag,
    Schedule::Striped { block: 1 },
    Schedule::Striped { block: 3 },
    Schedule::DistFlash,
];

/// Proves the plan, if there is one.
fn proves(
    schedule: Schedule,
    pattern: Pattern,
    documents: &[u64],
    ranks: u32,
    options: &Options,
) -> Result<(), String> {
    let Some(plan) = plan(schedule, pattern, documents, ranks, options) else { return Ok(()) };
    let proof = prove(&plan).map_err(|violations| {
        format!("{schedule} {pattern} {documents:?} P={ranks} {options:?}:\n{}", list(&violations))
    })?;
    assert_eq!(proof.pairs, plan.unmasked_pairs() * u128::from(plan.shape.heads));
    Ok(())
}

#[test]
fn every_schedule_at_every_size() {
    let documents: [&[u64]; 4] = [&[96], &[9, 8, 8, 12, 8, 12], &[1, 70, 3], &[257]];
    let patterns =
        [Pattern::Full, Pattern::Causal, Pattern::Window(1), Pattern::Window(13), Pattern::Window(90)];
    let mut failures = Vec::new();
    for ranks in (1..=16).chain([24, 32, 61]) {
        for documents in documents {
            for pattern in patterns {
                for schedule in SCHEDULES {
                    for base in all_options() {
                        for (chunks, prefetch) in [(1, 1), (2, 0), (3, 2), (1, 3)] {
                            let options = Options { chunks, prefetch, ..base };
                            failures.extend(proves(schedule, pattern, documents, ranks, &options).err());
                        }
                    }
                }
            }
        }
        if failures.len() > 10 {
            break;
        }
    }
    assert!(
        failures.is_empty(),
        "{} plans:\n{}",
        failures.len(),
        failures[..failures.len().min(5)].join("\n")
    );
}
