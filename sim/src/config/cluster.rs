//! The machine a plan runs on: devices, kernels, host, links.
//!
//! Rates are what one direction reaches, per GPU, unless a field says otherwise. The serialised form has the
//! layout of the TOML form, so a serialised cluster reads back as itself.

mod assumption;
mod calibration;
mod kernel;
mod nccl;
mod power;
mod priority;
mod read;
#[cfg(test)]
mod tests;

use std::ops::Range;

use serde::Serialize;

use super::error::ConfigError;
use super::field::Source;
use crate::units::{Bytes, BytesPerSec, FlopsPerSec, SimTime};

pub use assumption::Assumption;
pub use calibration::{Calibration, KernelFigure, KernelId, Quantity, Uncertainty};
pub use kernel::{Dtype, Grid, Items, KernelRow, KernelUse, NoKernel, Pass, Sections};
pub use nccl::{HighPriority, NcclLimit, NcclSettings, UnknownLimit};
pub use power::Power;
pub use priority::Priority;

/// Equal nodes of equal GPUs, with the source of every constant beside it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cluster {
    /// Preset or file name, as printed with results.
    pub name: String,
    /// What the cluster is and where its shape comes from.
    pub source: String,
    /// Number of nodes.
    pub nodes: u32,
    /// GPUs (or accelerator chips) in each node.
    pub gpus_per_node: u32,
    /// One GPU.
    pub device: Device,
    /// Launch costs on the host.
    pub host: Host,
    /// Links inside a node.
    pub fabric: Fabric,
    /// Links between nodes; a single node may do without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// What attention kernels reach, one row for each head dimension, element type and pass.
    pub kernels: Vec<KernelRow>,
    /// Where and how well the constants were measured; a datasheet cluster has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
}

/// One GPU by its datasheet, and what plain kernels reach on it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    /// Product name.
    pub name: String,
    /// Device memory.
    pub memory: Bytes,
    /// Peak rate of device memory.
    pub hbm_bandwidth: BytesPerSec,
    /// Streaming multiprocessors (or cores) that share a kernel's work items.
    pub sms: u32,
    /// Copies that can move at the same time without an SM.
    pub copy_engines: u32,
    /// Where these figures come from.
    pub source: String,
    /// Dense peak rates.
    pub peak: Peak,
    /// Rates that plain kernels reach.
    pub reached: Reached,
    /// What a power limit makes of its clock; without it, rates are the same at any load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
}

/// Dense tensor-core (or vector) peak by element type; `None` where the device has no such unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Peak {
    /// bfloat16 inputs, fp32 accumulation.
    pub bf16: FlopsPerSec,
    /// float16 inputs, fp32 accumulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp16: Option<FlopsPerSec>,
    /// 8-bit floats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp8: Option<FlopsPerSec>,
    /// fp32 inputs rounded to TF32 on tensor cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tf32: Option<FlopsPerSec>,
    /// fp32 without tensor cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp32: Option<FlopsPerSec>,
}

impl Peak {
    /// The peak for `dtype`, if the device has one.
    pub fn of(&self, dtype: Dtype) -> Option<FlopsPerSec> {
        match dtype {
            Dtype::Bf16 => Some(self.bf16),
            Dtype::Fp16 => self.fp16,
            Dtype::Fp8 => self.fp8,
            Dtype::Tf32 => self.tf32,
            Dtype::Fp32 => self.fp32,
        }
    }
}

/// What large plain kernels reach, for dense layers and for merging partial results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reached {
    /// A large bf16 matrix product.
    pub matmul: FlopsPerSec,
    /// An element-wise kernel that streams device memory, reads and writes added.
    pub hbm: BytesPerSec,
    /// Time of such a kernel whatever its size, beside that of its bytes.
    #[serde(skip_serializing_if = "kernel::is_zero")]
    pub call: SimTime,
    /// Where these figures come from.
    pub source: String,
}

/// Time the host spends on a call before the device can start it. One lane: calls queue behind each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Host {
    /// Launching a kernel.
    pub kernel_launch: SimTime,
    /// Posting a copy-engine transfer.
    pub copy_launch: SimTime,
    /// Posting an NCCL operation.
    pub nccl_launch: SimTime,
    /// Where these figures come from.
    pub source: String,
}

