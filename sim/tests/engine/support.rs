//! Clusters in code, and plans for them.
#![allow(dead_code, reason = "each test target and bench uses a part")]

use ringlab_sim::config::cluster::{
    Cluster, Device, Dtype, Fabric, FabricTopology, Grid, Host, KernelRow, Network, NetworkTopology, Pass,
    Peak, Priority, Reached, Transport,
};
use ringlab_sim::engine::{SimOptions, simulate};
use ringlab_sim::layout::{Layout, LayoutKind};
use ringlab_sim::mask::{Documents, Pattern};
use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{self, Lane, OpKind, Plan, Slots, Tensor};
use ringlab_sim::problem::{Problem, Shape};
use ringlab_sim::schedule::{self, Options, Schedule};
use ringlab_sim::units::{Bytes, BytesPerSec, FlopsPerSec, SimTime};

pub const FREE: BytesPerSec = BytesPerSec(f64::INFINITY);
pub const HEAD_DIM: u32 = 64;

pub fn transport(bandwidth: BytesPerSec, latency: SimTime) -> Transport {
    Transport {
        bandwidth,
        latency,
        ramp: None,
        sms: 0,
        slows_calls: 0.0,
        slowed_by_calls: 0.0,
        priority: Priority::Normal,
        limits: Vec::new(),
        high_priority: None,
        source: "test".into(),
    }
}

pub fn fabric(topology: FabricTopology, copy: Transport, nccl: Transport) -> Fabric {
    Fabric { source: "test".into(), topology, copy, nccl }
}

/// One node of `gpus` where links, memory and launches cost nothing and one pair of one head takes a picosecond.
pub fn ideal(gpus: u32) -> Cluster {
    let free = || transport(FREE, SimTime::ZERO);
    let kernels = [Pass::Forward, Pass::Backward].map(|pass| KernelRow {
        name: "pairs".into(),
        head_dim: HEAD_DIM,
        dtype: Dtype::Bf16,
        pass,
        tile_q: 1,
        tile_kv: 1,
        rate: FlopsPerSec(pass.flops_per_pair(HEAD_DIM) as f64 * 1e12),
        partial_tile_cost: 1.0,
        prologue: SimTime::ZERO,
        epilogue: SimTime::ZERO,
        call: SimTime::ZERO,
        carry: SimTime::ZERO,
        items: ringlab_sim::config::cluster::Items::QueryTiles,
        grid: Grid::Persistent,
        source: "test".into(),
        boost: None,
        linked: None,
        used_for: None,
        sections: None,
    });
    let zero = SimTime::ZERO;
    Cluster {
        name: "ideal".into(),
        source: "test".into(),
        nodes: 1,
        gpus_per_node: gpus,
        device: Device {
            name: "ideal".into(),
            memory: Bytes(1 << 40),
            hbm_bandwidth: FREE,
            sms: 1,
            copy_engines: 8,
            source: "test".into(),
            peak: Peak { bf16: FlopsPerSec(1e15), fp16: None, fp8: None, tf32: None, fp32: None },
            reached: Reached {
                matmul: FlopsPerSec(1e15),
                hbm: FREE,
                call: SimTime::ZERO,
                source: "test".into(),
            },
            power: None,
        },
        host: Host { kernel_launch: zero, copy_launch: zero, nccl_launch: zero, source: "test".into() },
        fabric: fabric(FabricTopology::Nvswitch { link_bandwidth: FREE }, free(), free()),
        network: None,
        kernels: kernels.to_vec(),
        calibration: None,
    }
}

/// Nodes of eight GPUs of about an H200's rates behind an NVSwitch, rail-optimised; constants for tests only.
pub fn nvswitch(nodes: u32) -> Cluster {
    let mut cluster = ideal(8);
    cluster.name = "nvswitch".into();
    cluster.nodes = nodes;
    cluster.device.sms = 132;
    cluster.device.reached.hbm = BytesPerSec(4e12);
    cluster.host.kernel_launch = SimTime(3_000_000);
    cluster.host.copy_launch = SimTime(2_800_000);
    cluster.host.nccl_launch = SimTime(9_000_000);
    cluster.fabric = fabric(
        FabricTopology::Nvswitch { link_bandwidth: BytesPerSec(450e9) },
        transport(BytesPerSec(395e9), SimTime(2_500_000)),
        transport(BytesPerSec(310e9), SimTime(12_000_000)),
    );
    cluster.network = Some(rails(8));
    for row in &mut cluster.kernels {
        (row.tile_q, row.tile_kv, row.partial_tile_cost) = (128, 128, 1.3);
        (row.prologue, row.epilogue) = (SimTime(2_000_000), SimTime(2_000_000));
        row.head_dim = 128;
        row.rate = FlopsPerSec(if row.pass == Pass::Forward { 680e12 } else { 600e12 });
    }
    cluster
}

