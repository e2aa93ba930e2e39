//! Executes a plan: on CPU threads, or on GPUs of one or more processes.

use std::time::Duration;

use anyhow::Result;
use ringlab_runtime::cpu::{self, RunError};
use ringlab_runtime::cuda::{self, CudaError};
use ringlab_runtime::inputs::Inputs;
use ringlab_runtime::outcome::{Typical, median};
use ringlab_runtime::rendezvous::MeetError;
use ringlab_sim::plan::Plan;
use ringlab_sim::units::SimTime;

use super::executed::Executed;
use super::world::World;
use crate::args::{Backend, CopyArg, ModeArg, RunArgs};

/// What executes plans.
pub enum Engine<'a> {
    /// Threads of this process.
    Cpu {
        /// How long a rank waits for a message.
        timeout: Duration,
        /// Runs that are not measured.
        warmup: u32,
        /// Runs that are.
        repeats: u32,
    },
    /// GPUs of this process, and maybe of others.
    Cuda {
        /// Everything but who the process is.
        options: Box<cuda::Options>,
        /// Who the process is.
        world: &'a World,
        /// Kept open between passes. Where that fails, so does the first pass, which says why.
        _contexts: Option<cuda::Contexts>,
    },
}

impl<'a> Engine<'a> {
    /// What the arguments ask for.
    pub fn new(args: &RunArgs, world: &'a World) -> Self {
        let timeout = Duration::from_secs_f64(args.timeout.as_secs_f64());
        if args.backend == Backend::Cpu {
            return Self::Cpu { timeout, warmup: args.warmup(), repeats: args.repeats() };
        }
        let mut options = cuda::Options {
            devices: world.devices(),
            mode: match args.gpu.mode {
                None | Some(ModeArg::Auto) => cuda::Mode::Auto,
                Some(ModeArg::Stepwise) => cuda::Mode::Stepwise,
                Some(ModeArg::Fused) => cuda::Mode::FusedSegments,
                Some(ModeArg::FusedQueries) => cuda::Mode::FusedQueries,
            },
            copies: match args.gpu.copy {
                None | Some(CopyArg::Push) => cuda::Copies::Push,
                Some(CopyArg::Pull) => cuda::Copies::Pull,
            },
            warmup: args.warmup(),
            sustain: args.sustain.unwrap_or_default(),
            window: args
                .sustain
                .filter(|load| !load.is_zero())
                .map_or(Duration::ZERO, |_| cuda::LIMITER_PERIOD),
            repeats: args.repeats(),
            timeout,
            deterministic: args.gpu.deterministic,
            ..cuda::Options::default()
        };
        options.set_nccl(args.gpu.nccl.settings());
        let contexts = cuda::Contexts::open(&options, world.ranks_here() as usize).ok();
        Self::Cuda { options: Box::new(options), world, _contexts: contexts }
    }

    /// Runs `plan` on `inputs`. In a run of several processes the first gets the results of all, the others their own.
    ///
    /// # Errors
    /// Those of the executor; of several processes, the first that failed.
    pub fn execute(&self, plan: &Plan, inputs: &Inputs) -> Result<Executed> {
        match self {
            Self::Cpu { timeout, warmup, repeats } => {
                let options = cpu::RunOptions { timeout: *timeout, fault: None };
                Ok(on_threads(plan, inputs, &options, *warmup, *repeats)?)
            }
            Self::Cuda { options, world, .. } => {
                let mut options = options.as_ref().clone();
                options.nccl.world = world.next_communicator()?;
                match cuda::run(plan, inputs, &options) {
                    Ok(run) => world.share(plan, run),
                    Err(error) => Err(world.root_cause(error)),
                }
            }
        }
    }
}

fn on_threads(
    plan: &Plan,
    inputs: &Inputs,
    options: &cpu::RunOptions,
    warmup: u32,
    repeats: u32,
) -> Result<Executed, RunError> {
    for _ in 0..warmup {
        cpu::run(plan, inputs, options)?;
    }
    let outcomes =
        (0..repeats.max(1)).map(|_| cpu::run(plan, inputs, options)).collect::<Result<Vec<_>, _>>()?;
    let time = |d: Duration| SimTime::from_secs_f64(d.as_secs_f64());
    let recorded: Vec<SimTime> = outcomes.iter().map(|o| time(o.wall_time)).collect();
    let middle = median(&recorded);
    let at = recorded.iter().position(|t| *t == middle).unwrap_or(0);
    let outcome = outcomes.into_iter().nth(at);
    // There is at least one repeat.
    let outcome = outcome.unwrap_or_else(|| unreachable!("a run without a repeat"));
    let (typical, unrecorded) = (Typical::Median, Vec::new());
    Ok(Executed { outcome, typical, recorded, unrecorded, gpu: None, notes: Vec::new() })
}

/// Whether the input was good and the run broke all the same.
pub fn is_failure(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let cuda = cause.downcast_ref::<CudaError>().is_some_and(|e| {
            matches!(
                e,
                CudaError::TimedOut { .. }
                    | CudaError::Deadlock { .. }
                    | CudaError::Unwritten { .. }
                    | CudaError::Nccl { .. }
                    | CudaError::Thread { .. }
            )
        });
        let meeting = cause.downcast_ref::<MeetError>().is_some_and(|e| {
            matches!(e, MeetError::Absent { .. } | MeetError::Silent { .. } | MeetError::Failed { .. })
        });
        cuda || meeting || cause.is::<RunError>()
    })
}
