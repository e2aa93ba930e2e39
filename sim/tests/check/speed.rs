//! A proof costs the plan's operations and the mask's pieces, never the tokens squared.

use std::time::Instant;

use ringlab_sim::check::prove;
use ringlab_sim::mask::Pattern;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{Options, Schedule};

use crate::common::{list, plan};

#[test]
fn a_million_tokens_on_64_ranks() {
    for schedule in [
        Schedule::Ring,
        Schedule::Zigzag,
        Schedule::Striped { block: 1 },
        Schedule::Striped { block: 128 },
        Schedule::DistFlash,
    ] {
        for pass in [Pass::Forward, Pass::Backward] {
            let start = Instant::now();
            let plan = plan(schedule, Pattern::Causal, &[1 << 20], 64, &Options::new(pass)).unwrap();
            let built = start.elapsed();
            let proof = prove(&plan).unwrap_or_else(|v| panic!("{}", list(&v)));
            println!("{schedule} {pass}: built {built:?}, proven {:?}", start.elapsed() - built);
            assert_eq!(proof.pairs, 4 * (1 << 19) * ((1 << 20) + 1));
        }
    }
}
