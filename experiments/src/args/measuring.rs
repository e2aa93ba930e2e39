//! Arguments of the commands that measure: calibrate, validate.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ringlab_sim::units::Tokens;

use super::{OutputArgs, PassArg};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MachineArg {
    /// This processor's threads.
    Cpu,
    /// This machine's GPUs.
    Cuda,
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
  ringlab validate --cluster laptop.toml --format json -o validation.json --plot validation.svg")]
pub struct ValidateArgs {
    /// Calibrated cluster of this machine.
    #[arg(long, value_name = "FILE.toml")]
    pub cluster: String,
    /// What executes the plans.
    #[arg(long, value_enum, default_value = "cpu")]
    pub backend: MachineArg,
    /// Only these schedules [default: all].
    #[arg(long, value_delimiter = ',')]
    pub schedule: Vec<String>,
    /// Only these lengths of the matrix, in tokens [default: all].
    #[arg(long, value_delimiter = ',')]
    pub seq: Vec<Tokens>,
    /// Only this pass [default: both].
    #[arg(long, value_enum, default_value = "forward+backward")]
    pub pass: PassArg,
    /// Ranks, each on a device of its own [default: all devices].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub cp: Option<u32>,
    /// Also these numbers of virtual ranks on one GPU: measured computations on modelled links.
    #[arg(long = "virtual", value_name = "P,P,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub virtual_cp: Vec<u32>,
    /// Fail (exit 1) if the mean error is above so many percent.
    #[arg(long, value_name = "PERCENT")]
    pub max_mape: Option<f64>,
    /// Fail (exit 1) if any point's error is above so many percent.
    #[arg(long, value_name = "PERCENT")]
    pub max_error: Option<f64>,
    /// Draw predicted against measured: SVG or PNG by the file's ending.
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub out: OutputArgs,
}
