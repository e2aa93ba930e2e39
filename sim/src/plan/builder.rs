//! Makes plans. A schedule states each rank's operations in a sequential order and which lane each runs on; the waits
//! between lanes follow from the buffers that the operations touch.

use std::collections::BTreeMap;

use super::{
    Access, Block, BlockId, Buf, Buffer, Bufs, Heads, LANES, Lane, Message, MessageId, NO_OP, Op, OpId,
    OpKind, Partials, Plan, Program, Rank, Role, Slots, Tensor, Transport, part_of,
};
use crate::layout::Layout;
use crate::mask::Mask;
use crate::problem::{Pass, Problem, Shape};
use crate::tokens::TokenSet;
use crate::units::Bytes;

/// A plan in the making.
pub struct PlanBuilder {
    plan: Plan,
    block_ids: BTreeMap<(Vec<Slots>, Heads), BlockId>,
    hazards: Vec<Vec<Hazard>>,
    groups: u32,
}

/// Who touched a buffer last, in program order.
#[derive(Clone, Copy)]
struct Hazard {
    write: OpId,
    reads: [OpId; LANES],
}

const UNTOUCHED: Hazard = Hazard { write: NO_OP, reads: [NO_OP; LANES] };

impl PlanBuilder {
    /// An empty plan of `problem` over `layout`.
    pub fn new(name: String, pass: Pass, problem: &Problem, layout: Layout, transport: Transport) -> Self {
        let documents = layout.documents();
        let masks = vec![Mask::new(problem.pattern, documents), Mask::none(documents.tokens())];
        let ranks = layout.ranks() as usize;
        let mut notes = Vec::new();
        if documents.padding() > 0 {
            notes.push(format!(
                "padding to fit the {} layout: {} tokens",
                layout.kind(),
                documents.padding()
            ));
        }
        let plan = Plan {
            name,
            pass,
            shape: problem.shape,
            layout,
            transport,
            partials: Partials::Fp32,
            blocks: Vec::new(),
            masks,
            programs: vec![Program::default(); ranks],
            messages: Vec::new(),
            notes,
        };
        Self { plan, block_ids: BTreeMap::new(), hazards: vec![Vec::new(); ranks], groups: 0 }
    }

    /// What partial results and gradients are while they travel; fp32 unless this says otherwise.
    pub fn travelling(mut self, partials: Partials) -> Self {
        self.plan.partials = partials;
        self
    }

    /// Number of ranks P.
    pub fn ranks(&self) -> Rank {
        self.plan.programs.len() as u32
    }

    /// Heads and sizes.
    pub fn shape(&self) -> &Shape {
        &self.plan.shape
    }

    /// Who owns which token.
    pub fn layout(&self) -> &Layout {
        &self.plan.layout
    }

    /// The problem's mask.
    pub fn mask(&self) -> &Mask {
        &self.plan.masks[0]
    }

    /// Tokens of a block.
    pub fn tokens(&self, block: BlockId) -> &TokenSet {
        &self.plan.blocks[block as usize].tokens
    }

    /// Slots of a block.
    pub fn slots(&self, block: BlockId) -> &[Slots] {
        &self.plan.blocks[block as usize].slots
    }

    /// Something that a user must be told.
    pub fn note(&mut self, text: impl Into<String>) {
        self.plan.notes.push(text.into());
    }

    /// The block of these slots, which must be in order of position, and all query heads (`kv_side`: all kv heads).
    pub fn block(&mut self, slots: &[Slots], kv_side: bool) -> BlockId {
        self.block_of_heads(slots, self.all_heads(kv_side))
    }

    /// The block of these slots and heads.
    pub fn block_of_heads(&mut self, slots: &[Slots], heads: Heads) -> BlockId {
        let slots: Vec<Slots> = slots.iter().copied().filter(|s| s.from < s.to).collect();
        if let Some(&id) = self.block_ids.get(&(slots.clone(), heads)) {
            return id;
        }
        let layout = &self.plan.layout;
        let runs = slots.iter().flat_map(|s| layout.shard(s.rank).slice(s.from, s.to).runs().to_vec());
        let tokens = TokenSet::new(runs);
        let id = self.plan.blocks.len() as BlockId;
        self.plan.blocks.push(Block { slots: slots.clone(), heads, tokens });
        self.block_ids.insert((slots, heads), id);
        id
    }

    /// Everything `rank` owns: all its slots.
    pub fn shard(&self, rank: Rank) -> Slots {
        Slots { rank, from: 0, to: self.plan.layout.shard(rank).len() }
    }

    /// The block of all tokens in these ranges of positions, which must be in order and apart.
    pub fn span(&mut self, ranges: &[(u64, u64)], heads: Heads) -> BlockId {
        let owners = ranges.iter().flat_map(|&(from, to)| self.plan.layout.owners(from, to));
        let slots: Vec<Slots> = owners.map(|(rank, from, to)| Slots { rank, from, to }).collect();
        self.block_of_heads(&slots, heads)
    }

    /// All tokens of these ranks, in order of position.
    pub fn tokens_of(&self, ranks: &[Rank]) -> Vec<Slots> {
        let layout = &self.plan.layout;
        let owners = layout.owners(0, layout.documents().tokens()).into_iter();
        let slots = owners.filter(|(rank, ..)| ranks.contains(rank));
        slots.map(|(rank, from, to)| Slots { rank, from, to }).collect()
    }

    /// All query heads, or all kv heads.
    pub fn all_heads(&self, kv_side: bool) -> Heads {
        let count = if kv_side { self.plan.shape.kv_heads } else { self.plan.shape.heads };
        Heads { first: 0, count }
    }

