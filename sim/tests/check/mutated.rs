//! Random single mutations of correct plans: what the checker still accepts must be harmless, as an execution in many
//! orders shows; and what it says of what it refuses must be so.

use proptest::prelude::*;
use ringlab_sim::check::{Violation, prove};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{ALL, Options, Route, Schedule};

use crate::common::{list, plan};
use crate::judge::{pairs_are_wrong, verdict};
use crate::mutations::{MUTATIONS, mutate};
use crate::naive::run;
use crate::orders::races;

fn small_plan() -> impl Strategy<Value = (Plan, Pattern)> {
    let double = (1u32..3, any::<bool>())
        .prop_map(|(window, rail)| Schedule::DoubleRing { window: Some(window), rail });
    let usp = (1u32..3, 1u32..4, any::<bool>())
        .prop_map(|(u, r, across)| Schedule::Usp { grid: Some((u, r)), across });
    let striped = (1u64..3).prop_map(|block| Schedule::Striped { block });
    let schedule = prop_oneof![prop::sample::select(ALL.to_vec()), striped, double, usp];
    let pattern = prop_oneof![
        Just(Pattern::Full),
        Just(Pattern::Causal),
        Just(Pattern::Causal),
        (1u64..9).prop_map(Pattern::Window)
    ];
    let documents = prop_oneof![(1u64..14).prop_map(|n| vec![n]), prop::collection::vec(1u64..6, 2..4),];
    let flags = prop::array::uniform4(any::<bool>());
    let sizes = (1u32..6, 1u32..4, 0u32..4);
    (schedule, pattern, documents, flags, sizes).prop_filter_map(
        "a plan that its schedule knows",
        |(schedule, pattern, documents, [backward, nccl, direct, needed_only], (ranks, chunks, prefetch))| {
            let options = Options {
                transport: if nccl { Transport::Nccl } else { Transport::CopyEngine },
                route: if direct { Route::Direct } else { Route::Neighbour },
                chunks,
                prefetch,
                needed_only,
                ..Options::new(if backward { Pass::Backward } else { Pass::Forward })
            };
            Some((plan(schedule, pattern, &documents, ranks, &options)?, pattern))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(400), ..ProptestConfig::default() })]

    #[test]
    fn correct_plans_are_correct_in_every_order((plan, pattern) in small_plan()) {
        let proof = prove(&plan);
        prop_assert!(proof.is_ok(), "{}", list(&proof.unwrap_err()));
        prop_assert_eq!(verdict(&plan, pattern, 4), Ok(()));
    }

    #[test]
    fn what_is_accepted_is_harmless(
        (plan, pattern) in small_plan(), which in 0..MUTATIONS.len(), at in any::<(u16, u16, u16)>()
    ) {
        let mut mutant = plan.clone();
        if mutate(&mut mutant, MUTATIONS[which], (at.0.into(), at.1.into(), at.2.into())) {
            prop_assert_eq!(judge(&mutant, pattern).map(|_| ()), Ok(()), "{:?}", MUTATIONS[which]);
        }
    }
}

/// Why a mutant was refused, `None` if it was not.
///
/// # Errors
/// If the checker is wrong: it accepted what does harm, or said what is not so.
fn judge(mutant: &Plan, pattern: Pattern) -> Result<Option<Vec<Violation>>, String> {
    let Err(violations) = prove(mutant) else {
        verdict(mutant, pattern, 12)?;
        return if races(mutant).is_empty() { Ok(None) } else { Err("a race was overlooked".into()) };
    };
    pairs_are_wrong(mutant, pattern, &violations)?;
    let racing = races_of(&violations, mutant)?;
    for violation in &violations {
        let so = match violation {
            Violation::CircularWait { .. } => is_stuck(mutant, pattern, false),
            Violation::Interlock { .. } => is_stuck(mutant, pattern, true),
            Violation::Race { first, second, .. } => racing.contains(&(first.rank, first.op, second.op)),
            _ => true,
        };
        if !so {
            return Err(format!("not so: {violation}"));
        }
    }
    Ok(Some(violations))
}

/// Violations that are named at most; others may be left beyond them.
const NAMED: usize = 20;

/// The races of a plan that is well enough formed to have any.
fn races_of(violations: &[Violation], plan: &Plan) -> Result<Vec<(u32, u32, u32)>, String> {
    let timing = |v: &Violation| {
        matches!(
            v,
            Violation::Race { .. }
                | Violation::CircularWait { .. }
                | Violation::Interlock { .. }
                | Violation::MessageOrder { .. }
                | Violation::CommunicatorOrder { .. }
                | Violation::Communicators { .. }
        )
    };
    let later = |v: &Violation| {
        matches!(
            v,
            Violation::Coverage { .. } | Violation::WrongContent { .. } | Violation::Uninitialised { .. }
        )
    };
    if violations.iter().any(timing) {
        let racing = races(plan);
        let said = violations.iter().any(|v| matches!(v, Violation::Race { .. }));
        let is_wrong = if racing.is_empty() { said } else { !said && violations.len() < NAMED };
        if is_wrong {
            return Err(format!("races {racing:?}, but {}", list(violations)));
        }
        return Ok(racing);
    }
    let overlooked = violations.iter().any(later) && !races(plan).is_empty();
    if overlooked { Err("a race was overlooked".into()) } else { Ok(Vec::new()) }
}

fn is_stuck(plan: &Plan, pattern: Pattern, turns: bool) -> bool {
    run(plan, pattern, 1, turns).is_err_and(|error| error.starts_with("stuck"))
}

/// How mutations fare: how many change the plan, are accepted, and are refused though no execution shows harm.
#[test]
#[ignore = "a census of 26,000 mutants; run it with --nocapture"]
fn census() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, TestRunner};
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    println!("{:<14}{:>8}{:>10}{:>20}", "mutation", "mutants", "accepted", "refused, no harm");
    for mutation in MUTATIONS {
        let (mut mutants, mut accepted, mut strict) =
            (0, 0, std::collections::BTreeMap::<String, u32>::new());
        for _ in 0..2000 {
            let (mut plan, pattern) = small_plan().new_tree(&mut runner).unwrap().current();
            let at = any::<(u16, u16, u16)>().new_tree(&mut runner).unwrap().current();
            if !mutate(&mut plan, mutation, (at.0.into(), at.1.into(), at.2.into())) {
                continue;
            }
            mutants += 1;
            match judge(&plan, pattern).unwrap_or_else(|error| panic!("{mutation:?}: {error}")) {
                None => accepted += 1,
                Some(violations) => {
                    let broken = matches!(
                        violations[0],
                        Violation::Op { .. }
                            | Violation::Plan { .. }
                            | Violation::NotSent { .. }
                            | Violation::NotReceived { .. }
                            | Violation::Repeated { .. }
                            | Violation::WrongRank { .. }
                    );
                    if !broken && verdict(&plan, pattern, 12).is_ok() {
                        let kind = format!("{:?}", violations[0]);
                        *strict.entry(kind.split(' ').next().unwrap_or_default().to_owned()).or_default() +=
                            1;
                    }
                }
            }
        }
        println!("{:<14}{mutants:>8}{accepted:>10}   {strict:?}", format!("{mutation:?}"));
    }
}
