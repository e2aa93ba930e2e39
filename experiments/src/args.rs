//! The command line, as clap sees it.

mod benching;
mod describing;
mod durations;
mod exploring;
mod measuring;
mod nccl;
mod numbers;
mod running;
mod training;
mod tuning;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use ringlab_sim::disturb::{Disturbance, Jitter, LinkFault, Straggler};
use ringlab_sim::engine::Load;
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::Dtype;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::units::{BytesPerSec, Tokens};

use crate::disturbance::Repeats;
use numbers::whole;

pub use benching::{BenchArgs, Kernels};
pub use describing::{CompletionsArgs, ManArgs, SchemaArgs};
pub use exploring::{ChartArgs, ExploreArgs, PlotArgs, PlotCommand, SweepArgs};
pub use measuring::{CalibrateArgs, MachineArg, ValidateArgs};
pub use nccl::NcclArgs;
pub use numbers::with_negative_values;
pub use running::{Backend, CopyArg, MetricsArgs, ModeArg, RunArgs};
pub use training::TrainArgs;
pub use tuning::TuneArgs;

/// Context-parallel attention: predicted, proven, executed.
#[derive(Parser)]
#[command(name = "ringlab", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Predict time, bubbles, exposed communication and memory of one attention layer.
    Simulate(SimulateArgs),
    /// Predict a training iteration: time part by part, memory, and the longest sequence that fits.
    Train(TrainArgs),
    /// Prove that a plan computes every unmasked pair once, cannot hang and overwrites nothing in use.
    Check(CheckArgs),
    /// Execute a plan and compare the result with a plain-softmax f64 reference.
    Run(RunArgs),
    /// Which rank holds which token: positions, RoPE positions and labels.
    Layout(LayoutArgs),
    /// Serve a page on this machine to see and change all of it.
    Explore(ExploreArgs),
    /// Published tables beside their predictions, and an audit of claims.
    Paper(PaperArgs),
    /// List the built-in clusters and models, or print one as TOML.
    Presets(PresetsArgs),
    /// Simulate a grid of configurations on all cores, as CSV.
    Sweep(SweepArgs),
    /// Measure this machine by single calls and messages, and write it as a cluster.
    Calibrate(CalibrateArgs),
    /// Predict whole schedules, run them, and report the error of every prediction.
    Validate(ValidateArgs),
    /// Draw the rows of a sweep or a benchmark, or the whole gallery.
    Plot(PlotArgs),
    /// Time the attention kernels on this machine's GPU.
    Bench(BenchArgs),
    /// The fastest grid, schedule and checkpointing for a training iteration, and why the others lose.
    Tune(TuneArgs),
    /// JSON Schema of every file that is read and of every result.
    Schema(SchemaArgs),
    /// Completions for a shell.
    Completions(CompletionsArgs),
    /// Manual pages.
    Man(ManArgs),
}

/// Which half of a training step.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PassArg {
    /// o and lse.
    Forward,
    /// dq, dk and dv.
    Backward,
    /// Both, one after the other.
    #[value(name = "forward+backward")]
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransportArg {
    /// Copy engines: no SM is held.
    CopyEngine,
    /// NCCL send and receive.
    Nccl,
}

