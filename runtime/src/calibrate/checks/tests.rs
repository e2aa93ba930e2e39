use std::collections::BTreeSet;

use ringlab_sim::check::{Violation, prove};
use ringlab_sim::config::cluster::{Cluster, NcclSettings, Power};
use ringlab_sim::engine::{Load, Machine as Group, SimOptions};
use ringlab_sim::plan::{Op, OpKind, Transport};
use ringlab_sim::problem::Pass;
use ringlab_sim::timeline::Timeline;

use super::*;
use crate::calibrate::tests::{Altered, Simulated, preset, truth};
use crate::calibrate::{Calibrated, calibrate, probes};
use crate::cpu::{self, RunOptions};
use crate::cuda::CudaError;
use crate::machine::{CpuMachine, Identity, LaunchCosts, Machine, MachineError, MachineKernel, Runs, Sizes};
use crate::validate::{Filter, matrix, validate};

/// Simulated GPUs on which calls take so many times as long as the model says, and whole plans again.
struct Real<'a> {
    model: Simulated,
    of_call: &'a dyn Fn(&Plan, u32, u32) -> f64,
    of_plan: &'a mut dyn FnMut() -> f64,
    /// How much faster calls after a rest are, if that is how plans are measured.
    boost: Option<f64>,
    /// Ends of the names of plans that it does not take, and that it takes and then refuses.
    lacks: Option<[&'static str; 2]>,
}

/// One whose calls take so many times as long.
fn real<'a>(of_call: &'a dyn Fn(&Plan, u32, u32) -> f64, of_plan: &'a mut dyn FnMut() -> f64) -> Real<'a> {
    Real { model: Simulated::new(truth()), of_call, of_plan, boost: None, lacks: None }
}

impl Machine for Real<'_> {
    fn identity(&self) -> Identity {
        self.model.identity()
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        self.model.kernels()
    }

    fn sizes(&self) -> Sizes {
        self.model.sizes()
    }

    fn has_nccl(&self) -> bool {
        true
    }

    fn set_nccl(&mut self, settings: NcclSettings) -> bool {
        self.model.set_nccl(settings)
    }

    fn takes(&self, plan: &Plan) -> bool {
        self.lacks.is_none_or(|[untaken, _]| !plan.name.ends_with(untaken))
    }

    fn load(&self, _: &Plan, _: Launching) -> Load {
        if self.boost.is_some() { Load::Cold } else { Load::Sustained }
    }

    fn run(&mut self, plan: &Plan, _: Launching, _: u32) -> Result<Runs, MachineError> {
        if self.lacks.is_some_and(|[_, refused]| plan.name.ends_with(refused)) {
            return Err(MachineError::new(plan, CudaError::NotFusable { rank: 0, reason: "of a test" }));
        }
        let failed = |error| MachineError::new(plan, error);
        let mut modelled = self.model.simulate(plan)?.timeline;
        for span in modelled.spans.iter_mut().filter(|span| span.lane.is_compute()) {
            let factor = (self.of_call)(plan, span.rank, span.op) / self.boost.unwrap_or(1.0);
            let time = span.duration().as_secs_f64() * factor;
            span.end = span.start + SimTime::from_secs_f64(time);
        }
        let group = Group::new(&self.model.truth, plan.ranks(), &SimOptions::default());
        let timeline = group.and_then(|mut group| group.replay(plan, &modelled)).map_err(failed)?;
        let timeline = stretched(timeline, (self.of_plan)());
        Ok(Runs::once(timeline, 1.0))
    }

    fn launch_costs(&mut self) -> Result<LaunchCosts, MachineError> {
        self.model.launch_costs()
    }
}

fn stretched(mut timeline: Timeline, factor: f64) -> Timeline {
    let longer = |time: &mut SimTime| *time = SimTime::from_secs_f64(time.as_secs_f64() * factor);
    for span in &mut timeline.spans {
        longer(&mut span.start);
        longer(&mut span.end);
    }
    longer(&mut timeline.makespan);
    timeline
}

fn calibrated(machine: &mut dyn Machine, base: &Cluster) -> Calibrated {
    calibrate(machine, base, "2026-11-30", &mut |_| true).unwrap()
}

/// Check runs alone, predicted by `cluster`: what is known of them, and the notes.
fn checked(machine: &mut dyn Machine, cluster: Cluster) -> (Vec<Uncertainty>, Vec<String>) {
    let mut session = Session {
        machine,
        cluster,
        fits: Vec::new(),
        notes: Vec::new(),
        spreads: Vec::new(),
        progress: &mut |_| true,
    };
    session.checks().unwrap();
    (session.spreads, session.notes)
}

