//! Machines that plans are measured on: CPU threads and GPUs behind one interface, for calibration and validation.

mod cpu;
mod gpu;
mod identity;
mod rows;

use ringlab_sim::config::cluster::{Cluster, Grid, Items, KernelUse, NcclSettings, Sections};
use ringlab_sim::engine::{Load, SimOptions};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::tiles::TileShape;
use ringlab_sim::timeline::{SpanKind, Timeline};
use ringlab_sim::units::{Bytes, SimTime};
use serde::{Deserialize, Serialize};
use statrs::statistics::{Data, OrderStatistics, Statistics};
use thiserror::Error;

pub use cpu::CpuMachine;
pub use gpu::GpuMachine;
#[cfg(test)]
pub(crate) use gpu::SEQUENCES as GPU_SEQUENCES;
pub use identity::Identity;

use crate::cuda::{self, CudaError};
use crate::inputs::{InputError, Inputs};
use crate::outcome::Forward;

/// An attention kernel of a machine, as the cost model sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineKernel {
    /// Implementation.
    pub name: String,
    /// Head dimension.
    pub head_dim: u32,
    /// Element type.
    pub dtype: Dtype,
    /// Forward or backward.
    pub pass: Pass,
    /// Queries and keys of a tile.
    pub tile: TileShape,
    /// What a work item is.
    pub items: Items,
    /// How its work items reach the SMs.
    pub grid: Grid,
    /// The calls that it is launched for; without it, all that no other kernel takes.
    pub used_for: Option<KernelUse>,
    /// The order in which its queue is handed out.
    pub sections: Option<Sections>,
    /// Calls over so many keys or fewer run kernels that have no row: this one stands for them, and is not fitted to them.
    pub fitted_above: u64,
}

impl MachineKernel {
    /// One sequence of so many heads for it, none of which share keys.
    pub fn shape(&self, heads: u32) -> Shape {
        Shape { heads, kv_heads: heads, head_dim: self.head_dim, dtype: self.dtype, batch: 1 }
    }

    /// What its calls are in a timeline.
    pub fn span_kind(&self) -> SpanKind {
        match self.pass {
            Pass::Forward => SpanKind::Attend,
            Pass::Backward => SpanKind::AttendBackward,
        }
    }

    /// Whether the kernels are for the same calls but for a condition.
    pub fn is_sibling(&self, other: &Self) -> bool {
        (self.head_dim, self.dtype, self.pass) == (other.head_dim, other.dtype, other.pass)
    }
}

/// Time of the host for each call that it makes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LaunchCosts {
    /// Launching a kernel.
    pub kernel: SimTime,
    /// Posting a copy.
    pub copy: SimTime,
    /// Posting an NCCL group; that of a copy where there is no NCCL.
    pub nccl: SimTime,
    /// Standard deviation of the repeats, over their median.
    pub spread: f64,
}

/// Sizes that calibration and validation use on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// Query heads H.
    pub heads: u32,
    /// Key/value heads of the grouped cases.
    pub grouped_kv_heads: u32,
    /// Lengths of single attention calls, in tokens.
    pub calls: Vec<u64>,
    /// Sizes of single messages, in bytes of keys and values.
    pub messages: Vec<u64>,
    /// Lengths of whole sequences, in tokens.
    pub sequences: Vec<u64>,
    /// Repeats of each point, at least; see [`Runs::makespan`].
    pub repeats: u32,
}

/// Which points validation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// All.
    Full,
    /// A selection that varies each thing by itself.
    Selected,
}

/// How attention calls follow each other on a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Launching {
    /// One call a step.
    Stepwise,
    /// One call over all steps, which does all queries of a step before the next and waits for what arrives.
    Fused,
    /// One call over all steps, which does all steps of a query tile before the next tile.
    FusedQueries,
    /// All ranks on one device, one operation after the other: each computation is timed, and what a group would take is
    /// those times on modelled links.
    Virtual,
}

impl Launching {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stepwise => "stepwise",
            Self::Fused => "fused",
            Self::FusedQueries => "fused-queries",
            Self::Virtual => "virtual",
        }
    }
}

/// How devices are loaded while a plan is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    /// For long, without a pause.
    Sustained,
    /// For long, with a pause of this length after each repeat.
    Resting(SimTime),
}

