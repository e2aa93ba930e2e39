//! Whatever the schedules build is correct.

use ringlab_sim::check::prove;
use ringlab_sim::mask::Pattern;
use ringlab_sim::schedule::{BuildError, Options, Schedule, build};

use crate::common::{all_options, list, problem};

const SCHEDULES: [Schedule; 5] = [
    Schedule::Ring,
    Schedule::Zigzag,
    Schedule::Striped { block: 1 },
    Schedule::Striped { block: 3 },
    Schedule::DistFlash,
];

/// One document; six that are padded one by one under zigzag; a long one between two short ones; a prime length.
const DOCUMENTS: [&[u64]; 4] = [&[96], &[9, 8, 8, 12, 8, 12], &[1, 70, 3], &[257]];

const PATTERNS: [Pattern; 5] =
    [Pattern::Full, Pattern::Causal, Pattern::Window(1), Pattern::Window(13), Pattern::Window(90)];

/// Proves the plan if there is one; whether there is.
fn proves(
    schedule: Schedule,
    pattern: Pattern,
    documents: &[u64],
    ranks: u32,
    options: &Options,
) -> Result<bool, String> {
    let plan = match build(schedule, &problem(pattern, documents), ranks, options) {
        Ok(plan) => plan,
        Err(BuildError::Mask { .. } | BuildError::Chunks { .. }) => return Ok(false),
        Err(error) => return Err(error.to_string()),
    };
    let proof = prove(&plan).map_err(|violations| {
        format!("{schedule} {pattern} {documents:?} P={ranks} {options:?}:\n{}", list(&violations))
    })?;
    assert_eq!(proof.pairs, plan.unmasked_pairs() * u128::from(plan.shape.heads));
    assert_eq!(proof.bytes_moved(), plan.bytes_moved());
    assert_eq!(proof.messages, plan.messages.len());
    Ok(true)
}

/// Proves every `every`-th plan of the matrix; how many there were.
fn matrix(ranks: impl Iterator<Item = u32>, every: usize) -> usize {
    let (mut index, mut proven) = (0, 0);
    for ranks in ranks {
        for (documents, pattern) in DOCUMENTS.iter().flat_map(|d| PATTERNS.map(|p| (*d, p))) {
            for (schedule, base) in SCHEDULES.iter().flat_map(|s| all_options().into_iter().map(|o| (*s, o)))
            {
                for (chunks, prefetch) in [(1, 1), (2, 0), (3, 2), (1, 3)] {
                    index += 1;
                    if index % every == 0 {
                        let options = Options { chunks, prefetch, pad: true, ..base };
                        let there = proves(schedule, pattern, documents, ranks, &options);
                        proven += usize::from(there.unwrap_or_else(|error| panic!("{error}")));
                    }
                }
            }
        }
    }
    proven
}

#[test]
fn every_schedule_mask_and_option_on_up_to_16_ranks() {
    let proven = matrix(1..=4, 1) + matrix(5..=16, 11);
    assert!(proven > 28_000, "only {proven} plans");
}

#[test]
fn every_schedule_mask_and_option_on_more_ranks() {
    let proven = matrix([24, 33, 61, 64].into_iter(), 97);
    assert!(proven > 200, "only {proven} plans");
}

#[test]
#[ignore = "the whole matrix takes minutes"]
fn the_whole_matrix() {
    let proven = matrix((1..=16).chain([24, 33, 61, 64]), 1);
    println!("{proven} plans");
}

#[test]
fn a_half_chunk_that_is_all_padding() {
    let lens = [9, 8, 8, 12, 8, 12];
    for base in all_options() {
        let options = Options { pad: true, ..base };
        let plan = build(Schedule::Zigzag, &problem(Pattern::Causal, &lens), 2, &options).unwrap();
        let starts: Vec<u64> = plan.layout.documents().iter().map(|d| d.start).collect();
        assert_eq!((starts, plan.layout.documents().tokens()), (vec![0, 12, 20, 28, 40, 48], 60));
        let proof = prove(&plan).unwrap_or_else(|violations| panic!("{}", list(&violations)));
        let causal: u64 = lens.iter().map(|n| n * (n + 1) / 2).sum();
        assert_eq!(proof.pairs, u128::from(4 * causal));
    }
}

#[test]
fn a_proof_says_what_the_plan_costs() {
    use ringlab_sim::problem::Pass;
    let plan =
        build(Schedule::Ring, &problem(Pattern::Causal, &[64]), 4, &Options::new(Pass::Forward)).unwrap();
    let proof = prove(&plan).unwrap();
    let kv = 2 * 16 * 2 * 8 * 2;
    for (rank, r) in proof.ranks.iter().enumerate() {
        assert_eq!((r.bytes_sent.0, r.bytes_received.0), (3 * kv, 3 * kv));
        assert_eq!((r.ops.attends, r.ops.sends, r.ops.recvs, r.ops.others), (rank + 1, 3, 3, 1));
        // q and o in two bytes, lse, the state of 8 + 2 floats, own k and v and those of two steps in flight.
        assert_eq!(r.peak_memory.0, 16 * 4 * (8 * 2 + 8 * 2 + 4 + 4 * 10) + 3 * kv);
    }
}