fn of_model(found: &Calibrated) -> Uncertainty {
    let spreads = &found.cluster.calibration.as_ref().unwrap().spreads;
    spreads.iter().find(|known| known.of == Quantity::Model).cloned().unwrap()
}

fn points(found: &Calibrated) -> &[Point] {
    &found.fits.iter().find(|fit| fit.what == "check runs").unwrap().points
}

/// Predicted over measured, less one, of the check runs whose names begin like this.
fn errors(found: &Calibrated, name: &str) -> Vec<f64> {
    let named = points(found).iter().filter(|point| point.probe.starts_with(name));
    let errors: Vec<f64> = named.map(|point| point.fitted_s / point.measured_s - 1.0).collect();
    assert!(!errors.is_empty(), "{name}");
    errors
}

#[test]
fn a_machine_that_is_its_model_is_predicted() {
    let found = calibrated(&mut Simulated::new(truth()), &preset());
    let model = of_model(&found);
    assert!(model.residual < 2e-3, "{model:?}, {:?}", points(&found));
    // Six forward and three backward plans at two lengths.
    assert_eq!((points(&found).len(), model.samples, model.spread), (18, 18, 0.0));
    assert!(!found.notes.iter().any(|note| note.contains("check run")), "{:?}", found.notes);
}

/// Whether a call goes on with a state, or with dq, after one of another size: no fit has seen one.
fn follows_another_size(plan: &Plan, rank: u32, op: u32) -> bool {
    let ops = &plan.programs[rank as usize].ops;
    let goes_on = |kind: &OpKind| {
        matches!(kind, OpKind::Attend { init: false, .. } | OpKind::AttendBackward { init_dq: false, .. })
    };
    let keys = |op: &Op| op.kind.attended().map(|(_, keys, _)| plan.block(keys).tokens.len());
    let sizes: BTreeSet<u64> = ops.iter().filter_map(keys).collect();
    goes_on(&ops[op as usize].kind) && sizes.len() > 1
}

#[test]
fn what_no_fit_can_express_is_what_check_runs_are_off_by() {
    let of_call = |plan: &Plan, rank, op| if follows_another_size(plan, rank, op) { 1.05 } else { 1.0 };
    let mut scatter = || 1.0;
    let mut machine = real(&of_call, &mut scatter);
    let found = calibrated(&mut machine, &preset());
    let assert_off = |errors: &[f64], share: f64, within: f64| {
        let expected = 1.0 / (1.0 + 0.05 * share) - 1.0;
        for error in errors {
            assert!((error - expected).abs() < within, "{error} for {expected}");
        }
    };
    // Single calls, and calls of equal sizes, are as the fits say.
    assert_off(&errors(&found, "call causal"), 0.0, 1e-3);
    assert_off(&errors(&found, "two chunks"), 0.0, 1e-3);
    // Keys of 3, 5, 3 and 5 shares: all but the first three are of later calls.
    assert_off(&errors(&found, "unequal calls"), 13.0 / 16.0, 2e-3);
    // Of n tokens n^2 / 2 pairs; the later keys, 6 of 16 shares, have (6/16)^2 n^2 / 2 of them.
    assert_off(&errors(&found, "stripes"), (6.0_f64 / 16.0).powi(2), 5e-3);
    // Of the slower rank 6 of 16 shares of keys are of its first call; the message hides beside long calls.
    let long = errors(&found, "calls and a copy").pop().unwrap();
    assert_off(&[long], 10.0 / 16.0, 2e-3);
    let (model, all) = (of_model(&found), errors(&found, ""));
    // Of measured times about predicted ones: 1 / (1 + error) - 1.
    let all: Vec<f64> = all.iter().map(|e| 1.0 / (1.0 + e) - 1.0).collect();
    let rms = (all.iter().map(|e| e * e).sum::<f64>() / all.len() as f64).sqrt();
    assert!((model.residual - rms).abs() < 1e-12 && (0.015..0.04).contains(&rms), "{model:?}");
    // About zero, not about their mean.
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    assert!(mean > 0.01 && model.residual > 1.1 * (rms * rms - mean * mean).sqrt());
}

