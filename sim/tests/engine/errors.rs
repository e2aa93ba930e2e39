//! What cannot be simulated ends with an error that says what to do.

use ringlab_sim::config::cluster::Power;
use ringlab_sim::engine::{Discard, Load, Machine, SimError, SimOptions, simulate, simulate_with};
use ringlab_sim::plan::{LANES, NO_OP, Plan, Transport};
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{Options, Schedule};
use ringlab_sim::topology::TopologyError;
use ringlab_sim::units::{BytesPerSec, FlopsPerSec, SimTime};

use crate::support;

fn ring(ranks: u32) -> Plan {
    let problem = support::causal(8 * u64::from(ranks), support::shape(1, support::HEAD_DIM));
    support::build(Schedule::Ring, &problem, ranks, &Options::new(Pass::Forward))
}

fn refusal(plan: &Plan) -> SimError {
    simulate(plan, &support::ideal(plan.ranks()), &SimOptions::default()).unwrap_err()
}

#[test]
fn more_ranks_than_gpus() {
    let error = simulate(&ring(9), &support::nvswitch(1), &SimOptions::default()).unwrap_err();
    assert!(matches!(error, SimError::Topology(TopologyError::TooManyRanks { ranks: 9, gpus: 8, .. })));
    assert!(error.to_string().contains("more nodes"), "{error}");
    let mut small = Machine::new(&support::ideal(8), 4, &SimOptions::default()).unwrap();
    assert_eq!(
        simulate_with(&ring(5), &mut small, &mut Discard),
        Err(SimError::TooManyRanks { ranks: 5, prepared: 4 })
    );
    assert!(simulate_with(&ring(3), &mut small, &mut Discard).is_ok(), "fewer are fine");
}

#[test]
fn a_kernel_that_the_cluster_lacks() {
    let mut cluster = support::ideal(2);
    cluster.kernels.retain(|row| row.pass == Pass::Backward);
    assert!(matches!(simulate(&ring(2), &cluster, &SimOptions::default()), Err(SimError::Kernel(_))));
}

#[test]
fn a_receive_without_its_send_hangs() {
    let mut plan = ring(3);
    let lost = plan.programs[1].ops.iter().rposition(|op| op.kind.message().is_some()).unwrap();
    let carried = plan.programs[1].ops.remove(lost);
    for op in plan.programs[1].ops.iter_mut().flat_map(|op| &mut op.waits).filter(|w| **w != NO_OP) {
        *op -= u32::from(*op > lost as u32);
    }
    let error = refusal(&plan);
    let SimError::Hangs { what, left, .. } = &error else { panic!("{error} without {carried:?}") };
    assert!(*left > 0 && ["starts", "meets its other side"].contains(what));
    assert!(error.to_string().contains("ringlab check"));
}

#[test]
fn operations_that_wait_for_each_other_hang() {
    let mut plan = ring(2);
    let ops = &mut plan.programs[0].ops;
    // The first attention call waits for the receive, and that for the call.
    let call = ops.iter().position(|op| op.lane.is_compute()).unwrap();
    let transfer = ops.iter().position(|op| !op.lane.is_compute()).unwrap();
    let lane = usize::from(ops[transfer].lane.0);
    ops[call].waits[lane] = transfer as u32;
    ops[transfer].waits[0] = call as u32;
    assert!(matches!(refusal(&plan), SimError::Hangs { rank: 0, what: "starts", .. }));
}

#[test]
fn plans_that_speak_of_what_they_do_not_have() {
    let mut plan = ring(2);
    plan.programs[1].ops[0].waits[0] = 1000;
    assert!(matches!(refusal(&plan), SimError::Malformed { rank: 1, op: 0, .. }));
    let mut plan = ring(2);
    plan.programs[0].ops[0].lane.0 = LANES as u8;
    assert!(matches!(refusal(&plan), SimError::Malformed { rank: 0, op: 0, .. }));
    let mut plan = ring(2);
    plan.messages.clear();
    assert!(matches!(refusal(&plan), SimError::Malformed { .. }));
}

#[test]
fn rates_of_zero_never_end() {
    let mut stopped = support::ideal(2);
    stopped.kernels.iter_mut().for_each(|row| row.rate = FlopsPerSec(0.0));
    let never = SimError::NeverEnds { after: SimTime::ZERO };
    assert_eq!(simulate(&ring(2), &stopped, &SimOptions::default()), Err(never));
    let (speeds, cold_speeds, source) = (Vec::new(), Vec::new(), "test".into());
    let power = Power { boost: 1.25, idle: 0.0, exponent: 2.5, speeds, cold_speeds, source };
    stopped.device.power = Some(power);
    for load in [Load::Sustained, Load::Cold] {
        let ended = simulate(&ring(1), &stopped, &SimOptions { load, ..SimOptions::default() });
        assert!(matches!(ended, Err(SimError::NeverEnds { .. })), "no clock helps: {load:?}, {ended:?}");
    }
    let mut cut = support::ideal(2);
    cut.fabric.copy.bandwidth = BytesPerSec(0.0);
    assert!(matches!(simulate(&ring(2), &cut, &SimOptions::default()), Err(SimError::NeverEnds { .. })));
}

#[test]
fn one_rank_needs_no_link() {
    let plan = ring(1);
    let timeline = simulate(&plan, &support::ideal(1), &SimOptions::default()).unwrap();
    assert_eq!(timeline.makespan, SimTime(8 * 9 / 2));
}

/// With SMs that transfers hold and without, a kernel of centuries never ends; nothing hangs.
#[test]
fn runs_beyond_the_clock_never_end() {
    for transport in [Transport::CopyEngine, Transport::Nccl] {
        for rate in [1e-9, 1e-3, 1.0] {
            let problem = support::causal(64, support::shape(1, support::HEAD_DIM));
            let options = Options { transport, ..Options::new(Pass::Forward) };
            let plan = support::build(Schedule::Ring, &problem, 4, &options);
            let mut cluster = support::nvswitch(1);
            cluster.kernels.iter_mut().for_each(|row| row.rate = FlopsPerSec(rate));
            let ended = simulate(&plan, &cluster, &SimOptions::default());
            let beyond = !matches!(ended, Ok(ref timeline) if timeline.makespan < SimTime::NEVER);
            assert_eq!(beyond, matches!(ended, Err(SimError::NeverEnds { .. })), "{transport:?} at {rate}");
            assert!(beyond || rate > 1e-3, "{transport:?} at {rate}");
        }
    }
}
