//! What a run measures: bytes, memory and the timeline, against the plan's own arithmetic.

use std::collections::BTreeMap;

use ringlab_runtime::inputs::Inputs;
use ringlab_runtime::outcome::Outcome;
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Program};
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::Options;
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::units::{Bytes, SimTime};

use crate::support::{SCHEDULES, forward, options, outcome, plan, problem, shape, ways};

fn for_each_run(problem: &Problem, ranks: u32, ways: &[Options], f: impl Fn(&Plan, &Outcome)) {
    for schedule in SCHEDULES {
        for way in ways {
            let inputs = Inputs::random(1, problem).unwrap();
            let result = forward(schedule, problem, ranks, way, &inputs);
            let inputs = inputs.with_forward(result);
            for pass in [Pass::Forward, Pass::Backward] {
                let plan = plan(schedule, problem, ranks, &Options { pass, ..*way });
                f(&plan, &outcome(&plan, &inputs));
            }
        }
    }
}

#[test]
fn memory_and_bytes_are_those_of_the_plan_for_every_element_type() {
    for dtype in [Dtype::Fp32, Dtype::Bf16, Dtype::Fp8] {
        let problem = problem(Shape { dtype, ..shape(4, 2, 6, 2) }, Pattern::Causal, &[40]);
        for_each_run(&problem, 5, &ways(), |plan, outcome| {
            let peaks: Vec<Bytes> = plan.programs.iter().map(Program::peak_memory).collect();
            assert_eq!(outcome.peak_bytes, peaks, "{} {:?} {dtype}", plan.name, plan.pass);
            assert_eq!(outcome.bytes_moved, plan.bytes_moved(), "{} {:?} {dtype}", plan.name, plan.pass);
        });
    }
}

#[test]
fn bytes_move_as_soon_as_there_are_two_ranks() {
    for ranks in [1, 2, 3, 8] {
        let problem = problem(shape(2, 2, 4, 1), Pattern::Causal, &[32]);
        for_each_run(&problem, ranks, &[options(Pass::Forward)], |plan, outcome| {
            assert_eq!(outcome.bytes_moved > Bytes(0), ranks > 1, "{} on {ranks}", plan.name);
        });
    }
}

#[test]
fn the_ring_moves_what_its_definition_says() {
    let (ranks, n, kv_heads, d) = (4, 32, 2, 4);
    let problem = problem(shape(2, kv_heads, d, 1), Pattern::Causal, &[n]);
    let inputs = Inputs::random(1, &problem).unwrap();
    let ring = plan(SCHEDULES[0], &problem, ranks, &options(Pass::Forward));
    let kv = 2 * (n / u64::from(ranks)) * u64::from(kv_heads * d) * 4;
    assert_eq!(outcome(&ring, &inputs).bytes_moved, Bytes(u64::from(ranks * (ranks - 1)) * kv));
}

#[test]
fn the_timeline_has_every_operation_once_and_in_order() {
    let problem = problem(shape(2, 2, 4, 1), Pattern::Causal, &[48]);
    for_each_run(&problem, 4, &[options(Pass::Forward)], |plan, outcome| {
        let timeline = &outcome.timeline;
        assert_eq!(timeline.ranks, 4);
        assert_eq!(timeline.spans.len(), plan.op_count());
        assert!(timeline.spans.is_sorted_by_key(|s| (s.end, s.rank)));
        let mut last: BTreeMap<u32, (u32, SimTime)> = BTreeMap::new();
        for span in &timeline.spans {
            let op = &plan.programs[span.rank as usize].ops[span.op as usize];
            assert_eq!((span.lane, span.step, span.kind), (op.lane, op.step, SpanKind::of(&op.kind)));
            let (next, free) = last.insert(span.rank, (span.op + 1, span.end)).unwrap_or_default();
            assert_eq!(span.op, next, "in program order");
            assert!(free <= span.start && span.start <= span.end);
        }
        assert!(timeline.makespan.as_secs_f64() <= outcome.wall_time.as_secs_f64());
        let moved = |kind| timeline.spans.iter().filter(|s| s.kind == kind).map(|s| s.bytes).sum::<Bytes>();
        assert_eq!(
            (moved(SpanKind::Send), moved(SpanKind::Recv)),
            (outcome.bytes_moved, outcome.bytes_moved)
        );
        let flops: f64 = timeline.spans.iter().map(|s| s.flops).sum();
        // Where the forward left its probabilities, a backward has four products instead of five.
        let kept = plan.name == "ring-self-attention" && plan.pass == Pass::Backward;
        assert_eq!(flops * 5.0, plan.mask_area_flops() * if kept { 4.0 } else { 5.0 }, "{}", plan.name);
    });
}

#[test]
fn a_receive_lasts_from_before_its_bytes_are_there_to_after() {
    let problem = problem(shape(1, 1, 4, 1), Pattern::Causal, &[8]);
    let ring = plan(SCHEDULES[0], &problem, 2, &options(Pass::Forward));
    let timeline = outcome(&ring, &Inputs::random(1, &problem).unwrap()).timeline;
    let end = |rank, kind| timeline.spans.iter().find(|s| s.rank == rank && s.kind == kind).unwrap();
    for (from, to) in [(0, 1), (1, 0)] {
        assert!(end(to, SpanKind::Recv).end >= end(from, SpanKind::Send).start);
    }
}