/// Eight GPUs below two PCIe switches.
pub fn pcie_box() -> Cluster {
    let mut cluster = nvswitch(1);
    cluster.fabric.topology = FabricTopology::Pcie {
        link_bandwidth: BytesPerSec(26e9),
        gpus_per_switch: 4,
        host_bridge_bandwidth: BytesPerSec(22e9),
    };
    cluster
}

/// [`nvswitch`] nodes below an oversubscribed fat tree, four nodes a leaf and one NIC a node.
pub fn fat_tree(nodes: u32) -> Cluster {
    let mut cluster = nvswitch(nodes);
    let topology = NetworkTopology::FatTree { nodes_per_leaf: 4, oversubscription: 4.0 };
    cluster.network = Some(Network { topology, ..rails(1) });
    cluster
}

pub fn rails(nics_per_node: u32) -> Network {
    Network {
        nic_bandwidth: BytesPerSec(50e9),
        nics_per_node,
        topology: NetworkTopology::RailOptimised,
        transport: transport(BytesPerSec(45e9), SimTime(5_000_000)),
        spine_latency: SimTime(2_000_000),
        gpudirect: true,
        staging_bandwidth: None,
        source: "test".into(),
    }
}

pub fn shape(heads: u32, head_dim: u32) -> Shape {
    Shape { heads, kv_heads: heads, head_dim, dtype: Dtype::Bf16, batch: 1 }
}

pub fn causal(tokens: u64, shape: Shape) -> Problem {
    Problem { shape, pattern: Pattern::Causal, documents: vec![tokens] }
}

pub fn build(schedule: Schedule, problem: &Problem, ranks: u32, options: &Options) -> Plan {
    schedule::build(schedule, problem, ranks, options)
        .unwrap_or_else(|e| panic!("{schedule} on {ranks}: {e}"))
}

/// Bytes of one token of [`transfers`].
pub const TOKEN: u64 = 256;

/// A plan of nothing but transfers `(from, to, tokens)` of [`TOKEN`] bytes each, all free to start at once: every rank
/// posts its sends and receives in this order, each on a lane of its own.
pub fn transfers(ranks: u32, moves: &[(u32, u32, u64)], over: plan::Transport) -> Plan {
    let tokens = moves.iter().map(|m| m.2).max().unwrap();
    let problem = causal(tokens * u64::from(ranks), shape(1, HEAD_DIM));
    let documents = Documents::single(tokens * u64::from(ranks));
    let layout = Layout::new(LayoutKind::Contiguous, ranks, documents).unwrap();
    let mut b = PlanBuilder::new("transfers".into(), Pass::Forward, &problem, layout, over);
    let mut lanes = vec![0; ranks as usize];
    let mut lane = |rank: u32| {
        lanes[rank as usize] += 1;
        Lane::comm(lanes[rank as usize] - 1)
    };
    for &(from, to, tokens) in moves {
        let block = b.block(&[Slots { rank: from, from: 0, to: tokens }], true);
        let message = b.message(from, to, Tensor::KeyValue, block);
        let (source, target) =
            (b.input(from, Tensor::KeyValue, block), b.scratch(to, Tensor::KeyValue, block));
        b.push(from, lane(from), 0, 0, OpKind::Send { message, buffer: source.into() });
        b.push(to, lane(to), 0, 0, OpKind::Recv { message, buffer: target });
    }
    b.finish()
}

/// When each message of a plan began to move and when it had arrived, in picoseconds.
pub fn arrivals(plan: &Plan, cluster: &Cluster) -> Vec<(u64, u64)> {
    let timeline = simulate(plan, cluster, &SimOptions::default()).unwrap();
    let mut out = vec![None; plan.messages.len()];
    for span in timeline.spans.iter().filter(|s| s.kind.is_transfer()) {
        let op = &plan.programs[span.rank as usize].ops[span.op as usize];
        let message = op.kind.message().unwrap() as usize;
        let times = (span.start.0, span.end.0);
        assert!(*out[message].get_or_insert(times) == times, "both sides move together");
    }
    out.into_iter().map(Option::unwrap).collect()
}
