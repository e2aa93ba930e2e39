//! Arguments of the command that times kernels.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ringlab_sim::units::Tokens;

use super::OutputArgs;
use super::numbers::{GPUS, whole};

/// A family of kernels.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kernels {
    /// wgmma and TMA: compute capability 9.0.
    Hopper,
    /// mma.sync: compute capability 8.0 and above.
    Portable,
}

#[derive(Args)]
#[command(
    after_help = "Times are medians of single launches between device events; TFLOP/s count the mask's area, a backward as 2.5 \
forwards. A backward has its row sums, the zeroing of dq and its rounding in it, but for the points of scope `step1`: one step \
of a ring, the launch alone, the forward with its state read and written. spread is (max - min) / median.

Examples:
  ringlab bench --format csv -o rates.csv
  ringlab bench --kernels portable --max-len 16Ki
  ringlab bench --peers peers.csv --format csv -o rates.csv
  ringlab plot kernels rates.csv --x len --where head_dim=128 --where pass=forward --where kv_heads=16 --where ranks=1 -o rates.svg"
)]
pub struct BenchArgs {
    #[command(flatten)]
    pub out: OutputArgs,
    /// Family of kernels [default: the fastest that the GPU runs].
    #[arg(long, value_enum)]
    pub kernels: Option<Kernels>,
    /// Number of the GPU, counted from 0.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = whole::<usize>(GPUS))]
    pub gpu: usize,
    /// Shortest sequence that is timed, over all ranks.
    #[arg(long, default_value = "1Ki", value_name = "TOKENS")]
    pub min_len: Tokens,
    /// Longest sequence that is timed, over all ranks.
    #[arg(long, default_value = "64Ki", value_name = "TOKENS")]
    pub max_len: Tokens,
    /// Timed launches a point.
    #[arg(long, default_value_t = 10, value_parser = whole::<u32>(1..=1000))]
    pub repeats: u32,
    /// Rows of other implementations, in the same columns, that follow in the result.
    #[arg(long, value_name = "FILE.csv")]
    pub peers: Vec<PathBuf>,
}
