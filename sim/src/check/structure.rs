//! Whether every index points at something of the right kind, and every block is what it says.

mod scores;

use std::collections::BTreeMap;

use super::postings::Postings;
use super::terms::{At, Place};
use super::violation::{Findings, Violation};
use crate::mask::Mask;
use crate::plan::{
    Block, BlockId, Buf, Buffer, Bufs, LANES, MaskId, MessageId, NO_OP, Op, OpId, OpKind, Part, Plan,
    Program, Projection, Rank, Role, Slots, Tensor,
};
use crate::problem::Pass;
use crate::tokens::TokenSet;

/// Checks everything that the later steps rely on when they index.
pub(super) fn check(plan: &Plan, found: &mut Findings) {
    whole(plan, found);
    if !found.is_empty() {
        return;
    }
    for (id, block) in plan.blocks.iter().enumerate() {
        if let Some(what) = block_fault(plan, block) {
            found.push(Violation::Block { block: id as BlockId, what });
        }
    }
    for (id, message) in plan.messages.iter().enumerate() {
        let heads = heads_of(plan, message.tensor);
        if message.from >= plan.ranks() || message.to >= plan.ranks() {
            let what = format!("message {id} goes from rank {} to rank {}", message.from, message.to);
            found.push(Violation::Plan { what });
        } else if let Some(what) = block_use_fault(plan, message.block, heads) {
            found.push(Violation::Plan { what: format!("message {id}: {what}") });
        }
    }
    for (rank, program) in plan.programs.iter().enumerate() {
        buffers(plan, rank as Rank, program, found);
        operations(plan, rank as Rank, program, found);
    }
}

fn whole(plan: &Plan, found: &mut Findings) {
    let mut refuse = |what: String| found.push(Violation::Plan { what });
    if plan.ranks() != plan.layout.ranks() {
        refuse(format!("{} programs for a layout of {} ranks", plan.ranks(), plan.layout.ranks()));
    }
    if let Err(error) = plan.shape.validate() {
        refuse(error.to_string());
    }
    let tokens = plan.layout.documents().tokens();
    if plan.masks.len() < 2 || *plan.mask(MaskId::NONE) != Mask::none(tokens) {
        refuse(format!("mask {} must allow all pairs of {tokens} tokens", MaskId::NONE.0));
    }
}

/// Heads that a tensor has.
pub(super) fn heads_of(plan: &Plan, tensor: Tensor) -> u32 {
    if tensor.is_key_side() { plan.shape.kv_heads } else { plan.shape.heads }
}

fn block_fault(plan: &Plan, block: &Block) -> Option<String> {
    let shard = |s: &Slots| plan.layout.shard(s.rank);
    let valid = |s: &&Slots| s.rank < plan.ranks() && s.from < s.to && s.to <= shard(s).len();
    if let Some(s) = block.slots.iter().find(|s| !valid(s)) {
        return Some(format!("rank {} has no slots {}..{}", s.rank, s.from, s.to));
    }
    let ends = block.slots.iter().map(|s| (shard(s).position(s.from), shard(s).position(s.to - 1)));
    let mut last = None;
    for (first, end) in ends {
        if last.is_some_and(|l| first <= l) {
            return Some(format!("token {first} is out of order"));
        }
        last = Some(end);
    }
    let runs = block.slots.iter().flat_map(|s| shard(s).slice(s.from, s.to).runs().to_vec());
    (TokenSet::new(runs) != block.tokens).then(|| "its tokens are not those of its slots".into())
}

/// Whether a block can be used with tensors of so many heads.
fn block_use_fault(plan: &Plan, id: BlockId, heads: u32) -> Option<String> {
    let Some(block) = plan.blocks.get(id as usize) else { return Some(format!("there is no block {id}")) };
    let end = u64::from(block.heads.first) + u64::from(block.heads.count);
    (block.heads.count == 0 || end > u64::from(heads))
        .then(|| format!("block {id} has heads {}..{end} of {heads}", block.heads.first))
}

fn buffers(plan: &Plan, rank: Rank, program: &Program, found: &mut Findings) {
    for (i, buffer) in program.buffers.iter().enumerate() {
        if let Some(what) = buffer_fault(plan, rank, buffer) {
            let place = Place { rank, buffer: Buf(i as u16), tensor: buffer.tensor };
            found.push(Violation::Buffer { place, what });
        }
    }
}

