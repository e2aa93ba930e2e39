//! This node's GPUs as a machine, by the CUDA executor.

use std::thread;
use std::time::Duration;

use ringlab_kernels::gpu::Device;
use ringlab_sim::config::cluster::NcclSettings;
use ringlab_sim::engine::Load;
use ringlab_sim::plan::{Op, OpKind, Plan, Program};
use ringlab_sim::problem::Dtype;
use ringlab_sim::units::SimTime;

use super::{
    Coverage, Duty, Identity, LaunchCosts, Launching, Machine, MachineError, MachineKernel, Runs, Sizes,
    inputs,
};
use crate::calibrate::probes;
use crate::cuda::{self, Contexts, CudaError, Devices, LIMITER_PERIOD, Mode, Options, Recording};
use crate::inputs::Inputs;

/// Lengths of whole sequences, in Ki tokens; the middle one is that of points that vary something else, and only few
/// schedules run the last.
pub(crate) const SEQUENCES: [u64; 7] = [8, 16, 32, 64, 128, 256, 512];
/// A plan that may take longer than this is not measured cold: under full load an H200 keeps its clock for 75 ms in the
/// forward, and for about 30 ms in the backward; it is done in four fifths of this.
const BURST: f64 = 0.04;
/// Rest after each run that is measured cold, over its length: runs of 33 ms with as long a rest had the clock as low as
/// 1605 MHz, and with three times as long a rest some of 36 ms were still slower than others by a tenth.
const RESTS: f64 = 6.0;
/// The same beyond that.
const PAUSE: Duration = Duration::from_millis(2);
/// Between plans that are measured cold.
const BREATH: Duration = Duration::from_millis(100);
/// FLOPs a second that a GPU surely reaches: where the length of a run has to be known before it.
const SURELY: f64 = 500e12;
/// Without work for so long, a GPU's clock is at its highest again.
const REST: Duration = Duration::from_millis(500);
/// Load before plans that compute nothing.
const BRIEFLY: Duration = Duration::from_millis(100);
/// Tokens and calls of the chain that shows what lies between two calls.
const CHAIN: (u64, u64) = (2048, 16);

/// Where a driver of Linux says which it is.
const RELEASE: &str = "/proc/driver/nvidia/version";

