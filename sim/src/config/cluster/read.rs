//! The TOML form of a cluster: its keys, their ranges, and what must agree with what.

mod calibration;
mod kernels;
mod nccl;

use super::{
    Cluster, Device, Fabric, FabricTopology, Host, Network, NetworkTopology, Peak, Priority, Ramp, Reached,
    Transport, power,
};
use toml::de::DeTable;

use crate::config::error::ConfigError;
use crate::config::field::{Field, Source};
use crate::config::section::{Keys, Section, parse_toml};
use crate::units::{Bytes, BytesPerSec, SimTime};
use calibration::Measured;

const SOURCE: (&str, &str) = ("source", "\"datasheet, paper, or where and when measured\"");
const KIND: (&str, &str) = ("kind", "\"nvswitch\"");
const BANDWIDTH: &str = "\"450 GB/s\"";
const RATE: &str = "\"989 TFLOP/s\"";
const TIME: &str = "\"2.8 us\"";

const CLUSTER: Keys = &[
    ("name", "\"my-cluster\""),
    SOURCE,
    ("nodes", "1"),
    ("gpus_per_node", "8"),
    ("device", "[device]"),
    ("host", "[host]"),
    ("fabric", "[fabric]"),
    ("network", "[network]"),
    ("kernels", "[[kernels]]"),
    ("calibration", "[calibration]"),
];
const DEVICE: Keys = &[
    ("name", "\"H100 SXM5 80GB\""),
    ("memory", "\"80 GB\""),
    ("hbm_bandwidth", "\"3.35 TB/s\""),
    ("sms", "132"),
    ("copy_engines", "3"),
    SOURCE,
    ("peak", "[device.peak]"),
    ("reached", "[device.reached]"),
    ("power", "[device.power]"),
];
const PEAK: Keys = &[("bf16", RATE), ("fp16", RATE), ("fp8", RATE), ("tf32", RATE), ("fp32", RATE)];
const REACHED: Keys = &[("matmul", RATE), ("hbm", "\"3 TB/s\""), ("call", TIME), SOURCE];
const POWER: Keys = &[
    ("boost", "1.127"),
    ("idle", "0.17"),
    ("exponent", "2.5"),
    ("speeds", "[1.02, 0.98]"),
    ("cold_speeds", "[1.02, 0.98]"),
    SOURCE,
];
const HOST: Keys = &[("kernel_launch", TIME), ("copy_launch", TIME), ("nccl_launch", TIME), SOURCE];
const FABRIC: Keys = &[
    SOURCE,
    ("topology", "{ kind = \"nvswitch\", link_bandwidth = \"450 GB/s\" }"),
    ("copy", "[fabric.copy]"),
    ("nccl", "[fabric.nccl]"),
];
const FABRIC_KINDS: &[(&str, Keys)] = &[
    ("nvswitch", &[KIND, ("link_bandwidth", BANDWIDTH)]),
    (
        "pcie",
        &[
            KIND,
            ("link_bandwidth", BANDWIDTH),
            ("gpus_per_switch", "4"),
            ("host_bridge_bandwidth", BANDWIDTH),
        ],
    ),
    ("torus", &[KIND, ("dims", "[4, 4]"), ("link_bandwidth", BANDWIDTH), ("wraparound", "true")]),
];
const TRANSPORT: Keys = &[
    ("bandwidth", BANDWIDTH),
    ("latency", TIME),
    ("ramp", "{ time = \"30 us\", bytes = \"8 MiB\" }"),
    ("sms", "0"),
    ("slows_calls", "0.05"),
    ("slowed_by_calls", "0.05"),
    ("priority", "\"high\""),
    ("limits", "[[fabric.nccl.limits]]"),
    ("high_priority", "[fabric.nccl.high_priority]"),
    SOURCE,
];
const RAMP: Keys = &[("time", TIME), ("bytes", "\"8 MiB\"")];
const NETWORK: Keys = &[
    ("nic_bandwidth", "\"400 Gb/s\""),
    ("nics_per_node", "8"),
    ("topology", "{ kind = \"rail-optimised\" }"),
    ("transport", "[network.transport]"),
    ("spine_latency", TIME),
    ("gpudirect", "true"),
    ("staging_bandwidth", "\"20 GB/s\""),
    SOURCE,
];
const NETWORK_KINDS: &[(&str, Keys)] = &[
    ("rail-optimised", &[KIND]),
    ("fat-tree", &[KIND, ("nodes_per_leaf", "4"), ("oversubscription", "1.0")]),
];

