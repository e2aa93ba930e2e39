//! Which links a transfer crosses: directed links with a capacity, and a route between any two GPUs.
//!
//! Rank r runs on GPU r, GPUs counted node by node. A link is one direction of one wire (or bundle of wires); transfers
//! that cross the same link share it. What a single transfer reaches on an idle route is given apart, with its latency,
//! by the transport: a copy engine, NCCL, or the network.

mod faults;
mod network;
mod nvswitch;
mod pcie;
mod torus;

use thiserror::Error;

use crate::config::cluster::{self, Cluster, FabricTopology, Priority, Ramp};
use crate::plan::Transport;
use crate::units::{BytesPerSec, SimTime};

use faults::Faults;
use network::NetworkLinks;
use nvswitch::Nvswitch;
use pcie::Pcie;
use torus::Torus;

/// Index of a directed link of a [`Topology`].
pub type LinkId = u32;

/// Why a cluster has no links to route over.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TopologyError {
    /// More ranks than GPUs.
    #[error(
        "{ranks} ranks do not fit on the {gpus} GPUs of cluster `{cluster}`; use at most {gpus} ranks or more nodes"
    )]
    TooManyRanks {
        /// Ranks asked for.
        ranks: u32,
        /// GPUs of all nodes.
        gpus: u32,
        /// Name of the cluster.
        cluster: String,
    },
    /// Ranks on several nodes that nothing joins.
    #[error(
        "{ranks} ranks need several nodes of cluster `{cluster}`, which has no network; add a [network] or use at most {gpus_per_node} ranks"
    )]
    NoNetwork {
        /// Ranks asked for.
        ranks: u32,
        /// GPUs of one node.
        gpus_per_node: u32,
        /// Name of the cluster.
        cluster: String,
    },
    /// A grid with another number of chips than the node.
    #[error("a torus of {dims:?} has {chips} chips, but a node has {gpus_per_node}; make them equal")]
    TorusShape {
        /// Extents.
        dims: Vec<u32>,
        /// Their product.
        chips: u64,
        /// Chips of a node.
        gpus_per_node: u32,
    },
    /// NICs that GPUs cannot share evenly.
    #[error(
        "{nics} NICs and {gpus} GPUs of a node cannot be matched; one number must be a multiple of the other"
    )]
    Nics {
        /// NICs of a node.
        nics: u32,
        /// GPUs of a node.
        gpus: u32,
    },
    /// No GPUDirect, and no rate for the copy instead of it.
    #[error(
        "the network has no gpudirect and no staging_bandwidth; give the rate of the copy through host memory"
    )]
    NoStaging,
    /// A number that must be positive.
    #[error("{0} must be positive")]
    NotPositive(&'static str),
}

/// What one transfer reaches on an idle route: `latency + bytes / bandwidth` and the ramp.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reach {
    /// Most bytes a second, links aside.
    pub bandwidth: BytesPerSec,
    /// Before the first byte arrives.
    pub latency: SimTime,
    /// What transfers take besides, the longer the more.
    pub ramp: Option<Ramp>,
    /// SMs that it holds on both GPUs while it moves.
    pub sms: u32,
    /// Share of its speed that an attention call on one of the GPUs loses beside it, held SMs aside.
    pub slows_calls: f64,
    /// Share of its bandwidth that it loses beside an attention call on one of the GPUs.
    pub slowed_by_calls: f64,
    /// Who gets free SMs first, it or a waiting attention call.
    pub priority: Priority,
}

impl Reach {
    /// Where no way leads.
    pub const NOTHING: Self = Self {
        bandwidth: BytesPerSec(0.0),
        latency: SimTime::ZERO,
        ramp: None,
        sms: 0,
        slows_calls: 0.0,
        slowed_by_calls: 0.0,
        priority: Priority::Normal,
    };
}

impl Reach {
    /// Whether such transfers and attention calls hold each other up.
    fn interferes(&self) -> bool {
        self.sms > 0 || self.slows_calls > 0.0 || self.slowed_by_calls > 0.0
    }
}

impl From<&cluster::Transport> for Reach {
    fn from(transport: &cluster::Transport) -> Self {
        let (sms, slowed_by_calls) = transport.beside_calls();
        Self {
            bandwidth: transport.bandwidth,
            latency: transport.latency,
            ramp: transport.ramp,
            sms,
            slows_calls: transport.slows_calls,
            slowed_by_calls,
            priority: transport.priority,
        }
    }
}

/// All links of a cluster.
#[derive(Debug, Clone)]
pub struct Topology {
    links: Links,
    gpus: u32,
    gpus_per_node: u32,
    fabric: FabricLinks,
    network: Option<NetworkLinks>,
    copy: Reach,
    nccl: Reach,
    faults: Faults,
}

/// The links inside the nodes.
#[derive(Debug, Clone)]
enum FabricLinks {
    Nvswitch(Nvswitch),
    Pcie(Pcie),
    Torus(Torus),
}

