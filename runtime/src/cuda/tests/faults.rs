//! How runs fail: in time, and with an error that says what and where.

use std::time::{Duration, Instant};

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::{self, Schedule};
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::units::Bytes;

use super::support::{Case, members, plan_of, problem, quick, shape};
use super::world::Trouble;
use crate::cuda::open::{check_list, ranks_here};
use crate::cuda::passes::ASKING;
use crate::cuda::prepare::Session;
use crate::cuda::{CudaError, Mode, NcclWorld, Options, Run, kernel_types};

fn plan(schedule: Schedule, ranks: u32, options: &schedule::Options) -> (Case, Plan) {
    let case = Case::new(problem(shape(2, 2, 1), Pattern::Causal, &[48]), 1);
    let plan = plan_of(schedule, &case.problem, ranks, options);
    (case, plan)
}

fn run_with(
    schedule: Schedule,
    options: &schedule::Options,
    how: &Options,
    trouble: Trouble,
) -> Result<Run, CudaError> {
    let (case, plan) = plan(schedule, 4, options);
    Session::new(&plan, &case.inputs, how, members(4, 1, trouble))?.run()
}

fn forward() -> schedule::Options {
    schedule::Options::new(Pass::Forward)
}

#[test]
fn a_stuck_sender_is_named_by_rank_and_operation() {
    let start = Instant::now();
    // The sending lane of rank 2 does nothing at all.
    let trouble = Trouble { stuck: Some((2, 1, 0)), ..Trouble::default() };
    let error = run_with(Schedule::Zigzag, &forward(), &quick(), trouble).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(20), "it ends in time");
    let CudaError::TimedOut { place, others, after } = error else { panic!("{error}") };
    assert_eq!((place.rank, place.kind, place.step), (2, Some(SpanKind::Send), 1));
    assert_eq!(after, quick().timeout);
    // Its neighbour cannot have got past its first receive.
    let neighbour = others.iter().find(|p| p.rank == 3).unwrap();
    assert_eq!(neighbour.kind, Some(SpanKind::Recv));
}

#[test]
fn a_stuck_kernel_is_named() {
    let trouble = Trouble { hung: Some((1, 0)), ..Trouble::default() };
    let how = Options { mode: Mode::Stepwise, ..quick() };
    let error = run_with(Schedule::Ring, &forward(), &how, trouble).unwrap_err();
    let CudaError::TimedOut { place, .. } = error else { panic!("{error}") };
    assert_eq!((place.rank, place.kind), (1, Some(SpanKind::Attend)));
}

#[test]
fn gates_that_never_open_end_in_time() {
    let trouble = Trouble { stuck: Some((0, ASKING, 0)), ..Trouble::default() };
    let error = run_with(Schedule::Ring, &forward(), &quick(), trouble).unwrap_err();
    assert!(matches!(error, CudaError::TimedOut { .. }), "{error}");
}

#[test]
fn too_little_memory_names_the_buffer_and_its_bytes() {
    // q of 12 tokens, 2 heads of 64 numbers of 2 bytes fits; o, as large, with its lse, on 256 bytes each, does not.
    let q = 12 * 2 * 64 * 2;
    let trouble = Trouble { capacity: Some(q + 4096 + 100), ..Trouble::default() };
    let error = run_with(Schedule::Ring, &forward(), &quick(), trouble).unwrap_err();
    let CudaError::OutOfMemory { gpu: 0, rank: 0, what, bytes, .. } = error else { panic!("{error}") };
    assert_eq!((what.as_str(), bytes), ("buffer 2 (Output)", Bytes(q as u64 + 256)));
}

#[test]
fn a_lost_gpu_is_an_error_of_its_rank() {
    let trouble = Trouble { lost: Some((3, 60)), ..Trouble::default() };
    let error = run_with(Schedule::Zigzag, &forward(), &quick(), trouble).unwrap_err();
    assert!(matches!(error, CudaError::Gpu { rank: Some(3), .. }), "{error}");
}

#[test]
fn buffers_that_are_used_again_are_not_fused() {
    let fused = Options { mode: Mode::FusedSegments, ..quick() };
    let error = run_with(Schedule::Zigzag, &forward(), &fused, Trouble::default()).unwrap_err();
    assert!(error.to_string().contains("prefetch of P - 1"), "{error}");
    let run = run_with(Schedule::Zigzag, &forward(), &quick(), Trouble::default()).unwrap();
    assert_eq!(run.measured.mode, Mode::Stepwise);
    let room = schedule::Options { prefetch: 3, ..forward() };
    let run = run_with(Schedule::Zigzag, &room, &fused, Trouble::default()).unwrap();
    assert_eq!(run.measured.mode, Mode::FusedSegments);
    let nccl = schedule::Options { transport: Transport::Nccl, ..room };
    let error = run_with(Schedule::Zigzag, &nccl, &fused, Trouble::default()).unwrap_err();
    assert!(matches!(error, CudaError::NotFusable { .. }), "{error}");
}

#[test]
fn set_ups_that_make_no_sense_are_refused() {
    assert!(matches!(check_list(&[0, 1, 0], 3), Err(CudaError::SharedGpu { gpu: 0 })));
    assert!(matches!(check_list(&[0, 1], 3), Err(CudaError::DeviceList { gpus: 2, ranks: 3 })));
    assert!(check_list(&[3, 1], 2).is_ok());
    let plan_for = |shape: Shape| {
        let problem = Problem { shape, pattern: Pattern::Causal, documents: vec![48] };
        plan_of(Schedule::Ring, &problem, 2, &forward())
    };
    let wrong = plan_for(Shape { dtype: Dtype::Fp32, ..shape(2, 2, 1) });
    assert!(matches!(kernel_types(&wrong), Err(CudaError::Dtype(Dtype::Fp32))));
    let wrong = plan_for(Shape { head_dim: 96, ..shape(2, 2, 1) });
    assert!(matches!(kernel_types(&wrong), Err(CudaError::HeadDim(96))));
}

#[test]
fn ranks_of_several_processes_need_nccl() {
    let world = |ranks: &[u32]| NcclWorld { unique_id: [0; 128], ranks: ranks.to_vec() };
    let (_, copies) = plan(Schedule::Ring, 4, &forward());
    let nccl = schedule::Options { transport: Transport::Nccl, ..forward() };
    let (_, nccl) = plan(Schedule::Ring, 4, &nccl);
    assert!(matches!(ranks_here(&copies, Some(&world(&[1]))), Err(CudaError::World(Transport::CopyEngine))));
    assert_eq!(ranks_here(&nccl, Some(&world(&[1, 3]))).unwrap(), [1, 3]);
    for wrong in [&[][..], &[1, 1], &[4]] {
        assert!(ranks_here(&nccl, Some(&world(wrong))).is_err(), "{wrong:?}");
    }
    assert_eq!(ranks_here(&copies, None).unwrap(), [0, 1, 2, 3]);
}
