//! Random small problems through every part, other ones in every run. What fails is made as small as it gets and printed,
//! and tried first in the next runs; `PROPTEST_CASES` says how many there are.

use proptest::prelude::*;
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::{Pass, Shape};
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

/// Pairs of which the schedule is defined for the mask.
fn schedules_and_patterns() -> impl Strategy<Value = (Schedule, Pattern)> {
    (schedules(), patterns())
        .prop_filter("no plan for this mask", |&(schedule, pattern)| allows(schedule, pattern))
}

fn check(
    (schedule, pattern): (Schedule, Pattern),
    way: Options,
    ranks: u32,
    documents: &[u64],
    shape: Shape,
    seed: u64,
) {
    let padded = schedule.layout().pad(documents, ranks).tokens();
    let chunks = way.chunks.min((padded / u64::from(ranks)) as u32);
    Case::new(problem(shape, pattern, documents), seed).check(schedule, ranks, &Options { chunks, ..way });
}

proptest! {
    #[test]
    fn any_problem_equals_the_reference(
        what in schedules_and_patterns(), way in ways(), ranks in 1u32..17,
        documents in prop::collection::vec(1u64..40, 1..5),
        kv_heads in 1u32..3, group in 1u32..4, head_dim in 1u32..20, batch in 1u32..3, seed in any::<u64>()
    ) {
        check(what, way, ranks, &documents, shape(kv_heads * group, kv_heads, head_dim, batch), seed);
    }

    /// A few tokens of a few elements, of which all gradients may be differences of nearly equal numbers.
    #[test]
    fn a_problem_of_a_few_tokens_equals_the_reference(
        what in schedules_and_patterns(), ranks in 1u32..4, documents in prop::collection::vec(1u64..4, 1..3),
        head_dim in 1u32..5, seed in any::<u64>()
    ) {
        check(what, options(Pass::Forward), ranks, &documents, shape(1, 1, head_dim, 1), seed);
    }
}
