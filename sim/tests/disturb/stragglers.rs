use ringlab_sim::disturb::{DisturbError, Disturbance, Straggler};
use ringlab_sim::engine::SimError;
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::{Pass, Problem};
use ringlab_sim::schedule::{Options, Schedule};

use crate::{calm, disturbed, makespan, support};

fn plan(schedule: Schedule, pattern: Pattern, ranks: u32) -> Plan {
    let problem =
        Problem { pattern, ..support::causal(64 * u64::from(ranks), support::shape(1, support::HEAD_DIM)) };
    support::build(schedule, &problem, ranks, &Options::new(Pass::Forward))
}

fn straggler(text: &str) -> Disturbance {
    Disturbance { stragglers: vec![text.parse().unwrap()], ..Disturbance::default() }
}

#[test]
fn one_straggler_slows_a_balanced_ring_by_its_factor() {
    for ranks in [1, 2, 5, 8] {
        let (plan, cluster) = (plan(Schedule::Ring, Pattern::Full, ranks), support::ideal(ranks));
        // P blocks of 64 x 64 pairs at a picosecond a pair.
        assert_eq!(calm(&plan, &cluster), u64::from(ranks) * 64 * 64);
        for rank in 0..ranks {
            let slow = makespan(&plan, &cluster, &straggler(&format!("{rank}:1.5")), 0, 0);
            assert_eq!(slow, u64::from(ranks) * 64 * 64 * 3 / 2, "rank {rank} of {ranks}");
        }
    }
}

#[test]
fn a_rank_with_slack_may_be_slow() {
    // Rank 0 of a causal ring computes half a block, the last one P - 1/2.
    let (plan, cluster) = (plan(Schedule::Ring, Pattern::Causal, 4), support::ideal(4));
    let usual = calm(&plan, &cluster);
    assert_eq!(usual, 3 * 64 * 64 + 64 * 65 / 2);
    assert_eq!(makespan(&plan, &cluster, &straggler("0:3"), 0, 0), usual);
    assert_eq!(makespan(&plan, &cluster, &straggler("3:3"), 0, 0), 3 * usual);
}

#[test]
fn factors_of_one_rank_multiply_and_a_fast_rank_does_not_help() {
    let (plan, cluster) = (plan(Schedule::Ring, Pattern::Full, 4), support::ideal(4));
    let stragglers = ["1:1.5", "1:2", "2:0.25"].map(|t| t.parse::<Straggler>().unwrap()).to_vec();
    let both = Disturbance { stragglers, ..Disturbance::default() };
    assert_eq!(makespan(&plan, &cluster, &both, 0, 0), 3 * calm(&plan, &cluster));
}

#[test]
fn any_rank_is_drawn_evenly() {
    // Under a causal ring with factor 3 the makespan tells which rank it was: rank r alone takes 3 (r + 1/2) blocks.
    let (plan, cluster) = (plan(Schedule::Ring, Pattern::Causal, 4), support::ideal(4));
    let usual = calm(&plan, &cluster);
    let any = straggler("any:3");
    let times: Vec<u64> = (0..400).map(|i| makespan(&plan, &cluster, &any, 9, i)).collect();
    let last = times.iter().filter(|t| **t == 3 * usual).count();
    let first = times.iter().filter(|t| **t == usual).count();
    assert!((60..140).contains(&last) && (60..140).contains(&first), "{first} and {last} of 400 for 100");
}

#[test]
fn a_straggler_that_does_not_take_part_is_refused() {
    let (plan, cluster) = (plan(Schedule::Ring, Pattern::Full, 4), support::ideal(8));
    let error = disturbed(&plan, &cluster, &straggler("4:2"), 0, 0).unwrap_err();
    assert_eq!(error, SimError::Disturb(DisturbError::Absent { what: "rank", number: 4, count: 4 }));
    for text in ["", "3", "3:", ":2", "3:0", "3:-1", "3:nan", "3:inf", "x:2", "3:1e9"] {
        assert!(matches!(text.parse::<Straggler>(), Err(DisturbError::Form { .. })), "{text}");
    }
}
