//! Ways to change one thing in a plan.

use ringlab_sim::mask::{Mask, Pattern};
use ringlab_sim::plan::{Buf, LANES, MaskId, NO_OP, Op, OpId, OpKind, Plan, Projection, Scores};

/// What is changed, with numbers that choose where.
#[derive(Debug, Clone, Copy)]
pub enum Mutation {
    DropOp,
    SwapOps,
    SwapKinds,
    DropWait,
    EarlierWait,
    Block,
    Mask,
    Retarget,
    Buffer,
    Init,
    Lane,
    Group,
    Double,
}

pub const MUTATIONS: [Mutation; 13] = [
    Mutation::DropOp,
    Mutation::SwapOps,
    Mutation::SwapKinds,
    Mutation::DropWait,
    Mutation::EarlierWait,
    Mutation::Block,
    Mutation::Mask,
    Mutation::Retarget,
    Mutation::Buffer,
    Mutation::Init,
    Mutation::Lane,
    Mutation::Group,
    Mutation::Double,
];

/// Removes an operation; who waited for it waits for what it waited for, and for the one before it on its lane.
pub fn remove(plan: &mut Plan, rank: usize, op: usize) {
    let ops = &mut plan.programs[rank].ops;
    let mut inherited = ops[op].waits;
    let lane = ops[op].lane;
    let before = (0..op).rev().find(|&i| ops[i].lane == lane).map_or(NO_OP, |i| i as OpId);
    inherited[usize::from(lane.0)] = before;
    ops.remove(op);
    let later = |a: OpId, b: OpId| if a == NO_OP || b == NO_OP { a.min(b) } else { a.max(b) };
    for waits in ops[op..].iter_mut().map(|o| &mut o.waits) {
        if waits.contains(&(op as OpId)) {
            waits[usize::from(lane.0)] = NO_OP;
            waits.iter_mut().zip(inherited).for_each(|(w, i)| *w = later(*w, i));
        }
        waits.iter_mut().filter(|w| **w != NO_OP && **w as usize > op).for_each(|w| *w -= 1);
    }
}

/// Exchanges two operations, waits and all.
pub fn swap(plan: &mut Plan, rank: usize, a: usize, b: usize) {
    let ops = &mut plan.programs[rank].ops;
    ops.swap(a, b);
    for wait in ops.iter_mut().flat_map(|o| o.waits.iter_mut()) {
        if *wait == a as OpId {
            *wait = b as OpId;
        } else if *wait == b as OpId {
            *wait = a as OpId;
        }
    }
}

/// Repeats an operation right after itself.
pub fn double(plan: &mut Plan, rank: usize, op: usize) {
    let ops = &mut plan.programs[rank].ops;
    ops.insert(op + 1, ops[op]);
    let later = ops[op + 2..].iter_mut().flat_map(|o| o.waits.iter_mut());
    later.filter(|w| **w != NO_OP && **w as usize > op).for_each(|w| *w += 1);
}

/// Whether a mutation has something to change in an operation.
fn applies(mutation: Mutation, op: &Op) -> bool {
    let attends = op.kind.attended().is_some();
    match mutation {
        Mutation::DropWait | Mutation::EarlierWait => op.waits.iter().any(|&w| w != NO_OP),
        Mutation::Mask | Mutation::Init => attends,
        Mutation::Block => attends || op.kind.message().is_some(),
        Mutation::Retarget => op.kind.message().is_some(),
        _ => true,
    }
}

