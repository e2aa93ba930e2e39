//! Options that change a cluster's links.

use anyhow::{Result, bail};
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::units::BytesPerSec;

use crate::args::SetupArgs;
use crate::sweep::Rates;

/// Changes `cluster` as `args` say, and its sources along.
pub fn apply(args: &SetupArgs, cluster: &mut Cluster) -> Result<()> {
    let rates = Rates { link: args.link_bandwidth, nic: args.nic_bandwidth };
    if rates.nic.is_some() && cluster.network.is_none() {
        bail!(
            "the cluster {} has no network between nodes, so --nic-bandwidth changes nothing",
            cluster.name
        );
    }
    let old = cluster.clone();
    *cluster = rates.apply(cluster);
    if rates.link.is_some() {
        let (fabric, before) = (&mut cluster.fabric, &old.fabric);
        note(&mut fabric.source, fabric.topology.link_bandwidth(), before.topology.link_bandwidth());
        note(&mut fabric.copy.source, fabric.copy.bandwidth, before.copy.bandwidth);
        note(&mut fabric.nccl.source, fabric.nccl.bandwidth, before.nccl.bandwidth);
        for (limit, before) in fabric.nccl.limits.iter_mut().zip(&before.nccl.limits) {
            if limit.bandwidth < before.bandwidth {
                note(&mut limit.source, limit.bandwidth, before.bandwidth);
            }
        }
    }
    if let (true, Some(network), Some(before)) = (rates.nic.is_some(), &mut cluster.network, &old.network) {
        note(&mut network.source, network.nic_bandwidth, before.nic_bandwidth);
        note(&mut network.transport.source, network.transport.bandwidth, before.transport.bandwidth);
    }
    Ok(())
}

/// Says in a section's source that its rate is not the source's.
fn note(source: &mut String, new: BytesPerSec, old: BytesPerSec) {
    *source = format!("bandwidth as asked for, {new} instead of {old}; {source}");
}

#[cfg(test)]
mod tests {
    use ringlab_sim::config::cluster::NcclLimit;

    use super::*;
    use crate::presets;
    use crate::runfile::{Entry, Value, run_args};

    fn applied(name: &str, key: &str, rate: &str) -> Result<Cluster> {
        let args = run_args(&[Entry { key: key.into(), value: Value::Text(rate.into()) }])?.setup;
        let mut cluster = presets::cluster(name)?;
        apply(&args, &mut cluster)?;
        Ok(cluster)
    }

    #[test]
    fn rates_change_and_their_sources_say_so() {
        let cluster = applied("dgx-h100", "link_bandwidth", "45 GB/s").unwrap();
        assert_eq!(cluster.fabric.topology.link_bandwidth(), BytesPerSec(45e9));
        assert_eq!(cluster.fabric.copy.bandwidth, BytesPerSec(45e9));
        let source = &cluster.fabric.copy.source;
        assert!(source.starts_with("bandwidth as asked for, 45 GB/s instead of 368.8 GB/s; "), "{source}");
        assert_eq!(Cluster::parse("changed", &cluster.to_toml()).unwrap(), cluster);

        let cluster = applied("dgx-h100", "nic_bandwidth", "400 Gb/s").unwrap();
        let source = &cluster.network.unwrap().transport.source;
        assert!(source.starts_with("bandwidth as asked for, 50 GB/s instead of 48 GB/s; "), "{source}");
    }

    #[test]
    fn a_slower_link_bounds_limits_of_nccl_and_says_so() {
        let mut cluster = presets::cluster("hgx-h200").unwrap();
        let limit = |ctas, rate| NcclLimit {
            ctas,
            bandwidth: BytesPerSec(rate),
            sms: ctas,
            slowed_by_calls: 0.0,
            source: "by hand".into(),
        };
        cluster.fabric.nccl.limits = vec![limit(4, 75e9), limit(8, 140e9)];
        let entry = Entry { key: "link_bandwidth".into(), value: Value::Text("100 GB/s".into()) };
        apply(&run_args(&[entry]).unwrap().setup, &mut cluster).unwrap();
        let limits: Vec<_> =
            cluster.fabric.nccl.limits.iter().map(|l| (l.bandwidth.0, l.source.as_str())).collect();
        let said = "bandwidth as asked for, 100 GB/s instead of 140 GB/s; by hand";
        assert_eq!(limits, [(75e9, "by hand"), (100e9, said)]);
        assert_eq!(Cluster::parse("changed", &cluster.to_toml()).unwrap(), cluster);
    }

    #[test]
    fn a_rate_that_changes_nothing_is_an_error() {
        let error = applied("pcie-8x-a100", "nic_bandwidth", "1 GB/s").unwrap_err().to_string();
        assert!(error.contains("no network"), "{error}");
    }
}