/// The driver's release in what [`RELEASE`] says: the first word that is made of numbers and dots.
fn release(text: &str) -> Option<&str> {
    let is_release = |word: &&str| {
        word.contains('.')
            && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    text.lines().next()?.split_whitespace().find(is_release)
}

/// All GPUs of this node.
pub struct GpuMachine {
    identity: Identity,
    sms: u32,
    kernels: Vec<MachineKernel>,
    options: Options,
    is_cold: bool,
    /// Whether what ran last was long.
    is_hot: bool,
    _contexts: Contexts,
    /// The last inputs that were made: plans of one size share them.
    inputs: Option<(String, Inputs)>,
}

impl GpuMachine {
    /// Finds the GPUs and their kernels. `is_cold`: runs of up to some 30 ms follow a rest of several times their length, so
    /// that no power limit lowers the clock; longer ones are measured under lasting load all the same.
    ///
    /// # Errors
    /// No driver, no GPU.
    pub fn new(options: Options, is_cold: bool) -> Result<Self, CudaError> {
        let devices = cuda::gpu_count()? as u32;
        let device = Device::open_with(0, options.kernels, None)?;
        let text = std::fs::read_to_string(RELEASE).unwrap_or_default();
        let release = release(&text).map_or_else(String::new, |release| format!(" {release}"));
        let (cuda, own) = (device.driver_version()?, env!("CARGO_PKG_VERSION"));
        let versions = format!("CUDA {cuda} driver{release}, ringlab {own}");
        let identity = Identity { device: device.name()?, devices, versions };
        let kernels = super::rows::all(device.target());
        let options = Options { collect: false, recording: Recording::Operations, ..options };
        let contexts = Contexts::open(&options, devices as usize)?;
        let sms = device.multiprocessors();
        Ok(Self {
            identity,
            sms,
            kernels,
            options,
            is_cold,
            is_hot: false,
            _contexts: contexts,
            inputs: None,
        })
    }

    fn execute(
        &mut self,
        plan: &Plan,
        launching: Launching,
        options: &Options,
    ) -> Result<Runs, MachineError> {
        let key = format!("{:?} {:?} {}", plan.shape, plan.pass, plan.layout.documents().tokens());
        if self.inputs.as_ref().is_none_or(|(known, _)| *known != key) {
            let inputs = inputs(plan).map_err(|error| MachineError::new(plan, error))?;
            self.inputs = Some((key, inputs));
        }
        let Some((_, inputs)) = &self.inputs else {
            return Err(MachineError::new(plan, "its inputs are gone"));
        };
        let mode = match launching {
            Launching::Stepwise | Launching::Virtual => Mode::Stepwise,
            Launching::Fused => Mode::FusedSegments,
            Launching::FusedQueries => Mode::FusedQueries,
        };
        let devices = match launching {
            Launching::Virtual => Devices::Virtual(0),
            Launching::Stepwise | Launching::Fused | Launching::FusedQueries => self.options.devices.clone(),
        };
        let options = Options { devices, mode, ..options.clone() };
        let run = cuda::run(plan, inputs, &options).map_err(|error| MachineError::new(plan, error))?;
        let makespan = run.measured.makespan();
        let cuda::Measured { makespans, loaded_s, duty, .. } = run.measured;
        Ok(Runs { timeline: run.outcome.timeline, makespan, makespans, loaded_s, duty })
    }
}

/// A time in seconds that a run of `plan` stays below, by its attention.
fn lasts(plan: &Plan, launching: Launching) -> f64 {
    let of = |program: &Program| program.ops.iter().map(|op| plan.flops(&op.kind)).sum::<f64>();
    let each = plan.programs.iter().map(of);
    let flops = if launching == Launching::Virtual { each.sum() } else { each.fold(0.0, f64::max) };
    flops / SURELY
}

impl Machine for GpuMachine {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        self.kernels.clone()
    }

    fn sms(&self) -> Option<u32> {
        Some(self.sms)
    }

    fn sizes(&self) -> Sizes {
        let ki = |list: &[u64]| list.iter().map(|n| n << 10).collect();
        Sizes {
            heads: 16,
            grouped_kv_heads: 4,
            calls: ki(&[1, 2, 4, 8, 16, 32]),
            messages: ki(&[64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10]),
            sequences: ki(&SEQUENCES),
            repeats: 5,
        }
    }

    fn coverage(&self) -> Coverage {
        Coverage::Selected
    }

    fn takes(&self, plan: &Plan) -> bool {
        cuda::check(plan).is_ok()
    }

    fn has_nccl(&self) -> bool {
        cuda::has_nccl()
    }

    fn set_nccl(&mut self, settings: NcclSettings) -> bool {
        let can = settings == NcclSettings::default() || self.has_nccl();
        if can {
            self.options.set_nccl(settings);
        }
        can
    }

    fn has_fused(&self) -> bool {
        true
    }

    fn has_virtual(&self) -> bool {
        true
    }

    fn has_power_limit(&self) -> bool {
        true
    }

    fn load(&self, plan: &Plan, launching: Launching) -> Load {
        match launching {
            _ if self.is_cold && lasts(plan, launching) <= BURST => Load::Cold,
            Launching::Virtual => Load::Virtual,
            _ => Load::Sustained,
        }
    }

    fn run(&mut self, plan: &Plan, launching: Launching, repeats: u32) -> Result<Runs, MachineError> {
        if self.load(plan, launching) == Load::Cold {
            thread::sleep(if std::mem::take(&mut self.is_hot) { REST } else { BREATH });
            let rest = Duration::from_secs_f64(RESTS * lasts(plan, launching)) + PAUSE;
            let options = Options { repeats, rest, sustain: Duration::ZERO, ..self.options.clone() };
            return self.execute(plan, launching, &options);
        }
        let attends = |op: &Op| matches!(op.kind, OpKind::Attend { .. } | OpKind::AttendBackward { .. });
        let loads = plan.programs.iter().any(|program| program.ops.iter().any(attends));
        // Nothing else heats a GPU up.
        let (sustain, window) = if loads {
            (self.options.sustain, LIMITER_PERIOD)
        } else {
            (self.options.sustain.min(BRIEFLY), Duration::ZERO)
        };
        self.is_hot |= loads;
        self.execute(plan, launching, &Options { sustain, window, repeats, ..self.options.clone() })
    }

    fn beyond(&self, plan: &Plan) -> Option<String> {
        super::carried(plan)
    }

    fn run_at(&mut self, plan: &Plan, duty: Duty, repeats: u32) -> Result<Runs, MachineError> {
        let options = Options { repeats, window: LIMITER_PERIOD, ..self.options.clone() };
        self.is_hot = true;
        let options = match duty {
            Duty::Sustained => options,
            Duty::Resting(pause) => Options { rest: Duration::from_secs_f64(pause.as_secs_f64()), ..options },
        };
        self.execute(plan, Launching::Stepwise, &options)
    }

    /// What lies between two calls of a chain: launches are posted ahead, so this is the device's share of them.
    fn launch_costs(&mut self) -> Result<LaunchCosts, MachineError> {
        let (tokens, calls) = CHAIN;
        let shape = ringlab_sim::problem::Shape {
            heads: 16,
            kv_heads: 16,
            head_dim: self.kernels[0].head_dim,
            dtype: Dtype::Bf16,
            batch: 1,
        };
        let free = SimTime::ZERO;
        let Some(plan) = probes::carried(shape, tokens * calls, calls) else {
            return Ok(LaunchCosts { kernel: free, copy: free, nccl: free, spread: 0.0 });
        };
        let runs = self.run(&plan, Launching::Stepwise, 9)?;
        let busy: SimTime = runs.timeline.spans.iter().map(ringlab_sim::timeline::Span::duration).sum();
        let between = runs.timeline.makespan.saturating_sub(busy).as_secs_f64() / calls as f64;
        let gap = SimTime::from_secs_f64(between);
        Ok(LaunchCosts { kernel: gap, copy: gap, nccl: gap, spread: runs.spread() })
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_release_of_a_driver_is_read_from_what_it_says() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc 12.2";
        let open =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder)\n";
        assert_eq!(super::release(closed), Some("535.183.01"));
        assert_eq!(super::release(open), Some("580.159.04"));
        assert_eq!((super::release(""), super::release("nothing\n1.2")), (None, None));
    }
}
