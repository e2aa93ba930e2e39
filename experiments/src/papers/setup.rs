//! A paper's set-up as data: clusters as changes to presets, and every assumption with its source.

use anyhow::{Context, Result, anyhow};
use ringlab_sim::config::cluster::{Cluster, Pass};
use ringlab_sim::units::{Bytes, BytesPerSec, FlopsPerSec, SimTime};
use serde::{Deserialize, Serialize};

use crate::presets;

/// `setup.toml` of a paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// What the paper is.
    pub title: String,
    /// Where it is.
    pub source: String,
    /// Machines.
    #[serde(default, rename = "cluster")]
    pub clusters: Vec<Machine>,
    /// Numbers that the paper does not print, or that were fitted.
    #[serde(default, rename = "assumption")]
    pub assumptions: Vec<Assumption>,
}

/// A number that the paper does not print.
#[derive(Debug, Clone, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Assumption {
    /// What it is.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Where it comes from.
    pub source: String,
    /// Whether it was fitted, and then on which row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fitted_on: Option<String>,
}

/// A cluster preset with changes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    name: String,
    preset: String,
    source: String,
    nodes: Option<u32>,
    gpus_per_node: Option<u32>,
    memory: Option<String>,
    hbm: Option<String>,
    matmul: Option<String>,
    nics_per_node: Option<u32>,
    nic_bandwidth: Option<String>,
    network_bandwidth: Option<String>,
    fabric_bandwidth: Option<String>,
    forward_slowdown: Option<f64>,
    kernel_launch: Option<String>,
    nccl_launch: Option<String>,
    torus: Option<Vec<u32>>,
}

impl Setup {
    /// Reads a paper's set-up.
    ///
    /// # Errors
    /// Text that is no set-up.
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).context("a paper's setup.toml")
    }

    /// The value of an assumption.
    ///
    /// # Errors
    /// A name that the set-up lacks.
    pub fn value(&self, name: &str) -> Result<f64> {
        let found = self.assumptions.iter().find(|a| a.name == name);
        found.map(|a| a.value).ok_or_else(|| anyhow!("setup.toml has no assumption {name:?}"))
    }

    /// A machine of the set-up.
    ///
    /// # Errors
    /// A name that the set-up lacks, or a preset that does not exist.
    pub fn cluster(&self, name: &str) -> Result<Cluster> {
        let found = self.clusters.iter().find(|m| m.name == name);
        found.ok_or_else(|| anyhow!("setup.toml has no cluster {name:?}"))?.build()
    }
}

fn amount<T: std::str::FromStr>(text: Option<&String>) -> Result<Option<T>>
where
    T::Err: std::fmt::Display,
{
    text.map(|t| t.parse().map_err(|e| anyhow!("{t:?}: {e}"))).transpose()
}

impl Machine {
    fn build(&self) -> Result<Cluster> {
        let mut cluster = presets::cluster(&self.preset)?;
        cluster.name.clone_from(&self.name);
        cluster.source.clone_from(&self.source);
        cluster.nodes = self.nodes.unwrap_or(cluster.nodes);
        cluster.gpus_per_node = self.gpus_per_node.unwrap_or(cluster.gpus_per_node);
        self.edit_device(&mut cluster)?;
        self.edit_links(&mut cluster)?;
        // What was put together is held against the rules of every other cluster.
        Ok(Cluster::parse(&self.name, &cluster.to_toml())?)
    }

    fn edit_device(&self, cluster: &mut Cluster) -> Result<()> {
        if let Some(memory) = amount::<Bytes>(self.memory.as_ref())? {
            cluster.device.memory = memory;
        }
        if let Some(rate) = amount::<BytesPerSec>(self.hbm.as_ref())? {
            cluster.device.reached.hbm = rate;
        }
        if let Some(rate) = amount::<FlopsPerSec>(self.matmul.as_ref())? {
            cluster.device.reached.matmul = rate;
        }
        if let Some(time) = amount::<SimTime>(self.kernel_launch.as_ref())? {
            cluster.host.kernel_launch = time;
        }
        if let Some(time) = amount::<SimTime>(self.nccl_launch.as_ref())? {
            cluster.host.nccl_launch = time;
        }
        if let Some(factor) = self.forward_slowdown {
            for row in cluster.kernels.iter_mut().filter(|row| row.pass == Pass::Forward) {
                row.rate = row.rate * (1.0 / factor);
                row.source.clone_from(&self.source);
            }
        }
        Ok(())
    }

    fn edit_links(&self, cluster: &mut Cluster) -> Result<()> {
        use ringlab_sim::config::cluster::FabricTopology;
        if let Some(dims) = &self.torus
            && let FabricTopology::Torus { dims: old, .. } = &mut cluster.fabric.topology
        {
            old.clone_from(dims);
        }
        if let Some(rate) = amount::<BytesPerSec>(self.fabric_bandwidth.as_ref())? {
            cluster.fabric.nccl.bandwidth = rate;
            cluster.fabric.copy.bandwidth = rate;
        }
        if let Some(network) = &mut cluster.network {
            network.nics_per_node = self.nics_per_node.unwrap_or(network.nics_per_node);
            if let Some(rate) = amount::<BytesPerSec>(self.nic_bandwidth.as_ref())? {
                network.nic_bandwidth = rate;
            }
            if let Some(rate) = amount::<BytesPerSec>(self.network_bandwidth.as_ref())? {
                network.transport.bandwidth = rate;
            }
        }
        Ok(())
    }
}
