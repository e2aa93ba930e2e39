//! Links between nodes: NICs, leaf switches, the spine, and the copies through host memory where there is no GPUDirect.
//!
//! The NICs of one GPU count as one link with their rates added, a NIC that several GPUs share as one link for all of
//! them. A leaf never blocks; a fat tree's leaf shares one way up to the spine and one way down.

use super::{LinkId, Links, Reach, TopologyError};
use crate::config::cluster::{Cluster, Network, NetworkTopology};
use crate::units::{BytesPerSec, SimTime};

#[derive(Debug, Clone)]
pub(super) struct NetworkLinks {
    gpus: u32,
    /// NICs (or bundles of NICs of one GPU) in a node.
    nics: u32,
    egress: LinkId,
    ingress: LinkId,
    staging: Option<Staging>,
    tree: Option<Tree>,
    reach: Reach,
    spine_latency: SimTime,
}

/// Copies between device and host memory, per GPU.
#[derive(Debug, Clone)]
struct Staging {
    out: LinkId,
    into: LinkId,
}

/// Leaves of a fat tree.
#[derive(Debug, Clone)]
struct Tree {
    nodes_per_leaf: u32,
    up: LinkId,
    down: LinkId,
}

impl NetworkLinks {
    pub fn new(cluster: &Cluster, network: &Network, links: &mut Links) -> Result<Self, TopologyError> {
        let (nodes, gpus, nics) = (cluster.nodes, cluster.gpus_per_node, network.nics_per_node);
        if nics == 0 || !(nics.is_multiple_of(gpus) || gpus.is_multiple_of(nics)) {
            return Err(TopologyError::Nics { nics, gpus });
        }
        let bundles = nics.min(gpus);
        let rate = BytesPerSec(network.nic_bandwidth.0 * f64::from(nics / bundles));
        let egress = links.add(nodes * bundles, rate);
        let ingress = links.add(nodes * bundles, rate);
        let staging = match (network.gpudirect, network.staging_bandwidth) {
            (true, _) => None,
            (false, None) => return Err(TopologyError::NoStaging),
            (false, Some(rate)) => {
                Some(Staging { out: links.add(nodes * gpus, rate), into: links.add(nodes * gpus, rate) })
            }
        };
        let tree = Tree::new(nodes, network, links)?;
        let reach = Reach::from(&network.transport);
        let spine_latency = network.spine_latency;
        Ok(Self { gpus, nics: bundles, egress, ingress, staging, tree, reach, spine_latency })
    }

    /// Whether transfers go through host memory.
    pub fn is_staged(&self) -> bool {
        self.staging.is_some()
    }

    /// SMs that a transfer holds.
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// Between GPUs, given as (node, index in the node), of different nodes.
    pub fn route(&self, from: (u32, u32), to: (u32, u32), out: &mut Vec<LinkId>) -> Reach {
        let nic = |gpu: u32| gpu / (self.gpus / self.nics);
        let crosses_spine = match &self.tree {
            None => nic(from.1) != nic(to.1),
            Some(tree) => tree.leaf(from.0) != tree.leaf(to.0),
        };
        out.extend(self.staging.iter().map(|s| s.out + from.0 * self.gpus + from.1));
        out.push(self.egress + from.0 * self.nics + nic(from.1));
        if let Some(tree) = self.tree.as_ref().filter(|_| crosses_spine) {
            out.extend([tree.up + tree.leaf(from.0), tree.down + tree.leaf(to.0)]);
        }
        out.push(self.ingress + to.0 * self.nics + nic(to.1));
        out.extend(self.staging.iter().map(|s| s.into + to.0 * self.gpus + to.1));
        let spine = if crosses_spine { self.spine_latency } else { SimTime::ZERO };
        Reach { latency: self.reach.latency + spine, ..self.reach }
    }
}

impl Tree {
    fn new(nodes: u32, network: &Network, links: &mut Links) -> Result<Option<Self>, TopologyError> {
        let NetworkTopology::FatTree { nodes_per_leaf, oversubscription } = network.topology else {
            return Ok(None);
        };
        if nodes_per_leaf == 0 {
            return Err(TopologyError::NotPositive("nodes_per_leaf"));
        }
        if oversubscription.is_nan() || oversubscription <= 0.0 {
            return Err(TopologyError::NotPositive("oversubscription"));
        }
        let below = f64::from(nodes_per_leaf) * f64::from(network.nics_per_node) * network.nic_bandwidth.0;
        let rate = BytesPerSec(below / oversubscription);
        let leaves = nodes.div_ceil(nodes_per_leaf);
        Ok(Some(Self { nodes_per_leaf, up: links.add(leaves, rate), down: links.add(leaves, rate) }))
    }

    fn leaf(&self, node: u32) -> u32 {
        node / self.nodes_per_leaf
    }
}
