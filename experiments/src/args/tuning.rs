//! Arguments of `tune`.

use clap::{Args, ValueEnum};
use ringlab_sim::training::{Checkpointing, Sharding};
use ringlab_sim::units::{Bytes, BytesPerSec, Tokens};

use super::numbers::whole;
use super::training::DEGREES;
use super::{OutputArgs, TransportArg};

/// What the backward computes again.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CheckpointingArg {
    /// Nothing.
    None,
    /// All but attention, whose output is kept (DistFlashAttn).
    RematAware,
    /// The whole layer.
    FullLayer,
}

impl From<CheckpointingArg> for Checkpointing {
    fn from(arg: CheckpointingArg) -> Self {
        match arg {
            CheckpointingArg::None => Self::None,
            CheckpointingArg::RematAware => Self::RematAware,
            CheckpointingArg::FullLayer => Self::FullLayer,
        }
    }
}

/// What is cut over the replicas.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShardingArg {
    /// Nothing.
    None,
    /// Optimiser state (ZeRO 1).
    Optimizer,
    /// Gradients, optimiser state and weights (ZeRO 3, FSDP).
    Weights,
}

impl From<ShardingArg> for Sharding {
    fn from(arg: ShardingArg) -> Self {
        match arg {
            ShardingArg::None => Self::None,
            ShardingArg::Optimizer => Self::Optimizer,
            ShardingArg::Weights => Self::Weights,
        }
    }
}

#[derive(Args)]
#[command(after_help = "Examples:
  ringlab tune
  ringlab tune --model llama-3-70b --cluster h100-8x8-rail --seq 1Mi
  ringlab tune --cluster hgx-h200 --seq 512Ki --price-per-gpu-hour 2.5 --tokens 15T
  ringlab tune --cluster h100-8x8-rail --tp 8 --schedule zigzag,ring --memory \"60 GB\" --format json")]
pub struct TuneArgs {
    /// Preset name or TOML file of the cluster; all of its GPUs are used.
    #[arg(long, default_value = "dgx-h100", help_heading = "Machine and model")]
    pub cluster: String,
    /// Nodes, instead of the cluster's.
    #[arg(long, help_heading = "Machine and model", value_parser = whole::<u32>(1..=4096))]
    pub nodes: Option<u32>,
    /// Memory of a GPU, instead of the cluster's, e.g. "80 GB".
    #[arg(long, help_heading = "Machine and model")]
    pub memory: Option<Bytes>,
    /// What a transfer inside a node reaches and a link carries, each way, instead of the cluster's.
    #[arg(long, help_heading = "Machine and model")]
    pub link_bandwidth: Option<BytesPerSec>,
    /// What a transfer between nodes reaches and a NIC carries, each way, instead of the cluster's.
    #[arg(long, help_heading = "Machine and model")]
    pub nic_bandwidth: Option<BytesPerSec>,
    /// Preset name, TOML file or HuggingFace config.json of the model.
    #[arg(long, default_value = "llama-3-8b", help_heading = "Machine and model")]
    pub model: String,
    /// Tokens of a sequence, e.g. 1Mi.
    #[arg(long, default_value = "128Ki", help_heading = "Training")]
    pub seq: Tokens,
    /// Sequences of an iteration, over all replicas [default: as many as make 16Mi tokens, at least 1].
    #[arg(long, help_heading = "Training", value_parser = whole::<u64>(1..=1_000_000))]
    pub sequences: Option<u64>,
    /// Schedules of the ring, or all.
    #[arg(long, value_delimiter = ',', default_value = "all", help_heading = "What may be chosen")]
    pub schedule: Vec<String>,
    /// Tensor-parallel degrees [default: all].
    #[arg(long, value_delimiter = ',', help_heading = "What may be chosen", value_parser = whole::<u64>(DEGREES))]
    pub tp: Vec<u64>,
    /// Context-parallel degrees, ulysses x ring [default: all].
    #[arg(long, value_delimiter = ',', help_heading = "What may be chosen", value_parser = whole::<u64>(DEGREES))]
    pub cp: Vec<u64>,
    /// Degrees of the ranks that share heads [default: all].
    #[arg(long, value_delimiter = ',', help_heading = "What may be chosen", value_parser = whole::<u64>(DEGREES))]
    pub ulysses: Vec<u64>,
    /// Degrees of the ranks that share tokens [default: all].
    #[arg(long, value_delimiter = ',', help_heading = "What may be chosen", value_parser = whole::<u64>(DEGREES))]
    pub ring: Vec<u64>,
    /// Pipeline stages [default: all].
    #[arg(long, value_delimiter = ',', help_heading = "What may be chosen", value_parser = whole::<u64>(DEGREES))]
    pub pp: Vec<u64>,
    /// Replicas [default: all].
    #[arg(long, value_delimiter = ',', help_heading = "What may be chosen", value_parser = whole::<u64>(DEGREES))]
    pub dp: Vec<u64>,
    /// Messages that a ring step's transfer is cut into.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4", help_heading = "What may be chosen", value_parser = whole::<u32>(1..=1024))]
    pub chunks: Vec<u32>,
    /// What the backward computes again.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "none,remat-aware,full-layer",
        help_heading = "What may be chosen"
    )]
    pub checkpointing: Vec<CheckpointingArg>,
    /// What is cut over the replicas.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "optimizer,weights",
        help_heading = "What may be chosen"
    )]
    pub sharding: Vec<ShardingArg>,
    /// How the messages of a ring travel.
    #[arg(long, value_enum, default_value = "nccl", help_heading = "What may be chosen")]
    pub transport: TransportArg,
    /// Runner-ups to show.
    #[arg(long, default_value_t = 5, value_parser = whole::<u8>(0..=50))]
    pub top: u8,
    /// Leave out what other links and lengths would change, and from which length on context parallelism pays.
    #[arg(long)]
    pub no_outlook: bool,
    /// What a GPU costs for an hour; gives the cost of a million tokens.
    #[arg(long, value_name = "PRICE")]
    pub price_per_gpu_hour: Option<f64>,
    /// Tokens of the whole run, such as 15T, 300B or 1000000; gives its days and, with a price, its cost.
    #[arg(long, value_name = "COUNT", value_parser = count)]
    pub tokens: Option<u64>,
    #[command(flatten)]
    pub out: OutputArgs,
}

/// A count with M, B or T for millions, billions (10^9) and trillions (10^12), as runs are named.
fn count(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.strip_suffix(['M', 'B', 'T']) {
        Some(number) => (number, [1e6, 1e9, 1e12]["MBT".find(&text[number.len()..]).unwrap_or(0)]),
        None => (text, 1.0),
    };
    match number.trim().parse::<f64>().map(|n| n * unit) {
        Ok(count) if count.fract() == 0.0 && (1.0..=1e18).contains(&count) => Ok(count as u64),
        _ => Err("write a whole number of tokens, such as 15T, 300B or 1000000".into()),
    }
}
