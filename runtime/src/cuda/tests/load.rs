//! What is measured, after how much load.

use std::time::Duration;

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{self, Schedule};
use ringlab_sim::units::SimTime;

use super::support::{Case, members, plan_of, problem, quick, run, shape, virtual_members};
use super::world::Trouble;
use crate::cuda::passes::How;
use crate::cuda::prepare::{Members, Session};
use crate::cuda::{Copies, CudaError, Mode, Options, Recording};
use crate::inputs::Inputs;
use crate::outcome::{Forward, Typical};

fn case() -> Case {
    Case::new(problem(shape(2, 2, 1), Pattern::Causal, &[32]), 5)
}

fn forward(transport: Transport) -> schedule::Options {
    schedule::Options { transport, ..schedule::Options::new(Pass::Forward) }
}

#[test]
fn runs_follow_each_other_for_as_long_as_was_asked_for() {
    let case = case();
    let plan = plan_of(Schedule::Zigzag, &case.problem, 2, &forward(Transport::CopyEngine));
    let sustain = Duration::from_millis(60);
    let loaded = run(&plan, &case.inputs, &Options { sustain, ..quick() }, 3).unwrap();
    assert!(loaded.measured.loaded_s >= 0.06, "{}", loaded.measured.loaded_s);
    // The warm-up's only run loads kernels, and does not count.
    let at_once = run(&plan, &case.inputs, &quick(), 3).unwrap();
    assert!(at_once.measured.loaded_s < 0.01, "{}", at_once.measured.loaded_s);
    assert!(loaded.measured.duty > 0.0, "{}", loaded.measured.duty);
}

#[test]
fn recorded_runs_alone_give_results_and_times() {
    let case = case();
    let how = Options { recording: Recording::Operations, repeats: 3, ..quick() };
    case.check(Schedule::Zigzag, 2, &forward(Transport::CopyEngine), &how, 4);
    let plan = plan_of(Schedule::Ring, &case.problem, 2, &forward(Transport::CopyEngine));
    let run = run(&plan, &case.inputs, &how, 4).unwrap();
    assert_eq!((run.measured.makespans.len(), run.measured.unrecorded.len()), (3, 0));
    let last = run.outcome.timeline.makespan;
    assert!(last <= run.measured.makespan() && 2 * last.0 > run.measured.makespan().0, "{:?}", run.measured);
}

#[test]
fn measured_runs_go_on_for_a_window_and_their_mean_counts() {
    let case = case();
    let plan = plan_of(Schedule::Ring, &case.problem, 2, &forward(Transport::CopyEngine));
    let of = |window, rest| {
        let how = Options { window, rest, repeats: 3, ..quick() };
        run(&plan, &case.inputs, &how, 3).unwrap().measured
    };
    let (few, long) = (of(Duration::ZERO, Duration::ZERO), Duration::from_micros(5));
    assert_eq!((few.makespans.len(), few.unrecorded.len(), few.typical), (3, 3, Typical::Median));
    let many = of(long, Duration::ZERO);
    let of_each = |times: &[SimTime]| times.iter().map(|t| t.0).sum::<u64>() as f64 / times.len() as f64;
    // The last run before them says how many: a made-up GPU takes half to twice as long each time.
    let count = many.makespans.len();
    let filled = count as f64 * (of_each(&many.makespans) + of_each(&many.unrecorded)) / 5e6;
    assert!(count > 3 && count == many.unrecorded.len(), "{many:?}");
    assert!((0.5..=2.0).contains(&filled), "{filled}: {many:?}");
    assert_eq!(many.makespan(), SimTime(of_each(&many.unrecorded).round() as u64));
    // Runs that rest for longer than the window need no more than are asked for.
    assert_eq!(of(long, 100 * long).makespans.len(), 3);
}

