//! Which operations become one launch: a state's last attention call writes the finished output, and, in the fused
//! modes, all calls into one state are one launch that waits for their keys on the device.

use std::collections::{BTreeMap, BTreeSet};

use ringlab_sim::plan::{Access, Buf, Bufs, MaskId, NO_OP, Op, OpId, OpKind, Plan, Program, Tensor};
use ringlab_sim::work;

/// What is folded on one rank.
#[derive(Debug, Clone, Default)]
pub(super) struct Folds {
    /// The finish that a call does along.
    pub finish: BTreeMap<OpId, OpId>,
    /// The calls that a first one does along, in order.
    pub followers: BTreeMap<OpId, Vec<OpId>>,
    /// Operations that another one does along, and which.
    pub done_by: BTreeMap<OpId, OpId>,
    /// Calls after which nobody reads the state.
    pub last: BTreeSet<OpId>,
}

/// Uses of one buffer, in program order.
fn uses(program: &Program, buf: Buf) -> Vec<OpId> {
    let touches = |op: &Op| {
        let mut found = false;
        op.kind.accesses(|b, _| found |= b == buf);
        found
    };
    (0..).zip(&program.ops).filter(|(_, op)| touches(op)).map(|(i, _)| i).collect()
}

/// The buffers of unfinished results.
fn states(program: &Program) -> impl Iterator<Item = Buf> {
    let buffers = program.buffers.iter().enumerate();
    buffers.filter(|(_, b)| b.tensor == Tensor::State).map(|(i, _)| Buf(i as u16))
}

impl Folds {
    /// What is folded in every mode: a finish into the call before it.
    pub fn of(program: &Program) -> Self {
        let mut folds = Self::default();
        for state in states(program) {
            let uses = uses(program, state);
            for (i, pair) in uses.windows(2).enumerate() {
                let (call, finish) = (pair[0], pair[1]);
                if ends(program, call, finish) {
                    folds.finish.insert(call, finish);
                    folds.done_by.insert(finish, call);
                    let next = uses.get(i + 2).map(|&op| program.ops[op as usize].kind);
                    if matches!(next, None | Some(OpKind::Attend { init: true, .. })) {
                        folds.last.insert(call);
                    }
                }
            }
        }
        folds
    }

    /// As [`Folds::of`], with all calls of each state in one launch.
    ///
    /// # Errors
    /// Why a state's calls cannot be one launch.
    pub fn fused(plan: &Plan, program: &Program) -> Result<Self, &'static str> {
        let mut folds = Self::of(program);
        for state in states(program) {
            let all = uses(program, state);
            let starts: Vec<usize> = (0..all.len()).filter(|&i| is_init(program, all[i])).collect();
            for (n, &start) in starts.iter().enumerate() {
                let end = starts.get(n + 1).copied().unwrap_or(all.len());
                let calls: Vec<OpId> =
                    all[start..end].iter().copied().filter(|&op| is_call(program, op)).collect();
                if calls.len() > 1 {
                    check(plan, program, &all[start..end], &calls)?;
                    folds.fuse(&calls);
                }
            }
        }
        Ok(folds)
    }

    fn fuse(&mut self, calls: &[OpId]) {
        let (first, last) = (calls[0], calls[calls.len() - 1]);
        if let Some(finish) = self.finish.remove(&last) {
            self.finish.insert(first, finish);
            self.done_by.insert(finish, first);
        }
        if self.last.remove(&last) {
            self.last.insert(first);
        }
        self.done_by.extend(calls[1..].iter().map(|&call| (call, first)));
        self.followers.insert(first, calls[1..].to_vec());
    }

    /// States that no launch needs memory for: the one call that starts them finishes them. Launches that go segment by
    /// segment keep theirs.
    pub fn unused_states(&self, program: &Program, by_segments: bool) -> Vec<Buf> {
        let kept = |op: OpId| {
            let launch = self.done_by.get(&op).copied().unwrap_or(op);
            let kind = program.ops[launch as usize].kind;
            let starts = matches!(kind, OpKind::Attend { init: true, .. });
            !(starts && self.last.contains(&launch)) || (by_segments && self.followers.contains_key(&launch))
        };
        states(program).filter(|&state| !uses(program, state).into_iter().any(kept)).collect()
    }

    /// Everything that must have ended before the launch of `op` ends, but for its lane: the waits of all it does along.
    pub fn waits(&self, program: &Program, op: OpId) -> Vec<OpId> {
        let own = [op].into_iter().chain(self.followers.get(&op).into_iter().flatten().copied());
        let all = own.flat_map(|op| program.ops[op as usize].waits);
        let all: BTreeSet<OpId> = all.filter(|&w| w != NO_OP).collect();
        all.into_iter().collect()
    }
}

fn is_call(program: &Program, op: OpId) -> bool {
    matches!(program.ops[op as usize].kind, OpKind::Attend { .. })
}

fn is_init(program: &Program, op: OpId) -> bool {
    matches!(program.ops[op as usize].kind, OpKind::Attend { init: true, .. })
}

/// Whether `call` can do `finish` along: it is a call, and nothing else had to wait or touches the output between.
fn ends(program: &Program, call: OpId, finish: OpId) -> bool {
    let OpKind::Finish { out, .. } = program.ops[finish as usize].kind else { return false };
    let waits = program.ops[finish as usize].waits.iter().any(|&w| w != NO_OP);
    let touched = uses(program, out).into_iter().any(|op| call < op && op < finish);
    is_call(program, call) && !waits && !touched
}

/// Whether these calls, of all uses of a state between two starts, can be one launch.
fn check(plan: &Plan, program: &Program, uses: &[OpId], calls: &[OpId]) -> Result<(), &'static str> {
    let kind = |op: OpId| program.ops[op as usize].kind;
    let (first, last) = (calls[0], calls[calls.len() - 1]);
    let OpKind::Attend { q, q_block: all, .. } = kind(first) else { return Ok(()) };
    let between = uses.iter().filter(|&&op| op < last && !calls.contains(&op));
    if between.into_iter().any(|&op| !matches!(kind(op), OpKind::Merge { .. })) {
        return Err("their state is read before the last of them");
    }
    for &call in calls {
        let OpKind::Attend { q: other, kv, q_block, kv_block, mask, .. } = kind(call) else { continue };
        if other != q {
            return Err("their queries lie in different buffers");
        }
        let pairs =
            |mask, q: u32| work::pairs(plan.mask(mask), &plan.block(q).tokens, &plan.block(kv_block).tokens);
        if pairs(MaskId::PROBLEM, all) != pairs(mask, q_block) {
            return Err("one of them leaves out pairs that the mask allows");
        }
        if written_between(program, (first, call), q, true)
            || written_between(program, (first, call), kv, false)
        {
            return Err("what they read is computed between them");
        }
    }
    Ok(())
}

/// Whether an operation between two, other than a receive unless `by_messages`, writes one of the buffers.
fn written_between(program: &Program, (from, to): (OpId, OpId), bufs: Bufs, by_messages: bool) -> bool {
    let ops = &program.ops[from as usize..to as usize];
    ops.iter().filter(|op| by_messages || !matches!(op.kind, OpKind::Recv { .. })).any(|op| {
        let mut found = false;
        op.kind.accesses(|b, access| found |= access != Access::Read && bufs.iter().any(|x| x == b));
        found
    })
}