/// Most GPUs of a cluster.
const GPUS: u32 = 1 << 16;

/// Keys that only a model has.
const MODEL: &[&str] = &["layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab"];

/// Says so where the text has keys of a model.
fn refuse_model(source: Source<'_>, document: &DeTable<'_>) -> Result<(), ConfigError> {
    let key = document.keys().find(|key| MODEL.contains(&key.get_ref().as_ref()));
    let Some(key) = key else { return Ok(()) };
    let message = format!("`{}` belongs to a model, expected a cluster", key.get_ref());
    Err(source.error(key.span(), message).with_hint(AS_MODEL))
}

const AS_MODEL: &str = "give this file as the model, with --model";

pub(super) fn cluster(source: Source<'_>) -> Result<Cluster, ConfigError> {
    if source.is_json() && !source.text.trim().is_empty() {
        let error = ConfigError::whole(source.label, "looks like JSON, but a cluster is TOML");
        return Err(error.with_hint(format!("if it is a model's config.json, {AS_MODEL}")));
    }
    let document = parse_toml(source)?;
    refuse_model(source, document.get_ref())?;
    let root = Section::root(source, &document, CLUSTER)?;
    let nodes = root.required("nodes")?;
    let per_node = root.required("gpus_per_node")?;
    let gpus_per_node = per_node.small_count(1..=GPUS)?;
    let count = nodes.small_count(1..=GPUS)?;
    if u64::from(count) * u64::from(gpus_per_node) > u64::from(GPUS) {
        return Err(nodes.error(format!("{count} nodes of {gpus_per_node} GPUs are more than {GPUS} GPUs")));
    }
    let device = device(&root.section("device", DEVICE)?, gpus_per_node)?;
    let fabric = fabric(&root.section("fabric", FABRIC)?, gpus_per_node, device.sms)?;
    let network = match root.optional_section("network", NETWORK)? {
        Some(section) => Some(network(&section, gpus_per_node, device.sms)?),
        None if count == 1 => None,
        None => {
            let error = nodes.error(format!("`nodes` is {count}, but there is no `network` between them"));
            return Err(error.with_hint("add the section [network]"));
        }
    };
    let kernels = kernels::kernels(&root, &device)?;
    let measured = Measured { kernels: &kernels, has_power: device.power.is_some(), nccl: &fabric.nccl };
    let calibration = calibration::calibration(&root, &measured)?;
    Ok(Cluster {
        name: root.required("name")?.text()?,
        source: root.required("source")?.text()?,
        nodes: count,
        gpus_per_node,
        device,
        host: host(&root.section("host", HOST)?)?,
        fabric,
        network,
        calibration,
        kernels,
    })
}

fn device(section: &Section<'_, '_>, gpus: u32) -> Result<Device, ConfigError> {
    let memory = section.required("memory")?;
    let bytes = memory.amount()?;
    if bytes == Bytes(0) {
        return Err(memory.error("`device.memory` is zero"));
    }
    Ok(Device {
        name: section.required("name")?.text()?,
        memory: bytes,
        hbm_bandwidth: section.required("hbm_bandwidth")?.amount()?,
        sms: section.required("sms")?.small_count(1..=4096)?,
        copy_engines: section.required("copy_engines")?.small_count(1..=64)?,
        source: section.required("source")?.text()?,
        peak: peak(&section.section("peak", PEAK)?)?,
        reached: reached(&section.section("reached", REACHED)?)?,
        power: section
            .optional_section("power", POWER)?
            .map(|section| power::read(&section, gpus))
            .transpose()?,
    })
}

