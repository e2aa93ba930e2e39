use ringlab_runtime::cpu::{self, RunOptions};
use ringlab_runtime::inputs::Inputs;
use ringlab_runtime::rendezvous::Meeting;
use ringlab_sim::mask::Pattern;
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::{Options, Schedule, build};

use super::super::world::exchange;
use super::*;

/// A forward on two ranks, as one process ran it.
fn whole() -> (Plan, Executed) {
    let shape = Shape { heads: 2, kv_heads: 1, head_dim: 4, dtype: Dtype::Fp32, batch: 1 };
    let problem = Problem { shape, pattern: Pattern::Causal, documents: vec![16] };
    let plan = build(Schedule::Zigzag, &problem, 2, &Options::new(Pass::Forward)).unwrap();
    let inputs = Inputs::random(1, &problem).unwrap();
    let outcome = cpu::run(&plan, &inputs, &RunOptions::default()).unwrap();
    let gpu = Gpu {
        alignment_error: SimTime(5),
        loaded_s: 0.3,
        duty: 0.9,
        posting: SimTime(7),
        context_bytes: Bytes(11),
        device_names: vec!["a".into(), "b".into()],
        driver: "13.0".into(),
        mode: "fused".into(),
        is_virtual: false,
    };
    let times = vec![SimTime(100), SimTime(90)];
    let executed = Executed {
        outcome,
        typical: Typical::Median,
        recorded: times.clone(),
        unrecorded: times,
        gpu: Some(gpu),
        notes: Vec::new(),
    };
    (plan, executed)
}

/// What the process of `rank` has of it. Zigzag over 16 tokens gives rank 0 tokens 0-3 and 12-15.
fn part(whole: &Executed, rank: u32) -> Executed {
    let mut part = whole.clone();
    let outer = |token: usize| !(4..12).contains(&token);
    let is_own = |token: usize| outer(token) == (rank == 0);
    let Results::Forward(forward) = &mut part.outcome.results else { panic!("a forward") };
    for (i, x) in forward.o.iter_mut().enumerate() {
        *x = if is_own(i / 8) { *x } else { f32::NAN };
    }
    for (i, x) in forward.lse.iter_mut().enumerate() {
        *x = if is_own(i % 16) { *x } else { f32::NAN };
    }
    part.outcome.timeline.spans.retain(|s| s.rank == rank);
    let received = part.outcome.timeline.spans.iter().filter(|s| s.kind == SpanKind::Recv).map(|s| s.bytes);
    part.outcome.bytes_moved = received.sum();
    part.outcome.peak_bytes = vec![whole.outcome.peak_bytes[rank as usize]];
    let gpu = part.gpu.as_mut().unwrap();
    gpu.device_names = vec![gpu.device_names[rank as usize].clone()];
    part
}

/// What two processes have after a pass.
fn exchanged(to_all: bool) -> (Executed, Vec<Executed>) {
    let (plan, whole) = whole();
    let folder = tempfile::tempdir().unwrap();
    let process = |rank: u32| {
        let limit = Duration::from_secs(10);
        let meeting = Meeting::join(folder.path(), "run", rank, 2, limit).unwrap();
        let own = part(&whole, rank);
        exchange(&meeting, "pass-1", &plan, (own, &[rank]), rank == 0, to_all).unwrap()
    };
    let both = std::thread::scope(|scope| {
        let process = &process;
        let threads = [0, 1].map(|rank| scope.spawn(move || process(rank)));
        threads.map(|thread| thread.join().unwrap()).to_vec()
    });
    (whole, both)
}

#[test]
fn a_forward_that_a_backward_follows_is_whole_in_every_process() {
    let (whole, both) = exchanged(true);
    assert!(both.iter().all(|e| e.outcome.results == whole.outcome.results));
    let (whole, both) = exchanged(false);
    assert_eq!(both[0].outcome.results, whole.outcome.results);
    let Results::Forward(own) = &both[1].outcome.results else { panic!("a forward") };
    assert!(own.o.iter().any(|x| x.is_nan()), "without one the others keep what they have");
}

#[test]
fn parts_of_processes_make_the_whole() {
    let (plan, whole) = whole();
    let mut slower = part(&whole, 1);
    slower.recorded = vec![SimTime(80), SimTime(130)];
    slower.unrecorded = vec![SimTime(120)];
    slower.gpu.as_mut().unwrap().alignment_error = SimTime(6);
    slower.gpu.as_mut().unwrap().duty = 0.8;
    let parts = [encode(&part(&whole, 0), &[0]).unwrap(), encode(&slower, &[1]).unwrap()];
    let merged = merge(&plan, &parts).unwrap();
    assert_eq!(merged.outcome.results, whole.outcome.results);
    assert_eq!(merged.outcome.timeline, whole.outcome.timeline);
    assert_eq!(merged.outcome.bytes_moved, whole.outcome.bytes_moved);
    assert_eq!(merged.outcome.peak_bytes, whole.outcome.peak_bytes);
    assert_eq!(merged.recorded, [SimTime(100), SimTime(130)], "the slower process, repeat by repeat");
    assert_eq!(merged.unrecorded, [SimTime(120)]);
    let gpu = merged.gpu.unwrap();
    assert_eq!((gpu.alignment_error, gpu.device_names), (SimTime(6), vec!["a".into(), "b".into()]));
    assert_eq!((gpu.loaded_s, gpu.duty), (0.3, 0.8), "the least loaded process");
}

#[test]
fn what_nobody_computed_stays_nan() {
    let (plan, whole) = whole();
    let alone = merge(&plan, &[encode(&part(&whole, 1), &[1]).unwrap()]).unwrap();
    let forward = alone.outcome.results.forward().unwrap();
    assert_eq!(forward.lse.iter().filter(|x| x.is_nan()).count(), 16, "8 tokens of 2 heads");
    assert_eq!(forward.o.iter().filter(|x| x.is_nan()).count(), 64);
}

#[test]
fn damaged_and_foreign_parts_are_refused() {
    let (plan, whole) = whole();
    let bytes = encode(&part(&whole, 0), &[0]).unwrap();
    for cut in [0, 7, 20, bytes.len() - 1] {
        assert!(merge(&plan, &[bytes[..cut].to_vec()]).is_err(), "cut at {cut}");
    }
    let foreign = encode(&whole, &[0, 1, 2]).unwrap();
    assert!(merge(&plan, &[foreign]).unwrap_err().to_string().contains("rank 2"));
}
