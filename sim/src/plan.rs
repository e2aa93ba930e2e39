//! The plan: who computes which q x kv block, sends what to whom, in what order, on which lane. Pure data.
//!
//! A plan is one program a rank. The order of a rank's operations is a valid sequential order; lanes and waits say what
//! may overlap: operations on one lane run in order, operations on different lanes only wait for what they name. Only
//! [`builder::PlanBuilder`] makes plans, and nothing changes one.

pub mod builder;
mod op;
mod scores;
mod tensor;

use serde::{Deserialize, Serialize};

pub use op::{Access, Op, OpKind, Projection};
pub use scores::Scores;
pub use tensor::{Part, Tensor};

use crate::layout::Layout;
use crate::mask::Mask;
use crate::problem::{Pass, Shape};
use crate::tokens::TokenSet;
use crate::units::Bytes;

/// A rank, `0..P`.
pub type Rank = u32;
/// Index into a rank's operations.
pub type OpId = u32;
/// Index into [`Plan::blocks`].
pub type BlockId = u32;
/// Index into [`Plan::messages`].
pub type MessageId = u32;

/// No operation: an unused wait.
pub const NO_OP: OpId = OpId::MAX;
/// Lanes a rank has: one for computing, the others for communication.
pub const LANES: usize = 7;

/// What a rank runs in order: a GPU stream, a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Lane(pub u8);

impl Lane {
    /// The lane of kernels.
    pub const COMPUTE: Self = Self(0);

    /// The `i`-th communication lane.
    pub fn comm(i: u8) -> Self {
        Self(1 + i)
    }

    /// Whether kernels run here.
    pub fn is_compute(self) -> bool {
        self == Self::COMPUTE
    }
}

/// Consecutive slots of one rank's shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slots {
    /// The rank that owns the tokens.
    pub rank: Rank,
    /// First slot.
    pub from: u64,
    /// One past the last slot.
    pub to: u64,
}

/// Consecutive heads: query heads for q-side tensors, kv heads for kv-side ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Heads {
    /// First head.
    pub first: u32,
    /// Number of heads.
    pub count: u32,
}

/// A set of tokens and heads that operations and messages speak of. Its tokens are in order of position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Where the tokens live, in order of position.
    pub slots: Vec<Slots>,
    /// Which heads.
    pub heads: Heads,
    /// Their positions.
    pub tokens: TokenSet,
}

/// Index of a buffer of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Buf(pub u16);

/// Consecutive buffers of one rank that together hold one block: a transfer's chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bufs {
    /// The first.
    pub first: Buf,
    /// How many.
    pub count: u16,
}

impl Bufs {
    /// The buffers one by one.
    pub fn iter(self) -> impl Iterator<Item = Buf> {
        (self.first.0..self.first.0 + self.count).map(Buf)
    }
}

/// Part `i` of the `n` parts of a block with these slots. One part is the whole. More are the owners' shares, in order of
/// rank, each cut into as many nearly equal parts as that makes: `n` must be a multiple of the number of owners.
pub fn part_of(slots: &[Slots], i: u64, n: u64) -> Vec<Slots> {
    if n == 1 {
        return slots.to_vec();
    }
    let mut owners: Vec<Rank> = slots.iter().map(|s| s.rank).collect();
    owners.sort_unstable();
    owners.dedup();
    let each = (n / (owners.len() as u64).max(1)).max(1);
    let owner = owners.get((i / each) as usize);
    let share: Vec<Slots> = slots.iter().copied().filter(|s| Some(&s.rank) == owner).collect();
    equal_part(&share, i % each, each)
}

/// Part `i` of `n` nearly equal parts, counted in tokens.
fn equal_part(slots: &[Slots], i: u64, n: u64) -> Vec<Slots> {
    let total = slots.iter().map(|s| s.to - s.from).sum::<u64>();
    let (from, to) = (total * i / n, total * (i + 1) / n);
    let mut start = 0;
    let parts = slots.iter().map(|s| {
        let cut = |x: u64| s.from + x.clamp(start, start + s.to - s.from) - start;
        let part = Slots { rank: s.rank, from: cut(from), to: cut(to) };
        start += s.to - s.from;
        part
    });
    parts.filter(|s| s.from < s.to).collect()
}

impl From<Buf> for Bufs {
    fn from(first: Buf) -> Self {
        Self { first, count: 1 }
    }
}

/// What a buffer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Holds this block before the first operation, and is kept.
    Input(BlockId),
    /// As an input, but left there by the forward, so that it may be of other ranks' tokens.
    Saved(BlockId),
    /// Working memory.
    Scratch,
    /// Must hold this block's result at the end.
    Output(BlockId),
}

impl Role {
    /// The block that a buffer of this role holds before the first operation.
    pub fn initial(self) -> Option<BlockId> {
        match self {
            Self::Input(block) | Self::Saved(block) => Some(block),
            Self::Scratch | Self::Output(_) => None,
        }
    }
}

/// Memory of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// What it holds.
    pub tensor: Tensor,
    /// Its size.
    pub bytes: Bytes,
    /// What it is for.
    pub role: Role,
}

/// Index into [`Plan::masks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MaskId(pub u8);

impl MaskId {
    /// The problem's own mask, evaluated by position.
    pub const PROBLEM: Self = Self(0);
    /// No mask: a claim that every pair of the block is unmasked.
    pub const NONE: Self = Self(1);
}