fn buffer_fault(plan: &Plan, rank: Rank, buffer: &Buffer) -> Option<String> {
    let block = match buffer.role {
        Role::Scratch => return None,
        Role::Saved(block) | Role::Input(block) | Role::Output(block) => block,
    };
    if !belongs(plan, buffer) {
        return Some(format!("it is no input or output of the {} pass", plan.pass));
    }
    if let Some(what) = block_use_fault(plan, block, heads_of(plan, buffer.tensor)) {
        return Some(what);
    }
    let held = plan.block(block);
    let foreign = held.slots.iter().find(|s| s.rank != rank);
    if let Some(s) = foreign.filter(|_| !matches!(buffer.role, Role::Saved(_))) {
        return Some(format!("its block has tokens of rank {}", s.rank));
    }
    let hidden = matches!(buffer.tensor, Tensor::Hidden | Tensor::LayerOutput | Tensor::HiddenGrad);
    if hidden && held.heads.count != plan.shape.heads {
        return Some(format!("its block has not all {} heads", plan.shape.heads));
    }
    let bytes = buffer.tensor.bytes(&plan.shape, held.tokens.len(), held.heads.count);
    (bytes > buffer.bytes)
        .then(|| format!("it has room for {} bytes, its block has {}", buffer.bytes.0, bytes.0))
}

/// Whether a tensor is input, left over from the forward, or result of the pass.
fn belongs(plan: &Plan, buffer: &Buffer) -> bool {
    use Tensor::{
        Hidden, HiddenGrad, KeyGrad, KeyValue, KeyValueGrad, LayerOutput, Output, OutputGrad, Query,
        QueryGrad, QuerySide, ValueGrad,
    };
    let tensor = buffer.tensor;
    match (buffer.role, plan.pass) {
        (Role::Scratch, _) => true,
        (Role::Saved(_), Pass::Forward) => false,
        (Role::Saved(_), Pass::Backward) => {
            matches!(tensor, Query | Output | KeyValue) || tensor == scores::rows(plan)
        }
        (Role::Input(_), Pass::Forward) => matches!(tensor, Query | KeyValue | Hidden),
        (Role::Input(_), Pass::Backward) => matches!(tensor, QuerySide | KeyValue | OutputGrad),
        (Role::Output(_), Pass::Forward) => matches!(tensor, Output | LayerOutput),
        (Role::Output(_), Pass::Backward) => {
            matches!(tensor, QueryGrad | KeyValueGrad | KeyGrad | ValueGrad | HiddenGrad)
        }
    }
}

fn operations(plan: &Plan, rank: Rank, program: &Program, found: &mut Findings) {
    let mut sound = true;
    for (id, op) in program.ops.iter().enumerate() {
        if let Some(what) = op_fault(plan, program, op) {
            sound = false;
            found.push(Violation::Op { at: At::new(rank, id as OpId, op), what });
        }
    }
    if sound {
        order_of_postings(rank, program, found);
    }
}

/// Waits must point back on the lane that they name; a group must be one posting.
fn order_of_postings(rank: Rank, program: &Program, found: &mut Findings) {
    let postings = Postings::new(program);
    let mut groups = BTreeMap::new();
    for (id, op) in program.ops.iter().enumerate() {
        let at = At::new(rank, id as OpId, op);
        let posting = postings.of(id as OpId);
        let start = postings.members(posting)[0];
        for (lane, &wait) in op.waits.iter().enumerate().filter(|(_, w)| **w != NO_OP) {
            let earlier = wait < start && usize::from(program.ops[wait as usize].lane.0) == lane;
            if !earlier {
                let what =
                    format!("it waits for op {wait} on lane {lane}, which is no earlier operation there");
                found.push(Violation::Op { at, what });
            }
        }
        if op.group != 0 && *groups.entry(op.group).or_insert(posting) != posting {
            found.push(Violation::Op { at, what: format!("group {} is torn apart", op.group) });
        }
    }
}