/// Repeats of one plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Runs {
    /// The repeat whose makespan is the median; under lasting load, every operation from the mean of its starts to that of its
    /// ends.
    pub timeline: Timeline,
    /// Median of the makespans; under lasting load, their mean over a second or more.
    pub makespan: SimTime,
    /// Of every repeat.
    pub makespans: Vec<SimTime>,
    /// How long the devices had been working when the first of them began, in seconds; zero where it was not measured.
    pub loaded_s: f64,
    /// Makespans over the wall time of all repeats; zero where it was not measured.
    pub duty: f64,
}

impl Runs {
    /// A single repeat, of devices that worked for the share `duty` of its time and not before it.
    pub fn once(timeline: Timeline, duty: f64) -> Self {
        let makespan = timeline.makespan;
        Self { timeline, makespan, makespans: vec![makespan], loaded_s: 0.0, duty }
    }

    /// Standard deviation of the makespans over their median; zero for a single one.
    pub fn spread(&self) -> f64 {
        if self.makespans.len() < 2 {
            return 0.0;
        }
        let seconds: Vec<f64> = self.makespans.iter().map(|t| t.as_secs_f64()).collect();
        let median = Data::new(seconds.clone()).median();
        if median > 0.0 { seconds.iter().std_dev() / median } else { 0.0 }
    }
}

/// Something that executes plans and says how long each operation took.
pub trait Machine {
    /// Who it is.
    fn identity(&self) -> Identity;

    /// Its kernels.
    fn kernels(&self) -> Vec<MachineKernel>;

    /// SMs of a device; `None` where the base cluster's number holds.
    fn sms(&self) -> Option<u32> {
        None
    }

    /// Sizes that fill it and take seconds, not minutes.
    fn sizes(&self) -> Sizes;

    /// How much of what it can do is validated.
    fn coverage(&self) -> Coverage {
        Coverage::Full
    }

    /// Whether it has what `plan` needs.
    fn takes(&self, _plan: &Plan) -> bool {
        true
    }

    /// How [`Machine::run`] loads the devices for `plan`.
    fn load(&self, _plan: &Plan, launching: Launching) -> Load {
        if launching == Launching::Virtual { Load::Virtual } else { Load::Sustained }
    }

    /// What executing `plan` moves or computes otherwise than the plan counts, so that its time says nothing of a prediction;
    /// `None` for most plans.
    fn beyond(&self, _plan: &Plan) -> Option<String> {
        None
    }

    /// Whether messages can also go by NCCL.
    fn has_nccl(&self) -> bool {
        false
    }

    /// Lets NCCL transfers have `settings` in all that is run from now on, and says whether it can; if not, nothing has changed.
    /// A machine starts with the default.
    fn set_nccl(&mut self, settings: NcclSettings) -> bool {
        settings == NcclSettings::default()
    }

    /// Whether transfers move beside attention calls without the processor's help.
    fn has_overlap(&self) -> bool {
        true
    }

    /// Whether calls can be fused.
    fn has_fused(&self) -> bool {
        false
    }

    /// Whether ranks can be virtual.
    fn has_virtual(&self) -> bool {
        false
    }

    /// Executes `plan`, which has no more ranks than there are devices unless they are virtual, `repeats` times or more after a warm-up, on
    /// random inputs.
    ///
    /// # Errors
    /// [`MachineError`] as the executor gave up.
    fn run(&mut self, plan: &Plan, launching: Launching, repeats: u32) -> Result<Runs, MachineError>;

    /// Whether a power limit sets the clock. Then calibration wants [`Machine::run`] to let short runs follow a rest, so that
    /// their clock is the highest, and [`Machine::run_at`] to know all of [`Duty`].
    fn has_power_limit(&self) -> bool {
        false
    }

    /// As [`Machine::run`], one call a step, with the devices loaded like this.
    ///
    /// # Errors
    /// As [`Machine::run`].
    fn run_at(&mut self, plan: &Plan, _duty: Duty, repeats: u32) -> Result<Runs, MachineError> {
        self.run(plan, Launching::Stepwise, repeats)
    }

    /// What the host spends on each call.
    ///
    /// # Errors
    /// [`MachineError`] as the executor gave up.
    fn launch_costs(&mut self) -> Result<LaunchCosts, MachineError>;
}

/// How a run that is measured under `load` is predicted on `cluster`: where no clock is known, the kernels' rates are those at
/// which they were measured.
pub(crate) fn predicted_under(load: Load, cluster: &Cluster) -> SimOptions {
    let is_unknown = load == Load::Cold && cluster.device.power.is_none();
    SimOptions { load: if is_unknown { Load::Sustained } else { load }, ..SimOptions::default() }
}

