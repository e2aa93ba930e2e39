//! Arguments of `run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};
use ringlab_sim::units::SimTime;

use super::durations::{milliseconds, seconds};
use super::numbers::{GPUS, whole};
use super::{NcclArgs, OutputArgs, SetupArgs};

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Backend {
    /// One thread a rank, fp32, exact.
    Cpu,
    /// GPUs.
    Cuda,
}

impl Backend {
    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// How the attention calls of one state are launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ModeArg {
    /// One launch a call: fused launches were no faster where both were measured.
    Auto,
    /// One launch a call.
    Stepwise,
    /// One launch a state, segment after segment of keys.
    #[value(alias = "fused-segments")]
    Fused,
    /// One launch a state, query tile after query tile, its state in registers.
    FusedQueries,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum CopyArg {
    /// The sender's copy engine writes.
    Push,
    /// The receiver's copy engine reads.
    Pull,
}

#[derive(Args)]
#[command(after_help = "Examples:
  ringlab run --backend cpu
  ringlab run --seq 999 --pad --cp 5 --schedule dist-flash --pass forward+backward
  ringlab run --heads 4 --kv-heads 1 --head-dim 64 --mask docs:9,8,8,12,8,12 --pad --cp 2
  ringlab run --errors-over-cp 1,2,4,8 --schedule ring,zigzag --pass forward+backward --seq 256
  ringlab run --backend cuda --cluster hgx-h200 --cp 2 --seq 128Ki --schedule ring,zigzag
  ringlab run --backend cuda --virtual --cp 8 --schedule all
  ringlab run --backend cuda --cp 8 --metrics run.prom --trace run.json
  torchrun --standalone --nproc-per-node 8 --no-python ringlab run --backend cuda --transport nccl
  srun -N 2 --ntasks-per-node 8 ringlab run --backend cuda --transport nccl --rendezvous $HOME/meet")]
pub struct RunArgs {
    #[command(flatten)]
    pub setup: SetupArgs,
    #[command(flatten)]
    pub out: OutputArgs,
    /// What executes the plan.
    #[arg(long, value_enum, default_value = "cpu")]
    pub backend: Backend,
    /// Seed of the random inputs.
    #[arg(long, default_value_t = 0, value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// Give up on a rank that is not heard of for this long, e.g. 60 s.
    #[arg(long, default_value = "60 s")]
    pub timeout: SimTime,
    /// Fail (exit 1) if a relative error is larger: of the worst row on CPUs [default: 1e-5]; on GPUs, whose elements have
    /// 16 bits, in the L2 norm [default: 4e-3 for o, 8e-3 for gradients; 1e-4 for rows of lse].
    #[arg(long)]
    pub max_error: Option<f64>,
    /// Hold only so many rows of each result against the reference; 0 holds none [default: all, where that takes the CPU
    /// seconds; else 32].
    #[arg(long, value_name = "N", value_parser = whole::<usize>(0..=u64::MAX))]
    pub sample_rows: Option<usize>,
    /// Runs before the measured ones; at least 1 on GPUs, where it loads kernels [default: 0 on CPUs, 2 on GPUs].
    #[arg(long, value_name = "N", value_parser = whole::<u32>(0..=1_000_000))]
    pub warmup: Option<u32>,
    /// Let the GPUs work for so long before the measured runs, e.g. 300 ms: their clock falls under load. The measured runs go on
    /// for a second or more, and their mean is shown: a clock under load goes up and down within one [default: no longer than
    /// --warmup].
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub sustain: Option<Duration>,
    /// Measured runs, of which the median is shown, with --sustain no fewer than these and their mean [default: 1 on CPUs, 5 on GPUs].
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1_000_000))]
    pub repeats: Option<u32>,
    /// Stop before a pass that may not end within so many seconds from the start, and show what was done; exit 0 if that is
    /// good.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub limit: Option<Duration>,
    /// Run every schedule on each of these numbers of ranks and show how the errors grow; on GPUs with --virtual.
    #[arg(long, value_name = "P,P,...", value_delimiter = ',', value_parser = whole::<u32>(1..=65536))]
    pub errors_over_cp: Vec<u32>,
    /// Print the times of every rank [default: on GPUs only; JSON always has them].
    #[arg(long)]
    pub per_rank: bool,
    /// Write the measured timelines as a Chrome trace.
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// Draw the measured timelines: SVG or PNG by the file's ending.
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    pub plot: Option<PathBuf>,
    /// Write the spans of the measured timelines as CSV.
    #[arg(long, value_name = "FILE.csv")]
    pub timeline_csv: Option<PathBuf>,
    #[command(flatten)]
    pub gpu: GpuArgs,
    #[command(flatten)]
    pub place: PlaceArgs,
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// Whether --cp was given; a launcher may say otherwise what it is.
    #[arg(skip)]
    pub cp_given: bool,
}

