//! Calibrations of a machine whose constants are known: plans run on the simulator, and the constants are found again.

mod altered;

use std::collections::BTreeSet;

use ringlab_sim::config::cluster::{
    Cluster, Dtype, FabricTopology, Grid, Items, KernelRow, KernelUse, NcclLimit, NcclSettings, Network,
    NetworkTopology, Pass, Power, Quantity, Ramp, Sections, Uncertainty,
};
use ringlab_sim::engine::{self, SimOptions};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{OpKind, Plan, Transport};
use ringlab_sim::problem::Shape;
use ringlab_sim::tiles::TileShape;
use ringlab_sim::units::{Bytes, BytesPerSec, FlopsPerSec, SimTime};

use super::fit::Fit;
use super::probes::{self, First};
use super::{CalibrateError, Calibrated, Session, calibrate};
use crate::cpu::{self, RunOptions};
use crate::machine::inputs;
use crate::machine::{
    Coverage, Identity, LaunchCosts, Launching, Machine, MachineError, MachineKernel, Runs, Sizes,
};
use crate::validate::{Filter, matrix};

/// GPUs of these constants, whose NCCL has these settings.
pub struct Simulated {
    pub truth: Cluster,
    pub nccl: NcclSettings,
    /// Whether NCCL can have others than the default.
    pub is_settable: bool,
}

impl Simulated {
    /// With the settings that a machine starts with.
    pub fn new(truth: Cluster) -> Self {
        Self { truth, nccl: NcclSettings::default(), is_settable: true }
    }

    /// What running a plan gives.
    pub fn simulate(&self, plan: &Plan) -> Result<Runs, MachineError> {
        let cluster = self.truth.with_nccl(self.nccl).map_err(|error| MachineError::new(plan, error))?;
        let timeline = engine::simulate(plan, &cluster, &SimOptions::default());
        let timeline = timeline.map_err(|error| MachineError::new(plan, error))?;
        Ok(Runs::once(timeline, 1.0))
    }
}

impl Machine for Simulated {
    fn identity(&self) -> Identity {
        let devices = self.truth.gpus_per_node;
        Identity { device: self.truth.device.name.clone(), devices, versions: "simulated".into() }
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        let kernel = |row: &KernelRow| MachineKernel {
            name: row.name.clone(),
            head_dim: row.head_dim,
            dtype: row.dtype,
            pass: row.pass,
            tile: TileShape { q: u64::from(row.tile_q), kv: u64::from(row.tile_kv) },
            items: row.items,
            grid: Grid::PersistentQueue,
            used_for: row.used_for,
            sections: row.sections,
            fitted_above: 0,
        };
        self.truth.kernels.iter().map(kernel).collect()
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            heads: 16,
            grouped_kv_heads: 4,
            calls: [1, 2, 4, 8, 16, 32].map(|n| n << 10).to_vec(),
            messages: [1 << 16, 1 << 20, 1 << 24, 1 << 28].to_vec(),
            sequences: vec![16 << 10],
            repeats: 1,
        }
    }

    fn coverage(&self) -> Coverage {
        if self.truth.gpus_per_node > 2 { Coverage::Selected } else { Coverage::Full }
    }

    fn has_nccl(&self) -> bool {
        true
    }

    fn set_nccl(&mut self, settings: NcclSettings) -> bool {
        let can = self.is_settable || settings == NcclSettings::default();
        if can {
            self.nccl = settings;
        }
        can
    }

    fn run(&mut self, plan: &Plan, _: Launching, _: u32) -> Result<Runs, MachineError> {
        self.simulate(plan)
    }

    fn launch_costs(&mut self) -> Result<LaunchCosts, MachineError> {
        let free = SimTime::ZERO;
        Ok(LaunchCosts { kernel: free, copy: free, nccl: free, spread: 0.0 })
    }
}

/// Simulated GPUs on which plans run otherwise.
pub struct Altered<S> {
    pub simulated: Simulated,
    pub state: S,
    pub run: fn(&mut Simulated, &mut S, &Plan) -> Result<Runs, MachineError>,
}

impl<S> Machine for Altered<S> {
    fn identity(&self) -> Identity {
        self.simulated.identity()
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        self.simulated.kernels()
    }

    fn sizes(&self) -> Sizes {
        self.simulated.sizes()
    }

    fn has_nccl(&self) -> bool {
        self.simulated.has_nccl()
    }

    fn set_nccl(&mut self, settings: NcclSettings) -> bool {
        self.simulated.set_nccl(settings)
    }