/// The links inside a node and what a transfer over them reaches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fabric {
    /// Where the topology's figures come from.
    pub source: String,
    /// Which links there are.
    pub topology: FabricTopology,
    /// Transfers by copy engine (or another DMA engine): no SM is held.
    pub copy: Transport,
    /// Transfers by NCCL kernels.
    pub nccl: Transport,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_nothing(share: &f64) -> bool {
    *share == 0.0
}

/// What a transfer of b bytes takes besides: `time b / (b + bytes)`, as its pipeline fills.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ramp {
    /// Of the longest transfers.
    pub time: SimTime,
    /// A transfer of so many takes half of it.
    pub bytes: Bytes,
}

impl Ramp {
    /// For a transfer of so many bytes.
    pub fn of(&self, bytes: Bytes) -> SimTime {
        let (moved, half) = (bytes.0 as f64, self.bytes.0 as f64);
        SimTime((self.time.0 as f64 * moved / (moved + half)) as u64)
    }
}

/// One transfer: `latency + bytes / bandwidth` and its ramp, slower where its links are shared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transport {
    /// The most that one transfer reaches on an idle path.
    pub bandwidth: BytesPerSec,
    /// From the device starting the transfer to its first byte having arrived.
    pub latency: SimTime,
    /// What transfers take besides, the longer the more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ramp: Option<Ramp>,
    /// SMs that a transfer holds on each of its two GPUs while it moves; zero for a copy engine.
    pub sms: u32,
    /// Share of its speed that an attention call loses while transfers move on its GPU, held SMs aside: they use the same
    /// memory.
    #[serde(skip_serializing_if = "is_nothing")]
    pub slows_calls: f64,
    /// Share of its bandwidth that a transfer loses while an attention call runs on one of its GPUs.
    #[serde(skip_serializing_if = "is_nothing")]
    pub slowed_by_calls: f64,
    /// Priority of the streams of transfers that hold SMs, beside those of attention calls; always normal by copy engine.
    #[serde(skip_serializing_if = "Priority::is_normal")]
    pub priority: Priority,
    /// What NCCL transfers inside a node do with limits on their CTAs, by ascending limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<NcclLimit>,
    /// What NCCL transfers inside a node take at high priority, where that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_priority: Option<HighPriority>,
    /// Where these figures come from.
    pub source: String,
}

/// Links between the GPUs of one node. Every bandwidth is each way.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FabricTopology {
    /// Every GPU has one port to a switch that never blocks.
    Nvswitch {
        /// Raw rate of a GPU's port.
        link_bandwidth: BytesPerSec,
    },
    /// GPUs on PCIe switches; switches meet at the host bridge.
    Pcie {
        /// Raw rate of a GPU's lanes.
        link_bandwidth: BytesPerSec,
        /// GPUs below one switch, in rank order.
        gpus_per_switch: u32,
        /// Raw rate of a switch's way to the host bridge.
        host_bridge_bandwidth: BytesPerSec,
    },
    /// Chips on a grid, one link to each neighbour; routes go dimension by dimension.
    Torus {
        /// Extent of each dimension, the first varying fastest with the rank.
        dims: Vec<u32>,
        /// Raw rate of one link.
        link_bandwidth: BytesPerSec,
        /// Whether the ends of a dimension are joined.
        wraparound: bool,
    },
}

impl FabricTopology {
    /// Raw rate of one link, each way.
    pub fn link_bandwidth(&self) -> BytesPerSec {
        match self {
            Self::Nvswitch { link_bandwidth }
            | Self::Pcie { link_bandwidth, .. }
            | Self::Torus { link_bandwidth, .. } => *link_bandwidth,
        }
    }
}

/// The links between nodes.
///
/// GPUs and NICs of a node are matched in order: with as many NICs as GPUs each has its own, with fewer a NIC
/// serves neighbouring GPUs, with more a GPU has several ([`Cluster::nics_of`]).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Network {
    /// Raw rate of one NIC, each way.
    pub nic_bandwidth: BytesPerSec,
    /// NICs in each node.
    pub nics_per_node: u32,
    /// How the NICs are joined.
    pub topology: NetworkTopology,
    /// What one transfer between nodes reaches below one leaf switch.
    pub transport: Transport,
    /// Added where a transfer crosses the spine.
    pub spine_latency: SimTime,
    /// Whether the NIC reads and writes device memory, or goes through a copy in host memory.
    pub gpudirect: bool,
    /// Rate of the copy through host memory, each way per GPU; given if and only if `gpudirect` is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staging_bandwidth: Option<BytesPerSec>,
    /// Where these figures come from.
    pub source: String,
}

