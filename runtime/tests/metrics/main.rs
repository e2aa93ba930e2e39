//! Prometheus metrics of a timeline made by hand, and the grammar of the text.

mod grammar;

use std::collections::BTreeMap;

use ringlab_runtime::metrics::{Observed, exposition, steps};
use ringlab_runtime::verify::Errors;
use ringlab_sim::mask::Pattern;
use ringlab_sim::metrics::{Metrics, RankTimes};
use ringlab_sim::plan::{Lane, Plan};
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::{Options, Schedule, build};
use ringlab_sim::timeline::{Span, SpanKind, Timeline};
use ringlab_sim::units::{Bytes, SimTime};

use grammar::{Sample, parse};

const US: u64 = 1_000_000;

fn plan(schedule: Schedule) -> Plan {
    let shape = Shape { heads: 1, kv_heads: 1, head_dim: 4, dtype: Dtype::Fp32, batch: 1 };
    let problem = Problem { shape, pattern: Pattern::Causal, documents: vec![8] };
    build(schedule, &problem, 2, &Options::new(Pass::Forward)).unwrap()
}

fn span(
    rank: u32,
    lane: Lane,
    step: u32,
    kind: SpanKind,
    (start, end): (u64, u64),
    bytes: u64,
    flops: f64,
) -> Span {
    let (start, end) = (SimTime(start * US), SimTime(end * US));
    Span { rank, lane, op: 0, step, kind, start, end, bytes: Bytes(bytes), flops }
}

/// Microseconds by hand. Rank 0 computes 0-10 and 20-30 in step 0 and 30-70 in step 1; its send of step 0 moves 0-8 and its
/// receive 4-14, so together 14. Rank 1 computes 0-100.
fn timeline() -> Timeline {
    let comm = Lane::comm(0);
    let spans = vec![
        span(0, Lane::COMPUTE, 0, SpanKind::Attend, (0, 10), 0, 500.0),
        span(0, Lane::COMPUTE, 0, SpanKind::Merge, (20, 30), 0, 0.0),
        span(0, Lane::COMPUTE, 1, SpanKind::Attend, (30, 70), 0, 1500.0),
        span(0, comm, 0, SpanKind::Send, (0, 8), 4096, 0.0),
        span(0, comm, 0, SpanKind::Recv, (4, 14), 1024, 0.0),
        span(1, Lane::COMPUTE, 0, SpanKind::Attend, (0, 100), 0, 8000.0),
    ];
    Timeline { ranks: 2, spans, makespan: SimTime(100 * US) }
}

fn figures() -> Metrics {
    let us = |n: u64| SimTime(n * US);
    Metrics {
        makespan: us(100),
        ranks: vec![
            RankTimes { busy: us(60), exposed: us(6), wait: us(34) },
            RankTimes { busy: us(100), exposed: us(0), wait: us(0) },
        ],
        bubble_ratio: 0.2,
        exposed_comm: us(6),
        imbalance: 1.25,
        tflops_per_gpu: 0.5,
        critical_flops: 8000.0,
        peak_memory: Bytes(0),
        bytes_moved: Bytes(5120),
    }
}

fn text(schedule: Schedule) -> String {
    let (plan, timeline, metrics) = (plan(schedule), timeline(), figures());
    let errors = Errors { o_max_rel_error: Some(2.5e-3), o_l2_error: Some(1.5e-3), ..Errors::default() };
    let observed = Observed {
        plan: &plan,
        timeline: &timeline,
        metrics: &metrics,
        makespans: &[SimTime(90 * US), SimTime(100 * US), SimTime(120 * US)],
        peak_bytes: &[Bytes(300), Bytes(200)],
        errors: Some(&errors),
    };
    exposition(&[("backend", "cpu".into()), ("mask", "a\\b \"c\"\nd".into())], &[observed]).unwrap()
}

/// Samples by name and labels.
fn samples(schedule: Schedule) -> BTreeMap<String, f64> {
    let parsed = parse(&text(schedule)).unwrap();
    parsed
        .into_iter()
        .map(|Sample { name, labels, value }| {
            let labels: Vec<String> = labels.iter().map(|(n, v)| format!("{n}={v}")).collect();
            (format!("{name} {}", labels.join(" ")), value)
        })
        .collect()
}

#[track_caller]
fn assert_value(samples: &BTreeMap<String, f64>, key: &str, expected: f64) {
    let value = samples.get(key).unwrap_or_else(|| panic!("no {key} in {:#?}", samples.keys()));
    assert!((value - expected).abs() <= 1e-12 * expected.abs(), "{key}: {value}, not {expected}");
}