/// How GPUs run a plan.
#[derive(Args)]
pub struct GpuArgs {
    /// How the forward's attention calls are launched [default: auto].
    #[arg(long, value_enum, help_heading = "GPUs")]
    pub mode: Option<ModeArg>,
    /// Which end of a message copies it; with --transport copy-engine [default: push].
    #[arg(long, value_enum, help_heading = "GPUs")]
    pub copy: Option<CopyArg>,
    #[command(flatten)]
    pub nccl: NcclArgs,
    /// All ranks on one GPU, one operation after the other: numbers and memory are real, nothing is said about scaling.
    #[arg(long = "virtual", help_heading = "GPUs")]
    pub is_virtual: bool,
    /// GPUs of this process's ranks, in order [default: 0, 1, ...; from the local rank on].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "GPUs", value_parser = whole::<usize>(GPUS))]
    pub gpus: Vec<usize>,
    /// Add gradients in a fixed order, so that equal inputs give equal bits.
    #[arg(long, help_heading = "GPUs")]
    pub deterministic: bool,
}

/// Who this process is; torchrun, srun and mpirun say it by themselves.
#[derive(Args)]
pub struct PlaceArgs {
    /// This process among all, from 0.
    #[arg(long, value_name = "R", help_heading = "Processes")]
    pub rank: Option<u32>,
    /// Processes of the run.
    #[arg(long, value_name = "N", help_heading = "Processes")]
    pub world_size: Option<u32>,
    /// This process among those of its node, from 0.
    #[arg(long, value_name = "R", help_heading = "Processes")]
    pub local_rank: Option<u32>,
    /// Ranks, and so GPUs, of each process.
    #[arg(long, value_name = "N", help_heading = "Processes", value_parser = whole::<u32>(1..=65536))]
    pub ranks_per_process: Option<u32>,
    /// Folder that all processes see, in which they meet [default on one node: the system's temporary folder].
    #[arg(long, value_name = "FOLDER", help_heading = "Processes")]
    pub rendezvous: Option<PathBuf>,
    /// Tells runs in one folder apart [default: the launcher's id].
    #[arg(long, value_name = "ID", help_heading = "Processes")]
    pub run_id: Option<String>,
}

/// Where metrics go.
#[derive(Args)]
pub struct MetricsArgs {
    /// Write Prometheus metrics to a file, or serve them at an address such as 127.0.0.1:9464 while the run lasts.
    #[arg(long, value_name = "FILE|ADDR", help_heading = "Metrics")]
    pub metrics: Option<String>,
    /// Allow an address that other machines reach; the metrics have no password.
    #[arg(long, requires = "metrics", help_heading = "Metrics")]
    pub metrics_public: bool,
    /// Go on serving after the run, until Ctrl-C.
    #[arg(long, requires = "metrics", help_heading = "Metrics")]
    pub hold: bool,
}

impl RunArgs {
    /// Notes which of the options that have a default were given.
    pub fn note_sources(&mut self, matches: &ArgMatches) {
        self.cp_given = matches.value_source("cp") == Some(ValueSource::CommandLine);
    }

    /// Runs before the measured ones.
    pub fn warmup(&self) -> u32 {
        match self.backend {
            Backend::Cpu => self.warmup.unwrap_or(0),
            Backend::Cuda => self.warmup.unwrap_or(2).max(1),
        }
    }

    /// Measured runs.
    pub fn repeats(&self) -> u32 {
        self.repeats.unwrap_or(match self.backend {
            Backend::Cpu => 1,
            Backend::Cuda => 5,
        })
    }

    /// Options that only GPUs have, of those that were given.
    pub fn only_for_gpus(&self) -> Vec<&'static str> {
        let (gpu, place) = (&self.gpu, &self.place);
        let [ctas, priority] = gpu.nccl.given();
        let given = [
            ("--sustain", self.sustain.is_some()),
            ("--mode", gpu.mode.is_some()),
            ("--copy", gpu.copy.is_some()),
            ctas,
            priority,
            ("--virtual", gpu.is_virtual),
            ("--gpus", !gpu.gpus.is_empty()),
            ("--rank", place.rank.is_some()),
            ("--world-size", place.world_size.is_some()),
            ("--local-rank", place.local_rank.is_some()),
            ("--ranks-per-process", place.ranks_per_process.is_some()),
            ("--rendezvous", place.rendezvous.is_some()),
            ("--run-id", place.run_id.is_some()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }
}
