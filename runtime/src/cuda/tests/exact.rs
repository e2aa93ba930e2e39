//! Every schedule, number of ranks, mask and head grouping gives the reference's numbers, in whatever order streams go on.

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{self, ALL, Schedule};

use super::support::{Case, members, plan_of, problem, quick, run, shape, virtual_members};
use super::world::Trouble;
use crate::cuda::command::{Command, Post};
use crate::cuda::prepare::{Members, Session};
use crate::cuda::{Copies, Mode, Options};

/// Every schedule but the one that keeps its scores in memory.
fn with_kernels() -> impl Iterator<Item = Schedule> {
    ALL.into_iter().filter(|&s| s != Schedule::RingSelfAttention)
}

/// cu_seqlens [0, 9, 17, 25, 37]: padded for zigzag.
const DOCUMENTS: [u64; 4] = [9, 8, 8, 12];

fn options() -> schedule::Options {
    schedule::Options { pad: true, ..schedule::Options::new(Pass::Forward) }
}

fn allows(schedule: Schedule, pattern: Pattern) -> bool {
    schedule != Schedule::DistFlash || pattern != Pattern::Full
}

/// Whether the schedule can share the heads out; refusing others is the builder's affair.
fn shares(schedule: Schedule, case: &Case, ranks: u32) -> bool {
    let heads = case.problem.shape.heads;
    match schedule {
        Schedule::Ulysses => schedule::kv_copies(&case.problem.shape, ranks).is_some(),
        Schedule::MegatronSp => heads >= ranks,
        _ => true,
    }
}

fn check_all(case: &Case) {
    for schedule in with_kernels().filter(|&s| allows(s, case.problem.pattern)) {
        for ranks in (1..=4).filter(|&ranks| shares(schedule, case, ranks)) {
            case.check(schedule, ranks, &options(), &quick(), u64::from(ranks));
        }
    }
}

#[test]
fn causal() {
    check_all(&Case::new(problem(shape(4, 4, 1), Pattern::Causal, &[48]), 1));
}

#[test]
fn full() {
    check_all(&Case::new(problem(shape(4, 4, 1), Pattern::Full, &[48]), 2));
}

#[test]
fn window() {
    for width in [1, 20] {
        check_all(&Case::new(problem(shape(4, 2, 1), Pattern::Window(width), &[48]), 3));
    }
}

#[test]
fn packed_documents() {
    for pattern in [Pattern::Causal, Pattern::Full] {
        check_all(&Case::new(problem(shape(4, 4, 1), pattern, &DOCUMENTS), 4));
    }
}

#[test]
fn grouped_heads_and_batches() {
    for (heads, kv_heads, batch) in [(4, 1, 1), (6, 2, 2), (8, 4, 1)] {
        check_all(&Case::new(problem(shape(heads, kv_heads, batch), Pattern::Causal, &[24]), 5));
    }
}

#[test]
fn every_way_of_moving_messages() {
    let case = Case::new(problem(shape(4, 2, 1), Pattern::Causal, &[48]), 6);
    for schedule in with_kernels() {
        for (chunks, prefetch, needed_only, copies) in [
            (3, 1, false, Copies::Push),
            (1, 0, true, Copies::Push),
            (2, 2, true, Copies::Pull),
            (1, 3, false, Copies::Pull),
        ] {
            let plan = schedule::Options { chunks, prefetch, needed_only, ..options() };
            case.check(schedule, 4, &plan, &Options { copies, ..quick() }, 7);
            let direct = schedule::Options { route: schedule::Route::Direct, ..plan };
            if shares(schedule, &case, 3) {
                case.check(schedule, 3, &direct, &Options { copies, mode: Mode::Stepwise, ..quick() }, 8);
            }
        }
    }
}

#[test]
fn whatever_stream_is_slow() {
    let case = Case::new(problem(shape(6, 3, 1), Pattern::Causal, &[24]), 9);
    for schedule in with_kernels() {
        for seed in 0..12 {
            case.check(schedule, 3, &options(), &quick(), seed);
        }
    }
}

