//! Arguments of `train`.

use std::ops::RangeInclusive;

use clap::{Args, ValueEnum};
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::{Checkpointing, KernelFamily, Sharding, Stack};
use ringlab_sim::units::Tokens;

use super::numbers::whole;
use super::{OutputArgs, TransportArg};

/// What the backward computes again.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Recompute {
    /// Nothing.
    None,
    /// The attention core (Megatron).
    Selective,
    /// Whole layers, attention and its communication included (HuggingFace).
    FullLayer,
    /// All but attention, whose output is kept (DistFlashAttn).
    RematAware,
}

impl From<Recompute> for Checkpointing {
    fn from(arg: Recompute) -> Self {
        match arg {
            Recompute::None => Self::None,
            Recompute::Selective => Self::Selective,
            Recompute::FullLayer => Self::FullLayer,
            Recompute::RematAware => Self::RematAware,
        }
    }
}

/// What is cut over the replicas.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Zero {
    /// Nothing.
    #[value(name = "0")]
    None,
    /// Optimiser state.
    #[value(name = "1")]
    Optimizer,
    /// And gradients.
    #[value(name = "2")]
    Gradients,
    /// And weights, as FSDP.
    #[value(name = "3", alias = "fsdp")]
    Weights,
}

impl From<Zero> for Sharding {
    fn from(arg: Zero) -> Self {
        match arg {
            Zero::None => Self::None,
            Zero::Optimizer => Self::Optimizer,
            Zero::Gradients => Self::Gradients,
            Zero::Weights => Self::Weights,
        }
    }
}

/// How element-wise work is compiled.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StackArg {
    /// Only the traffic that fused kernels cannot avoid.
    Fused,
    /// Unfused PyTorch, as HuggingFace's LLaMA of 2023.
    Eager,
    /// Megatron-LM of 2022.
    Megatron,
}

impl From<StackArg> for Stack {
    fn from(arg: StackArg) -> Self {
        match arg {
            StackArg::Fused => Self::FUSED,
            StackArg::Eager => Self::EAGER,
            StackArg::Megatron => Self::MEGATRON,
        }
    }
}

/// Attention kernels other than the cluster's.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kernels {
    /// FlashAttention on A100.
    Fa1A100,
    /// FlashAttention-2 on H100.
    Fa2H100,
    /// cuDNN 9 on H100.
    CudnnH100,
    /// cuDNN 9.19 on H200.
    CudnnH200,
}

impl From<Kernels> for KernelFamily {
    fn from(arg: Kernels) -> Self {
        match arg {
            Kernels::Fa1A100 => Self::FlashAttention1A100,
            Kernels::Fa2H100 => Self::FlashAttention2H100,
            Kernels::CudnnH100 => Self::CudnnH100,
            Kernels::CudnnH200 => Self::CudnnH200,
        }
    }
}

/// Degrees whose products stay countable.
pub const DEGREES: RangeInclusive<u64> = 1..=32_768;

#[derive(Args)]
#[command(after_help = "Examples:
  ringlab train
  ringlab train --model llama-3-70b --cluster h100-8x8-rail --tp 8 --cp 8 --seq 512Ki
  ringlab train --model llama-3-70b --cluster h100-8x8-rail --tp 8 --pp 4 --interleave 2 --micro-batches 16 --seq 32Ki
  ringlab train --cluster dgx-a100-80gb --schedule dist-flash --checkpointing remat-aware --format json")]
pub struct TrainArgs {
    /// Preset name or TOML file of the cluster; all of its GPUs are used.
    #[arg(long, default_value = "dgx-h100", help_heading = "Machine and model")]
    pub cluster: String,
    /// Preset name, TOML file or HuggingFace config.json of the model.
    #[arg(long, default_value = "llama-3-8b", help_heading = "Machine and model")]
    pub model: String,
    /// Attention kernels other than the cluster's.
    #[arg(long, value_enum, help_heading = "Machine and model")]
    pub kernels: Option<Kernels>,
    /// Tokens of a sequence, e.g. 1Mi.
    #[arg(long, default_value = "128Ki", help_heading = "Batch")]
    pub seq: Tokens,
    /// Sequences of a micro-batch.
    #[arg(long, default_value_t = 1, help_heading = "Batch", value_parser = whole::<u64>(1..=64))]
    pub micro_batch: u64,
    /// Micro-batches of an iteration on each replica.
    #[arg(long, default_value_t = 1, help_heading = "Batch", value_parser = whole::<u64>(1..=1_000_000))]
    pub micro_batches: u64,
    /// Tensor-parallel degree.
    #[arg(long, default_value_t = 1, help_heading = "Grid", value_parser = whole::<u64>(DEGREES))]
    pub tp: u64,
    /// Context-parallel degree, ulysses x ring [default: the GPUs that tp, dp and pp leave].
    #[arg(long, help_heading = "Grid", value_parser = whole::<u64>(DEGREES))]
    pub cp: Option<u64>,
    /// Ranks that share heads by all-to-all.
    #[arg(long, default_value_t = 1, help_heading = "Grid", value_parser = whole::<u64>(DEGREES))]
    pub ulysses: u64,
    /// Replicas.
    #[arg(long, default_value_t = 1, help_heading = "Grid", value_parser = whole::<u64>(DEGREES))]
    pub dp: u64,
    /// Pipeline stages.
    #[arg(long, default_value_t = 1, help_heading = "Grid", value_parser = whole::<u64>(DEGREES))]
    pub pp: u64,
    /// Pieces of a stage in an interleaved pipeline; 1 is plain 1F1B.
    #[arg(long, default_value_t = 1, help_heading = "Grid", value_parser = whole::<u64>(DEGREES))]
    pub interleave: u64,
    /// Ranks that share the experts of a mixture.
    #[arg(long, default_value_t = 1, help_heading = "Grid", value_parser = whole::<u64>(DEGREES))]
    pub experts: u64,
    /// Pad the query heads to a multiple of tp x ulysses instead of refusing them.
    #[arg(long, help_heading = "Grid")]
    pub pad_heads: bool,
    /// Schedule of the ranks that share tokens.
    #[arg(long, default_value = "zigzag", help_heading = "How")]
    pub schedule: Schedule,
    /// How its messages travel.
    #[arg(long, value_enum, default_value = "nccl", help_heading = "How")]
    pub transport: TransportArg,
    /// Steps that its transfers run ahead; 0 overlaps nothing.
    #[arg(long, default_value_t = 1, help_heading = "How")]
    pub prefetch: u32,
    /// What the backward computes again.
    #[arg(long, value_enum, default_value = "full-layer", help_heading = "How")]
    pub checkpointing: Recompute,
    /// ZeRO stage over the replicas, context-parallel ranks among them; 3 is FSDP.
    #[arg(long, value_enum, default_value = "3", help_heading = "How")]
    pub zero: Zero,
    /// How element-wise work is compiled.
    #[arg(long, value_enum, default_value = "fused", help_heading = "How")]
    pub stack: StackArg,
    /// All-reduces in the tensor group instead of Megatron's sequence parallelism.
    #[arg(long, help_heading = "How")]
    pub no_sequence_parallel: bool,
    /// A forward alone.
    #[arg(long, help_heading = "How")]
    pub forward_only: bool,
    /// Print memory phase by phase too.
    #[arg(long)]
    pub over_time: bool,
    #[command(flatten)]
    pub out: OutputArgs,
}
