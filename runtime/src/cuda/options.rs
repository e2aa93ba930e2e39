//! How a plan is run on GPUs, and what was measured.

use std::time::Duration;

use ringlab_kernels::variant::Path;
use ringlab_sim::config::cluster::{NcclSettings, Priority};
use ringlab_sim::plan::Rank;
use ringlab_sim::units::{Bytes, SimTime};

use crate::outcome::{Outcome, Typical};

/// How to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Which GPUs.
    pub devices: Devices,
    /// How the attention calls of one state are launched.
    pub mode: Mode,
    /// Which end of a message copies it; of plans for copy engines.
    pub copies: Copies,
    /// Of plans for NCCL.
    pub nccl: Nccl,
    /// Runs before the measured ones, at least 1: they load kernels and build connections.
    pub warmup: u32,
    /// How long runs follow each other, after the first, before the measured ones begin: a GPU's clock falls under load, so
    /// a time is one after so long. More runs than `warmup` if need be; of one process only.
    pub sustain: Duration,
    /// The measured runs, of both kinds in turn, go on for a multiple of this, in more repeats than `repeats` if need be; then their mean
    /// counts, not their median. Zero for `repeats` alone; of one process only.
    pub window: Duration,
    /// How long GPUs rest after each run, so that they are loaded for a part of the time only; zero for not at all.
    pub rest: Duration,
    /// Measured runs of each kind, at least 1.
    pub repeats: u32,
    /// Which repeats are measured.
    pub recording: Recording,
    /// Whether to bring the results back; without, they are empty, and only the times count.
    pub collect: bool,
    /// How long the host waits for one run.
    pub timeout: Duration,
    /// Whether the backward adds to dq in a fixed order, so that equal inputs give equal bits.
    pub deterministic: bool,
    /// Family of kernels; `None` for the fastest that the GPU runs.
    pub kernels: Option<Path>,
}

/// Under lasting load the clock of an H200 goes down by 3 to 5% for 0.4 s of each second, as a limiter holds the mean power of a
/// second (clocks of 172 loads, experiments/results/h200-validation-2026-11-30): a time is a mean over whole seconds.
pub const LIMITER_PERIOD: Duration = Duration::from_secs(1);

impl Default for Options {
    /// GPUs 0 to P-1, stepwise, pushed copies, 2 warm-up runs and no load before, 5 repeats of each kind, a time-out of 60 s.
    fn default() -> Self {
        Self {
            devices: Devices::First,
            mode: Mode::Auto,
            copies: Copies::Push,
            nccl: Nccl::default(),
            warmup: 2,
            sustain: Duration::ZERO,
            window: Duration::ZERO,
            rest: Duration::ZERO,
            repeats: 5,
            recording: Recording::Both,
            collect: true,
            timeout: Duration::from_secs(60),
            deterministic: false,
            kernels: None,
        }
    }
}

impl Options {
    /// Lets plans for NCCL have `settings`; who the process is stays.
    pub fn set_nccl(&mut self, NcclSettings { ctas, priority }: NcclSettings) {
        self.nccl.max_ctas = ctas;
        self.nccl.high_priority = priority == Priority::High;
    }
}

/// Which repeats are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recording {
    /// Some with an event around every operation, and as many with their start and their end timed and nothing else.
    #[default]
    Both,
    /// The first kind alone.
    Operations,
}

/// Which GPU runs which rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Devices {
    /// Rank r runs on GPU r.
    First,
    /// Rank r runs on the r-th of these GPUs, all different.
    List(Vec<usize>),
    /// All ranks run on this one GPU, one operation after the other: the numbers and each operation's time are real, the
    /// timeline is not that of a group of GPUs, and nothing is said about scaling.
    Virtual(usize),
}

impl Devices {
    /// The GPUs that `ranks` ranks run on.
    pub(super) fn ordinals(&self, ranks: usize) -> Vec<usize> {
        match self {
            Self::First => (0..ranks).collect(),
            Self::List(list) => list.clone(),
            Self::Virtual(gpu) => vec![*gpu],
        }
    }
}