#[test]
fn fused_launches_wait_for_chunks() {
    for pattern in [Pattern::Causal, Pattern::Window(20)] {
        let case = Case::new(problem(shape(4, 2, 1), pattern, &[48]), 14);
        let room = schedule::Options { chunks: 3, prefetch: 3, ..options() };
        for schedule in
            [Schedule::Ring, Schedule::Zigzag, Schedule::Striped { block: 1 }, Schedule::DistFlash]
        {
            for mode in [Mode::FusedQueries, Mode::FusedSegments] {
                for copies in [Copies::Push, Copies::Pull] {
                    let how = Options { mode, copies, ..quick() };
                    case.check_with(schedule, 4, &room, |plan, inputs| {
                        let run =
                            Session::new(plan, inputs, &how, members(4, 2, Trouble::default()))?.run()?;
                        let fuses = plan.pass == Pass::Forward;
                        assert_eq!(run.measured.mode, if fuses { mode } else { Mode::Stepwise });
                        Ok(run)
                    });
                }
            }
        }
    }
}

#[test]
fn gates_that_open_before_posting() {
    let case = Case::new(problem(shape(2, 2, 1), Pattern::Causal, &[24]), 15);
    for schedule in [Schedule::Zigzag, Schedule::Ulysses] {
        case.check_with(schedule, 2, &options(), |plan, inputs| {
            let how = quick();
            let mut session = Session::new(plan, inputs, &how, members(2, 4, Trouble::default()))?;
            session.is_deep = true;
            session.run()
        });
    }
}

/// Fills of each rank's backward.
fn fills(schedule: Schedule, pattern: Pattern, kv_heads: u32) -> Vec<usize> {
    let case = Case::new(problem(shape(4, kv_heads, 1), pattern, &[48]), 16);
    let mut inputs = case.inputs.clone();
    let plan_of = |pass| plan_of(schedule, &case.problem, 2, &schedule::Options { pass, ..options() });
    let forward = run(&plan_of(Pass::Forward), &inputs, &quick(), 1).unwrap();
    inputs.forward = forward.outcome.results.forward().cloned();
    let (plan, how) = (plan_of(Pass::Backward), quick());
    let session = Session::new(&plan, &inputs, &how, members(2, 1, Trouble::default())).unwrap();
    let is_fill = |post: &&Post| matches!(post.command, Command::Fill { .. });
    session.programs.iter().map(|program| program.posts.iter().filter(is_fill).count()).collect()
}

#[test]
fn gradients_that_a_launch_writes_whole_are_not_zeroed_before() {
    // dq is zeroed once. dk and dv would be two more a step, of which there are two.
    assert_eq!(fills(Schedule::Ring, Pattern::Full, 4), [1, 1]);
    // Shared kv heads of a short sequence are added to.
    assert_eq!(fills(Schedule::Ring, Pattern::Full, 1), [5, 5]);
    // Step 1 of zigzag: rank 0 sees rank 1's keys with its late queries only, rank 1 sees half of rank 0's keys.
    assert_eq!(fills(Schedule::Zigzag, Pattern::Causal, 4), [1, 3]);
}

#[test]
fn through_nccl() {
    let case = Case::new(problem(shape(6, 3, 1), Pattern::Causal, &[48]), 12);
    let nccl = schedule::Options { transport: Transport::Nccl, ..options() };
    for schedule in with_kernels() {
        for (ranks, by_barrier) in [(2, false), (3, true), (4, false)] {
            if shares(schedule, &case, ranks) {
                case.check_with(schedule, ranks, &nccl, |plan, inputs| {
                    let members = Members { by_barrier, ..members(ranks, 5, Trouble::default()) };
                    Session::new(plan, inputs, &quick(), members)?.run()
                });
            }
        }
    }
}

#[test]
fn virtual_ranks() {
    let case = Case::new(problem(shape(8, 4, 1), Pattern::Causal, &[32]), 10);
    let transports = [Transport::CopyEngine, Transport::Nccl];
    for (schedule, transport) in with_kernels().flat_map(|s| transports.map(|t| (s, t))) {
        let options = schedule::Options { transport, ..options() };
        case.check_with(schedule, 8, &options, |plan, inputs| {
            let how = quick();
            let session = Session::new(plan, inputs, &how, virtual_members(8, 1))?;
            let run = session.run()?;
            assert!(run.measured.is_virtual && run.measured.mode == Mode::Stepwise);
            Ok(run)
        });
    }
}