fn peak(section: &Section<'_, '_>) -> Result<Peak, ConfigError> {
    let rate = |key| section.optional(key).map(|field| field.amount()).transpose();
    Ok(Peak {
        bf16: section.required("bf16")?.amount()?,
        fp16: rate("fp16")?,
        fp8: rate("fp8")?,
        tf32: rate("tf32")?,
        fp32: rate("fp32")?,
    })
}

fn reached(section: &Section<'_, '_>) -> Result<Reached, ConfigError> {
    Ok(Reached {
        matmul: section.required("matmul")?.amount()?,
        hbm: section.required("hbm")?.amount()?,
        call: section.optional("call").map_or(Ok(SimTime::ZERO), |field| field.amount())?,
        source: section.required("source")?.text()?,
    })
}

fn host(section: &Section<'_, '_>) -> Result<Host, ConfigError> {
    Ok(Host {
        kernel_launch: section.required("kernel_launch")?.amount()?,
        copy_launch: section.required("copy_launch")?.amount()?,
        nccl_launch: section.required("nccl_launch")?.amount()?,
        source: section.required("source")?.text()?,
    })
}

fn fabric(section: &Section<'_, '_>, gpus: u32, sms: u32) -> Result<Fabric, ConfigError> {
    let topology = fabric_topology(section, gpus)?;
    let link = topology.link_bandwidth();
    let copy = section.section("copy", TRANSPORT)?;
    nccl::refuse(&copy, &["priority", "limits", "high_priority"], "copy engines hold no SM")?;
    Ok(Fabric {
        source: section.required("source")?.text()?,
        topology,
        copy: transport(&copy, link, sms)?,
        nccl: transport(&section.section("nccl", TRANSPORT)?, link, sms)?,
    })
}

fn fabric_topology(section: &Section<'_, '_>, gpus: u32) -> Result<FabricTopology, ConfigError> {
    let (kind, topology) = section.tagged_section("topology", FABRIC_KINDS)?;
    let link_bandwidth = topology.required("link_bandwidth")?.amount()?;
    Ok(match kind {
        "pcie" => {
            let per_switch = topology.required("gpus_per_switch")?;
            let gpus_per_switch = per_switch.small_count(1..=gpus)?;
            divides(&per_switch, gpus_per_switch, gpus)?;
            let host_bridge_bandwidth = topology.required("host_bridge_bandwidth")?.amount()?;
            FabricTopology::Pcie { link_bandwidth, gpus_per_switch, host_bridge_bandwidth }
        }
        "torus" => {
            let dims = torus_dims(&topology, gpus)?;
            FabricTopology::Torus {
                dims,
                link_bandwidth,
                wraparound: topology.required("wraparound")?.flag()?,
            }
        }
        _ => FabricTopology::Nvswitch { link_bandwidth },
    })
}

fn divides(field: &Field<'_>, part: u32, gpus: u32) -> Result<(), ConfigError> {
    if gpus.is_multiple_of(part) {
        return Ok(());
    }
    let message = format!("`{}` is {part}, which does not divide `gpus_per_node`, {gpus}", field.path);
    Err(field.error(message))
}

fn torus_dims(topology: &Section<'_, '_>, gpus: u32) -> Result<Vec<u32>, ConfigError> {
    let fields = topology.fields("dims")?;
    let dims = fields.iter().map(|field| field.small_count(1..=GPUS)).collect::<Result<Vec<_>, _>>()?;
    let chips = dims.iter().map(|&extent| u64::from(extent)).fold(1, u64::saturating_mul);
    if chips != u64::from(gpus) {
        let message = format!("the torus has {chips} chips, but `gpus_per_node` is {gpus}");
        return Err(fields[0].error(message));
    }
    Ok(dims)
}

