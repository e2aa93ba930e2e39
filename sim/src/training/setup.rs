//! What is trained, and how: everything an iteration's time and memory depend on besides model and cluster.

use serde::Serialize;

use super::grid::Grid;
use super::materialised::Materialised;
use crate::plan::{Partials, Transport};
use crate::schedule::Schedule;
use crate::units::{Bytes, SimTime};

/// Which activations are kept for the backward, and what is computed again instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checkpointing {
    /// Everything is kept.
    None,
    /// The attention core is computed again (Megatron, arXiv 2205.05198, section 5).
    Selective,
    /// Only the input of a layer is kept; the backward runs the whole layer again, attention and its communication
    /// included (HuggingFace).
    FullLayer,
    /// DistFlashAttn (arXiv 2310.03294, section 3.3): segments are cut at the attention output, whose tensor and
    /// log-sum-exp are kept, so that attention and its communication run forward once.
    RematAware,
}

/// Which training state is cut over the replicas (ZeRO, arXiv 1910.02054; FSDP is stage 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharding {
    /// Nothing.
    None,
    /// Optimiser state.
    Optimizer,
    /// And gradients.
    Gradients,
    /// And weights.
    Weights,
}

/// How element-wise work is compiled: bytes of device memory that a token of a layer moves forward.
///
/// A backward moves twice as much. Counts are per element of the width named.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Stack {
    /// Bytes an element of the residual stream: norms, residual additions, dropouts.
    pub residual: f64,
    /// Bytes an element of q, k and v: rotary embedding, transposes.
    pub qkv: f64,
    /// Bytes an element of the feed-forward width.
    pub mlp: f64,
    /// Bytes an element of the logits, both passes together.
    pub logits: f64,
    /// Kernels a layer launches forward.
    pub kernels: u64,
    /// Host time of one of them.
    pub launch: SimTime,
    /// Whether dropout masks are kept.
    pub dropout: bool,
    /// Where the counts come from.
    pub source: &'static str,
}

impl Stack {
    /// Fused kernels as in Megatron-LM of 2022: two norms (read and write, 8), two bias-dropout-additions (read input
    /// and residual, write output and mask, 14), GeLU (4).
    pub const MEGATRON: Self = Self {
        residual: 22.0,
        qkv: 4.0,
        mlp: 4.0,
        logits: 20.0,
        kernels: 20,
        launch: SimTime(5_000_000),
        dropout: true,
        source: "counted from the kernels of Megatron-LM (arXiv 2205.05198, figure 5): norm 2+2 twice, bias-dropout-add \
                 2+2+2+1 twice, GeLU 2+2; launch assumed 5 us",
    };

    /// Unfused PyTorch as HuggingFace's LLaMA of 2023: an RMSNorm in fp32 moves 32 (cast 2+4, square 4+4, mean 4, scale
    /// 4+4, cast 4+2, weight 2+2) twice, residual additions 6 twice; rotary 20 and a transpose 4 on q, k, v; SiLU 4 and
    /// gate 6.
    pub const EAGER: Self = Self {
        residual: 76.0,
        qkv: 24.0,
        mlp: 10.0,
        logits: 44.0,
        kernels: 60,
        launch: SimTime(10_000_000),
        dropout: false,
        source: "counted from the operations of HuggingFace transformers' LLaMA (2023): RMSNorm in fp32 32 twice, \
                 residual 6 twice, rotary 20, transpose 4, SiLU 4, gate 6; launch assumed 10 us",
    };

    /// Only the traffic that a fused LLaMA layer cannot avoid: two norms with their residual addition (2+2+2 each),
    /// rotary in place (4), SiLU times gate (6).
    pub const FUSED: Self = Self {
        residual: 12.0,
        qkv: 4.0,
        mlp: 6.0,
        logits: 12.0,
        kernels: 14,
        launch: SimTime(2_800_000),
        dropout: false,
        source: "least traffic of fused kernels: norm with residual 2+2+2 twice, rotary 2+2, SiLU times gate 2+2+2",
    };
}