fn op_fault(plan: &Plan, program: &Program, op: &Op) -> Option<String> {
    let lane = usize::from(op.lane.0);
    if lane >= LANES {
        return Some(format!("there is no lane {lane}"));
    }
    if op.lane.is_compute() != op.kind.message().is_none() {
        return Some(format!("it cannot run on lane {lane}"));
    }
    operand_fault(plan, program, &op.kind)
}

/// Whether an operation's buffers, blocks, mask and message exist and are of the kind it needs.
fn operand_fault(plan: &Plan, program: &Program, kind: &OpKind) -> Option<String> {
    use Tensor::{Delta, KeyValue, KeyValueGrad, Output, QueryGrad, State};
    let buffer = |bufs: Bufs, tensor| buffers_fault(program, bufs, tensor);
    let queries = |block| block_use_fault(plan, block, plan.shape.heads);
    let keys = |block| block_use_fault(plan, block, plan.shape.kv_heads);
    let mask =
        |id: MaskId| (usize::from(id.0) >= plan.masks.len()).then(|| format!("there is no mask {}", id.0));
    match *kind {
        OpKind::Attend { q, kv, state, q_block, kv_block, mask: id, .. } => {
            parts_fault(program, q, &[Part::Query])
                .or_else(|| buffer(kv, KeyValue))
                .or_else(|| buffer(state.into(), State))
                .or_else(|| queries(q_block).or_else(|| keys(kv_block)).or_else(|| mask(id)))
        }
        OpKind::AttendBackward { q, delta, kv, dq, dkv, q_block, kv_block, dkv_block, mask: id, .. } => {
            parts_fault(program, q, BACKWARD_QUERY)
                .or_else(|| buffer(delta.into(), Delta))
                .or_else(|| buffer(kv, KeyValue))
                .or_else(|| buffer(dq.into(), QueryGrad))
                .or_else(|| buffer(dkv, KeyValueGrad))
                .or_else(|| queries(q_block).or_else(|| keys(kv_block)).or_else(|| keys(dkv_block)))
                .or_else(|| parts_of_block_fault(plan, dkv_block, dkv.count))
                .or_else(|| mask(id))
        }
        OpKind::Preprocess { q, delta, block } => parts_fault(program, q, PREPROCESSED)
            .or_else(|| buffer(delta.into(), Delta))
            .or_else(|| queries(block)),
        OpKind::Merge { from, into } => sum_fault(program, from, into, &[State]),
        OpKind::Accumulate { from, into } => sum_fault(
            program,
            from,
            into,
            &[
                QueryGrad,
                KeyValueGrad,
                Tensor::LayerOutput,
                Tensor::HiddenGrad,
                Tensor::KeyGrad,
                Tensor::ValueGrad,
            ],
        ),
        OpKind::Finish { state, out } => buffer(state.into(), State).or_else(|| buffer(out.into(), Output)),
        OpKind::Project(projection) => projection_fault(plan, program, &projection),
        OpKind::Scores(op) => scores::fault(plan, program, &op),
        OpKind::Send { message, buffer } => send_fault(plan, program, message, buffer),
        OpKind::Recv { message, buffer } => match plan.messages.get(message as usize) {
            None => Some(format!("there is no message {message}")),
            Some(message) => buffers_fault(program, buffer.into(), message.tensor),
        },
    }
}

/// What a backward call reads of its queries.
pub(super) const BACKWARD_QUERY: &[Part] = &[Part::Query, Part::OutputGrad, Part::Lse];
/// What delta is computed from.
pub(super) const PREPROCESSED: &[Part] = &[Part::Output, Part::OutputGrad];

/// Whether a message exists and can be sent from these buffers: a result from one, anything else from buffers that have
/// its parts.
fn send_fault(plan: &Plan, program: &Program, message: MessageId, bufs: Bufs) -> Option<String> {
    let Some(message) = plan.messages.get(message as usize) else {
        return Some(format!("there is no message {message}"));
    };
    let tensor = message.tensor;
    if !tensor.is_result() {
        return parts_fault(program, bufs, tensor.parts());
    }
    let several = (bufs.count > 1).then(|| format!("{tensor:?} is sent from several buffers"));
    several.or_else(|| buffers_fault(program, bufs, tensor))
}