/// A transport over links of `raw` bandwidth between devices of `sms`.
fn transport(section: &Section<'_, '_>, raw: BytesPerSec, sms: u32) -> Result<Transport, ConfigError> {
    Ok(Transport {
        bandwidth: bandwidth(section, raw)?,
        latency: section.required("latency")?.amount()?,
        ramp: section.optional_section("ramp", RAMP)?.map(|ramp| self::ramp(&ramp)).transpose()?,
        sms: section.required("sms")?.small_count(0..=sms)?,
        slows_calls: loss(section, "slows_calls")?,
        slowed_by_calls: loss(section, "slowed_by_calls")?,
        priority: section.optional("priority").map_or(Ok(Priority::Normal), |field| field.keyword())?,
        limits: nccl::limits(section, raw, sms)?,
        high_priority: nccl::high_priority(section, sms)?,
        source: section.required("source")?.text()?,
    })
}

/// What a transfer reaches over links of `raw` bandwidth.
fn bandwidth(section: &Section<'_, '_>, raw: BytesPerSec) -> Result<BytesPerSec, ConfigError> {
    let field = section.required("bandwidth")?;
    let bandwidth = field.amount()?;
    if bandwidth > raw {
        let message = format!("`{}` is {bandwidth}, more than the {raw} of its link", field.path);
        return Err(field
            .error(message)
            .with_hint("bandwidths count one direction; halve a figure for both ways"));
    }
    Ok(bandwidth)
}

/// A share of its speed that something loses; none if absent.
fn loss(section: &Section<'_, '_>, key: &str) -> Result<f64, ConfigError> {
    section.optional(key).map_or(Ok(0.0), |field| field.real(0.0..=Transport::MOST_LOST))
}

fn ramp(section: &Section<'_, '_>) -> Result<Ramp, ConfigError> {
    Ok(Ramp { time: section.required("time")?.amount()?, bytes: section.required("bytes")?.amount()? })
}

fn network(section: &Section<'_, '_>, gpus: u32, sms: u32) -> Result<Network, ConfigError> {
    let nic_bandwidth: BytesPerSec = section.required("nic_bandwidth")?.amount()?;
    let nics = section.required("nics_per_node")?;
    let nics_per_node = nics.small_count(1..=256)?;
    if !nics_per_node.is_multiple_of(gpus) {
        divides(&nics, nics_per_node, gpus)?;
    }
    let raw = nic_bandwidth * f64::from((nics_per_node / gpus).max(1));
    let gpudirect = section.required("gpudirect")?.flag()?;
    let staging_bandwidth = match (gpudirect, section.optional("staging_bandwidth")) {
        (true, None) => None,
        (true, Some(field)) => {
            return Err(field.error(format!("`{}` has no use where `gpudirect` is true", field.path)));
        }
        (false, _) => Some(section.required("staging_bandwidth")?.amount()?),
    };
    let transport = section.section("transport", TRANSPORT)?;
    nccl::refuse(&transport, &["limits", "high_priority"], "it is of transfers inside a node")?;
    Ok(Network {
        nic_bandwidth,
        nics_per_node,
        topology: network_topology(section)?,
        transport: self::transport(&transport, raw, sms)?,
        spine_latency: section.required("spine_latency")?.amount()?,
        gpudirect,
        staging_bandwidth,
        source: section.required("source")?.text()?,
    })
}

fn network_topology(section: &Section<'_, '_>) -> Result<NetworkTopology, ConfigError> {
    let (kind, topology) = section.tagged_section("topology", NETWORK_KINDS)?;
    if kind == "rail-optimised" {
        return Ok(NetworkTopology::RailOptimised);
    }
    Ok(NetworkTopology::FatTree {
        nodes_per_leaf: topology.required("nodes_per_leaf")?.small_count(1..=GPUS)?,
        oversubscription: topology.required("oversubscription")?.real(1.0..=64.0)?,
    })
}
