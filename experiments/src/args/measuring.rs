//! Arguments of the commands that measure: calibrate, validate.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ringlab_runtime::machine::Launching;
use ringlab_sim::units::Tokens;

use super::durations::seconds;
use super::numbers::whole;
use super::{LoadArg, NcclArgs, OutputArgs, PassArg, TransportArg};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MachineArg {
    /// This processor's threads.
    Cpu,
    /// This machine's GPUs.
    Cuda,
}

/// How attention calls follow each other.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LaunchingArg {
    /// One launch a call.
    Stepwise,
    /// One launch a state, segment after segment of keys.
    Fused,
    /// One launch a state, query tile after query tile.
    FusedQueries,
    /// All ranks on one GPU.
    Virtual,
}

impl From<LaunchingArg> for Launching {
    fn from(arg: LaunchingArg) -> Self {
        match arg {
            LaunchingArg::Stepwise => Self::Stepwise,
            LaunchingArg::Fused => Self::Fused,
            LaunchingArg::FusedQueries => Self::FusedQueries,
            LaunchingArg::Virtual => Self::Virtual,
        }
    }
}

#[derive(Args)]
#[command(
    after_help = "The cluster goes to standard output or FILE, how well each fit went to standard error.

Examples:
  ringlab calibrate -o laptop.toml
  ringlab calibrate --backend cpu -o laptop.toml && ringlab validate --cluster laptop.toml"
)]
pub struct CalibrateArgs {
    /// What is measured.
    #[arg(long, value_enum, default_value = "cpu")]
    pub backend: MachineArg,
    /// Cluster that gives what is not measured: memory, peaks, topology [default: by the device's name].
    #[arg(long, value_name = "NAME|FILE.toml")]
    pub base: Option<String>,
    /// Write the cluster to a file instead of standard output.
    #[arg(short, long, value_name = "FILE.toml")]
    pub output: Option<PathBuf>,
    /// Write every measured point beside what the fit makes of it as CSV.
    #[arg(long, value_name = "FILE.csv")]
    pub samples: Option<PathBuf>,
}

#[derive(Args)]
#[command(after_help = "Error is predicted / measured - 1; MAPE is the mean of its magnitude, bias its mean.

Examples:
  ringlab validate --cluster laptop.toml
  ringlab validate --cluster laptop.toml --schedule ring,zigzag --max-mape 25 --max-error 60
  ringlab validate --cluster node.toml --backend cuda --limit 240 --launching stepwise,virtual
  ringlab validate --cluster node.toml --backend cuda --transport nccl --nccl-ctas 8 --nccl-priority high
  ringlab validate --cluster laptop.toml --format json -o validation.json --plot validation.svg
  ringlab validate --cluster laptop.toml --measured validation.json --max-bias 2")]
pub struct ValidateArgs {
    /// Calibrated cluster of this machine.
    #[arg(long, value_name = "FILE.toml")]
    pub cluster: String,
    /// Predict the points of an earlier report (--format json) anew and hold them against what it measured: no machine is needed.
    /// The cluster must be of the same device and number of devices; NCCL is predicted with the settings of the report.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["backend", "load", "limit", "nccl_ctas", "nccl_priority"])]
    pub measured: Option<PathBuf>,
    /// Cluster on whose links the report's virtual ranks were put: they are predicted on those too [default: --cluster].
    #[arg(long, value_name = "NAME|FILE.toml", requires = "measured")]
    pub links_of: Option<String>,
    /// What executes the plans.
    #[arg(long, value_enum, default_value = "cpu")]
    pub backend: MachineArg,
    /// How GPUs are loaded where they are measured: for long, or, in runs of up to some 30 ms, after a rest, at the highest clock
    /// [default: cold].
    #[arg(long, value_enum)]
    pub load: Option<LoadArg>,
    /// Only these schedules [default: all].
    #[arg(long, value_delimiter = ',')]
    pub schedule: Vec<String>,
    /// Only these lengths of the matrix, in tokens [default: all].
    #[arg(long, value_delimiter = ',')]
    pub seq: Vec<Tokens>,
    /// Only this pass [default: both].
    #[arg(long, value_enum, default_value = "forward+backward")]
    pub pass: PassArg,
    /// Only these numbers of key/value heads [default: all of the matrix].
    #[arg(long, value_delimiter = ',', value_parser = whole::<u32>(1..=65536))]
    pub kv_heads: Vec<u32>,
    /// Only these head dimensions [default: all of the matrix].
    #[arg(long, value_delimiter = ',', value_parser = whole::<u32>(1..=65536))]
    pub head_dim: Vec<u32>,
    /// Only these transports [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub transport: Vec<TransportArg>,
    #[command(flatten)]
    pub nccl: NcclArgs,
    /// Only these ways of launching attention calls [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub launching: Vec<LaunchingArg>,
    /// Ranks, each on a device of its own [default: all devices; on more than two GPUs also fewer: 4, and 3, 5 and 7 for
    /// dist-flash].
    #[arg(long, value_name = "P,P,...", value_delimiter = ',', value_parser = whole::<u32>(1..=1024))]
    pub cp: Vec<u32>,
    /// Only these numbers of virtual ranks on one GPU, whose measured computations are put on modelled links [default: 4, 8,
    /// 16, and 64 once; none on more than two GPUs].
    #[arg(long = "virtual", value_name = "P,P,...", value_delimiter = ',', value_parser = whole::<u32>(2..=1024))]
    pub virtual_cp: Vec<u32>,
    /// Stop before a point that may not end within so many seconds from the start, and report what was measured: points are
    /// taken in turns from all classes.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub limit: Option<Duration>,
    /// Fail (exit 1) if the mean error is above so many percent.
    #[arg(long, value_name = "PERCENT")]
    pub max_mape: Option<f64>,
    /// Fail (exit 1) if any point's error is above so many percent.
    #[arg(long, value_name = "PERCENT")]
    pub max_error: Option<f64>,
    /// Fail (exit 1) if the mean error, with its sign, is more than so many percent from zero.
    #[arg(long, value_name = "PERCENT")]
    pub max_bias: Option<f64>,
    /// Draw predicted against measured: SVG or PNG by the file's ending.
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub out: OutputArgs,
}
