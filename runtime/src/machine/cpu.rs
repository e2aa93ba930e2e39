//! CPU threads as a machine: one thread a rank, each a device with one SM whose tiles are single pairs.

use std::fs;
use std::thread;

use ringlab_sim::config::cluster::{Grid, Items};
use ringlab_sim::plan::{MaskId, Op, OpKind, Plan};
use ringlab_sim::problem::{Dtype, Pass};
use ringlab_sim::tiles::TileShape;
use ringlab_sim::units::SimTime;

use super::{Identity, LaunchCosts, Launching, Machine, MachineError, MachineKernel, Runs, Sizes, inputs};
use crate::cpu::{self, RunOptions};

/// This computer's processor.
#[derive(Debug, Clone)]
pub struct CpuMachine {
    identity: Identity,
}

impl CpuMachine {
    /// The processor and as many threads as run at once.
    pub fn new() -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from) as u32;
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
        let device = name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, n)| n.trim().to_owned());
        let versions = format!("ringlab {}", env!("CARGO_PKG_VERSION"));
        Self { identity: Identity { device, devices: threads, versions } }
    }
}

impl Default for CpuMachine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine for CpuMachine {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        let kernel = |pass| MachineKernel {
            name: "CPU, one thread".into(),
            head_dim: 64,
            dtype: Dtype::Fp32,
            pass,
            tile: TileShape { q: 1, kv: 1 },
            items: Items::QueryTiles,
            grid: Grid::Persistent,
            used_for: None,
            sections: None,
            fitted_above: 0,
        };
        vec![kernel(Pass::Forward), kernel(Pass::Backward)]
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            heads: 2,
            grouped_kv_heads: 1,
            calls: vec![64, 128, 256, 512],
            messages: vec![1 << 16, 1 << 18, 1 << 20, 1 << 22],
            sequences: vec![256, 512, 1024],
            repeats: 7,
        }
    }

    fn has_overlap(&self) -> bool {
        false
    }

    fn beyond(&self, plan: &Plan) -> Option<String> {
        if let Some(carried) = super::carried(plan) {
            return Some(carried);
        }
        let skips = |op: &Op| match op.kind {
            OpKind::Scores(scores) => scores.product().is_some_and(|(.., mask)| mask != MaskId::NONE),
            _ => false,
        };
        let skips = plan.programs.iter().flat_map(|program| &program.ops).any(skips);
        skips.then(|| "threads skip masked pairs of scores in memory, which the plan counts".into())
    }

    fn run(&mut self, plan: &Plan, _: Launching, repeats: u32) -> Result<Runs, MachineError> {
        let fail = |error: &dyn std::error::Error| MachineError::new(plan, error.to_string());
        let inputs = inputs(plan).map_err(|e| fail(&e))?;
        let once = || cpu::run(plan, &inputs, &RunOptions::default()).map_err(|e| fail(&e));
        once()?;
        let mut timelines =
            (0..repeats.max(1)).map(|_| Ok(once()?.timeline)).collect::<Result<Vec<_>, _>>()?;
        timelines.sort_by_key(|t| t.makespan);
        let makespans = timelines.iter().map(|t| t.makespan).collect();
        let middle = timelines.len() / 2;
        let timeline = timelines.swap_remove(middle);
        Ok(Runs { makespan: timeline.makespan, timeline, makespans, loaded_s: 0.0, duty: 0.0 })
    }

    fn launch_costs(&mut self) -> Result<LaunchCosts, MachineError> {
        let free = SimTime::ZERO;
        Ok(LaunchCosts { kernel: free, copy: free, nccl: free, spread: 0.0 })
    }
}