    /// Part `i` of the `n` parts of a block, by [`part_of`].
    pub fn part(&mut self, block: BlockId, i: u64, n: u64) -> BlockId {
        if n == 1 {
            return block;
        }
        let Block { slots, heads, .. } = &self.plan.blocks[block as usize];
        let (parts, heads) = (part_of(slots, i, n), *heads);
        self.block_of_heads(&parts, heads)
    }

    /// All `n` parts of a block.
    pub fn parts(&mut self, block: BlockId, n: u64) -> Vec<BlockId> {
        (0..n).map(|i| self.part(block, i, n)).collect()
    }

    /// Bytes of `block` as `tensor`.
    pub fn bytes(&self, tensor: Tensor, block: BlockId) -> Bytes {
        let b = &self.plan.blocks[block as usize];
        tensor.bytes(&self.plan.shape, b.tokens.len(), b.heads.count)
    }

    /// A buffer that holds `block` from the start.
    pub fn input(&mut self, rank: Rank, tensor: Tensor, block: BlockId) -> Buf {
        let bytes = self.bytes(tensor, block);
        self.buffer(rank, Buffer { tensor, bytes, role: Role::Input(block) })
    }

    /// A buffer that holds `block`, maybe of other ranks' tokens, from the start: the forward left it there.
    pub fn saved(&mut self, rank: Rank, tensor: Tensor, block: BlockId) -> Buf {
        let bytes = self.bytes(tensor, block);
        self.buffer(rank, Buffer { tensor, bytes, role: Role::Saved(block) })
    }

    /// A buffer that must hold the result of `block` at the end.
    pub fn output(&mut self, rank: Rank, tensor: Tensor, block: BlockId) -> Buf {
        let bytes = self.bytes(tensor, block);
        self.buffer(rank, Buffer { tensor, bytes, role: Role::Output(block) })
    }

    /// A buffer large enough for `block` that must hold the result of `kept`, a part of it, at the end.
    pub fn output_within(&mut self, rank: Rank, tensor: Tensor, block: BlockId, kept: BlockId) -> Buf {
        let bytes = self.bytes(tensor, block);
        self.buffer(rank, Buffer { tensor, bytes, role: Role::Output(kept) })
    }

    /// A buffer large enough for `block`.
    pub fn scratch(&mut self, rank: Rank, tensor: Tensor, block: BlockId) -> Buf {
        let bytes = self.bytes(tensor, block);
        self.buffer(rank, Buffer { tensor, bytes, role: Role::Scratch })
    }

    /// Consecutive buffers, each large enough for one of `blocks`.
    pub fn scratch_parts(&mut self, rank: Rank, tensor: Tensor, blocks: &[BlockId]) -> Bufs {
        let ids: Vec<Buf> = blocks.iter().map(|&b| self.scratch(rank, tensor, b)).collect();
        Bufs { first: ids[0], count: ids.len() as u16 }
    }

    fn buffer(&mut self, rank: Rank, buffer: Buffer) -> Buf {
        let program = &mut self.plan.programs[rank as usize];
        program.buffers.push(buffer);
        self.hazards[rank as usize].push(UNTOUCHED);
        Buf((program.buffers.len() - 1) as u16)
    }

    /// A message that carries `block`; its send and its receive are pushed apart.
    pub fn message(&mut self, from: Rank, to: Rank, tensor: Tensor, block: BlockId) -> MessageId {
        let b = &self.plan.blocks[block as usize];
        let bytes = self.plan.message_bytes(tensor, b.tokens.len(), b.heads.count);
        self.plan.messages.push(Message { from, to, tensor, block, bytes });
        (self.plan.messages.len() - 1) as MessageId
    }

    /// A new group for operations that are posted together.
    pub fn group(&mut self) -> u32 {
        self.groups += 1;
        self.groups
    }

    /// Appends a compute operation.
    pub fn compute(&mut self, rank: Rank, step: u32, kind: OpKind) -> OpId {
        self.push(rank, Lane::COMPUTE, step, 0, kind)
    }

    /// Appends an operation to the program of `rank`. It waits for earlier operations on other lanes that touch its
    /// buffers in a conflicting way.
    pub fn push(&mut self, rank: Rank, lane: Lane, step: u32, group: u32, kind: OpKind) -> OpId {
        let program = &mut self.plan.programs[rank as usize];
        let hazards = &mut self.hazards[rank as usize];
        let id = program.ops.len() as OpId;
        let mut waits = [NO_OP; LANES];
        let ops = &program.ops;
        let mut wait = |op: OpId| {
            if op != NO_OP {
                let slot = &mut waits[usize::from(ops[op as usize].lane.0)];
                *slot = if *slot == NO_OP { op } else { (*slot).max(op) };
            }
        };
        kind.accesses(|buffer, access| {
            let hazard = &mut hazards[usize::from(buffer.0)];
            wait(hazard.write);
            if access == Access::Read {
                hazard.reads[usize::from(lane.0)] = id;
            } else {
                hazard.reads.iter().for_each(|&r| wait(r));
                *hazard = Hazard { write: id, reads: [NO_OP; LANES] };
            }
        });
        waits[usize::from(lane.0)] = NO_OP;
        program.ops.push(Op { kind, lane, group, step, waits });
        id
    }

    /// Makes `op` wait for `other`, an earlier operation of the same rank on another lane.
    pub fn wait(&mut self, rank: Rank, op: OpId, other: OpId) {
        let ops = &mut self.plan.programs[rank as usize].ops;
        let lane = usize::from(ops[other as usize].lane.0);
        let slot = &mut ops[op as usize].waits[lane];
        *slot = if *slot == NO_OP { other } else { (*slot).max(other) };
    }

    /// The finished plan.
    pub fn finish(self) -> Plan {
        self.plan
    }
}
