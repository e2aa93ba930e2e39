//! Which mode a plan is run in.

use ringlab_sim::plan::{OpId, Plan, Rank, Transport};
use ringlab_sim::problem::Pass;

use super::error::CudaError;
use super::folds::Folds;
use super::lanes::by_flag;
use super::options::Mode;
use super::sequence::{Step, sequence};

/// What is folded on every rank, the order of operations, the mode that came of it, and what to tell.
pub(super) struct Choice {
    pub folds: Vec<Folds>,
    pub order: Vec<Step>,
    pub mode: Mode,
    pub notes: Vec<String>,
}

/// Fused where that is wanted and can be.
pub(super) fn choose(plan: &Plan, wanted: Mode, is_virtual: bool) -> Result<Choice, CudaError> {
    let stepwise = |notes| {
        let folds: Vec<Folds> = plan.programs.iter().map(Folds::of).collect();
        let order = sequence(plan, &folds).map_err(|place| CudaError::Deadlock { place })?;
        Ok(Choice { folds, order, mode: Mode::Stepwise, notes })
    };
    let because = |reason: &str| stepwise(vec![format!("attention is launched step by step: {reason}")]);
    match wanted {
        Mode::Auto | Mode::Stepwise => return stepwise(Vec::new()),
        _ if plan.pass == Pass::Backward => return because("only a forward can be fused"),
        _ if is_virtual => return because("virtual ranks take turns"),
        _ => {}
    }
    match fused(plan) {
        Ok((folds, order)) if folds.iter().any(|f| !f.followers.is_empty()) => {
            Ok(Choice { folds, order, mode: wanted, notes: Vec::new() })
        }
        Ok(_) => stepwise(Vec::new()),
        Err((rank, reason)) => Err(CudaError::NotFusable { rank, reason }),
    }
}

/// A rank whose calls cannot be one launch, and why.
type Obstacle = (Rank, &'static str);

fn fused(plan: &Plan) -> Result<(Vec<Folds>, Vec<Step>), Obstacle> {
    if plan.transport == Transport::Nccl {
        return Err((0, "NCCL's transfers need SMs that a waiting launch holds"));
    }
    let mut folds = Vec::new();
    for (rank, program) in (0..).zip(&plan.programs) {
        let found = Folds::fused(plan, program).map_err(|reason| (rank, reason))?;
        let late = |op: OpId, w: OpId| w > op && !by_flag(plan, rank, &found, op, w);
        if found.followers.keys().any(|&op| found.waits(program, op).into_iter().any(|w| late(op, w))) {
            return Err((rank, "a later call waits for more than its keys"));
        }
        folds.push(found);
    }
    let order = sequence(plan, &folds).map_err(|place| {
        (place.rank, "keys would overwrite others that are still needed (a prefetch of P - 1 gives each step its own room)")
    })?;
    Ok((folds, order))
}
