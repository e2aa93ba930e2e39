//! Models and clusters in code.

use ringlab_sim::config::cluster::{
    Cluster, Device, Dtype, Fabric, FabricTopology, Grid, Host, Items, KernelRow, Network, NetworkTopology,
    Pass, Peak, Priority, Reached, Transport,
};
use ringlab_sim::config::model::Model;
use ringlab_sim::units::{Bytes, BytesPerSec, FlopsPerSec, SimTime};

pub fn model(text: &str) -> Model {
    let header = "name = \"test\"\nsource = \"test\"\n";
    Model::parse("test", &format!("{header}{text}")).unwrap()
}

pub fn llama_7b() -> Model {
    model("layers = 32\nhidden = 4096\nheads = 32\nintermediate = 11008\nvocab = 32000\n")
}

fn transport(gb_per_s: f64, us: u64, sms: u32) -> Transport {
    Transport {
        bandwidth: BytesPerSec(gb_per_s * 1e9),
        latency: SimTime(us * 1_000_000),
        ramp: None,
        sms,
        slows_calls: 0.0,
        slowed_by_calls: 0.0,
        priority: Priority::Normal,
        limits: Vec::new(),
        high_priority: None,
        source: "test".into(),
    }
}

fn kernel(pass: Pass) -> KernelRow {
    KernelRow {
        name: "test".into(),
        head_dim: 128,
        dtype: Dtype::Bf16,
        pass,
        tile_q: 128,
        tile_kv: 128,
        rate: FlopsPerSec(200e12),
        partial_tile_cost: 1.0,
        prologue: SimTime::ZERO,
        epilogue: SimTime::ZERO,
        call: SimTime::ZERO,
        carry: SimTime::ZERO,
        items: Items::QueryTiles,
        grid: Grid::PerItem,
        source: "test".into(),
        boost: None,
        linked: None,
        used_for: None,
        sections: None,
    }
}

fn device() -> Device {
    Device {
        name: "test".into(),
        memory: Bytes(80_000_000_000),
        hbm_bandwidth: BytesPerSec(2e12),
        sms: 100,
        copy_engines: 4,
        source: "test".into(),
        peak: Peak { bf16: FlopsPerSec(300e12), fp16: None, fp8: None, tf32: None, fp32: None },
        reached: Reached {
            matmul: FlopsPerSec(250e12),
            hbm: BytesPerSec(1.5e12),
            call: SimTime::ZERO,
            source: "test".into(),
        },
        power: None,
    }
}

/// Nodes of eight GPUs, 200 GB/s inside, eight NICs of 10 GB/s; no latency.
pub fn cluster(nodes: u32) -> Cluster {
    let zero = SimTime::ZERO;
    Cluster {
        name: "test".into(),
        source: "test".into(),
        nodes,
        gpus_per_node: 8,
        device: device(),
        host: Host { kernel_launch: zero, copy_launch: zero, nccl_launch: zero, source: "test".into() },
        fabric: Fabric {
            source: "test".into(),
            topology: FabricTopology::Nvswitch { link_bandwidth: BytesPerSec(300e9) },
            copy: transport(200.0, 0, 0),
            nccl: transport(200.0, 0, 0),
        },
        network: Some(Network {
            nic_bandwidth: BytesPerSec(12e9),
            nics_per_node: 8,
            topology: NetworkTopology::RailOptimised,
            transport: transport(10.0, 0, 0),
            spine_latency: zero,
            gpudirect: true,
            staging_bandwidth: None,
            source: "test".into(),
        }),
        kernels: [Pass::Forward, Pass::Backward].map(kernel).to_vec(),
        calibration: None,
    }
}