/// Why a machine did not execute a plan.
#[derive(Debug, Error)]
#[error("{plan}: {source}")]
pub struct MachineError {
    /// What was executed.
    pub plan: String,
    /// Why it ended.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl MachineError {
    /// `error` while `plan` was executed.
    pub fn new(plan: &Plan, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let title = format!("{} {} on {} ranks", plan.name, plan.pass, plan.ranks());
        Self { plan: title, source: error.into() }
    }

    /// Whether the plan did not end, so that others may not either.
    pub(crate) fn is_hang(&self) -> bool {
        self.source.downcast_ref::<CudaError>().is_some_and(|cause| {
            matches!(
                cause,
                CudaError::TimedOut { .. } | CudaError::Deadlock { .. } | CudaError::Thread { .. }
            )
        })
    }

    /// Whether the plan was not begun, for want of something that other plans do not need.
    pub fn is_refusal(&self) -> bool {
        self.source.downcast_ref::<CudaError>().is_some_and(|cause| {
            matches!(
                cause,
                CudaError::NotFusable { .. } | CudaError::OutOfMemory { .. } | CudaError::Unsupported { .. }
            )
        })
    }
}

const SEED: u64 = 0x1ab;

/// Tokens of random values after which inputs repeat themselves.
const PERIOD: u64 = 1 << 10;

/// Random inputs of the plan's size, which repeat every [`PERIOD`] tokens: times do not depend on it, and long sequences
/// need not be drawn number by number. What a backward gets as its forward's result is random too, with an lse that keeps
/// the weights as small as real ones.
pub(crate) fn inputs(plan: &Plan) -> Result<Inputs, InputError> {
    let documents = plan.layout.documents();
    let tokens = documents.tokens() - documents.padding();
    let stored = tokens.min(PERIOD);
    let problem = Problem { shape: plan.shape, pattern: Pattern::Full, documents: vec![stored] };
    let inputs = Inputs::random(SEED, &problem)?;
    let rows = inputs.q.len() / plan.shape.head_dim as usize;
    let forward = (plan.pass == Pass::Backward)
        .then(|| Forward { o: inputs.q.clone(), lse: vec![(tokens as f32).ln() + 0.5; rows] });
    Ok(Inputs { tokens: tokens as usize, period: Some(stored as usize), forward, ..inputs })
}

/// What goes along with the messages of `plan` whose results travel with layer inputs and outputs; see [`Machine::beyond`].
fn carried(plan: &Plan) -> Option<String> {
    let carried = Bytes(cuda::carried_bytes(plan));
    (carried.0 > 0).then(|| format!("{carried} go along with its messages beyond what the plan counts"))
}

#[cfg(test)]
mod tests {
    use ringlab_sim::schedule::{self, Schedule};

    use super::*;
    use crate::cpu;

    /// The same inputs with every token stored.
    fn whole(inputs: &Inputs) -> Inputs {
        let repeat = |values: &[f32]| {
            let row = values.len() / inputs.stored();
            (0..inputs.tokens * row).map(|i| values[i % (inputs.stored() * row)]).collect::<Vec<f32>>()
        };
        let forward = inputs.forward.as_ref().map(|forward| Forward {
            o: repeat(&forward.o),
            lse: vec![forward.lse[0]; inputs.tokens * inputs.shape.heads as usize],
        });
        let [q, k, v, d_o] = [&inputs.q, &inputs.k, &inputs.v, &inputs.d_o].map(|x| repeat(x));
        Inputs { q, k, v, d_o, forward, period: None, ..inputs.clone() }
    }

    #[test]
    fn inputs_that_repeat_themselves_are_those_that_are_written_out() {
        let shape = Shape { heads: 2, kv_heads: 1, head_dim: 4, dtype: Dtype::Fp32, batch: 1 };
        let tokens = PERIOD + 40;
        let problem = Problem { shape, pattern: Pattern::Window(50), documents: vec![tokens] };
        for pass in [Pass::Forward, Pass::Backward] {
            let options = schedule::Options::new(pass);
            let plan = schedule::build(Schedule::Zigzag, &problem, 2, &options).unwrap();
            let short = inputs(&plan).unwrap();
            assert_eq!((short.tokens as u64, short.stored() as u64), (tokens, PERIOD));
            let run = |inputs: &Inputs| cpu::run(&plan, inputs, &cpu::RunOptions::default()).unwrap().results;
            assert_eq!(run(&short), run(&whole(&short)), "{pass}");
        }
    }
}
