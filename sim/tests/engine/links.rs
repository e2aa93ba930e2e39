//! Transfers that share links inside a node, by hand.

use ringlab_sim::config::cluster::{Cluster, FabricTopology, Ramp};
use ringlab_sim::plan::Transport::{CopyEngine, Nccl};
use ringlab_sim::units::{Bytes, BytesPerSec, SimTime};

use crate::support::{self, TOKEN, arrivals, transfers};

const US: u64 = 1_000_000;

/// 100 GB/s ports, a microsecond of latency, and transfers that reach 100 GB/s alone: 0.1 bytes a picosecond.
fn ports() -> Cluster {
    let mut cluster = support::ideal(8);
    let rate = BytesPerSec(100e9);
    let transport = || support::transport(rate, SimTime(US));
    let topology = FabricTopology::Nvswitch { link_bandwidth: rate };
    cluster.fabric = support::fabric(topology, transport(), transport());
    cluster
}

/// Time of so many tokens at a share of the port's rate.
fn time(tokens: u64, share: u64) -> u64 {
    tokens * TOKEN * 10 * share
}

#[test]
fn an_idle_path_takes_its_latency_and_bytes_over_bandwidth_rounded_up() {
    let mut cluster = ports();
    cluster.fabric.copy.bandwidth = BytesPerSec(3e9);
    cluster.fabric.nccl = support::transport(BytesPerSec(97e9), SimTime(12_345_678));
    let one_way = |over| arrivals(&transfers(2, &[(0, 1, 1)], over), &cluster)[0];
    // 256 bytes at 3 GB/s: 85333.3 ps; at 97 GB/s: 2639.2 ps.
    assert_eq!(one_way(CopyEngine), (0, US + 85_334));
    assert_eq!(one_way(Nccl), (0, 12_345_678 + 2_640));
}

#[test]
fn a_ramp_takes_half_its_time_at_its_bytes_and_three_quarters_at_three_times_them() {
    let mut cluster = ports();
    cluster.fabric.nccl.ramp = Some(Ramp { time: SimTime(8 * US), bytes: Bytes(10 * TOKEN) });
    let one_way = |tokens| arrivals(&transfers(2, &[(0, 1, tokens)], Nccl), &cluster)[0];
    assert_eq!(one_way(10), (0, US + 4 * US + time(10, 1)));
    assert_eq!(one_way(30), (0, US + 6 * US + time(30, 1)));
}

#[test]
fn the_narrowest_link_or_the_transport_decides() {
    let mut cluster = ports();
    cluster.fabric.copy.bandwidth = support::FREE;
    assert_eq!(arrivals(&transfers(2, &[(0, 1, 40)], CopyEngine), &cluster), [(0, US + time(40, 1))]);
}

#[test]
fn disjoint_transfers_and_opposite_directions_do_not_meet() {
    let moves = [(0, 1, 40), (1, 0, 40), (2, 3, 40), (3, 4, 40)];
    let alone = (0, US + time(40, 1));
    assert_eq!(arrivals(&transfers(8, &moves, CopyEngine), &ports()), [alone; 4]);
}

#[test]
fn a_port_is_shared_evenly_and_what_ends_leaves_its_share() {
    // Two into rank 2: both at half rate until the small one has arrived.
    let moves = [(0, 2, 40), (1, 2, 100)];
    let small = US + time(40, 2);
    assert_eq!(arrivals(&transfers(4, &moves, CopyEngine), &ports()), [(0, small), (0, small + time(60, 1))]);
    // Three out of rank 0, then two, then one.
    let moves = [(0, 1, 10), (0, 2, 20), (0, 3, 30)];
    let first = US + time(10, 3);
    let second = first + time(10, 2);
    assert_eq!(
        arrivals(&transfers(4, &moves, CopyEngine), &ports()),
        [(0, first), (0, second), (0, second + time(10, 1))]
    );
}

#[test]
fn one_that_comes_later_takes_its_share_from_its_first_byte_on() {
    let mut cluster = ports();
    cluster.host.copy_launch = SimTime(4 * US);
    // Rank 1's second send is launched at 8 us, when 40% of rank 0's 1 MB has moved; its first goes elsewhere.
    let (a, b, other) = (4000, 4000, 1);
    let moves = [(0, 2, a), (1, 3, other), (1, 2, b)];
    let times = arrivals(&transfers(4, &moves, CopyEngine), &cluster);
    let joined = 9 * US;
    let left = time(a, 1) - (joined - 5 * US);
    let a_ends = joined + 2 * left;
    assert_eq!(times[0], (4 * US, a_ends));
    // Half of what A had left has moved of B too; the rest goes alone.
    assert_eq!(times[2], (8 * US, a_ends + time(b, 1) - left));
}

#[test]
fn a_transfer_in_its_latency_takes_nothing_from_others() {
    let mut cluster = ports();
    cluster.host.copy_launch = SimTime(4 * US);
    cluster.fabric.copy.latency = SimTime(50 * US);
    // Launched at 4 and 8 us; the second's first byte moves at 58 us, when the first, from 54 us on, has long ended.
    let (a, b, other) = (1000, 1000, 1);
    let times = arrivals(&transfers(4, &[(0, 2, a), (1, 3, other), (1, 2, b)], CopyEngine), &cluster);
    assert_eq!(times[0], (4 * US, 54 * US + time(a, 1)));
    assert_eq!(times[2], (8 * US, 58 * US + time(b, 1)));
}

#[test]
fn latencies_that_overlap_are_taken_apart_correctly() {
    // A long route joins the ports of two short ones; all have latency, and one ends while the others still move.
    let moves = [(0, 1, 10), (0, 2, 30), (3, 2, 50)];
    let times = arrivals(&transfers(4, &moves, CopyEngine), &ports());
    // Every port with two transfers halves them. At `first` 0->1 has ended; 0->2 still shares rank 2's way in.
    let first = US + time(10, 2);
    let second = first + time(20, 2);
    assert_eq!(times, [(0, first), (0, second), (0, second + time(20, 1))]);
}

#[test]
fn pcie_switches_share_their_way_to_the_host_bridge() {
    let mut cluster = ports();
    cluster.fabric.topology = FabricTopology::Pcie {
        link_bandwidth: BytesPerSec(100e9),
        gpus_per_switch: 4,
        host_bridge_bandwidth: BytesPerSec(50e9),
    };
    let below_one_switch = [(0, 1, 40), (2, 3, 40)];
    let times = arrivals(&transfers(8, &below_one_switch, CopyEngine), &cluster);
    assert_eq!(times, [(0, US + time(40, 1)); 2]);
    let through_the_host = [(0, 4, 40), (1, 5, 40), (4, 0, 40)];
    let times = arrivals(&transfers(8, &through_the_host, CopyEngine), &cluster);
    // Two share 50 GB/s one way, one has it the other way.
    assert_eq!(times, [(0, US + time(40, 4)), (0, US + time(40, 4)), (0, US + time(40, 2))]);
}

#[test]
fn torus_routes_share_the_links_that_they_both_take() {
    let mut cluster = ports();
    cluster.fabric.topology =
        FabricTopology::Torus { dims: vec![4, 2], link_bandwidth: BytesPerSec(100e9), wraparound: false };
    // 0 -> 2 and 1 -> 3 share the link from 1 to 2; 4 -> 5 is in the other row.
    let times = arrivals(&transfers(8, &[(0, 2, 40), (1, 3, 40), (4, 5, 40)], CopyEngine), &cluster);
    assert_eq!(times, [(0, US + time(40, 2)), (0, US + time(40, 2)), (0, US + time(40, 1))]);
}
