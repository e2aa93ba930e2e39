//! Whether every message has both ends, once, and travels in the same order at both.

use super::postings::Postings;
use super::terms::{At, Wire};
use super::violation::{Findings, Violation};
use crate::plan::{Lane, MessageId, NO_OP, OpId, OpKind, Plan, Rank, Transport};

/// The two ends of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    /// The send, at `from`.
    pub send: OpId,
    /// The receive, at `to`.
    pub recv: OpId,
}

/// Finds every message's ends; complete if nothing was found wrong.
pub(super) fn pair_up(plan: &Plan, found: &mut Findings) -> Vec<Ends> {
    let mut ends = vec![Ends { send: NO_OP, recv: NO_OP }; plan.messages.len()];
    for (rank, program) in plan.programs.iter().enumerate() {
        for (id, op) in program.ops.iter().enumerate() {
            let (message, is_send) = match op.kind {
                OpKind::Send { message, .. } => (message, true),
                OpKind::Recv { message, .. } => (message, false),
                _ => continue,
            };
            let at = At::new(rank as Rank, id as OpId, op);
            let wire = wire(plan, message);
            let end = &mut ends[message as usize];
            let (home, end) = if is_send { (wire.from, &mut end.send) } else { (wire.to, &mut end.recv) };
            if home != at.rank {
                found.push(Violation::WrongRank { wire, at });
            } else if *end == NO_OP {
                *end = at.op;
            } else {
                let first = At::new(at.rank, *end, &program.ops[*end as usize]);
                found.push(Violation::Repeated { wire, first, second: at });
            }
        }
    }
    for (id, &end) in ends.iter().enumerate() {
        one_message(plan, id as MessageId, end, found);
    }
    ends
}

fn one_message(plan: &Plan, id: MessageId, end: Ends, found: &mut Findings) {
    let (message, wire) = (plan.message(id), wire(plan, id));
    if end.send == NO_OP {
        let received = (end.recv != NO_OP).then(|| at(plan, wire.to, end.recv));
        found.push(Violation::NotSent { wire, received });
    } else if end.recv == NO_OP {
        found.push(Violation::NotReceived { wire, sent: at(plan, wire.from, end.send) });
    }
    let block = plan.block(message.block);
    let expected = plan.message_bytes(message.tensor, block.tokens.len(), block.heads.count);
    if message.bytes != expected {
        found.push(Violation::MessageBytes { wire, found: message.bytes, expected });
    }
}

/// A message, as violations name it.
pub(super) fn wire(plan: &Plan, message: MessageId) -> Wire {
    let m = plan.message(message);
    Wire { message, from: m.from, to: m.to }
}

/// An operation, as violations name it.
pub(super) fn at(plan: &Plan, rank: Rank, op: OpId) -> At {
    At::new(rank, op, &plan.programs[rank as usize].ops[op as usize])
}

/// A message on its way: between whom, on which lanes, and when at either end.
#[derive(Clone, Copy)]
struct Flight {
    id: MessageId,
    ranks: (Rank, Rank),
    lanes: (Lane, Lane),
    ends: (OpId, OpId),
}

/// Checks that the messages of two ranks keep their order.
pub(super) fn check_order(plan: &Plan, postings: &[Postings], ends: &[Ends], found: &mut Findings) {
    let lane = |rank: Rank, op: OpId| plan.programs[rank as usize].ops[op as usize].lane;
    let flights = plan.messages.iter().zip(ends).enumerate().map(|(id, (m, end))| Flight {
        id: id as MessageId,
        ranks: (m.from, m.to),
        lanes: (lane(m.from, end.send), lane(m.to, end.recv)),
        ends: (end.send, end.recv),
    });
    let mut flights: Vec<Flight> = flights.collect();
    flights.sort_unstable_by_key(|f| (f.ranks, f.lanes, f.ends.0));
    for two in flights.windows(2) {
        same_order(plan, two[0], two[1], found);
    }
    if plan.transport == Transport::Nccl {
        communicators(plan, postings, &mut flights, found);
    }
}

fn same_order(plan: &Plan, a: Flight, b: Flight, found: &mut Findings) {
    if (a.ranks, a.lanes) == (b.ranks, b.lanes) && a.ends.1 > b.ends.1 {
        let (from, to) = a.ranks;
        found.push(Violation::MessageOrder {
            from,
            to,
            first: wire(plan, a.id),
            second: wire(plan, b.id),
            sends: (at(plan, from, a.ends.0), at(plan, from, b.ends.0)),
            receives: (at(plan, to, a.ends.1), at(plan, to, b.ends.1)),
        });
    }
}

/// NCCL: both ends are on one communicator, and two ranks use their communicators in the same order.
fn communicators(plan: &Plan, postings: &[Postings], flights: &mut [Flight], found: &mut Findings) {
    for f in flights.iter().filter(|f| f.lanes.0 != f.lanes.1) {
        let (sent, received) = (at(plan, f.ranks.0, f.ends.0), at(plan, f.ranks.1, f.ends.1));
        found.push(Violation::Communicators { sent, received, lanes: f.lanes });
    }
    for f in flights.iter_mut().filter(|f| f.ranks.0 > f.ranks.1) {
        (f.ranks, f.lanes, f.ends) = ((f.ranks.1, f.ranks.0), (f.lanes.1, f.lanes.0), (f.ends.1, f.ends.0));
    }
    let posting = |rank: Rank, op| postings[rank as usize].of(op);
    let key = |f: &Flight| (f.ranks, posting(f.ranks.0, f.ends.0), posting(f.ranks.1, f.ends.1));
    flights.sort_unstable_by_key(key);
    for pair in flights.chunk_by(|a, b| a.ranks == b.ranks) {
        let mut latest: Option<Flight> = None;
        for here in pair.chunk_by(|a, b| key(a).1 == key(b).1) {
            if let Some(before) = latest.filter(|l| key(l).2 > key(&here[0]).2 && l.lanes != here[0].lanes) {
                let (f, (i, j)) = (here[0], here[0].ranks);
                found.push(Violation::CommunicatorOrder {
                    here: (at(plan, i, before.ends.0), at(plan, i, f.ends.0)),
                    there: (at(plan, j, before.ends.1), at(plan, j, f.ends.1)),
                });
            }
            let last = here[here.len() - 1];
            latest = Some(latest.filter(|l| key(l).2 > key(&last).2).unwrap_or(last));
        }
    }
}
