use ringlab_sim::config::cluster::{Cluster, FabricTopology};
use ringlab_sim::disturb::{DisturbError, Disturbance, LinkFault};
use ringlab_sim::engine::{Discard, Machine, SimError, SimOptions, simulate_with};
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{Options, Schedule};
use ringlab_sim::units::{BytesPerSec, SimTime};

use crate::{calm, disturbed, makespan, support};

fn slow(text: &str) -> Disturbance {
    Disturbance { links: vec![LinkFault::slowed(text).unwrap()], ..Disturbance::default() }
}

fn failed(texts: &[&str]) -> Disturbance {
    let links = texts.iter().map(|t| LinkFault::failed(t).unwrap()).collect();
    Disturbance { links, ..Disturbance::default() }
}

/// The time of one transfer of 1000 tokens.
fn time(cluster: &Cluster, from: u32, to: u32, disturbance: &Disturbance) -> Result<u64, SimError> {
    let plan = support::transfers(cluster.gpus(), &[(from, to, 1000)], Transport::CopyEngine);
    disturbed(&plan, cluster, disturbance, 0, 0)
}

/// Links of a byte a picosecond without latency.
fn torus(dims: &[u32], wraparound: bool) -> Cluster {
    let mut cluster = support::ideal(dims.iter().product());
    cluster.fabric.topology =
        FabricTopology::Torus { dims: dims.to_vec(), link_bandwidth: BytesPerSec(1e12), wraparound };
    cluster
}

const USUAL: u64 = 1000 * support::TOKEN;

#[test]
fn a_slow_link_slows_what_crosses_it_and_nothing_else() {
    let mut cluster = support::ideal(6);
    // The transfer's own limit lies below the link's, as measured rates do.
    cluster.fabric.topology = FabricTopology::Nvswitch { link_bandwidth: BytesPerSec(2e12) };
    cluster.fabric.copy.bandwidth = BytesPerSec(1e12);
    let fault = slow("0-1:4");
    let cases = [(0, 1, 4), (1, 0, 4), (0, 2, 4), (2, 1, 4), (2, 3, 1), (4, 5, 1)];
    for (from, to, factor) in cases {
        assert_eq!(time(&cluster, from, to, &fault), Ok(factor * USUAL), "{from} to {to}");
    }
}

#[test]
fn neighbours_of_a_torus_have_a_link_of_their_own() {
    let cluster = torus(&[4, 2], true);
    let fault = slow("0-1:3");
    assert_eq!(time(&cluster, 0, 1, &fault), Ok(3 * USUAL));
    assert_eq!(time(&cluster, 0, 3, &fault), Ok(USUAL), "the other way around");
    assert_eq!(time(&cluster, 0, 4, &fault), Ok(USUAL), "the other dimension");
}

/// Two transfers that need one link share it; the way around a failed link is longer, not slower, unless others use it.
#[test]
fn transfers_go_around_a_failed_link_of_a_torus() {
    let ring = torus(&[4], true);
    let fault = failed(&["0-1"]);
    assert_eq!(time(&ring, 0, 1, &fault), Ok(USUAL));
    // The way around is 0-3-2-1, which 3 to 2 needs too.
    let plan = support::transfers(4, &[(0, 1, 1000), (3, 2, 1000)], Transport::CopyEngine);
    assert_eq!(makespan(&plan, &ring, &fault, 0, 0), 2 * USUAL);
    assert_eq!(calm(&plan, &ring), USUAL);
    let line = torus(&[4], false);
    assert_eq!(time(&line, 0, 1, &fault), Err(SimError::CutOff { from: 0, to: 1 }));
    assert_eq!(time(&line, 2, 3, &fault), Ok(USUAL), "what does not need the link goes on");
    assert_eq!(time(&torus(&[4, 2], false), 0, 1, &fault), Ok(USUAL), "over the other row");
}