/// How the forward's attention calls into one state are launched. Backward calls are always launched one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// [`Mode::Stepwise`]: on two H200s fused launches were within 2% of it (zigzag, 16Ki: 657 stepwise, 663 TFLOP/s fused by
    /// queries; 64Ki: 650, 660; 128Ki: 656, 660; `experiments/results/h200-runtime-2026-11-30-2`), and each needs room of its own.
    #[default]
    Auto,
    /// One launch a call; the state is carried from one to the next in memory.
    Stepwise,
    /// One launch a state, which waits on the device for the keys of each call: every query tile goes over all calls'
    /// keys, its state in registers.
    FusedQueries,
    /// One launch a state, which does all query tiles of the first call, then of the second: late keys are waited for
    /// late, and the state passes through memory.
    FusedSegments,
}

/// Which end of a message copies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Copies {
    /// The sender's copy engine writes to the receiver.
    #[default]
    Push,
    /// The receiver's copy engine reads from the sender.
    Pull,
}

/// NCCL's part of the options.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Nccl {
    /// Most CTAs, and so SMs, of one transfer; `None` for NCCL's choice.
    pub max_ctas: Option<u32>,
    /// Whether transfers have streams of high priority, so that their CTAs go before those of waiting kernels.
    pub high_priority: bool,
    /// Ranks in other processes; `None` where all ranks are threads of this one.
    pub world: Option<NcclWorld>,
}

/// This process's part of a group of ranks that spans processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NcclWorld {
    /// The same for all processes, by [`super::unique_id`] of one of them.
    pub unique_id: [u8; 128],
    /// The ranks that run here, in order; [`Devices`] names a GPU for each of these.
    pub ranks: Vec<Rank>,
}

/// A plan that was executed, and what was measured of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Tensors, bytes and the timeline that stands for all repeats. Rows of ranks that did not run here are NaN.
    pub outcome: Outcome,
    /// The rest.
    pub measured: Measured,
}

/// What only a run on GPUs has. Times are those of device events.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Which makespan stands for all: the median, or the mean where runs had to go on for a [window](Options::window).
    pub typical: Typical,
    /// From the first rank's start to the last operation's end, of each repeat that timed every operation.
    pub makespans: Vec<SimTime>,
    /// The same of repeats that timed nothing else.
    pub unrecorded: Vec<SimTime>,
    /// Largest error by which two ranks' clocks may differ in the timeline: half the shortest round trip between them.
    pub alignment_error: SimTime,
    /// Longest time that a rank's host took to post one run.
    pub posting: SimTime,
    /// How long runs had followed each other when the measured ones began, from the end of the first; in seconds.
    pub loaded_s: f64,
    /// Share of the measured runs' wall time in which GPUs worked: makespans, and with a load before also what fills the time
    /// between runs, by its time when it was first seen. Below one, GPUs had pauses to raise their clock.
    pub duty: f64,
    /// Memory allocated for each rank's tensors, what the executor itself needs among them.
    pub peak_bytes: Vec<Bytes>,
    /// Memory that contexts, kernels and communicators took on the fullest GPU.
    pub context_bytes: Bytes,
    /// Name of each rank's GPU.
    pub device_names: Vec<String>,
    /// Version of the driver's CUDA, as in `13.0`.
    pub driver: String,
    /// The ranks that ran here.
    pub ranks: Vec<Rank>,
    /// Whether all ranks shared one GPU: see [`Devices::Virtual`].
    pub is_virtual: bool,
    /// How attention was launched: never [`Mode::Auto`].
    pub mode: Mode,
    /// What a user must be told: a fall-back, bytes that go along.
    pub notes: Vec<String>,
}

impl Measured {
    /// The makespan that stands for those without recording, else for those with.
    pub fn makespan(&self) -> SimTime {
        let all = if self.unrecorded.is_empty() { &self.makespans } else { &self.unrecorded };
        self.typical.of(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_nccl_are_set_and_taken_back() {
        let world = Some(NcclWorld { unique_id: [7; 128], ranks: vec![1] });
        let nccl = |max_ctas, high_priority| Nccl { max_ctas, high_priority, world: world.clone() };
        let mut options = Options { nccl: nccl(None, false), ..Options::default() };
        let as_it_was = options.clone();
        options.set_nccl(NcclSettings { ctas: Some(8), priority: Priority::High });
        assert_eq!(options, Options { nccl: nccl(Some(8), true), ..as_it_was.clone() });
        options.set_nccl(NcclSettings::default());
        assert_eq!(options, as_it_was);
    }
}