#[test]
fn every_figure_of_the_timeline_in_base_units() {
    let samples = samples(Schedule::Ring);
    let ring = "cp=2 pass=forward schedule=ring";
    for (name, expected) in [
        ("makespan_seconds", 100e-6),
        ("bubble_ratio", 0.2),
        ("imbalance_ratio", 1.25),
        ("flops_per_second_per_rank", 0.5e12),
        ("pass_duration_seconds_sum", 310e-6),
        ("pass_duration_seconds_count", 3.0),
    ] {
        assert_value(&samples, &format!("ringlab_{name} {ring}"), expected);
    }
    let rank_0 = "cp=2 pass=forward rank=0 schedule=ring";
    for (name, expected) in [
        ("compute_seconds_total", 60e-6),
        ("comm_seconds_total", 14e-6),
        ("exposed_comm_seconds_total", 6e-6),
        ("wait_seconds_total", 34e-6),
        ("sent_bytes_total", 4096.0),
        ("received_bytes_total", 1024.0),
        ("flops_total", 2000.0),
        ("idle_ratio", 0.4),
        ("peak_memory_bytes", 300.0),
        ("compute_latency_seconds_sum", 60e-6),
        ("compute_latency_seconds_count", 2.0),
        ("comm_latency_seconds_sum", 14e-6),
        ("comm_latency_seconds_count", 1.0),
    ] {
        assert_value(&samples, &format!("ringlab_{name} {rank_0}"), expected);
    }
    assert_value(&samples, "ringlab_wait_seconds_total cp=2 pass=forward rank=1 schedule=ring", 0.0);
    assert_value(
        &samples,
        "ringlab_max_relative_error_ratio cp=2 pass=forward schedule=ring tensor=o",
        2.5e-3,
    );
    assert_value(&samples, "ringlab_l2_error_ratio cp=2 pass=forward schedule=ring tensor=o", 1.5e-3);
    // Steps of 20 and 40 us: one at most 32 us, both at most 64.
    let bucket = |le: &str| {
        format!("ringlab_compute_latency_seconds_bucket cp=2 le={le} pass=forward rank=0 schedule=ring")
    };
    assert_value(&samples, &bucket("0.000016"), 0.0);
    assert_value(&samples, &bucket("0.000032"), 1.0);
    assert_value(&samples, &bucket("0.000064"), 2.0);
    assert_value(&samples, &bucket("+Inf"), 2.0);
}

#[test]
fn dist_flash_has_its_own_names_and_others_do_not() {
    let helpers = samples(Schedule::DistFlash);
    let pass = "cp=2 pass=forward schedule=dist-flash";
    let rank = |r: u32| format!("cp=2 pass=forward rank={r} schedule=dist-flash");
    assert_value(&helpers, &format!("distflashattn_idle_bubble_ratio {pass}"), 0.2);
    assert_value(&helpers, &format!("distflashattn_compute_latency_ms {}", rank(0)), 0.030);
    assert_value(&helpers, &format!("distflashattn_comm_latency_ms {}", rank(0)), 0.014);
    assert_value(&helpers, &format!("distflashattn_compute_latency_ms {}", rank(1)), 0.100);
    assert_value(&helpers, &format!("distflashattn_comm_latency_ms {}", rank(1)), 0.0);
    assert!(samples(Schedule::Ring).keys().all(|name| !name.starts_with("distflashattn")));
}

#[test]
fn the_text_follows_the_grammar_and_is_the_same_every_time() {
    let text = text(Schedule::DistFlash);
    assert_eq!(text, self::text(Schedule::DistFlash));
    let info = parse(&text).unwrap().into_iter().find(|s| s.name == "ringlab_run_info").unwrap();
    let expected = [("backend", "cpu"), ("mask", "a\\b \"c\"\nd")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    assert_eq!((info.labels, info.value), (expected.to_vec(), 1.0));
}

#[test]
fn names_follow_the_conventions() {
    for line in text(Schedule::DistFlash).lines().filter(|l| l.starts_with("# TYPE ")) {
        let [_, _, name, kind] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        // The three names that were given to dashboards are the exception.
        let base = ["_seconds", "_bytes", "_ratio", "_total", "_info", "_per_rank"];
        assert!(name.starts_with("distflashattn_") || base.iter().any(|unit| name.ends_with(unit)), "{line}");
    }
}

#[test]
fn transfers_that_overlap_count_once_and_apart_by_steps() {
    let comm = Lane::comm(0);
    let mut timeline = timeline();
    timeline.spans.push(span(1, comm, 3, SpanKind::Recv, (50, 60), 8, 0.0));
    timeline.spans.push(span(1, comm, 3, SpanKind::Recv, (55, 58), 8, 0.0));
    timeline.spans.push(span(1, comm, 3, SpanKind::Send, (90, 91), 8, 0.0));
    let steps = steps(&timeline);
    assert_eq!(steps[1][&3].communication, Some(SimTime(11 * US)));
    assert_eq!(steps[1][&3].compute, None);
    assert_eq!(steps[0][&0].compute, Some(SimTime(20 * US)));
}
