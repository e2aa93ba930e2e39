//! Whether a rank's own lanes and waits order every two uses of a buffer of which one writes.
//!
//! Happens-before inside a rank as vector clocks over its lanes: a posting comes after the one before it on its lane,
//! after all that its members wait for, and after whatever those come after. In program order it is enough to compare
//! an access with the last write and the reads since: if those are all ordered, so is every earlier one.

use super::postings::Postings;
use super::terms::{At, Conflict, Place};
use super::violation::{Findings, Violation};
use crate::plan::{Access, Buf, LANES, NO_OP, OpId, OpKind, Plan, Program, Rank};

/// How many postings of each lane have ended before one starts.
type Clock = [u32; LANES];

/// Who used a buffer last.
#[derive(Clone, Copy)]
struct Uses {
    write: OpId,
    reads: [OpId; LANES],
}

/// Checks every buffer of every rank.
pub(super) fn check(plan: &Plan, postings: &[Postings], found: &mut Findings) {
    for (rank, (program, postings)) in plan.programs.iter().zip(postings).enumerate() {
        check_rank(rank as Rank, program, postings, found);
    }
}

fn check_rank(rank: Rank, program: &Program, postings: &Postings, found: &mut Findings) {
    let clocks = clocks(program, postings);
    let ordered = |earlier: OpId, later: OpId| {
        let before = postings.list()[postings.of(earlier) as usize];
        clocks[postings.of(later) as usize][before.lane] > before.position
    };
    let mut uses = vec![Uses { write: NO_OP, reads: [NO_OP; LANES] }; program.buffers.len()];
    for (id, op) in program.ops.iter().enumerate() {
        let id = id as OpId;
        op.kind.accesses(|buffer, access| {
            let last = &mut uses[usize::from(buffer.0)];
            let mut after = |earlier: OpId| {
                if earlier != NO_OP && earlier != id && !ordered(earlier, id) {
                    found.push(race(rank, program, buffer, earlier, id));
                }
            };
            after(last.write);
            if access == Access::Read {
                last.reads[usize::from(op.lane.0)] = id;
            } else {
                last.reads.iter().for_each(|&read| after(read));
                *last = Uses { write: id, reads: [NO_OP; LANES] };
            }
        });
    }
}

fn clocks(program: &Program, postings: &Postings) -> Vec<Clock> {
    let mut clocks: Vec<Clock> = Vec::with_capacity(postings.list().len());
    let mut last = [None; LANES];
    for (i, posting) in postings.list().iter().enumerate() {
        let waits = postings.waits(&program.ops, i as u32).map(|(_, wait)| postings.of(wait) as usize);
        let mut clock = [0; LANES];
        for earlier in waits.chain(last[posting.lane]) {
            let (theirs, before) = (clocks[earlier], postings.list()[earlier]);
            clock.iter_mut().zip(theirs).for_each(|(c, t)| *c = (*c).max(t));
            clock[before.lane] = clock[before.lane].max(before.position + 1);
        }
        last[posting.lane] = Some(i);
        clocks.push(clock);
    }
    clocks
}

fn race(rank: Rank, program: &Program, buffer: Buf, first: OpId, second: OpId) -> Violation {
    let at = |op: OpId| At::new(rank, op, &program.ops[op as usize]);
    let writes = |op: OpId| {
        let mut writes = false;
        let kind = &program.ops[op as usize].kind;
        kind.accesses(|b, access| writes |= b == buffer && access != Access::Read);
        writes
    };
    let conflict = match (&program.ops[first as usize].kind, writes(first), writes(second)) {
        (_, true, true) => Conflict::WrittenTwice,
        (OpKind::Recv { .. }, true, false) => Conflict::ReadBeforeArrival,
        (_, true, false) => Conflict::ReadWhileWritten,
        (OpKind::Send { .. }, ..) => Conflict::OverwrittenInFlight,
        _ => Conflict::OverwrittenWhileRead,
    };
    let tensor = program.buffers[usize::from(buffer.0)].tensor;
    Violation::Race { place: Place { rank, buffer, tensor }, conflict, first: at(first), second: at(second) }
}