    fn run(&mut self, plan: &Plan, _: Launching, _: u32) -> Result<Runs, MachineError> {
        (self.run)(&mut self.simulated, &mut self.state, plan)
    }

    fn launch_costs(&mut self) -> Result<LaunchCosts, MachineError> {
        self.simulated.launch_costs()
    }
}

fn row(pass: Pass, tile_kv: u32, tera_flops: f64, used_for: Option<KernelUse>) -> KernelRow {
    KernelRow {
        name: "truth".into(),
        head_dim: 128,
        dtype: Dtype::Bf16,
        pass,
        tile_q: if pass == Pass::Forward { 128 } else { 64 },
        tile_kv,
        rate: FlopsPerSec(tera_flops * 1e12),
        partial_tile_cost: 1.4,
        prologue: SimTime(900_000),
        epilogue: SimTime(900_000),
        call: SimTime(4_000_000),
        carry: if pass == Pass::Forward { SimTime(700_000) } else { SimTime::ZERO },
        boost: None,
        linked: None,
        items: if pass == Pass::Forward { Items::QueryTiles } else { Items::KeyTiles },
        grid: Grid::PersistentQueue,
        source: "truth".into(),
        used_for,
        sections: (pass == Pass::Forward).then_some(Sections { cache: Bytes(32 << 20), items_an_sm: 4 }),
    }
}

pub fn preset() -> Cluster {
    let text = include_str!("../../../experiments/presets/clusters/hgx-h200.toml");
    let host = "kernel_launch = \"0 us\"\ncopy_launch = \"0 us\"\nnccl_launch = \"0 us\"\nsource = \"test\"";
    Cluster::parse("h200", &format!("{text}\n[host]\n{host}\n")).unwrap()
}

/// Two H200s whose constants are none of the preset's.
pub fn truth() -> Cluster {
    let mut truth = preset();
    let wide = KernelUse { min_keys: 32 << 10, or_visited: 0.9, above_keys: 2 << 10 };
    truth.gpus_per_node = 2;
    truth.kernels = vec![
        row(Pass::Forward, 128, 640.0, None),
        row(Pass::Forward, 176, 720.0, Some(wide)),
        row(Pass::Backward, 128, 560.0, None),
    ];
    (truth.kernels[0].linked, truth.kernels[1].linked) = (Some(1.02), Some(1.05));
    (truth.device.reached.hbm, truth.device.reached.call) = (BytesPerSec(3.1e12), SimTime(2_500_000));
    let (copy, nccl) = (&mut truth.fabric.copy, &mut truth.fabric.nccl);
    (copy.slows_calls, copy.slowed_by_calls) = (0.08, 0.2);
    (nccl.sms, nccl.slowed_by_calls) = (24, 0.12);
    let limit = |(ctas, gigabytes, sms, slowed_by_calls)| NcclLimit {
        ctas,
        bandwidth: BytesPerSec(1e9 * gigabytes),
        sms,
        slowed_by_calls,
        source: "truth".into(),
    };
    nccl.limits = [(4, 75.0, 4, 0.0), (8, 140.0, 8, 0.05), (16, 230.0, 17, 0.1)].map(limit).to_vec();
    truth
}

fn calibrated(truth: Cluster) -> Calibrated {
    calibrate(&mut Simulated::new(truth), &preset(), "2026-11-30", &mut |_| true).unwrap()
}

#[track_caller]
fn assert_near(found: f64, truth: f64, within: f64) {
    assert!((found / truth - 1.0).abs() < within, "{found} for {truth}");
}