fn projection_fault(plan: &Plan, program: &Program, projection: &Projection) -> Option<String> {
    use Tensor::{Hidden, HiddenGrad, KeyValue, KeyValueGrad, LayerOutput, Output, Query, QueryGrad};
    let buffer = |bufs: Bufs, tensor| buffers_fault(program, bufs, tensor);
    let (heads, kv_heads) = (plan.shape.heads, plan.shape.kv_heads);
    let all_heads = |id: BlockId| {
        block_use_fault(plan, id, heads).or_else(|| {
            (plan.block(id).heads.count != heads).then(|| format!("block {id} has not all {heads} heads"))
        })
    };
    match *projection {
        Projection::Inputs { input, hidden, q, q_block, kv, kv_block } => buffer(input, Hidden)
            .or_else(|| buffer(q.into(), Query).or_else(|| buffer(kv.into(), KeyValue)))
            .or_else(|| all_heads(hidden))
            .or_else(|| {
                block_use_fault(plan, q_block, heads).or_else(|| block_use_fault(plan, kv_block, kv_heads))
            })
            .or_else(|| {
                (plan.block(q_block).slots != plan.block(kv_block).slots)
                    .then(|| format!("blocks {q_block} and {kv_block} have different tokens"))
            }),
        Projection::Output { out, parts, hidden } => buffer(out.into(), Output)
            .or_else(|| buffer(parts, LayerOutput))
            .or_else(|| all_heads(hidden).or_else(|| parts_of_block_fault(plan, hidden, parts.count))),
        Projection::Gradients { dq, dkv, parts, hidden } => buffer(dq.into(), QueryGrad)
            .or_else(|| buffer(dkv.into(), KeyValueGrad).or_else(|| buffer(parts, HiddenGrad)))
            .or_else(|| all_heads(hidden).or_else(|| parts_of_block_fault(plan, hidden, parts.count))),
    }
}

/// Whether a block can be cut into so many parts.
fn parts_of_block_fault(plan: &Plan, id: BlockId, count: u16) -> Option<String> {
    let mut owners: Vec<Rank> = plan.block(id).slots.iter().map(|s| s.rank).collect();
    owners.sort_unstable();
    owners.dedup();
    let fits = count == 1 || usize::from(count).is_multiple_of(owners.len().max(1));
    (!fits).then(|| format!("block {id} has {} owners, its buffers are {count}", owners.len()))
}

/// Whether there are such buffers, each with one of `parts` at least.
fn parts_fault(program: &Program, bufs: Bufs, parts: &[Part]) -> Option<String> {
    match buffer_list(program, bufs) {
        Err(fault) => Some(fault),
        Ok(list) => {
            let useless = |b: &Buffer| !b.tensor.parts().iter().any(|p| parts.contains(p));
            let wrong = list.iter().position(useless)?;
            let first = usize::from(bufs.first.0);
            Some(format!(
                "buffer {} holds {:?}, which has none of {parts:?}",
                first + wrong,
                list[wrong].tensor
            ))
        }
    }
}

fn sum_fault(program: &Program, from: Buf, into: Buf, allowed: &[Tensor]) -> Option<String> {
    let tensor = program.buffers.get(usize::from(into.0)).map(|b| b.tensor);
    let Some(tensor) = tensor.filter(|t| allowed.contains(t)) else {
        return Some(format!("buffer {} cannot be added to", into.0));
    };
    (from == into)
        .then(|| format!("it adds buffer {} to itself", into.0))
        .or_else(|| buffers_fault(program, from.into(), tensor))
}

fn buffers_fault(program: &Program, bufs: Bufs, tensor: Tensor) -> Option<String> {
    match buffer_list(program, bufs) {
        Err(fault) => Some(fault),
        Ok(list) => {
            let (first, wrong) = (usize::from(bufs.first.0), list.iter().position(|b| b.tensor != tensor)?);
            Some(format!("buffer {} holds {:?} instead of {tensor:?}", first + wrong, list[wrong].tensor))
        }
    }
}

fn buffer_list(program: &Program, bufs: Bufs) -> Result<&[Buffer], String> {
    let (first, end) = (usize::from(bufs.first.0), usize::from(bufs.first.0) + usize::from(bufs.count));
    if first == end {
        return Err("it needs a buffer".into());
    }
    program.buffers.get(first..end).ok_or_else(|| format!("there are no buffers {first}..{end}"))
}