impl From<TransportArg> for Transport {
    fn from(arg: TransportArg) -> Self {
        match arg {
            TransportArg::CopyEngine => Self::CopyEngine,
            TransportArg::Nccl => Self::Nccl,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoadArg {
    /// For long: the power limit holds the clock down.
    Sustained,
    /// Not before this pass: the clock is at its highest, as in the first 75 ms after a rest.
    Cold,
}

impl From<LoadArg> for Load {
    fn from(arg: LoadArg) -> Self {
        match arg {
            LoadArg::Sustained => Self::Sustained,
            LoadArg::Cold => Self::Cold,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RouteArg {
    /// Hop by hop around the ring.
    Neighbour,
    /// Straight from the owner.
    Direct,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// For spreadsheets.
    Csv,
}

/// Where the result goes.
#[derive(Args)]
pub struct OutputArgs {
    /// How the result is written.
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
    /// Write the result to a file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// What goes wrong; nothing, if nothing is given.
#[derive(Args)]
pub struct DisturbArgs {
    /// A rank whose kernels take so many times as long: RANK:FACTOR, or any:FACTOR for another one in each repeat.
    #[arg(long, value_name = "RANK:FACTOR", value_delimiter = ',', help_heading = "Disturbance")]
    pub straggler: Vec<Straggler>,
    /// Spread of the times of single operations and messages: 3% (lognormal) or normal:3%.
    #[arg(long, value_name = "PERCENT", help_heading = "Disturbance")]
    pub jitter: Option<Jitter>,
    /// Links on the route between two GPUs that are so many times as slow.
    #[arg(long, value_name = "A-B:FACTOR", value_delimiter = ',', value_parser = LinkFault::slowed, help_heading = "Disturbance")]
    pub slow_link: Vec<LinkFault>,
    /// Links on the route between two GPUs that have failed; transfers go around them where there is a way.
    #[arg(long, value_name = "A-B", value_delimiter = ',', value_parser = LinkFault::failed, help_heading = "Disturbance")]
    pub failed_link: Vec<LinkFault>,
    /// Repeats, each a simulation of its own; times are then given as percentiles, and all other figures are those of the
    /// median repeat.
    #[arg(long, default_value_t = 1, help_heading = "Disturbance", value_parser = whole::<u32>(1..=1_000_000))]
    pub repeats: u32,
    /// Decides what happens in each repeat.
    #[arg(long, default_value_t = 0, help_heading = "Disturbance", value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
}

impl DisturbArgs {
    /// What to repeat, if anything happens.
    pub fn repeats(&self) -> anyhow::Result<Option<Repeats>> {
        let disturbance = Disturbance {
            stragglers: self.straggler.clone(),
            jitter: self.jitter.unwrap_or_default(),
            links: self.slow_link.iter().chain(&self.failed_link).copied().collect(),
        };
        if self.repeats > 1 && !disturbance.is_random() {
            anyhow::bail!(
                "--repeats {} repeats the same run; add --jitter 3% or --straggler any:1.1",
                self.repeats
            );
        }
        let calm = disturbance.is_calm();
        Ok((!calm).then_some(Repeats { disturbance, count: self.repeats, seed: self.seed }))
    }
}

/// What is computed, how, and on what.
#[derive(Args)]
pub struct SetupArgs {
    /// TOML file with any of the options down to --needed-only, and those of disturbances and of NCCL where the command has them, by
    /// the same names: seq = "1Mi", kv_heads = 8, needed_only = true, nccl_priority = "high". Options on the command line win.
    #[arg(long, value_name = "FILE.toml", help_heading = "Machine and model")]
    pub run: Option<PathBuf>,
    /// Preset name or TOML file of the cluster, or its text.
    #[arg(long, default_value = "dgx-h100", help_heading = "Machine and model")]
    pub cluster: String,
    /// What a transfer inside a node reaches and a link carries, each way, instead of the cluster's, e.g. "200 GB/s".
    #[arg(long, help_heading = "Machine and model")]
    pub link_bandwidth: Option<BytesPerSec>,
    /// What a transfer between nodes reaches and a NIC carries, each way, instead of the cluster's.
    #[arg(long, help_heading = "Machine and model")]
    pub nic_bandwidth: Option<BytesPerSec>,
    /// Preset name, TOML file or HuggingFace config.json of the model, or its text.
    #[arg(long, default_value = "llama-3-8b", help_heading = "Machine and model")]
    pub model: String,
    /// Query heads, instead of the model's.
    #[arg(long, help_heading = "Machine and model", value_parser = whole::<u32>(1..=65536))]
    pub heads: Option<u32>,
    /// Key/value heads, instead of the model's.
    #[arg(long, help_heading = "Machine and model", value_parser = whole::<u32>(1..=65536))]
    pub kv_heads: Option<u32>,
    /// Head dimension, instead of the model's.
    #[arg(long, help_heading = "Machine and model", value_parser = whole::<u32>(1..=65536))]
    pub head_dim: Option<u32>,
    /// Tokens of the whole sequence, e.g. 131072 or 128Ki [default: 128Ki; 1Ki for run, 64Ki on GPUs; 16 for layout; the sum of the documents].
    #[arg(long, help_heading = "Sequence")]
    pub seq: Option<Tokens>,
    /// full, causal, window:W, docs:LEN,LEN,... or docs:FILE (lengths, or cu_seqlens from 0 on; causal inside
    /// documents), or both: full+docs:..., window:W+docs:... [default: the model's: causal, or its sliding window].
    #[arg(long, help_heading = "Sequence")]
    pub mask: Option<String>,
    /// Sequences in a batch.
    #[arg(long, default_value_t = 1, help_heading = "Sequence", value_parser = whole::<u32>(1..=1_000_000))]
    pub batch: u32,
    /// Pad a sequence that the layout does not divide, instead of refusing it.
    #[arg(long, help_heading = "Sequence", value_name = "BOOL", default_value_t = false, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, action = ArgAction::Set)]
    pub pad: bool,
    /// Element type of q, k, v and o.
    #[arg(long, default_value = "bf16", value_parser = dtype, help_heading = "Sequence")]
    pub dtype: Dtype,
    /// Context-parallel degree: ranks that share the sequence.
    #[arg(long, default_value_t = 8, help_heading = "Schedule", value_parser = whole::<u32>(1..=65536))]
    pub cp: u32,
    /// Schedules, apart by commas, or all: ring, zigzag, striped or striped:BLOCK, dist-flash, all-gather,
    /// all-gather-zigzag, double-ring or double-ring:WINDOW or double-ring:WINDOW:rail, ulysses, usp or usp:ULYSSESxRING or
    /// usp:ULYSSESxRING:across, megatron-sp, ring-burst, zigzag-burst, ring-self-attention.
    #[arg(long, value_delimiter = ',', default_value = "all", help_heading = "Schedule")]
    pub schedule: Vec<String>,
    /// Which half of a training step.
    #[arg(long, value_enum, default_value = "forward", help_heading = "Schedule")]
    pub pass: PassArg,
    /// How messages travel.
    #[arg(long, value_enum, default_value = "copy-engine", help_heading = "Schedule")]
    pub transport: TransportArg,
    /// From whom keys and values come.
    #[arg(long, value_enum, default_value = "neighbour", help_heading = "Schedule")]
    pub route: RouteArg,
    /// Messages that a step's transfer is cut into.
    #[arg(long, default_value_t = 1, help_heading = "Schedule", value_parser = whole::<u32>(1..=u64::from(u32::MAX)))]
    pub chunks: u32,
    /// Steps that transfers may run ahead; 0 does not overlap them with computing.
    #[arg(long, default_value_t = 1, help_heading = "Schedule", value_parser = whole::<u32>(0..=u64::from(u32::MAX)))]
    pub prefetch: u32,
    /// Only send keys and values that the mask needs.
    #[arg(long, help_heading = "Schedule", value_name = "BOOL", default_value_t = false, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, action = ArgAction::Set)]
    pub needed_only: bool,
}

fn dtype(text: &str) -> Result<Dtype, String> {
    match text {
        "bf16" => Ok(Dtype::Bf16),
        "fp16" => Ok(Dtype::Fp16),
        "fp8" => Ok(Dtype::Fp8),
        "tf32" => Ok(Dtype::Tf32),
        "fp32" => Ok(Dtype::Fp32),
        _ => Err("choose from bf16, fp16, fp8, tf32, fp32".into()),
    }
}

/// Parses the schedules of `--schedule`; `all` is every one.
pub fn schedules(names: &[String]) -> anyhow::Result<Vec<Schedule>> {
    let mut all = Vec::new();
    for name in names {
        let named = if name == "all" { ringlab_sim::schedule::ALL.to_vec() } else { vec![name.parse()?] };
        all.extend(named.into_iter().filter(|s| !all.contains(s)).collect::<Vec<_>>());
    }
    Ok(all)
}

#[derive(Args)]
#[command(after_help = "Examples:
  ringlab simulate
  ringlab simulate --cluster hgx-h200 --model config.json --seq 1Mi --cp 8 --schedule ring,zigzag
  ringlab simulate --cluster h100-16x8-rail --cp 128 --seq 4Mi --pass forward+backward --format json
  ringlab simulate --mask docs:30000,90000,11072 --pad --plot timeline.png --trace trace.json
  ringlab simulate --straggler any:1.1 --jitter 3% --repeats 200 --seed 7
  ringlab simulate --cluster tpu-v4-4x4 --slow-link 0-1:4
  ringlab simulate --cluster node.toml --cp 2 --transport nccl --nccl-ctas 8 --nccl-priority high")]
pub struct SimulateArgs {
    #[command(flatten)]
    pub setup: SetupArgs,
    #[command(flatten)]
    pub out: OutputArgs,
    #[command(flatten)]
    pub disturb: DisturbArgs,
    /// How long the GPUs have been loaded, on a cluster whose [device.power] says what that does [default: sustained].
    #[arg(long, value_enum, help_heading = "Machine and model")]
    pub load: Option<LoadArg>,
    #[command(flatten)]
    pub nccl: NcclArgs,
    /// Write the timelines as a Chrome trace (ui.perfetto.dev).
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// Draw the timelines: SVG or PNG by the file's ending.
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    pub plot: Option<PathBuf>,
    /// Write the spans of the timelines as CSV.
    #[arg(long, value_name = "FILE.csv")]
    pub spans: Option<PathBuf>,
    /// Write a page to read, sort and zoom: one HTML file that needs no network.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Print every constant that went in, with its source.
    #[arg(long)]
    pub explain: bool,
}

#[derive(Args)]
#[command(after_help = "Examples:
  ringlab check --seq 1Mi --cp 64
  ringlab check --schedule dist-flash --cp 5 --seq 40000 --pass backward")]
pub struct CheckArgs {
    #[command(flatten)]
    pub setup: SetupArgs,
    #[command(flatten)]
    pub out: OutputArgs,
}

#[derive(Args)]
#[command(after_help = "Examples:
  ringlab layout --schedule zigzag --cp 2 --mask docs:4,4
  ringlab layout --schedule striped:64 --cp 8 --seq 8Ki --format csv -o layout.csv")]
pub struct LayoutArgs {
    #[command(flatten)]
    pub setup: SetupArgs,
    #[command(flatten)]
    pub out: OutputArgs,
}

#[derive(Args)]
#[command(after_help = "Examples:
  ringlab paper list
  ringlab paper distflashattn
  ringlab paper all --format json -o papers.json --report papers.html
  ringlab paper audit --cluster hgx-h200 --seq 1Mi")]
pub struct PaperArgs {
    /// A paper's name, `all`, `list`, or `audit` for the guides' claims.
    #[arg(default_value = "list")]
    pub name: String,
    #[command(flatten)]
    pub out: OutputArgs,
    /// Write one self-contained page with tables that sort.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Preset name or TOML file of the cluster that the audit compares systems on [default: dgx-h100].
    #[arg(long)]
    pub cluster: Option<String>,
    /// Preset name, TOML file or HuggingFace config.json of the audit's model [default: llama-3-8b].
    #[arg(long)]
    pub model: Option<String>,
    /// Tokens of the audit's sequence [default: 128Ki].
    #[arg(long)]
    pub seq: Option<Tokens>,
}

#[derive(Args)]
#[command(after_help = "Examples:
  ringlab presets
  ringlab presets dgx-h100 > my-cluster.toml")]
pub struct PresetsArgs {
    /// The preset to print; without it, all are listed.
    pub name: Option<String>,
    #[command(flatten)]
    pub out: OutputArgs,
}