#[test]
fn a_gpu_behind_a_switch_has_one_port() {
    let cluster = support::nvswitch(1);
    assert_eq!(time(&cluster, 0, 1, &failed(&["0-1"])), Err(SimError::CutOff { from: 0, to: 1 }));
    assert!(time(&cluster, 2, 3, &failed(&["0-1"])).is_ok());
}

#[test]
fn a_failed_nic_is_replaced_by_a_neighbours() {
    let cluster = support::nvswitch(2);
    let usual = time(&cluster, 0, 8, &Disturbance::default()).unwrap();
    // The NICs of GPUs 0 and 8 are gone: 0 to 1 by NVLink, 1 to 9 on their rail, 9 to 8 by NVLink; latencies add up.
    let around = time(&cluster, 0, 8, &failed(&["0-8"])).unwrap();
    assert_eq!(around - usual, 2 * cluster.fabric.copy.latency.0);
    let all: Vec<String> = (0..8).map(|i| format!("{i}-{}", i + 8)).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(time(&cluster, 0, 8, &failed(&all)), Err(SimError::CutOff { from: 0, to: 8 }));
}

#[test]
fn a_machine_is_as_good_as_new_after_a_fault() {
    let cluster = support::nvswitch(1);
    let plan = support::transfers(8, &[(0, 1, 1000)], Transport::CopyEngine);
    let mut machine = Machine::new(&cluster, 8, &SimOptions::default()).unwrap();
    let mut run = |disturbance: Option<&Disturbance>| {
        machine.disturb(disturbance.map(|d| d.draw(8, 0, 0).unwrap())).unwrap();
        simulate_with(&plan, &mut machine, &mut Discard).map(|t| t.0)
    };
    let usual = run(None).unwrap();
    let (four, two) = (run(Some(&slow("0-1:4"))).unwrap(), run(Some(&slow("0-1:2"))).unwrap());
    assert!(four > two && two > usual, "a fault replaces the one before");
    assert!(run(Some(&failed(&["0-1"]))).is_err());
    assert_eq!(run(None), Ok(usual));
}

#[test]
fn new_links_and_their_ranks_are_disturbed_by_nothing() {
    let problem = support::causal(64, support::shape(1, support::HEAD_DIM));
    let plan = support::build(Schedule::Ring, &problem, 2, &Options::new(Pass::Forward));
    let cluster = support::ideal(2);
    let mut machine = Machine::new(&cluster, 2, &SimOptions::default()).unwrap();
    let stragglers = vec!["1:2".parse().unwrap()];
    let disturbance = Disturbance { stragglers, ..slow("0-1:4") };
    machine.disturb(Some(disturbance.draw(2, 0, 0).unwrap())).unwrap();
    // Rank 1 has a block of 32 x 32 pairs and a triangle, at a picosecond a pair.
    let usual = 32 * 32 + 32 * 33 / 2;
    assert_eq!(simulate_with(&plan, &mut machine, &mut Discard), Ok(SimTime(2 * usual)));
    machine.relink(&cluster).unwrap();
    assert_eq!(simulate_with(&plan, &mut machine, &mut Discard), Ok(SimTime(usual)));
}

#[test]
fn links_of_gpus_that_do_not_exist_are_refused() {
    let absent = DisturbError::Absent { what: "GPU", number: 8, count: 8 };
    assert_eq!(time(&support::nvswitch(1), 0, 1, &slow("8-1:2")), Err(SimError::Disturb(absent)));
    for text in ["", "0", "0-", "0-0:2", "0-1", "0-1:0", "0-1:x", "a-b:2", "0-1:-2"] {
        assert!(matches!(LinkFault::slowed(text), Err(DisturbError::Form { .. })), "{text}");
    }
    for text in ["", "0", "0-", "0-0", "0-1:2", "a-b"] {
        assert!(matches!(LinkFault::failed(text), Err(DisturbError::Form { .. })), "{text}");
    }
}