#[test]
fn predictions_that_are_far_off_are_said_to_be_poor() {
    let slower = |factor: f64| {
        let of_call =
            move |plan: &Plan, rank, op| if follows_another_size(plan, rank, op) { factor } else { 1.0 };
        let mut scatter = || 1.0;
        calibrated(&mut real(&of_call, &mut scatter), &preset())
    };
    let says = |found: &Calibrated, what: &str| found.notes.iter().any(|note| note.contains(what));
    let found = slower(1.25);
    assert!(says(&found, "poor predictions of check runs") && !says(&found, "kept as"), "{:?}", found.notes);
    assert!((POOR..1.0).contains(&of_model(&found).residual));
    let found = slower(6.0);
    assert!(says(&found, "kept as 100%") && of_model(&found).residual == 1.0, "{:?}", found.notes);
}

#[test]
fn what_cannot_be_run_is_left_out_and_named() {
    let mut scatter = || 1.0;
    let mut machine = Real { lacks: Some(["stripes", "two chunks"]), ..real(&|_, _, _| 1.0, &mut scatter) };
    let found = calibrated(&mut machine, &preset());
    assert_eq!((points(&found).len(), of_model(&found).samples), (14, 14));
    let said = |name: &str, why: &str| {
        let says = |note: &&String| note.starts_with(&format!("check run {name}")) && note.contains(why);
        found.notes.iter().filter(says).count()
    };
    assert_eq!(
        (said("stripes", "does not take"), said("two chunks", "of a test")),
        (2, 2),
        "{:?}",
        found.notes
    );

    let (mut machine, mut unknown) = (Simulated::new(truth()), truth());
    unknown.kernels.clear();
    let (spreads, notes) = checked(&mut machine, unknown);
    assert!(spreads.is_empty() && notes.len() == 18 + 1, "{notes:?}");
    assert!(notes[18].starts_with("no check run was made"), "{notes:?}");
}

#[test]
fn a_check_run_that_breaks_ends_a_calibration() {
    let run = |simulated: &mut Simulated, (): &mut (), plan: &Plan| {
        if plan.name.ends_with("stripes") {
            return Err(MachineError::new(plan, CudaError::NoNccl));
        }
        simulated.simulate(plan)
    };
    let mut machine = Altered { simulated: Simulated::new(truth()), state: (), run };
    let error = calibrate(&mut machine, &preset(), "2026-11-30", &mut |_| true).unwrap_err();
    assert!(matches!(error, CalibrateError::Machine(_)) && error.to_string().contains("stripes"), "{error}");
}

/// Three repeats that differ, and none of any time of two chunks.
#[test]
fn no_time_is_left_out_and_repeats_are_in_the_error_already() {
    let run = |simulated: &mut Simulated, (): &mut (), plan: &Plan| {
        let mut runs = simulated.simulate(plan)?;
        let time = if plan.name.ends_with("two chunks") { SimTime::ZERO } else { runs.timeline.makespan };
        runs.makespans = [9, 10, 11].map(|tenths| SimTime(time.0 / 10 * tenths)).to_vec();
        runs.makespan = time;
        Ok(runs)
    };
    let (spreads, notes) =
        checked(&mut Altered { simulated: Simulated::new(truth()), state: (), run }, truth());
    assert_eq!((spreads.len(), spreads[0].samples, spreads[0].spread), (1, 16, 0.0));
    assert!(spreads[0].residual < 1e-6, "{spreads:?}");
    assert_eq!(
        notes.iter().filter(|n| n.contains("two chunks") && n.contains("it took 0 ps")).count(),
        2,
        "{notes:?}"
    );
}

#[test]
fn what_is_measured_after_a_rest_is_predicted_so() {
    // Rates 1.2 times those of lasting load, which is not measured here: the clock of such machines is `clock`'s matter.
    let mut scatter = || 1.0;
    let mut machine = Real { boost: Some(1.2), ..real(&|_, _, _| 1.0, &mut scatter) };
    let found = calibrated(&mut machine, &preset());
    assert_eq!(found.cluster.device.power, None);
    assert!(
        of_model(&found).residual < 3e-3,
        "no clock is known: rates are as measured, {:?}",
        points(&found)
    );

    let power = Power {
        boost: 1.2,
        idle: 0.17,
        exponent: 2.5,
        speeds: Vec::new(),
        cold_speeds: Vec::new(),
        source: "test".into(),
    };
    let mut cluster = truth();
    cluster.device.power = Some(power);
    // Steps that stream memory do not go with the clock in the model, and are a little faster on this machine.
    let (spreads, _) = checked(&mut machine, cluster);
    assert!(spreads[0].residual < 0.01, "{spreads:?}");
}