#[test]
fn the_constants_of_a_simulated_machine_are_found_again() {
    let truth = truth();
    let mut base = preset();
    base.fabric.nccl.slows_calls = 0.3;
    base.fabric.copy.ramp = Some(Ramp { time: SimTime(5_000_000), bytes: Bytes(1 << 20) });
    let found = calibrate(&mut Simulated::new(truth.clone()), &base, "2026-11-30", &mut |_| true).unwrap();
    let beside = found.fits.iter().filter(|fit| fit.what.ends_with("before attention calls"));
    assert!(beside.clone().count() == 5 && beside.clone().all(|fit| fit.worst < 0.02), "{:?}", found.fits);
    let found = found.cluster;
    for known in &truth.kernels {
        let of_found = found.kernels.iter().find(|k| k.title() == known.title()).unwrap();
        assert_near(of_found.rate.0, known.rate.0, 0.005);
        assert_near(of_found.partial_tile_cost, known.partial_tile_cost, 0.05);
        assert_eq!((of_found.used_for, of_found.grid), (known.used_for, known.grid), "{}", known.title());
        assert_eq!(of_found.sections, known.sections, "{}", known.title());
        assert_eq!(of_found.linked, known.linked, "{}", known.title());
    }
    let (reached, of_truth) = (&found.device.reached, &truth.device.reached);
    assert_near(reached.hbm.0, of_truth.hbm.0, 1e-3);
    assert_near(reached.call.as_secs_f64(), of_truth.call.as_secs_f64(), 1e-2);
    // What rounding leaves of a fit without one.
    assert!(found.fabric.copy.ramp.is_none_or(|ramp| ramp.time < SimTime(1000)), "{:?}", found.fabric.copy);
    assert_near(found.fabric.copy.slows_calls, truth.fabric.copy.slows_calls, 0.01);
    assert_near(found.fabric.copy.slowed_by_calls, truth.fabric.copy.slowed_by_calls, 0.01);
    assert_eq!((found.fabric.nccl.sms, found.fabric.nccl.slows_calls), (truth.fabric.nccl.sms, 0.0));
    assert_near(found.fabric.nccl.slowed_by_calls, truth.fabric.nccl.slowed_by_calls, 0.05);
    let written = found.to_toml();
    assert_eq!(Cluster::parse("written", &written).unwrap().to_toml(), written);
}

#[test]
fn nccl_that_does_not_wait_for_calls_is_noticed() {
    let mut truth = truth();
    for row in &mut truth.kernels {
        row.grid = Grid::PerItem;
    }
    let found = calibrated(truth);
    let measured: Vec<_> = found.cluster.kernels.iter().filter(|row| row.head_dim == 128).collect();
    assert!(measured.len() == 3 && measured.iter().all(|row| row.grid == Grid::PerItem));
    assert_eq!(found.cluster.fabric.nccl.sms, 24);
    assert!(found.notes.iter().any(|note| note.contains("SMs come free")), "{:?}", found.notes);
}

#[test]
fn a_base_that_has_no_such_node_is_refused_before_anything_is_measured() {
    let mut base = preset();
    let link = base.fabric.topology.link_bandwidth();
    base.fabric.topology =
        FabricTopology::Pcie { link_bandwidth: link, gpus_per_switch: 4, host_bridge_bandwidth: link };
    let mut measured = 0;
    let mut progress = |_: &str| {
        measured += 1;
        true
    };
    let error = calibrate(&mut Simulated::new(truth()), &base, "2026-11-30", &mut progress).unwrap_err();
    let expected = "`fabric.topology.gpus_per_switch` is 4, expected a whole number from 1 to 2";
    assert!(matches!(error, CalibrateError::Base { devices: 2, .. }), "{error}");
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(measured, 0);
}

#[test]
fn a_constant_below_zero_is_named() {
    let (mut machine, mut progress) = (Simulated::new(truth()), |_: &str| true);
    let (fits, notes, spreads) = (Vec::new(), Vec::new(), Vec::new());
    let mut session =
        Session { machine: &mut machine, cluster: preset(), fits, notes, spreads, progress: &mut progress };
    let (constants, clamped) = (vec![0.0, 1.0], vec![0]);
    let fit = Fit { constants, clamped, residual: 0.0, worst: 0.0, spread: 0.0, fitted: Vec::new() };
    session.report("copies".into(), String::new(), &["a message", "a byte"], (&fit, &[]));
    assert_eq!(session.notes, ["copies: the time of a message came out below zero and is zero"]);
}

#[test]
fn what_is_known_of_a_fit_is_its_spread_and_its_residual() {
    let (mut machine, mut progress) = (Simulated::new(truth()), |_: &str| true);
    let (fits, notes, spreads) = (Vec::new(), Vec::new(), Vec::new());
    let mut session =
        Session { machine: &mut machine, cluster: preset(), fits, notes, spreads, progress: &mut progress };
    let fit = |spread, residual| Fit {
        constants: vec![1.0],
        residual,
        worst: residual,
        spread,
        clamped: Vec::new(),
        fitted: Vec::new(),
    };
    session.know(Quantity::Hbm, &fit(0.02, 0.03), 7);
    session.know(Quantity::CopyLatency, &fit(1.5, 2.5), 8);
    let known = |of, spread, residual, samples| Uncertainty { of, spread, residual, samples };
    let expected = [known(Quantity::Hbm, 0.02, 0.03, 7), known(Quantity::CopyLatency, 1.0, 1.0, 8)];
    assert_eq!(session.spreads, expected, "a cluster can say 1 at most");
    assert_eq!(session.notes.len(), 2, "and what is more is named");
    session.notes.clear();
    for (residual, notes) in [(0.049, 0), (0.06, 1)] {
        session.report("copies".into(), String::new(), &["a byte"], (&fit(0.0, residual), &[]));
        assert_eq!(session.notes.len(), notes);
    }
    assert_eq!(session.notes, ["poor fit of copies: residuals of 6.0%"]);
}

