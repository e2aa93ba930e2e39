//! The proof that a plan is correct: every index points at the right kind of thing, every message has both its ends and
//! keeps its order, nothing waits in a circle, no buffer is overwritten in use, every operation finds what it needs,
//! and every unmasked (query, key) pair of every head counts exactly once in each result.
//!
//! The mask `Plan::masks[0]` and the layout are the specification; everything else in the plan is a claim. The checks
//! build on each other, so the first that fails reports and the later ones are not made. None enumerates pairs.

mod contents;
mod contributions;
mod coverage;
mod messages;
mod order;
mod postings;
mod race;
mod regions;
mod structure;
mod terms;
mod violation;

use order::Discipline;
use postings::Postings;
pub use terms::{At, Conflict, Cycle, Fault, Hop, Pair, Place, Reason, Wire};
use violation::Findings;
pub use violation::Violation;

use crate::plan::{OpKind, Plan, Program, Rank, Transport};
use crate::units::Bytes;

/// How many operations of each kind a rank has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpCounts {
    /// Attention calls, forward and backward, and products on score rows.
    pub attends: usize,
    /// Merges of states and sums of gradients.
    pub sums: usize,
    /// Preprocessing, softmax, finishing and projections.
    pub others: usize,
    /// Sends.
    pub sends: usize,
    /// Receives.
    pub recvs: usize,
}

/// What is known of one rank of a correct plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankProof {
    /// Most memory in use at once, inputs and outputs included.
    pub peak_memory: Bytes,
    /// What it sends.
    pub bytes_sent: Bytes,
    /// What it receives.
    pub bytes_received: Bytes,
    /// Its operations.
    pub ops: OpCounts,
}

/// A plan is correct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// Rank by rank.
    pub ranks: Vec<RankProof>,
    /// Unmasked (query, key) pairs of all query heads of one sequence, each proven to count exactly once in O, or in dQ
    /// and in dK and dV.
    pub pairs: u128,
    /// Messages, each proven to be sent and received once and in order.
    pub messages: usize,
}

impl Proof {
    /// The largest peak of all ranks.
    pub fn peak_memory(&self) -> Bytes {
        self.ranks.iter().map(|r| r.peak_memory).max().unwrap_or_default()
    }

    /// Bytes that all ranks send.
    pub fn bytes_moved(&self) -> Bytes {
        Bytes(self.ranks.iter().map(|r| r.bytes_sent.0).sum())
    }
}

/// Proves a plan correct.
///
/// # Errors
/// What is wrong, by rank, step and operation; the first 20 where there is more.
pub fn prove(plan: &Plan) -> Result<Proof, Vec<Violation>> {
    stage(|found| structure::check(plan, found))?;
    let postings: Vec<Postings> = plan.programs.iter().map(Postings::new).collect();
    let ends = stage(|found| messages::pair_up(plan, found))?;
    let events = stage(|found| {
        messages::check_order(plan, &postings, &ends, found);
        let in_order = found.is_empty();
        let events = order::execute(plan, &postings, &ends, Discipline::Lanes);
        if in_order && events.is_ok() && plan.transport == Transport::Nccl {
            let taken = order::execute(plan, &postings, &ends, Discipline::Turns);
            taken.map_err(|cycle| found.push(Violation::Interlock { cycle })).ok();
        }
        race::check(plan, &postings, found);
        events.map_err(|cycle| found.push(Violation::CircularWait { cycle })).unwrap_or_default()
    })?;
    drop(postings);
    let mut machine = stage(|found| contents::execute(plan, &ends, &events, found))?;
    drop(events);
    let pairs = stage(|found| coverage::prove(plan, &mut machine, found))?;
    Ok(Proof { ranks: rank_proofs(plan), pairs, messages: plan.messages.len() })
}

/// One check, with its result if it found nothing.
fn stage<T>(check: impl FnOnce(&mut Findings) -> T) -> Result<T, Vec<Violation>> {
    let mut found = Findings::default();
    let result = check(&mut found);
    found.done().map(|()| result)
}

fn rank_proofs(plan: &Plan) -> Vec<RankProof> {
    let one = |program: &Program| RankProof {
        peak_memory: program.peak_memory(),
        bytes_sent: Bytes(0),
        bytes_received: Bytes(0),
        ops: count(program),
    };
    let mut ranks: Vec<RankProof> = plan.programs.iter().map(one).collect();
    let mut add = |from: Rank, to: Rank, bytes: Bytes| {
        ranks[from as usize].bytes_sent.0 += bytes.0;
        ranks[to as usize].bytes_received.0 += bytes.0;
    };
    plan.messages.iter().for_each(|m| add(m.from, m.to, m.bytes));
    ranks
}

fn count(program: &Program) -> OpCounts {
    let mut counts = OpCounts::default();
    for op in &program.ops {
        *match op.kind {
            ref kind if kind.attended().is_some() => &mut counts.attends,
            OpKind::Merge { .. } | OpKind::Accumulate { .. } => &mut counts.sums,
            OpKind::Send { .. } => &mut counts.sends,
            OpKind::Recv { .. } => &mut counts.recvs,
            _ => &mut counts.others,
        } += 1;
    }
    counts
}