/// Normal numbers of mean 0 and deviation 1, by a linear congruential generator (Knuth's MMIX) and Box and Muller.
fn normals(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    };
    move || (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
}

#[test]
fn intervals_hold_nine_of_ten_times_of_a_machine_that_scatters() {
    const SIGMA: f64 = 0.03;
    let (mut inside, mut total) = (0, 0);
    for seed in 0..40 {
        let mut next = normals(seed);
        let mut scatter = || 1.0 + SIGMA * next();
        let mut machine = real(&|_, _, _| 1.0, &mut scatter);
        let found = calibrated(&mut machine, &preset());
        let points = matrix(&machine, &Filter { cp: vec![2], ..Filter::default() });
        let report = validate(&mut machine, &found.cluster, &points, &mut |_, _| true).unwrap();
        inside += report.points.iter().filter(|point| point.inside == Some(true)).count();
        total += report.points.len();
    }
    let coverage = inside as f64 / total as f64;
    // Counting what fits and check runs miss twice would make it 0.96.
    assert!(total > 2000 && (0.87..0.94).contains(&coverage), "{coverage} of {total}");
}

#[test]
fn check_plans_are_no_schedules() {
    let simulated = Simulated::new(truth());
    let cpu = CpuMachine::new();
    let machines: [&dyn Machine; 2] = [&simulated, &cpu];
    for machine in machines {
        let checks = plans(machine);
        let titles: BTreeSet<&String> = checks.iter().map(|(title, _)| title).collect();
        assert_eq!(titles.len(), checks.len(), "{titles:?}");
        let sequences: Vec<u64> = checks.iter().map(|(_, plan)| plan.layout.documents().tokens()).collect();
        let filter = Filter { cp: vec![2, 4], ..Filter::default() };
        let mut points = matrix(machine, &filter);
        for point in points.clone() {
            points
                .extend(sequences.iter().map(|&seq_len| crate::validate::Point { seq_len, ..point.clone() }));
        }
        let schedules: Vec<Plan> = points.iter().filter_map(|point| point.plan().ok()).collect();
        assert!(schedules.len() > 100);
        for (title, plan) in checks {
            assert!(plan.name.starts_with(probes::PREFIX), "{title}");
            assert!(schedules.iter().all(|known| known.programs != plan.programs), "{title}");
            for program in &plan.programs {
                let receives =
                    |op: &Op| if let OpKind::Recv { buffer, .. } = op.kind { Some(buffer) } else { None };
                for arrived in program.ops.iter().filter_map(receives) {
                    let mut touched = 0;
                    program
                        .ops
                        .iter()
                        .for_each(|op| op.kind.accesses(|b, _| touched += u32::from(b == arrived)));
                    assert_eq!(touched, 1, "{title}: a schedule attends or adds what arrives");
                }
            }
        }
    }
}

#[test]
fn check_plans_are_sound_but_for_what_they_leave_out() {
    for (title, plan) in plans(&Simulated::new(truth())) {
        // Every query over every key would be a schedule.
        let violations = prove(&plan).unwrap_err();
        let leaves_out = |v: &Violation| matches!(v, Violation::Coverage { .. } | Violation::Outputs { .. });
        assert!(violations.iter().all(leaves_out), "{title}: {}", violations[0]);
    }
}

#[test]
fn threads_can_run_them() {
    for (title, plan) in plans(&CpuMachine::new()) {
        let inputs = crate::machine::inputs(&plan).unwrap();
        let outcome = cpu::run(&plan, &inputs, &RunOptions::default());
        assert!(outcome.is_ok(), "{title}: {:?}", outcome.err());
    }
}

#[test]
fn they_have_both_passes_and_both_transports() {
    let checks = plans(&Simulated::new(truth()));
    let has = |of: &dyn Fn(&Plan) -> bool| checks.iter().any(|(_, plan)| of(plan));
    for pass in [Pass::Forward, Pass::Backward] {
        assert!(has(&|plan| plan.pass == pass && !plan.messages.is_empty()), "{pass}");
    }
    assert!(has(&|plan| plan.transport == Transport::Nccl));
    assert!(has(&|plan| plan.shape.kv_heads == 4));
    let without_nccl = plans(&CpuMachine::new());
    assert!(without_nccl.iter().all(|(_, plan)| plan.transport == Transport::CopyEngine));
}