/// Speeds of eight GPUs are no two's, and there is no way to other nodes.
#[test]
fn a_node_of_a_base_is_what_the_machine_is() {
    let mut base = preset();
    let (transport, source) = (base.fabric.nccl.clone(), "base".to_owned());
    base.nodes = 2;
    base.network = Some(Network {
        nic_bandwidth: BytesPerSec(50e9),
        nics_per_node: 8,
        topology: NetworkTopology::RailOptimised,
        transport,
        spine_latency: SimTime::ZERO,
        gpudirect: true,
        staging_bandwidth: None,
        source,
    });
    let speeds = vec![1.0; 8];
    let (boost, idle, exponent, source) = (1.1, 0.17, 2.5, "base".to_owned());
    base.device.power = Some(Power { boost, idle, exponent, cold_speeds: speeds.clone(), speeds, source });
    let found = calibrate(&mut Simulated::new(truth()), &base, "2026-11-30", &mut |_| true).unwrap().cluster;
    assert_eq!((found.nodes, found.gpus_per_node, &found.network, &found.device.power), (1, 2, &None, &None));
    assert_eq!(Cluster::parse("written", &found.to_toml()).unwrap(), found);
}

fn shape() -> Shape {
    Shape { heads: 2, kv_heads: 2, head_dim: 64, dtype: Dtype::Fp32, batch: 1 }
}

#[test]
fn calls_beside_messages_are_no_schedules() {
    let filter = Filter { cp: vec![2], sequences: vec![16 << 10], ..Filter::default() };
    let points = matrix(&Simulated::new(truth()), &filter);
    let plans: Vec<Plan> = points.iter().map(|point| point.plan().unwrap()).collect();
    assert!(plans.len() > 10);
    for transport in [Transport::CopyEngine, Transport::Nccl] {
        for first in [First::Call, First::Message] {
            let plan = probes::beside(shape(), (512, 64), first, Some(transport)).unwrap();
            assert!(plan.name.starts_with(probes::PREFIX));
            for program in &plan.programs {
                let received =
                    |op: &OpKind| if let OpKind::Recv { buffer, .. } = *op { Some(buffer) } else { None };
                let received: BTreeSet<_> =
                    program.ops.iter().filter_map(|op| received(&op.kind)).map(|b| b.0).collect();
                assert_eq!(received.len(), 1, "one message each way");
                let mut touched = 0;
                program
                    .ops
                    .iter()
                    .for_each(|op| op.kind.accesses(|b, _| touched += usize::from(received.contains(&b.0))));
                assert_eq!(touched, 1, "only the receive touches what arrives, and a schedule attends it");
            }
            assert!(plans.iter().all(|known| known.programs != plan.programs));
        }
    }
}

#[test]
fn what_is_measured_can_be_run() {
    let merge = probes::merge(shape(), 512).unwrap();
    let accumulate = probes::accumulate(shape(), 512).unwrap();
    let beside = [First::Call, First::Message]
        .map(|first| probes::beside(shape(), (512, 64), first, Some(Transport::CopyEngine)).unwrap());
    let ring = [(0, 1), (1, 2), (2, 0)];
    let between = [(Pass::Forward, Pattern::Full), (Pass::Backward, Pattern::Causal)]
        .map(|(pass, pattern)| probes::between(shape(), pass, pattern, 512, 3).unwrap());
    let copies = [&ring[..], &[(0, 2), (2, 0)]].map(|ways| probes::copies(shape(), 512, 3, ways).unwrap());
    for plan in [merge, accumulate].into_iter().chain(beside).chain(copies).chain(between) {
        let inputs = inputs(&plan).unwrap();
        let outcome = cpu::run(&plan, &inputs, &RunOptions::default());
        assert!(outcome.is_ok(), "{}: {:?}", plan.name, outcome.err());
    }
}