/// Applies a mutation; whether it changed the plan.
pub fn mutate(plan: &mut Plan, mutation: Mutation, (x, y, z): (usize, usize, usize)) -> bool {
    let before = plan.clone();
    let rank = x % plan.programs.len();
    let ops = &plan.programs[rank].ops;
    let choices: Vec<usize> = (0..ops.len()).filter(|&i| applies(mutation, &ops[i])).collect();
    if choices.is_empty() {
        return false;
    }
    let (op, count) = (choices[y % choices.len()], ops.len());
    let blocks = plan.blocks.len();
    match mutation {
        Mutation::DropOp => remove(plan, rank, op),
        Mutation::SwapOps => swap(plan, rank, op, z % count),
        Mutation::SwapKinds => {
            let (a, b) = (plan.programs[rank].ops[op].kind, plan.programs[rank].ops[z % count].kind);
            (plan.programs[rank].ops[op].kind, plan.programs[rank].ops[z % count].kind) = (b, a);
        }
        Mutation::DropWait => drop_wait(plan, rank, op, z, false),
        Mutation::EarlierWait => drop_wait(plan, rank, op, z, true),
        Mutation::Block => change_block(plan, rank, op, (z % blocks) as u32, y),
        Mutation::Mask => change_mask(plan, rank, op, z),
        Mutation::Retarget => retarget(plan, rank, op, z),
        Mutation::Buffer => change_buffer(plan, rank, op, z),
        Mutation::Init => change_init(plan, rank, op, z),
        Mutation::Lane => plan.programs[rank].ops[op].lane.0 = (z % 6) as u8,
        Mutation::Group => change_group(plan, rank, op, z),
        Mutation::Double => double(plan, rank, op),
    }
    *plan != before
}

/// Takes one of an operation's waits away, or moves it to the operation before on that lane.
fn drop_wait(plan: &mut Plan, rank: usize, op: usize, z: usize, only_earlier: bool) {
    let ops = &mut plan.programs[rank].ops;
    let lanes: Vec<usize> = (0..LANES).filter(|&lane| ops[op].waits[lane] != NO_OP).collect();
    let lane = lanes[z % lanes.len()];
    let wait = ops[op].waits[lane] as usize;
    let before = (0..wait).rev().find(|&i| usize::from(ops[i].lane.0) == lane).filter(|_| only_earlier);
    ops[op].waits[lane] = before.map_or(NO_OP, |i| i as OpId);
}

/// Takes an operation out of its group, or into that of its neighbour.
fn change_group(plan: &mut Plan, rank: usize, op: usize, z: usize) {
    let ops = &mut plan.programs[rank].ops;
    let lane = ops[op].lane;
    let before = (0..op).rev().find(|&i| ops[i].lane == lane);
    match before.filter(|_| z.is_multiple_of(2)) {
        Some(before) => {
            let group = ops[before].group.max(1_000_000);
            (ops[before].group, ops[op].group) = (group, group);
        }
        None => ops[op].group = 0,
    }
}

fn change_block(plan: &mut Plan, rank: usize, op: usize, block: u32, y: usize) {
    match &mut plan.programs[rank].ops[op].kind {
        OpKind::Attend { q_block, kv_block, .. }
        | OpKind::Scores(
            Scores::Score { q_block, kv_block, .. }
            | Scores::Weigh { q_block, kv_block, .. }
            | Scores::WeighBackward { q_block, kv_block, .. }
            | Scores::ScoreBackward { q_block, kv_block, .. },
        ) => *[q_block, kv_block][y % 2] = block,
        OpKind::AttendBackward { q_block, kv_block, dkv_block, .. } => {
            *[q_block, kv_block, dkv_block][y % 3] = block;
        }
        OpKind::Send { message, .. } | OpKind::Recv { message, .. } => {
            let message = *message as usize;
            let b = plan.block(block);
            let tensor = plan.messages[message].tensor;
            plan.messages[message].bytes = tensor.bytes(&plan.shape, b.tokens.len(), b.heads.count);
            plan.messages[message].block = block;
        }
        _ => {}
    }
}

fn change_mask(plan: &mut Plan, rank: usize, op: usize, z: usize) {
    if z % 3 == 2 {
        let diagonal = [-1, 0, 1][z / 3 % 3];
        plan.masks.push(Mask::shifted(Pattern::Causal, plan.layout.documents(), diagonal));
    }
    let (OpKind::Attend { mask, .. }
    | OpKind::AttendBackward { mask, .. }
    | OpKind::Scores(
        Scores::Score { mask, .. }
        | Scores::Weigh { mask, .. }
        | Scores::WeighBackward { mask, .. }
        | Scores::ScoreBackward { mask, .. },
    )) = &mut plan.programs[rank].ops[op].kind
    else {
        return;
    };
    *mask = [MaskId::PROBLEM, MaskId::NONE, MaskId(2)][z % 3];
}

