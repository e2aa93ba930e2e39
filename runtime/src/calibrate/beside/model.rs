//! The simulator in the place of a machine: the same probes give what the model makes of them.

use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::engine::{self, Load};
use ringlab_sim::plan::Plan;

use crate::machine::{
    Identity, LaunchCosts, Launching, Machine, MachineError, MachineKernel, Runs, Sizes, predicted_under,
};

/// A cluster that runs what a machine would, loaded as that one is.
pub(super) struct Modelled<'a> {
    pub cluster: &'a Cluster,
    pub of: &'a dyn Machine,
}

impl Machine for Modelled<'_> {
    fn identity(&self) -> Identity {
        self.of.identity()
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        self.of.kernels()
    }

    fn sizes(&self) -> Sizes {
        self.of.sizes()
    }

    fn load(&self, plan: &Plan, launching: Launching) -> Load {
        self.of.load(plan, launching)
    }

    fn run(&mut self, plan: &Plan, launching: Launching, _repeats: u32) -> Result<Runs, MachineError> {
        let options = predicted_under(self.load(plan, launching), self.cluster);
        let timeline = engine::simulate(plan, self.cluster, &options);
        let timeline = timeline.map_err(|error| MachineError::new(plan, error))?;
        Ok(Runs::once(timeline, 0.0))
    }

    fn launch_costs(&mut self) -> Result<LaunchCosts, MachineError> {
        let host = &self.cluster.host;
        let (kernel, copy, nccl) = (host.kernel_launch, host.copy_launch, host.nccl_launch);
        Ok(LaunchCosts { kernel, copy, nccl, spread: 0.0 })
    }
}