/// A session that has run once, and what keeps its GPUs busy afterwards.
fn with_fillers(schedule: Schedule, options: &schedule::Options, how: &Options) -> usize {
    let case = case();
    let inputs = Inputs { forward: forward_of(&case), ..case.inputs.clone() };
    let plan = plan_of(schedule, &case.problem, 2, options);
    let session = Session::new(&plan, &inputs, how, members(2, 9, Trouble::default())).unwrap();
    session.upload().unwrap();
    let pass = session.pass(How { recorded: true, ..How::default() }).unwrap();
    session.fillers(&pass).unwrap().len()
}

/// What a backward of the case is given.
fn forward_of(case: &Case) -> Option<Forward> {
    let plan = plan_of(Schedule::Ring, &case.problem, 1, &forward(Transport::CopyEngine));
    run(&plan, &case.inputs, &quick(), 1).unwrap().outcome.results.forward().cloned()
}

#[test]
fn gpus_that_are_to_rest_do_so_after_every_run() {
    let (case, rest) = (case(), Duration::from_millis(20));
    let plan = plan_of(Schedule::Zigzag, &case.problem, 2, &forward(Transport::CopyEngine));
    let how = Options { sustain: Duration::from_millis(1), rest, repeats: 3, ..quick() };
    assert_eq!(with_fillers(Schedule::Zigzag, &forward(Transport::CopyEngine), &how), 0);
    // Three runs of each kind, so six rests.
    let run = run(&plan, &case.inputs, &how, 3).unwrap();
    let busy =
        run.measured.makespans.iter().chain(&run.measured.unrecorded).map(|t| t.as_secs_f64()).sum::<f64>();
    assert!(busy / run.measured.duty >= 0.12, "{:?}", run.measured);
}

#[test]
fn fillers_leave_results_exact_in_any_order_of_streams() {
    let how = Options { sustain: Duration::from_millis(1), repeats: 2, ..quick() };
    for pass in [Pass::Forward, Pass::Backward] {
        for transport in [Transport::CopyEngine, Transport::Nccl] {
            let options = schedule::Options { pass, ..forward(transport) };
            assert_eq!(with_fillers(Schedule::Zigzag, &options, &how), 2, "one a GPU");
            assert_eq!(with_fillers(Schedule::Zigzag, &options, &quick()), 0, "none without a load");
        }
    }
    let case = case();
    for schedule in [Schedule::Ring, Schedule::Zigzag, Schedule::DistFlash, Schedule::Burst { zigzag: true }]
    {
        for seed in 0..3 {
            for recording in [Recording::Both, Recording::Operations] {
                let how = Options { recording, ..how.clone() };
                case.check(schedule, 3, &padded(), &how, seed);
            }
        }
    }
}

#[test]
fn fused_launches_fill_while_their_flags_are_still_up() {
    let room = schedule::Options { chunks: 3, prefetch: 2, ..padded() };
    for mode in [Mode::FusedQueries, Mode::FusedSegments] {
        for copies in [Copies::Push, Copies::Pull] {
            let how = Options { mode, copies, sustain: Duration::from_millis(1), repeats: 2, ..quick() };
            assert_eq!(with_fillers(Schedule::Zigzag, &room, &how), 2);
            for seed in 0..3 {
                case().check(Schedule::Zigzag, 3, &room, &how, seed);
            }
        }
    }
}

#[test]
fn virtual_ranks_have_fillers_too() {
    let how = Options { sustain: Duration::from_millis(1), repeats: 2, ..quick() };
    case().check_with(Schedule::Zigzag, 4, &padded(), |plan, inputs| {
        Session::new(plan, inputs, &how, virtual_members(4, 2))?.run()
    });
}

fn padded() -> schedule::Options {
    schedule::Options { pad: true, ..forward(Transport::CopyEngine) }
}

#[test]
fn several_processes_cannot_agree_on_a_load() {
    let case = case();
    let plan = plan_of(Schedule::Ring, &case.problem, 2, &forward(Transport::Nccl));
    let one = members(2, 1, Trouble::default()).all.into_iter().take(1).collect();
    let members = Members { all: one, are_virtual: false, by_barrier: true };
    let how = Options { sustain: Duration::from_millis(1), ..quick() };
    assert!(matches!(Session::new(&plan, &case.inputs, &how, members), Err(CudaError::Sustained)));
}
