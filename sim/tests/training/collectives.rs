//! Collectives against hand arithmetic.

use ringlab_sim::config::cluster::FabricTopology;
use ringlab_sim::training::attention::part_of;
use ringlab_sim::training::collective::{Group, Links};
use ringlab_sim::training::{Grid, exchange};
use ringlab_sim::units::{Bytes, BytesPerSec, SimTime};

use crate::support::cluster;

const GB: u64 = 1_000_000_000;

fn seconds(time: SimTime) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}

/// Hops of the NVLink ring are capped by the fabric's latency, which is zero here.
#[test]
fn a_ring_passes_all_but_its_own_part() {
    let c = cluster(1);
    let links = Links::new(&c);
    let eight = Group { size: 8, stride: 1 };
    // 7/8 of 16 GB at 200 GB/s.
    assert_eq!(seconds(links.all_gather(eight, Bytes(16 * GB))), 0.07);
    assert_eq!(links.reduce_scatter(eight, Bytes(16 * GB)), links.all_gather(eight, Bytes(16 * GB)));
    assert_eq!(seconds(links.all_reduce(eight, Bytes(16 * GB))), 0.14);
    assert_eq!(links.all_gather(Group { size: 1, stride: 1 }, Bytes(GB)), SimTime::ZERO);
}

#[test]
fn a_ring_over_nodes_uses_all_nics_of_its_share() {
    let c = cluster(2);
    let links = Links::new(&c);
    // Sixteen ranks, eight NICs of 10 GB/s: 15/16 of 16 GB at 80 GB/s.
    assert_eq!(seconds(links.all_gather(Group { size: 16, stride: 1 }, Bytes(16 * GB))), 0.1875);
    // Every fourth GPU: two ranks a node have two of the eight NICs.
    assert_eq!(seconds(links.all_gather(Group { size: 4, stride: 4 }, Bytes(16 * GB))), 0.6);
    // Two nodes apart, one rank each: one NIC.
    assert_eq!(seconds(links.all_gather(Group { size: 2, stride: 8 }, Bytes(2 * GB))), 0.1);
}

#[test]
fn an_all_to_all_is_bound_by_its_slower_half() {
    let c = cluster(2);
    let links = Links::new(&c);
    // 16 GB a rank, 8/16 of it to the other node at 10 GB/s; inside 7/16 at 200 GB/s is hidden behind that.
    assert_eq!(seconds(links.all_to_all(Group { size: 16, stride: 1 }, Bytes(16 * GB))), 0.8);
    assert_eq!(seconds(links.all_to_all(Group { size: 8, stride: 1 }, Bytes(16 * GB))), 0.07);
}

#[test]
fn a_part_of_a_cluster_has_its_share_of_nics() {
    let c = cluster(4);
    let ring = Grid { tp: 4, ..Grid::ring(8) }.ring_group();
    let part = part_of(&c, ring);
    assert_eq!((part.nodes, part.gpus_per_node), (4, 2));
    let network = part.network.as_ref().unwrap();
    let rate = network.transport.bandwidth.0 * f64::from(network.nics_per_node);
    assert_eq!(rate, 20e9, "two of eight NICs");
    let across = part_of(&c, Group { size: 2, stride: 16 });
    assert_eq!((across.nodes, across.gpus_per_node), (2, 1));
    assert_eq!(part_of(&c, Group { size: 32, stride: 1 }), c);
}

/// What the links leave of a simulated exchange is what the closed form says, where groups do not get in each other's way.
#[test]
fn a_simulated_exchange_meets_its_closed_form() {
    for (nodes, size, stride) in
        [(1, 8, 1), (2, 16, 1), (1, 4, 1), (1, 4, 2), (2, 2, 8), (2, 4, 4), (4, 32, 1)]
    {
        let c = cluster(nodes);
        let group = Group { size, stride };
        let (exact, simulated) =
            (Links::new(&c).all_to_all(group, Bytes(GB)), exchange::all_to_all(&c, group, Bytes(GB)));
        let error = simulated.as_secs_f64() / exact.as_secs_f64() - 1.0;
        assert!(error.abs() < 0.01, "{group:?} on {nodes} nodes: {simulated} for {exact}");
    }
}

/// Four pairs across the host bridge of a PCIe box share it; the closed form knows no bridge.
#[test]
fn groups_side_by_side_share_what_they_cross() {
    let mut c = cluster(1);
    let (lanes, bridge) = (BytesPerSec(25e9), BytesPerSec(10e9));
    c.fabric.topology =
        FabricTopology::Pcie { link_bandwidth: lanes, gpus_per_switch: 4, host_bridge_bandwidth: bridge };
    c.fabric.nccl.bandwidth = BytesPerSec(20e9);
    let across = Group { size: 2, stride: 4 };
    // Half of 2 GB each way for each of four pairs, over 10 GB/s.
    assert_eq!(seconds(exchange::all_to_all(&c, across, Bytes(2 * GB))), 0.4);
    assert_eq!(seconds(Links::new(&c).all_to_all(across, Bytes(2 * GB))), 0.05);
    // Neighbours stay below their switch.
    assert_eq!(seconds(exchange::all_to_all(&c, Group { size: 2, stride: 1 }, Bytes(2 * GB))), 0.05);
}
