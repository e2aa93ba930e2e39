//! Random small problems through every part.

use proptest::prelude::*;
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{Options, Route, Schedule};

use crate::support::{Case, allows, options, problem, shape};

fn schedules() -> impl Strategy<Value = Schedule> {
    prop_oneof![
        Just(Schedule::Ring),
        Just(Schedule::Zigzag),
        (1u64..5).prop_map(|block| Schedule::Striped { block }),
        Just(Schedule::DistFlash)
    ]
}

fn patterns() -> impl Strategy<Value = Pattern> {
    prop_oneof![Just(Pattern::Full), Just(Pattern::Causal), (1u64..60).prop_map(Pattern::Window)]
}

fn ways() -> impl Strategy<Value = Options> {
    (any::<bool>(), any::<bool>(), 1u32..4, 0u32..4, any::<bool>()).prop_map(
        |(nccl, direct, chunks, prefetch, needed_only)| {
            let transport = if nccl { Transport::Nccl } else { Transport::CopyEngine };
            let route = if direct { Route::Direct } else { Route::Neighbour };
            Options { transport, route, chunks, prefetch, needed_only, ..options(Pass::Forward) }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn any_problem_equals_the_reference(
        schedule in schedules(), pattern in patterns(), way in ways(), ranks in 1u32..17,
        documents in prop::collection::vec(1u64..40, 1..5),
        kv_heads in 1u32..3, group in 1u32..4, head_dim in 1u32..20, batch in 1u32..3, seed in any::<u64>()
    ) {
        prop_assume!(allows(schedule, pattern));
        let problem = problem(shape(kv_heads * group, kv_heads, head_dim, batch), pattern, &documents);
        let padded = schedule.layout().pad(&documents, ranks).tokens();
        let chunks = way.chunks.min((padded / u64::from(ranks)) as u32);
        Case::new(problem, seed).check(schedule, ranks, &Options { chunks, ..way });
    }
}
