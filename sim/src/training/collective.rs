//! Collectives in closed form: latency plus bytes over the slowest link of the ring.
//!
//! A ring inside a node runs at what NCCL reaches there. A ring over several nodes leaves and enters every node once and
//! may use all NICs of the group's share: NCCL builds one ring for each. Groups that run side by side in a node share its
//! NICs. Hop latencies are those of NCCL's tuning model (src/graph/tuning.cc: 3.4 us an NVLink hop and the network's own
//! latency a node hop, ring algorithm, Simple protocol); the base is the fabric's measured latency of one operation.

use serde::Serialize;

use crate::config::cluster::{Cluster, Fabric, FabricTopology};
use crate::units::{Bytes, BytesPerSec, SimTime};

/// NCCL's latency of one hop over NVLink in a ring, Simple protocol (NCCL's src/graph/tuning.cc).
pub const NVLINK_HOP: SimTime = SimTime(3_400_000);

const NICS_BELOW_A_SWITCH: f64 = 2.0;

/// Ranks `0, stride, 2 stride ..`, and the parallel groups beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Ranks in the group.
    pub size: u64,
    /// Distance of two neighbours in GPUs.
    pub stride: u64,
}

/// The links that collectives run over.
#[derive(Debug, Clone, Copy)]
pub struct Links<'a> {
    cluster: &'a Cluster,
}

impl<'a> Links<'a> {
    /// The links of `cluster`.
    pub fn new(cluster: &'a Cluster) -> Self {
        Self { cluster }
    }

    /// All-gather whose result has `total` bytes: `(n-1)/n * total` pass every rank.
    pub fn all_gather(self, group: Group, total: Bytes) -> SimTime {
        if group.size <= 1 || total == Bytes(0) {
            return SimTime::ZERO;
        }
        self.latency(group) + share(total, group.size) / self.ring_rate(group)
    }

    /// Reduce-scatter of `total` bytes, as long as the all-gather.
    pub fn reduce_scatter(self, group: Group, total: Bytes) -> SimTime {
        self.all_gather(group, total)
    }

    /// All-reduce: a reduce-scatter and an all-gather in one operation.
    pub fn all_reduce(self, group: Group, total: Bytes) -> SimTime {
        if group.size <= 1 {
            return SimTime::ZERO;
        }
        let once = self.all_gather(group, total);
        (once + once).saturating_sub(self.cluster.fabric.nccl.latency)
    }

    /// Pairwise all-to-all where each rank holds `each` bytes and keeps 1/n of them. Traffic inside the node and through
    /// the NICs overlaps; the slower one counts.
    pub fn all_to_all(self, group: Group, each: Bytes) -> SimTime {
        if group.size <= 1 || each == Bytes(0) {
            return SimTime::ZERO;
        }
        let local = self.per_node(group);
        let to_peers = |n: u64| Bytes((each.0 as f64 * n as f64 / group.size as f64) as u64);
        let inside = to_peers(local - 1) / self.inside_rate();
        let outside = match self.nic_rate_per_gpu() {
            Some(rate) if group.size > local => to_peers(group.size - local) / rate,
            _ => SimTime::ZERO,
        };
        self.base_latency(group) + inside.max(outside)
    }

    /// One message to the neighbour at distance `stride`.
    pub fn send(self, stride: u64, bytes: Bytes) -> SimTime {
        let group = Group { size: 2, stride };
        let rate = match self.nic_rate_per_gpu() {
            Some(rate) if self.crosses(group) => rate,
            _ => self.inside_rate(),
        };
        self.base_latency(group) + bytes / rate
    }

    /// One hop of a ring in which only the ranks at a node's border use its NICs. Such a transfer gets all NICs that are
    /// as near as the GPU's own: NCCL spreads its channels over them. GPUs and NICs of a DGX A100 sit in twos below one
    /// PCIe switch (NVIDIA DGX A100 user guide), so with a NIC for each GPU that is two.
    pub fn border_hop(self, group: Group, bytes: Bytes) -> SimTime {
        match self.nic_rate_per_gpu() {
            Some(rate) if self.crosses(group) => {
                let near = if self.per_node(group) > 1 { NICS_BELOW_A_SWITCH } else { 1.0 };
                self.base_latency(group) + bytes / (rate * near)
            }
            _ => self.base_latency(group) + bytes / self.inside_rate(),
        }
    }

    /// Bytes a second that pass each rank of a ring.
    pub fn ring_rate(self, group: Group) -> BytesPerSec {
        let inside = self.inside_rate();
        let Some(network) = self.cluster.network.as_ref().filter(|_| self.crosses(group)) else {
            return inside;
        };
        let (per_node, local) = (u64::from(self.cluster.gpus_per_node), self.per_node(group));
        let nics = f64::from(network.nics_per_node) * local as f64 / per_node as f64;
        let outside = network.transport.bandwidth * nics;
        if local > 1 && inside < outside { inside } else { outside }
    }

    /// What one GPU gets of its node's NICs while all GPUs use them.
    pub fn nic_rate_per_gpu(self) -> Option<BytesPerSec> {
        let network = self.cluster.network.as_ref()?;
        let share = f64::from(network.nics_per_node) / f64::from(self.cluster.gpus_per_node);
        Some(network.transport.bandwidth * share)
    }

    /// Whether the group has ranks on several nodes.
    pub fn crosses(self, group: Group) -> bool {
        group.size > self.per_node(group)
    }

    /// Ranks of the group on one node.
    fn per_node(self, group: Group) -> u64 {
        (u64::from(self.cluster.gpus_per_node) / group.stride).clamp(1, group.size)
    }

    fn inside_rate(self) -> BytesPerSec {
        let Fabric { topology, nccl, .. } = &self.cluster.fabric;
        match topology {
            FabricTopology::Torus { link_bandwidth, .. } if *link_bandwidth < nccl.bandwidth => {
                *link_bandwidth
            }
            _ => nccl.bandwidth,
        }
    }

    fn base_latency(self, group: Group) -> SimTime {
        let hop = self.cluster.network.as_ref().filter(|_| self.crosses(group));
        self.cluster.fabric.nccl.latency + hop.map_or(SimTime::ZERO, |network| network.transport.latency)
    }

    fn latency(self, group: Group) -> SimTime {
        let nodes = group.size.div_ceil(self.per_node(group));
        let inside =
            NVLINK_HOP.min(self.cluster.fabric.nccl.latency) * (group.size - nodes).saturating_sub(1);
        let between = self.cluster.network.as_ref().map_or(SimTime::ZERO, |n| n.transport.latency);
        self.cluster.fabric.nccl.latency + inside + between * (nodes - 1)
    }
}

fn share(total: Bytes, n: u64) -> Bytes {
    Bytes((total.0 as f64 * (n - 1) as f64 / n as f64) as u64)
}
