//! Routes between nodes, and what shares them.

use ringlab_sim::config::cluster::{Cluster, NetworkTopology};
use ringlab_sim::plan::Transport::CopyEngine;
use ringlab_sim::topology::{Topology, TopologyError};
use ringlab_sim::units::{BytesPerSec, SimTime};

use crate::support::{self, TOKEN, arrivals, transfers};

const US: u64 = 1_000_000;

/// Nodes of two GPUs with a 100 GB/s NIC each; transfers reach 100 GB/s after 1 us, and 2 us more over the spine.
fn rails(nodes: u32) -> Cluster {
    let mut cluster = support::ideal(2);
    cluster.nodes = nodes;
    let mut network = support::rails(2);
    network.nic_bandwidth = BytesPerSec(100e9);
    network.transport = support::transport(BytesPerSec(100e9), SimTime(US));
    cluster.network = Some(network);
    cluster
}

fn tree(nodes: u32, nodes_per_leaf: u32, oversubscription: f64) -> Cluster {
    let mut cluster = rails(nodes);
    cluster.network.as_mut().unwrap().topology =
        NetworkTopology::FatTree { nodes_per_leaf, oversubscription };
    cluster
}

fn ends(cluster: &Cluster, moves: &[(u32, u32, u64)]) -> Vec<u64> {
    let times = arrivals(&transfers(cluster.gpus(), moves, CopyEngine), cluster);
    times.into_iter().map(|t| t.1).collect()
}

/// Time of so many tokens at a share of a NIC's rate.
fn time(tokens: u64, share: u64) -> u64 {
    tokens * TOKEN * 10 * share
}

#[test]
fn a_rail_is_one_leaf_and_other_rails_are_behind_the_spine() {
    assert_eq!(ends(&rails(2), &[(0, 2, 40)]), [US + time(40, 1)]);
    assert_eq!(ends(&rails(2), &[(0, 3, 40)]), [3 * US + time(40, 1)]);
    assert_eq!(ends(&rails(2), &[(0, 2, 40), (1, 3, 40)]), [US + time(40, 1); 2], "a NIC each");
}

#[test]
fn gpus_share_a_nic_or_have_several() {
    let mut shared = rails(2);
    shared.network.as_mut().unwrap().nics_per_node = 1;
    assert_eq!(ends(&shared, &[(0, 2, 40), (1, 3, 40)]), [US + time(40, 2); 2]);
    assert_eq!(ends(&shared, &[(0, 2, 40), (3, 1, 40)]), [US + time(40, 1); 2], "both ways at once");
    let mut several = rails(3);
    several.network.as_mut().unwrap().nics_per_node = 4;
    // Two NICs carry two transfers at full rate each.
    assert_eq!(ends(&several, &[(0, 2, 40), (0, 4, 40)]), [US + time(40, 1); 2]);
    assert_eq!(ends(&rails(3), &[(0, 2, 40), (0, 4, 40)]), [US + time(40, 2); 2]);
}

#[test]
fn a_leaf_shares_its_way_up_by_the_oversubscription() {
    // Two nodes with two NICs below a leaf: 400 GB/s from below, 100 GB/s up.
    let cluster = tree(4, 2, 4.0);
    assert_eq!(ends(&cluster, &[(0, 2, 40), (1, 3, 40)]), [US + time(40, 1); 2], "below one leaf");
    assert_eq!(ends(&cluster, &[(0, 4, 40)]), [3 * US + time(40, 1)]);
    let all_up = [(0, 4, 40), (1, 5, 40), (2, 6, 40), (3, 7, 40)];
    assert_eq!(ends(&cluster, &all_up), [3 * US + time(40, 4); 4]);
    assert_eq!(ends(&tree(4, 2, 1.0), &all_up), [3 * US + time(40, 1); 4], "never blocks at 1");
    // Up and down are apart.
    assert_eq!(ends(&cluster, &[(0, 4, 40), (4, 0, 40)]), [3 * US + time(40, 1); 2]);
}

#[test]
fn without_gpudirect_transfers_are_copied_through_host_memory() {
    let mut cluster = rails(3);
    let network = cluster.network.as_mut().unwrap();
    (network.gpudirect, network.staging_bandwidth) = (false, Some(BytesPerSec(20e9)));
    assert_eq!(ends(&cluster, &[(0, 2, 40)]), [US + time(40, 5)]);
    assert_eq!(ends(&cluster, &[(0, 2, 40), (0, 4, 40)]), [US + time(40, 10); 2], "one copy out of a GPU");
    assert_eq!(ends(&cluster, &[(0, 2, 40), (1, 3, 40)]), [US + time(40, 5); 2], "a copy for each GPU");
}

#[test]
fn pcie_lanes_carry_what_leaves_the_node() {
    let mut cluster = rails(2);
    cluster.fabric.topology = ringlab_sim::config::cluster::FabricTopology::Pcie {
        link_bandwidth: BytesPerSec(50e9),
        gpus_per_switch: 2,
        host_bridge_bandwidth: BytesPerSec(25e9),
    };
    assert_eq!(ends(&cluster, &[(0, 2, 40)]), [US + time(40, 2)]);
    let network = cluster.network.as_mut().unwrap();
    (network.gpudirect, network.staging_bandwidth) = (false, Some(support::FREE));
    assert_eq!(ends(&cluster, &[(0, 2, 40)]), [US + time(40, 4)], "host memory is behind the bridge");
}

#[test]
fn what_has_no_route_is_refused_with_a_hint() {
    let refusal = |cluster: &Cluster, ranks| Topology::new(cluster, ranks).unwrap_err();
    let error = refusal(&rails(2), 5);
    assert_eq!(error, TopologyError::TooManyRanks { ranks: 5, gpus: 4, cluster: "ideal".into() });
    assert!(error.to_string().contains("at most 4 ranks"), "{error}");
    let mut cut = rails(2);
    cut.network = None;
    assert_eq!(
        refusal(&cut, 3),
        TopologyError::NoNetwork { ranks: 3, gpus_per_node: 2, cluster: "ideal".into() }
    );
    assert!(Topology::new(&cut, 2).is_ok(), "one node needs no network");
    let mut odd = rails(2);
    (odd.gpus_per_node, odd.network.as_mut().unwrap().nics_per_node) = (8, 3);
    assert_eq!(refusal(&odd, 4), TopologyError::Nics { nics: 3, gpus: 8 });
    let mut unstaged = rails(2);
    unstaged.network.as_mut().unwrap().gpudirect = false;
    assert_eq!(refusal(&unstaged, 4), TopologyError::NoStaging);
    assert_eq!(refusal(&tree(2, 0, 1.0), 4), TopologyError::NotPositive("nodes_per_leaf"));
    assert_eq!(refusal(&tree(2, 2, 0.0), 4), TopologyError::NotPositive("oversubscription"));
}
