//! A proof costs the plan's operations and the mask's pieces, never the tokens squared.

use std::time::{Duration, Instant};

use ringlab_sim::check::prove;
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{Options, Schedule};

use crate::common::{list, plan};

/// Proves a causal plan over a million tokens within `limit`, as far as the build is optimised.
fn prove_within(schedule: Schedule, ranks: u32, options: &Options, limit: Duration) {
    let plan = plan(schedule, Pattern::Causal, &[1 << 20], ranks, options).expect("the sizes fit");
    let start = Instant::now();
    let proof = prove(&plan).unwrap_or_else(|violations| panic!("{}", list(&violations)));
    let taken = start.elapsed();
    println!(
        "{schedule} {} {:?} P={ranks}: {} ops in {taken:?}",
        options.pass,
        options.transport,
        plan.op_count()
    );
    assert_eq!(proof.pairs, 4 * (1 << 19) * ((1 << 20) + 1));
    assert!(cfg!(debug_assertions) || taken < limit, "{schedule} took {taken:?}");
}

#[test]
fn a_million_tokens_on_64_ranks() {
    let schedules = [
        Schedule::Ring,
        Schedule::Zigzag,
        Schedule::Striped { block: 1 },
        Schedule::Striped { block: 128 },
        Schedule::DistFlash,
    ];
    for schedule in schedules {
        for pass in [Pass::Forward, Pass::Backward] {
            for transport in [Transport::CopyEngine, Transport::Nccl] {
                let options = Options { transport, ..Options::new(pass) };
                prove_within(schedule, 64, &options, Duration::from_secs(2));
            }
        }
    }
}

#[test]
#[ignore = "three million operations; seconds in release"]
fn a_million_tokens_on_1024_ranks() {
    prove_within(Schedule::Ring, 1024, &Options::new(Pass::Forward), Duration::from_secs(30));
}