/// The attention kernel.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttentionKernel {
    /// The cluster's table of tiled kernels.
    Tiled,
    /// Scores in memory.
    Materialised(Materialised),
}

/// What an iteration runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Passes {
    /// A forward alone: inference on a prompt.
    Forward,
    /// Forward, backward and an optimiser step.
    ForwardBackward,
}

/// How context-parallel attention runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Context {
    /// The schedule of the ring ranks.
    #[serde(serialize_with = "as_text")]
    pub schedule: Schedule,
    /// How its messages travel.
    pub transport: Transport,
    /// Steps that transfers run ahead; 0 exposes all of them.
    pub prefetch: u32,
    /// Messages that a step's transfer is cut into, `>= 1`.
    pub chunks: u32,
    /// Whether queries see only earlier keys.
    pub causal: bool,
    /// What partial results and gradients are while they travel.
    pub partials: Partials,
    /// The kernel.
    pub kernel: AttentionKernel,
}

fn as_text<S: serde::Serializer>(schedule: &Schedule, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(schedule)
}

impl Context {
    /// `schedule` over NCCL, double-buffered, causal, with tiled kernels.
    pub fn new(schedule: Schedule) -> Self {
        let (transport, kernel) = (Transport::Nccl, AttentionKernel::Tiled);
        Self { schedule, transport, prefetch: 1, chunks: 1, causal: true, partials: Partials::Fp32, kernel }
    }
}

/// One training iteration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Training {
    /// Degrees of parallelism.
    pub grid: Grid,
    /// Tokens of one sequence.
    pub seq: u64,
    /// Sequences that a micro-batch of a replica holds.
    pub micro_batch: u64,
    /// Micro-batches of an iteration on each replica.
    pub micro_batches: u64,
    /// Attention over the context-parallel ranks.
    pub context: Context,
    /// Megatron's sequence parallelism: norms and dropouts on 1/tp of the tokens, all-gather and reduce-scatter instead
    /// of all-reduce.
    pub sequence_parallel: bool,
    /// Pads query heads to a multiple of `tp * ulysses` instead of refusing them.
    pub pad_heads: bool,
    /// What is cut over the replicas.
    pub sharding: Sharding,
    /// What the backward computes again.
    pub checkpointing: Checkpointing,
    /// Bytes of a gradient element as kept and reduced.
    pub gradient_bytes: u64,
    /// Whether gradients of replicas are reduced while the backward still runs.
    pub overlap_gradients: bool,
    /// Element-wise work.
    pub stack: Stack,
    /// What an iteration runs.
    pub passes: Passes,
    /// Bytes of a weight and activation element.
    pub element_bytes: u64,
    /// Device memory that the runtime takes for itself.
    pub reserved: Bytes,
    /// Time of an iteration that depends on neither tokens nor ranks: data loading, the launches of the optimiser,
    /// synchronisation with the host.
    pub fixed: SimTime,
}

impl Training {
    /// Mixed precision, one sequence, FSDP over the replicas, nothing recomputed, fused kernels.
    pub fn new(grid: Grid, seq: u64, schedule: Schedule) -> Self {
        Self {
            grid,
            seq,
            micro_batch: 1,
            micro_batches: 1,
            context: Context::new(schedule),
            sequence_parallel: true,
            pad_heads: false,
            sharding: Sharding::Weights,
            checkpointing: Checkpointing::None,
            gradient_bytes: 2,
            overlap_gradients: true,
            stack: Stack::FUSED,
            passes: Passes::ForwardBackward,
            element_bytes: 2,
            reserved: RUNTIME_RESERVE,
            fixed: SimTime::ZERO,
        }
    }

    /// Whether there is no backward.
    pub fn forward_only(&self) -> bool {
        self.passes == Passes::Forward
    }

    /// Tokens of a micro-batch on each context-parallel rank.
    pub fn tokens_per_rank(&self) -> u64 {
        self.seq.div_ceil(self.grid.cp) * self.micro_batch
    }
}

/// CUDA context, NCCL channels and allocator fragmentation; an assumption of 2 GB.
pub const RUNTIME_RESERVE: Bytes = Bytes(2_000_000_000);
