//! Options that change a cluster's links.

use anyhow::{Result, bail};
use ringlab_sim::config::cluster::{Cluster, FabricTopology, Transport};
use ringlab_sim::units::BytesPerSec;

use crate::args::SetupArgs;

/// Changes `cluster` as `args` say, and its sources along.
pub fn apply(args: &SetupArgs, cluster: &mut Cluster) -> Result<()> {
    if let Some(rate) = args.link_bandwidth {
        set_link(cluster, rate)?;
    }
    if let Some(rate) = args.nic_bandwidth {
        set_nic(cluster, rate)?;
    }
    Ok(())
}

/// How rates change when a link's goes from `old` to `new`.
#[derive(Clone, Copy)]
struct Change {
    old: BytesPerSec,
    new: BytesPerSec,
}

impl Change {
    fn new(what: &str, old: BytesPerSec, new: BytesPerSec) -> Result<Self> {
        if new.0 > 0.0 {
            return Ok(Self { old, new });
        }
        bail!("a {what} of {new} moves nothing; give a rate above zero")
    }

    /// In proportion; an infinite rate, which has none, becomes the new one.
    fn scale(self, rate: &mut BytesPerSec) {
        rate.0 =
            if self.old.0.is_finite() { rate.0 * self.new.0 / self.old.0 } else { self.new.0.min(rate.0) };
    }

    fn scale_transport(self, what: &str, transport: &mut Transport) {
        self.scale(&mut transport.bandwidth);
        self.note(what, &mut transport.source);
    }

    fn note(self, what: &str, source: &mut String) {
        *source = format!("bandwidth for a {what} of {} instead of {}; {source}", self.new, self.old);
    }
}

fn set_link(cluster: &mut Cluster, rate: BytesPerSec) -> Result<()> {
    let fabric = &mut cluster.fabric;
    let change = Change::new("link bandwidth", fabric.topology.link_bandwidth(), rate)?;
    match &mut fabric.topology {
        FabricTopology::Nvswitch { link_bandwidth } | FabricTopology::Torus { link_bandwidth, .. } => {
            *link_bandwidth = rate;
        }
        FabricTopology::Pcie { link_bandwidth, host_bridge_bandwidth, .. } => {
            *link_bandwidth = rate;
            change.scale(host_bridge_bandwidth);
        }
    }
    change.note("link", &mut fabric.source);
    change.scale_transport("link", &mut fabric.copy);
    change.scale_transport("link", &mut fabric.nccl);
    Ok(())
}

fn set_nic(cluster: &mut Cluster, rate: BytesPerSec) -> Result<()> {
    let Some(network) = &mut cluster.network else {
        bail!("the cluster {} has no network between nodes, so --nic-bandwidth changes nothing", cluster.name)
    };
    let change = Change::new("NIC bandwidth", network.nic_bandwidth, rate)?;
    network.nic_bandwidth = rate;
    change.note("NIC", &mut network.source);
    change.scale_transport("NIC", &mut network.transport);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;

    #[test]
    fn transfers_change_in_proportion_and_say_so() {
        let mut cluster = presets::cluster("dgx-h100").unwrap();
        set_link(&mut cluster, BytesPerSec(45e9)).unwrap();
        set_nic(&mut cluster, BytesPerSec(100e9)).unwrap();
        assert_eq!(cluster.fabric.topology.link_bandwidth(), BytesPerSec(45e9));
        assert!((cluster.fabric.copy.bandwidth.0 - 36.88e9).abs() < 1.0);
        assert!((cluster.fabric.nccl.bandwidth.0 - 28.01e9).abs() < 1.0);
        let network = cluster.network.as_ref().unwrap();
        assert!((network.transport.bandwidth.0 - 96e9).abs() < 1.0);
        assert!(
            cluster.fabric.copy.source.starts_with("bandwidth for a link of 45 GB/s instead of 450 GB/s; ")
        );
        assert_eq!(Cluster::parse("changed", &cluster.to_toml()).unwrap().name, "dgx-h100");
    }

    #[test]
    fn an_ideal_link_becomes_a_real_one() {
        let mut cluster = presets::cluster("ideal").unwrap();
        set_link(&mut cluster, BytesPerSec(1e9)).unwrap();
        assert_eq!(cluster.fabric.copy.bandwidth, BytesPerSec(1e9));
    }

    #[test]
    fn nothing_moves_over_no_link() {
        let mut cluster = presets::cluster("dgx-h100").unwrap();
        assert!(set_link(&mut cluster, BytesPerSec(0.0)).unwrap_err().to_string().contains("above zero"));
        cluster.network = None;
        let error = set_nic(&mut cluster, BytesPerSec(1e9)).unwrap_err().to_string();
        assert!(error.contains("no network"), "{error}");
    }
}
