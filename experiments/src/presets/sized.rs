//! Clusters named by size: `h100-16x8-rail`, `h100-16x8-fat-tree`, `h100-16x8-fat-tree-2to1`.

use ringlab_sim::config::ConfigError;
use ringlab_sim::config::cluster::{Cluster, NetworkTopology};

/// What such names look like, for lists of presets.
pub(super) const PATTERNS: &[&str] = &["h100-NxM-rail", "h100-NxM-fat-tree", "h100-NxM-fat-tree-Rto1"];

/// First part of a name, and the preset whose nodes it has.
const BASES: &[(&str, &str)] = &[("h100", "dgx-h100"), ("h200", "hgx-h200"), ("b200", "dgx-b200")];

/// Most nodes of a cluster, most GPUs of a node (that of the base), and steepest oversubscription.
const NODES: u32 = 4096;
const GPUS: u32 = 8;
const STEEPEST: u32 = 64;

/// Nodes below a leaf switch of a fat tree: half of the 64 ports of a QM9700, eight for each node.
const NODES_PER_LEAF: u32 = 4;

/// A cluster of equal nodes.
#[derive(Debug)]
pub(super) struct Sized {
    pub base: &'static str,
    nodes: u32,
    gpus_per_node: u32,
    topology: NetworkTopology,
}

/// Reads `name`; `None` when it is not of this form at all.
pub(super) fn parse(name: &str) -> Option<Result<Sized, ConfigError>> {
    let lower = name.to_ascii_lowercase();
    let (family, rest) = lower.split_once('-')?;
    let (_, base) = BASES.iter().find(|(known, _)| *known == family)?;
    let (size, network) = rest.split_once('-')?;
    let (nodes, gpus) = size.split_once('x')?;
    let fail = |message: String| {
        let hint =
            format!("sizes go from {family}-1x1-rail to {family}-{NODES}x{GPUS}-rail, or -fat-tree-2to1");
        ConfigError::whole(name, message).with_hint(hint)
    };
    let sized = || {
        Ok(Sized {
            base,
            nodes: count(nodes, NODES).ok_or_else(|| fail(format!("`{nodes}` is no number of nodes")))?,
            gpus_per_node: count(gpus, GPUS)
                .ok_or_else(|| fail(format!("`{gpus}` is no number of GPUs a node")))?,
            topology: topology(network).ok_or_else(|| fail(format!("`{network}` is no network")))?,
        })
    };
    Some(sized())
}

/// A plain number from 1 to `most`.
fn count(text: &str, most: u32) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && (1..=most).contains(number))
}

fn topology(name: &str) -> Option<NetworkTopology> {
    if name == "rail" {
        return Some(NetworkTopology::RailOptimised);
    }
    let ratio = match name.strip_prefix("fat-tree")? {
        "" => 1,
        ratio => count(ratio.strip_prefix('-')?.strip_suffix("to1")?, STEEPEST)?,
    };
    Some(NetworkTopology::FatTree { nodes_per_leaf: NODES_PER_LEAF, oversubscription: f64::from(ratio) })
}

impl Sized {
    /// `cluster`, the base, in this size and with one NIC for each GPU.
    pub fn apply(self, name: &str, mut cluster: Cluster) -> Cluster {
        let (nodes, gpus) = (self.nodes, self.gpus_per_node);
        cluster.source = format!("{nodes} nodes with {gpus} GPUs of: {}", cluster.source);
        name.clone_into(&mut cluster.name);
        cluster.nodes = nodes;
        cluster.gpus_per_node = gpus;
        if let Some(network) = &mut cluster.network {
            network.nics_per_node = gpus;
            network.topology = self.topology;
        }
        cluster
    }
}
