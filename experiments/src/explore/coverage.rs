//! The q x kv matrix: which rank computes which pair in which step.
//!
//! A real sequence has too many pairs to draw, so the same builder plans a short one of the same layout and mask, and
//! every pair of that is drawn.

use anyhow::Result;
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::{Pass, Problem};
use ringlab_sim::schedule::{self, Options, Schedule};
use serde::Serialize;

use crate::setup::Setup;

/// Ranks above which the matrix is too fine to be read.
const RANKS: u32 = 64;
/// Positions of the drawn sequence, about.
const SIDE: u64 = 128;
/// The fewest, where ranks are few.
const LEAST: u64 = 32;

/// Pairs of the first head, row by row: `cells[q * side + kv]`.
#[derive(Serialize)]
pub struct Coverage {
    /// Positions of the drawn sequence.
    side: u64,
    /// Tokens of the real one for each drawn position.
    scale: f64,
    /// The rank that computes a pair; -1 where the mask hides it.
    rank: Vec<i32>,
    /// The step in which it does; -1 where the mask hides it.
    step: Vec<i32>,
    /// The rank that owns each position.
    owner: Vec<u32>,
    /// Whether other ranks compute the other heads.
    heads_divided: bool,
}

/// The matrix of `schedule`, `None` for more ranks or documents than can be shown.
///
/// # Errors
/// If the short sequence cannot be planned.
pub fn coverage(setup: &Setup, schedule: Schedule, pass: Pass) -> Result<Option<Coverage>> {
    if setup.cp > RANKS {
        return Ok(None);
    }
    let ranks = u64::from(setup.cp);
    let per_rank = (SIDE / ranks).clamp(2, 8.max(LEAST / ranks)) / 2 * 2;
    let side = per_rank * ranks;
    let scale = setup.problem.tokens().max(1) as f64 / side as f64;
    let problem = Problem {
        shape: setup.problem.shape,
        pattern: shrink_pattern(setup.problem.pattern, scale),
        documents: shrink_documents(&setup.problem.documents, side),
    };
    let schedule = shrink_stripes(schedule, scale, per_rank);
    let plan = schedule::build(schedule, &problem, setup.cp, &Options { pad: true, ..Options::new(pass) })?;
    let drawn = plan.layout.documents().tokens();
    Ok((drawn <= 2 * SIDE).then(|| Coverage::of(&plan, drawn, scale)))
}

fn shrink_pattern(pattern: Pattern, scale: f64) -> Pattern {
    match pattern {
        Pattern::Window(w) => Pattern::Window(((w as f64 / scale).round() as u64).max(1)),
        other => other,
    }
}

/// Documents with the same ends on the scale of `side` positions; those that vanish are left out.
fn shrink_documents(documents: &[u64], side: u64) -> Vec<u64> {
    let total: u128 = documents.iter().map(|&d| u128::from(d)).sum::<u128>().max(1);
    let (mut sum, mut last, mut shrunk) = (0u128, 0, Vec::new());
    for &len in documents {
        sum += u128::from(len);
        let end = ((sum * u128::from(side) + total / 2) / total) as u64;
        if end > last {
            shrunk.push(end - last);
            last = end;
        }
    }
    shrunk
}

/// Stripes in proportion, but thin enough that a rank has some.
fn shrink_stripes(schedule: Schedule, scale: f64, per_rank: u64) -> Schedule {
    let Schedule::Striped { block } = schedule else { return schedule };
    let wanted = (block as f64 / scale).round() as u64;
    let block = (1..=per_rank).rev().find(|b| per_rank.is_multiple_of(*b) && *b <= wanted.max(1));
    Schedule::Striped { block: block.unwrap_or(1) }
}

impl Coverage {
    fn of(plan: &Plan, side: u64, scale: f64) -> Self {
        let cells = (side * side) as usize;
        let (mut rank, mut step) = (vec![-1; cells], vec![-1; cells]);
        let mut heads_divided = false;
        for (r, program) in plan.programs.iter().enumerate() {
            for op in &program.ops {
                let Some((q_block, kv_block, mask)) = op.kind.attended() else { continue };
                let (q_block, kv_block, mask) = (plan.block(q_block), plan.block(kv_block), plan.mask(mask));
                if q_block.heads.first > 0 {
                    heads_divided = true;
                    continue;
                }
                for q in q_block.tokens.iter() {
                    for kv in kv_block.tokens.iter().filter(|&kv| mask.allows(q, kv)) {
                        let cell = (q * side + kv) as usize;
                        (rank[cell], step[cell]) = (r as i32, op.step as i32);
                    }
                }
            }
        }
        let owner = (0..side).filter_map(|position| plan.layout.locate(position)).map(|(rank, _)| rank);
        Self { side, scale, rank, step, owner: owner.collect(), heads_divided }
    }
}

#[cfg(test)]
mod tests;