/// What one rank does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    /// Its operations, in a valid sequential order.
    pub ops: Vec<Op>,
    /// Its buffers.
    pub buffers: Vec<Buffer>,
}

/// A block on its way from one rank to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Sender.
    pub from: Rank,
    /// Receiver.
    pub to: Rank,
    /// What it carries.
    pub tensor: Tensor,
    /// Of which block.
    pub block: BlockId,
    /// How much that is.
    pub bytes: Bytes,
}

/// How messages travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Copy engines: sends and receives are independent, no SM is held.
    CopyEngine,
    /// NCCL: a rank's sends and receives of one step are one group.
    Nccl,
}

/// What partial results and gradients are while they travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Partials {
    /// fp32, as they are summed up.
    Fp32,
    /// The problem's element type, as in DistFlashAttn's released code: half the bytes, and a rounding at every hop.
    /// Statistics stay fp32.
    Element,
}

/// Who computes and sends what, for one pass over one attention layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The schedule's name, with its options.
    pub name: String,
    /// Forward or backward.
    pub pass: Pass,
    /// Heads and sizes.
    pub shape: Shape,
    /// Who owns which token.
    pub layout: Layout,
    /// How messages travel.
    pub transport: Transport,
    /// What partial results and gradients are on the way.
    pub partials: Partials,
    /// Token blocks that operations speak of.
    pub blocks: Vec<Block>,
    /// Masks that operations speak of; see [`MaskId`].
    pub masks: Vec<Mask>,
    /// One program a rank.
    pub programs: Vec<Program>,
    /// All messages.
    pub messages: Vec<Message>,
    /// What a user must be told: an option without effect, padding that was added.
    pub notes: Vec<String>,
}

impl Plan {
    /// Number of ranks P.
    pub fn ranks(&self) -> u32 {
        self.programs.len() as u32
    }

    /// A block by id.
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id as usize]
    }

    /// A mask by id.
    pub fn mask(&self, id: MaskId) -> &Mask {
        &self.masks[usize::from(id.0)]
    }

    /// A message by id.
    pub fn message(&self, id: MessageId) -> &Message {
        &self.messages[id as usize]
    }

    /// Number of operations of all ranks.
    pub fn op_count(&self) -> usize {
        self.programs.iter().map(|p| p.ops.len()).sum()
    }

    /// Bytes of a message of `tokens` tokens and `heads` heads.
    pub fn message_bytes(&self, tensor: Tensor, tokens: u64, heads: u32) -> Bytes {
        let each: u64 =
            tensor.parts().iter().map(|&p| tensor.width(p, &self.shape) * self.travelling_bytes(p)).sum();
        Bytes(each) * tokens * u64::from(heads) * u64::from(self.shape.batch)
    }

    /// Size of one number of an array while it travels.
    pub fn travelling_bytes(&self, part: Part) -> u64 {
        match self.partials {
            Partials::Element if part.is_partial() => self.shape.dtype.size().0,
            _ => part.element_bytes(&self.shape),
        }
    }

    /// Bytes that `rank` sends.
    pub fn bytes_sent(&self, rank: Rank) -> Bytes {
        Bytes(self.messages.iter().filter(|m| m.from == rank).map(|m| m.bytes.0).sum())
    }

    /// Bytes that all ranks send.
    pub fn bytes_moved(&self) -> Bytes {
        Bytes(self.messages.iter().map(|m| m.bytes.0).sum())
    }

    /// Unmasked pairs of the whole problem, for one head and one sequence.
    pub fn unmasked_pairs(&self) -> u128 {
        let all =
            TokenSet::new([crate::tokens::Progression::contiguous(0, self.layout.documents().tokens())]);
        crate::work::pairs(&self.masks[0], &all, &all)
    }

    /// FLOPs of an operation by the mask's area, over all heads and sequences.
    pub fn flops(&self, kind: &OpKind) -> f64 {
        kind.attended().map_or(0.0, |(q, kv, mask)| {
            let (q, kv) = (self.block(q), self.block(kv));
            let pairs = crate::work::pairs(self.mask(mask), &q.tokens, &kv.tokens);
            let each = kind.flops_per_pair(self.shape.head_dim) as f64;
            pairs as f64 * each * f64::from(q.heads.count) * f64::from(self.shape.batch)
        })
    }

    /// FLOPs of the whole problem by the mask's area: never the FLOPs that a kernel spends on masked pairs.
    pub fn mask_area_flops(&self) -> f64 {
        let per_pair = self.pass.flops_per_pair(self.shape.head_dim);
        self.unmasked_pairs() as f64
            * per_pair as f64
            * f64::from(self.shape.heads)
            * f64::from(self.shape.batch)
    }
}

impl Program {
    /// Bytes of the buffers that the program uses. They are allocated once, before the pass, and kept: receives run ahead
    /// of computing, so no order of operations says when a buffer could be given back.
    pub fn peak_memory(&self) -> Bytes {
        let mut used: Vec<bool> = self.buffers.iter().map(|b| b.role.initial().is_some()).collect();
        self.ops.iter().for_each(|op| op.kind.accesses(|b, _| used[usize::from(b.0)] = true));
        self.buffers.iter().zip(used).filter(|(_, used)| *used).map(|(b, _)| b.bytes).sum()
    }
}
