//! Plans with one operation less or wrong: the comparison must see it.

use ringlab_runtime::inputs::Inputs;
use ringlab_runtime::verify::{Reference, verify};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{MaskId, OpKind, Plan, Scores};
use ringlab_sim::problem::{Pass, Problem};
use ringlab_sim::schedule::{Options, Route, Schedule};
use ringlab_sim::units::Bytes;

use crate::support::{SCHEDULES, TOLERANCE, forward, options, outcome, plan, problem, shape};

/// Far above what rounding can do.
const CLEARLY_WRONG: f64 = 1e-3;

struct Lab {
    problem: Problem,
    inputs: Inputs,
    exact: Reference,
}

impl Lab {
    fn new() -> Self {
        Self::of(Pattern::Causal)
    }

    /// Ring Self-Attention computes blocks of which a causal mask leaves nothing, and their results are zero.
    fn without_idle_blocks(schedule: Schedule) -> Self {
        Self::of(if schedule == Schedule::RingSelfAttention { Pattern::Full } else { Pattern::Causal })
    }

    fn of(pattern: Pattern) -> Self {
        let problem = problem(shape(2, 1, 8, 1), pattern, &[48]);
        let inputs = Inputs::random(9, &problem).unwrap();
        let result = forward(Schedule::Ring, &problem, 1, &options(Pass::Forward), &inputs);
        let exact = Reference::with_gradients(&problem, &inputs).unwrap();
        Self { problem, inputs: inputs.with_forward(result), exact }
    }

    fn error(&self, plan: &Plan) -> f64 {
        verify(&outcome(plan, &self.inputs), &self.exact).unwrap().worst()
    }

    /// Leaves out each operation that `which` names, one at a time; returns how many there were.
    fn drop_each(&self, plan: &Plan, which: impl Fn(&OpKind) -> bool) -> usize {
        assert!(self.error(plan) <= TOLERANCE, "the whole plan is right");
        let mut count = 0;
        for rank in 0..plan.programs.len() {
            for op in 0..plan.programs[rank].ops.len() {
                if which(&plan.programs[rank].ops[op].kind) {
                    let mut less = plan.clone();
                    less.programs[rank].ops.remove(op);
                    let error = self.error(&less);
                    assert!(
                        error > CLEARLY_WRONG,
                        "{}: rank {rank} without operation {op}: {error:e}",
                        plan.name
                    );
                    count += 1;
                }
            }
        }
        count
    }
}

#[test]
fn every_accumulate_counts() {
    for schedule in SCHEDULES {
        let lab = Lab::without_idle_blocks(schedule);
        for route in [Route::Neighbour, Route::Direct] {
            let options = Options { route, ..options(Pass::Backward) };
            let plan = plan(schedule, &lab.problem, 4, &options);
            let dropped = lab.drop_each(&plan, |op| matches!(op, OpKind::Accumulate { .. }));
            assert!(dropped >= 6, "{schedule}: {dropped}");
        }
    }
}

#[test]
fn every_attention_and_merge_counts() {
    for schedule in SCHEDULES {
        let lab = Lab::without_idle_blocks(schedule);
        let plan = plan(schedule, &lab.problem, 4, &options(Pass::Forward));
        let counts = |op: &OpKind| match op {
            OpKind::Attend { init, .. } | OpKind::Scores(Scores::Score { init, .. }) => !init,
            OpKind::Merge { .. } | OpKind::Scores(Scores::Weigh { .. }) => true,
            _ => false,
        };
        assert!(lab.drop_each(&plan, counts) >= 6, "{schedule}");
    }
}

#[test]
fn a_mask_left_out_shows() {
    let lab = Lab::new();
    for schedule in SCHEDULES {
        // Probabilities that the forward left are zero where its mask was.
        let needless = schedule == Schedule::RingSelfAttention;
        for pass in [Pass::Forward, Pass::Backward].into_iter().take(if needless { 1 } else { 2 }) {
            let mut plan = plan(schedule, &lab.problem, 4, &options(pass));
            for op in &mut plan.programs[0].ops {
                if let OpKind::Attend { mask, .. }
                | OpKind::AttendBackward { mask, .. }
                | OpKind::Scores(Scores::Score { mask, .. }) = &mut op.kind
                {
                    *mask = MaskId::NONE;
                }
            }
            assert!(lab.error(&plan) > CLEARLY_WRONG, "{schedule} {pass}");
        }
    }
}

#[test]
fn attending_only_the_own_shard_shows_in_result_and_bytes() {
    let lab = Lab::new();
    let mut plan = plan(Schedule::Ring, &lab.problem, 4, &options(Pass::Forward));
    for program in &mut plan.programs {
        program.ops.retain(|op| matches!(op.kind, OpKind::Attend { init: true, .. } | OpKind::Finish { .. }));
    }
    let outcome = outcome(&plan, &lab.inputs);
    assert!(verify(&outcome, &lab.exact).unwrap().worst() > CLEARLY_WRONG);
    assert_eq!(outcome.bytes_moved, Bytes(0));
}

#[test]
fn padding_that_is_attended_shows() {
    let problem = problem(shape(2, 1, 8, 1), Pattern::Causal, &[45]);
    let inputs = Inputs::random(9, &problem).unwrap();
    let exact = Reference::forward(&problem, &inputs).unwrap();
    let mut plan = plan(Schedule::Ring, &problem, 4, &options(Pass::Forward));
    assert!(verify(&outcome(&plan, &inputs), &exact).unwrap().worst() <= TOLERANCE);
    for op in &mut plan.programs[3].ops {
        if let OpKind::Attend { mask, .. } = &mut op.kind {
            *mask = MaskId::NONE;
        }
    }
    let errors = verify(&outcome(&plan, &inputs), &exact).unwrap();
    assert_eq!(errors.worst(), f64::INFINITY);
    assert_eq!(errors.wrong_padding_rows, 2 * 2 * 3, "o and lse of three tokens and two heads");
}