/// Capacities by [`LinkId`].
#[derive(Debug, Clone, Default)]
struct Links {
    capacities: Vec<BytesPerSec>,
}

impl Links {
    /// Adds `count` equal links; returns the id of the first.
    fn add(&mut self, count: u32, capacity: BytesPerSec) -> LinkId {
        let first = self.capacities.len();
        self.capacities.resize(first + count as usize, capacity);
        first as LinkId
    }
}

impl Topology {
    /// The links that ranks `0..ranks` of `cluster` can use.
    ///
    /// # Errors
    /// [`TopologyError`] where the ranks do not fit or the description contradicts itself.
    pub fn new(cluster: &Cluster, ranks: u32) -> Result<Self, TopologyError> {
        let (gpus, gpus_per_node) = (cluster.gpus(), cluster.gpus_per_node);
        if ranks > gpus {
            return Err(TopologyError::TooManyRanks { ranks, gpus, cluster: cluster.name.clone() });
        }
        let mut links = Links::default();
        let fabric = FabricLinks::new(cluster, &mut links)?;
        let network = match &cluster.network {
            Some(network) => Some(NetworkLinks::new(cluster, network, &mut links)?),
            None if ranks > gpus_per_node => {
                return Err(TopologyError::NoNetwork { ranks, gpus_per_node, cluster: cluster.name.clone() });
            }
            None => None,
        };
        let gpus = if network.is_some() { gpus } else { gpus_per_node };
        let (copy, nccl) = (Reach::from(&cluster.fabric.copy), Reach::from(&cluster.fabric.nccl));
        Ok(Self { links, gpus, gpus_per_node, fabric, network, copy, nccl, faults: Faults::default() })
    }

    /// Raw rate of every link, by [`LinkId`].
    pub fn capacities(&self) -> &[BytesPerSec] {
        &self.links.capacities
    }

    /// Whether any transfer by `transport` and attention calls hold each other up.
    pub fn interferes(&self, transport: Transport) -> bool {
        let network = self.network.as_ref().map(NetworkLinks::reach);
        network.into_iter().chain([self.inside(transport)]).any(|reach| reach.interferes())
    }

    /// What one transfer inside a node reaches.
    fn inside(&self, transport: Transport) -> Reach {
        match transport {
            Transport::CopyEngine => self.copy,
            Transport::Nccl => self.nccl,
        }
    }

    /// Appends the links from GPU `from` to GPU `to`, and returns what one transfer reaches over them while
    /// no link is slow or has failed ([`Topology::way`] else). A GPU reaches itself over no link.
    pub fn route(&self, from: u32, to: u32, transport: Transport, out: &mut Vec<LinkId>) -> Reach {
        let n = self.gpus_per_node;
        let (source, target) = ((from / n, from % n), (to / n, to % n));
        match &self.network {
            Some(network) if source.0 != target.0 => {
                self.fabric.leave(source, network.is_staged(), out);
                let reach = network.route(source, target, out);
                self.fabric.enter(target, network.is_staged(), out);
                reach
            }
            _ => {
                if from != to {
                    self.fabric.route(source.0, source.1, target.1, out);
                }
                self.inside(transport)
            }
        }
    }
}

impl FabricLinks {
    fn new(cluster: &Cluster, links: &mut Links) -> Result<Self, TopologyError> {
        let (nodes, gpus) = (cluster.nodes, cluster.gpus_per_node);
        Ok(match &cluster.fabric.topology {
            FabricTopology::Nvswitch { link_bandwidth } => {
                Self::Nvswitch(Nvswitch::new(nodes, gpus, *link_bandwidth, links))
            }
            FabricTopology::Pcie { link_bandwidth, gpus_per_switch, host_bridge_bandwidth } => {
                let rates = (*link_bandwidth, *host_bridge_bandwidth);
                Self::Pcie(Pcie::new(nodes, gpus, *gpus_per_switch, rates, links)?)
            }
            FabricTopology::Torus { dims, link_bandwidth, wraparound } => {
                Self::Torus(Torus::new(nodes, gpus, dims, *wraparound, *link_bandwidth, links)?)
            }
        })
    }

    fn route(&self, node: u32, from: u32, to: u32, out: &mut Vec<LinkId>) {
        match self {
            Self::Nvswitch(fabric) => fabric.route(node, from, to, out),
            Self::Pcie(fabric) => fabric.route(node, from, to, out),
            Self::Torus(fabric) => fabric.route(node, from, to, out),
        }
    }

    /// From a GPU to its NIC. Only a PCIe box shares these links with its traffic between GPUs.
    fn leave(&self, (node, gpu): (u32, u32), staged: bool, out: &mut Vec<LinkId>) {
        if let Self::Pcie(fabric) = self {
            fabric.leave(node, gpu, staged, out);
        }
    }

    /// From a NIC to its GPU.
    fn enter(&self, (node, gpu): (u32, u32), staged: bool, out: &mut Vec<LinkId>) {
        if let Self::Pcie(fabric) = self {
            fabric.enter(node, gpu, staged, out);
        }
    }
}
