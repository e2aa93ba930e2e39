//! Random transfers against a fluid model that knows no events: at every change all rates are found anew.

use proptest::prelude::*;
use ringlab_sim::config::cluster::{Cluster, FabricTopology};
use ringlab_sim::plan::{OpKind, Plan, Transport};
use ringlab_sim::topology::Topology;
use ringlab_sim::units::{BytesPerSec, SimTime};

use crate::support::{self, arrivals, transfers};

/// A transfer in the fluid model; times in picoseconds.
struct Moving {
    active_at: f64,
    left: f64,
    links: Vec<u32>,
    limit: f64,
    rate: f64,
    end: Option<f64>,
}

/// When each message of the plan has arrived.
fn fluid(plan: &Plan, cluster: &Cluster) -> Vec<f64> {
    let topology = Topology::new(cluster, plan.ranks()).unwrap();
    let starts = posted(plan, cluster.host.copy_launch.0);
    let mut flows: Vec<Moving> = plan
        .messages
        .iter()
        .zip(starts)
        .map(|(m, start)| {
            let mut links = Vec::new();
            let reach = topology.route(m.from, m.to, plan.transport, &mut links);
            let active_at = (start + reach.latency.0) as f64;
            let limit = reach.bandwidth.0 / 1e12;
            Moving { active_at, left: m.bytes.0 as f64, links, limit, rate: 0.0, end: None }
        })
        .collect();
    let capacities: Vec<f64> = topology.capacities().iter().map(|c| c.0 / 1e12).collect();
    let mut now = 0.0;
    while flows.iter().any(|d| d.end.is_none()) {
        share(&mut flows, &capacities, now);
        let moving = |d: &&Moving| d.end.is_none() && d.active_at <= now;
        let ends = flows.iter().filter(moving).map(|d| now + d.left / d.rate);
        let begins = flows.iter().filter(|d| d.end.is_none() && d.active_at > now).map(|d| d.active_at);
        let next = ends.chain(begins).fold(f64::INFINITY, f64::min);
        for d in flows.iter_mut().filter(|d| d.end.is_none() && d.active_at <= now) {
            let rest = d.left - d.rate * (next - now);
            // Less than a thousandth of a byte is a rounding error.
            (d.left, d.end) = (rest, (rest < 1e-3).then_some(next));
        }
        now = next;
    }
    flows.into_iter().map(|d| d.end.unwrap()).collect()
}

/// When the host has launched each send: those before it on its rank, one after the other.
fn posted(plan: &Plan, launch: u64) -> Vec<u64> {
    let mut at = vec![0; plan.messages.len()];
    for program in &plan.programs {
        let mut clock = 0;
        for op in &program.ops {
            clock += if matches!(op.kind, OpKind::Send { .. }) { launch } else { 0 };
            let message = op.kind.message().unwrap() as usize;
            at[message] = clock.max(at[message]);
        }
    }
    at
}

/// Gives every moving transfer the rate at which its tightest link, or its limit, stops it: the tightest first.
fn share(flows: &mut [Moving], capacities: &[f64], now: f64) {
    let moving: Vec<usize> =
        (0..flows.len()).filter(|&i| flows[i].end.is_none() && flows[i].active_at <= now).collect();
    let mut fixed: Vec<usize> = Vec::new();
    while fixed.len() < moving.len() {
        let open: Vec<usize> = moving.iter().copied().filter(|i| !fixed.contains(i)).collect();
        let fair = |link: u32| {
            let on = |i: &&usize| flows[**i].links.contains(&link);
            let used: f64 = fixed.iter().filter(on).map(|&i| flows[i].rate).sum();
            (capacities[link as usize] - used) / open.iter().filter(on).count() as f64
        };
        let most = |i: usize| flows[i].links.iter().map(|&l| fair(l)).fold(flows[i].limit, f64::min);
        let tightest = open.iter().copied().min_by(|&a, &b| most(a).total_cmp(&most(b))).unwrap();
        let rate = most(tightest);
        flows[tightest].rate = rate;
        fixed.push(tightest);
    }
}

prop_compose! {
    fn cluster()(kind in 0usize..4, rate in 10u32..100, limit in 10u32..100, launch in 0u64..3_000_000, latency in 0u64..2_000_000)
        -> Cluster {
        let mut cluster = support::nvswitch(2);
        (cluster.gpus_per_node, cluster.network.as_mut().unwrap().nics_per_node) = (4, 2);
        let link_bandwidth = BytesPerSec(f64::from(rate) * 1e9);
        cluster.fabric.topology = match kind {
            0 => FabricTopology::Nvswitch { link_bandwidth },
            1 => FabricTopology::Pcie { link_bandwidth, gpus_per_switch: 2, host_bridge_bandwidth: BytesPerSec(40e9) },
            _ => FabricTopology::Torus { dims: vec![2, 2], link_bandwidth, wraparound: kind == 3 },
        };
        cluster.fabric.copy = support::transport(BytesPerSec(f64::from(limit) * 1e9), SimTime(latency));
        cluster.host.copy_launch = SimTime(launch);
        cluster
    }
}

prop_compose! {
    /// Messages between eight ranks, at most five of which touch any one.
    fn moves()(all in prop::collection::vec((0u32..8, 0u32..8, 1u64..3000), 1..16)) -> Vec<(u32, u32, u64)> {
        let mut touched = [0; 8];
        let mut room = |r: u32| { touched[r as usize] += 1; touched[r as usize] <= 5 };
        all.into_iter().filter(|(a, b, _)| a != b).filter(|(a, b, _)| room(*a) & room(*b)).collect()
    }
}

proptest! {
    #[test]
    fn transfers_arrive_as_a_fluid_would(moves in moves(), cluster in cluster()) {
        prop_assume!(!moves.is_empty());
        let plan = transfers(8, &moves, Transport::CopyEngine);
        for ((_, end), expected) in arrivals(&plan, &cluster).into_iter().zip(fluid(&plan, &cluster)) {
            // Each change may round by a picosecond, and moves the changes after it by as much.
            prop_assert!((end as f64 - expected).abs() <= 2.0 * moves.len() as f64, "{} for {}", end, expected);
        }
    }
}