/// How the NICs of all nodes are joined.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum NetworkTopology {
    /// NIC i of every node meets on leaf switch i; different rails meet at a spine that never blocks.
    RailOptimised,
    /// All NICs of some neighbouring nodes meet on one leaf; leaves meet at a spine.
    FatTree {
        /// Nodes below one leaf.
        nodes_per_leaf: u32,
        /// Rate into a leaf from below over its rate to the spine; 1 never blocks.
        oversubscription: f64,
    },
}

impl Cluster {
    /// Reads the TOML form.
    ///
    /// # Errors
    /// A [`ConfigError`] at the first key or value that is unknown, missing, malformed, out of range or
    /// contradicts another.
    pub fn parse(label: &str, text: &str) -> Result<Self, ConfigError> {
        read::cluster(Source::new(label, text))
    }

    /// The TOML form, which [`Cluster::parse`] reads back as an equal cluster.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a cluster is a table of plain values")
    }

    /// Every constant with its source, in alphabetical order of sections.
    pub fn assumptions(&self) -> Vec<Assumption> {
        assumption::list(self)
    }

    /// GPUs of all nodes.
    pub fn gpus(&self) -> u32 {
        self.nodes * self.gpus_per_node
    }

    /// The node of GPU `gpu`, counted over the cluster.
    pub fn node_of(&self, gpu: u32) -> u32 {
        gpu / self.gpus_per_node
    }

    /// NICs, counted within the node, that serve GPU `local` of the node; empty without a network.
    pub fn nics_of(&self, local: u32) -> Range<u32> {
        let Some(network) = &self.network else { return 0..0 };
        let (nics, gpus) = (network.nics_per_node, self.gpus_per_node);
        if nics >= gpus {
            let each = nics / gpus;
            local * each..(local + 1) * each
        } else {
            let nic = local / (gpus / nics);
            nic..nic + 1
        }
    }

    /// The row for heads of `head_dim`: that of the smallest dimension that holds them, since kernels pad. Some of its calls
    /// may be for another row, the [`Cluster::conditional_kernel`].
    ///
    /// # Errors
    /// [`NoKernel`] when the table has no row for the type, the pass, or a head this large.
    pub fn kernel(&self, head_dim: u32, dtype: Dtype, pass: Pass) -> Result<&KernelRow, NoKernel> {
        let fits =
            |row: &&KernelRow| row.pass == pass && row.dtype.shares_rate(dtype) && row.head_dim >= head_dim;
        let general = |row: &&KernelRow| row.used_for.is_none();
        // An exact type wins over one that merely shares the rate.
        let distance = |row: &&KernelRow| (row.head_dim, row.dtype != dtype);
        self.kernels.iter().filter(general).filter(fits).min_by_key(distance).ok_or_else(|| NoKernel {
            cluster: self.name.clone(),
            head_dim,
            dtype,
            pass,
            rows: self.kernel_names(),
        })
    }

    /// The row that takes some of the calls of `general`, if there is one: it says itself which.
    pub fn conditional_kernel(&self, general: &KernelRow) -> Option<&KernelRow> {
        let same = |row: &&KernelRow| {
            (row.pass, row.dtype, row.head_dim) == (general.pass, general.dtype, general.head_dim)
        };
        self.kernels.iter().filter(|row| row.used_for.is_some()).find(same)
    }

    fn kernel_names(&self) -> String {
        self.kernels.iter().map(KernelRow::title).collect::<Vec<_>>().join(", ")
    }
}

/// An H200 node as TOML for tests, with `more` behind it.
#[cfg(test)]
pub(crate) fn test_text(more: &str) -> String {
    let preset = include_str!("../../../experiments/presets/clusters/hgx-h200.toml");
    let host = "[host]\nkernel_launch = \"3 us\"\ncopy_launch = \"3 us\"\nnccl_launch = \"19 us\"\nsource = \"test\"";
    format!("{preset}\n{host}\n{more}\n")
}