fn retarget(plan: &mut Plan, rank: usize, op: usize, z: usize) {
    let ranks = plan.ranks();
    let other = (z % plan.messages.len()) as u32;
    let (OpKind::Send { message, .. } | OpKind::Recv { message, .. }) = &mut plan.programs[rank].ops[op].kind
    else {
        return;
    };
    let m = *message as usize;
    match z % 3 {
        0 => *message = other,
        1 => plan.messages[m].to = z as u32 / 3 % ranks,
        _ => plan.messages[m].from = z as u32 / 3 % ranks,
    }
}

fn change_scores(op: &mut Scores, mut set: impl FnMut(&mut Buf)) {
    match op {
        Scores::Score { q, k, rows, .. } => [&mut q.first, &mut k.first, rows].into_iter().for_each(set),
        Scores::Softmax { rows, state, .. } => [rows, state].into_iter().for_each(set),
        Scores::Weigh { rows, v, state, .. } => [rows, &mut v.first, state].into_iter().for_each(set),
        Scores::WeighBackward { rows, d_o, v, d_rows, dv, .. } => {
            [rows, &mut d_o.first, &mut v.first, d_rows, dv].into_iter().for_each(set);
        }
        Scores::SoftmaxBackward { rows, d_rows, .. } => [rows, d_rows].into_iter().for_each(set),
        Scores::ScoreBackward { d_rows, q, k, dq, dk, .. } => {
            [d_rows, &mut q.first, &mut k.first, dq, dk].into_iter().for_each(&mut set);
        }
    }
}

fn change_buffer(plan: &mut Plan, rank: usize, op: usize, z: usize) {
    let buffers = &plan.programs[rank].buffers;
    let mut touched = Vec::new();
    let mut kind = plan.programs[rank].ops[op].kind;
    kind.accesses(|b, _| touched.push(b));
    let old = touched[z % touched.len()];
    let same = |b: &usize| buffers[*b].tensor == buffers[usize::from(old.0)].tensor;
    let choices: Vec<usize> = (0..buffers.len()).filter(same).collect();
    let new = Buf(choices[z / 7 % choices.len()] as u16);
    let set = |b: &mut Buf| {
        if *b == old {
            *b = new;
        }
    };
    match &mut kind {
        OpKind::Attend { q, kv, state, .. } => [&mut q.first, &mut kv.first, state].into_iter().for_each(set),
        OpKind::AttendBackward { q, delta, kv, dq, dkv, .. } => {
            [&mut q.first, delta, &mut kv.first, dq, &mut dkv.first].into_iter().for_each(set);
        }
        OpKind::Preprocess { q, delta, .. } => [&mut q.first, delta].into_iter().for_each(set),
        OpKind::Merge { from, into } | OpKind::Accumulate { from, into } => {
            [from, into].into_iter().for_each(set);
        }
        OpKind::Finish { state, out } => [state, out].into_iter().for_each(set),
        OpKind::Project(projection) => match projection {
            Projection::Inputs { input, q, kv, .. } => [&mut input.first, q, kv].into_iter().for_each(set),
            Projection::Output { out, parts, .. } => [out, &mut parts.first].into_iter().for_each(set),
            Projection::Gradients { dq, dkv, parts, .. } => {
                [dq, dkv, &mut parts.first].into_iter().for_each(set);
            }
        },
        OpKind::Scores(op) => change_scores(op, set),
        OpKind::Send { buffer, .. } => set(&mut buffer.first),
        OpKind::Recv { buffer, .. } => set(buffer),
    }
    plan.programs[rank].ops[op].kind = kind;
}

fn change_init(plan: &mut Plan, rank: usize, op: usize, z: usize) {
    match &mut plan.programs[rank].ops[op].kind {
        OpKind::Attend { init, .. }
        | OpKind::Scores(
            Scores::Score { init, .. }
            | Scores::WeighBackward { init, .. }
            | Scores::ScoreBackward { init, .. },
        ) => *init ^= true,
        OpKind::AttendBackward { init_dq, init_dkv, .. } => *[init_dq, init_dkv][z % 2] ^= true,
        _ => {}
    }
}
