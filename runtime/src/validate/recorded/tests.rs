use ringlab_sim::engine::{self, SimOptions};
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::{Op, OpKind};
use ringlab_sim::timeline::{Span, Timeline};

use super::*;

/// Two threads.
fn threads() -> Cluster {
    let text = include_str!("../../../../experiments/presets/clusters/cpu-threads.toml");
    Cluster::parse("threads", text).unwrap()
}

/// A makespan that was measured of a small point, without its calls.
fn record(schedule: &str, measured_s: f64) -> RecordedPoint {
    let point = Point::test(schedule);
    let Shape { heads, kv_heads, head_dim, dtype, batch } = point.shape;
    RecordedPoint {
        schedule: point.schedule,
        pass: point.pass,
        cp: point.cp,
        seq_len: point.seq_len,
        heads,
        kv_heads,
        head_dim,
        dtype,
        batch,
        transport: point.transport,
        launching: point.launching,
        chunks: point.chunks,
        measured_s,
        spread: 0.25,
        measured_bubble_ratio: 0.5,
        measured_exposed_s: 0.125,
        calls: Vec::new(),
        load: Load::Sustained,
        loaded_s: 2.0,
        duty: 0.75,
    }
}

fn simulated(cluster: &Cluster, point: &Point) -> Timeline {
    engine::simulate(&point.plan().unwrap(), cluster, &SimOptions::default()).unwrap()
}

/// Its attention launches.
fn launched(point: &Point) -> Vec<Span> {
    let plan = point.plan().unwrap();
    Predicted::of((&plan, point.launching), &threads(), Load::Sustained).unwrap().launches()
}

/// The same, its makespan so many times the predicted one.
fn off_by(schedule: &str, factor: f64) -> RecordedPoint {
    record(schedule, factor * simulated(&threads(), &Point::test(schedule)).makespan.as_secs_f64())
}

fn all(points: &[RecordedPoint]) -> Report {
    predict_anew(points, (&threads(), &threads()), &mut |_, _| true)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn errors_of_a_record_by_hand() {
    // 1/1.1 - 1 is -1/11, 1/0.9 - 1 is 1/9; the speed-up of zigzag over ring is 1.1/0.9 of the predicted one when measured.
    let report = all(&[off_by("ring", 1.1), off_by("zigzag", 0.9)]);
    assert!(close(report.points[0].error, -1.0 / 11.0) && close(report.points[1].error, 1.0 / 9.0));
    assert!(close(report.mape, 10.0 / 99.0) && close(report.bias, 1.0 / 99.0), "{report:?}");
    assert!(close(report.max_error, 1.0 / 9.0));
    assert!(close(report.speedup_mape.unwrap(), 1.0 - 9.0 / 11.0));
    assert_eq!((report.coverage, report.left_out.len()), (None, 0), "nobody calibrated these threads");
    let point = &report.points[0];
    let kept =
        (point.spread, point.measured_bubble_ratio, point.measured_exposed_s, point.loaded_s, point.duty);
    assert_eq!(kept, (0.25, 0.5, 0.125, 2.0, 0.75));
    assert!(close(point.spread_s, 0.25 * point.measured_s));
    let ring = Point::test("ring");
    let metrics = Metrics::of(&ring.plan().unwrap(), &simulated(&threads(), &ring));
    assert!(close(point.predicted_exposed_s, metrics.exposed_comm.as_secs_f64()));
    // Contiguous causal shards: rank 0 has a third of rank 1's work.
    assert!((point.predicted_bubble_ratio - 1.0 / 3.0).abs() < 0.02);
}

#[test]
fn steps_are_compared_where_their_times_were_recorded() {
    let mut ring = off_by("ring", 1.0);
    let none = all(std::slice::from_ref(&ring));
    let steps = |report: &Report| (report.points[0].median_step_error, report.points[0].worst_step_error);
    assert_eq!(steps(&none), (None, None));
    assert!(none.left_out.is_empty() && none.points[0].calls.is_empty());

    let spans = launched(&ring.point());
    let factors = [0.5, 0.8, 2.0];
    let pairs = spans.iter().zip(factors);
    ring.calls = pairs
        .map(|(s, f)| RecordedCall { rank: s.rank, step: s.step, measured_s: f * s.duration().as_secs_f64() })
        .collect();
    let report = all(std::slice::from_ref(&ring));
    // 1/0.5, 1/0.8 and 1/2: off by 1, 0.25 and 0.5.
    let (median, worst) = steps(&report);
    assert!(close(median.unwrap(), 0.5) && close(worst.unwrap(), 1.0), "{median:?} {worst:?}");
    let calls: Vec<(u32, u32)> = report.points[0].calls.iter().map(|c| (c.rank, c.step)).collect();
    assert_eq!(calls, [(0, 0), (1, 0), (1, 1)]);

    ring.calls[2].step = 7;
    let report = all(&[ring]);
    assert_eq!(steps(&report), (None, None), "not of those that are left");
    assert!(report.left_out[0].starts_with("the steps of ring forward"), "{:?}", report.left_out);
    assert!(close(report.mape, 0.0), "the makespan is compared all the same");
}

#[test]
fn calls_of_one_step_are_told_apart_by_their_order() {
    let mut gather = off_by("all-gather-zigzag", 1.0);
    let spans = launched(&gather.point());
    let of_rank_0 = spans.iter().filter(|s| s.rank == 0);
    let times: Vec<f64> = of_rank_0.map(|s| s.duration().as_secs_f64()).collect();
    assert!(times.len() == 2 && spans[0].step == spans[1].step && times[1] > 2.0 * times[0], "{times:?}");
    gather.calls =
        times.iter().map(|&measured_s| RecordedCall { rank: 0, step: spans[0].step, measured_s }).collect();
    let report = all(std::slice::from_ref(&gather));
    assert!(close(report.points[0].worst_step_error.unwrap(), 0.0));
    gather.calls.push(gather.calls[0]);
    assert_eq!(all(&[gather]).points[0].worst_step_error, None, "there is no third one");
}

#[test]
fn a_fused_launch_is_all_calls_of_its_state() {
    let ring = off_by("ring", 1.0);
    let single: Vec<Span> = launched(&ring.point()).into_iter().filter(|s| s.rank == 1).collect();
    let [first, second] = &single[..] else { panic!("{single:?}") };
    let hull = second.end.saturating_sub(first.start).as_secs_f64();
    let call = RecordedCall { rank: 1, step: 0, measured_s: 0.8 * hull };
    let report = all(&[RecordedPoint { launching: Launching::Fused, calls: vec![call], ..ring }]);
    assert_eq!((report.points[0].calls.len(), report.left_out.len()), (1, 0));
    assert!(close(report.points[0].worst_step_error.unwrap(), 0.25), "{report:?}");
}

/// A helper of DistFlashAttn has two states for all results that it sends home, in turn.
#[test]
fn a_state_that_is_begun_again_is_another_launch() {
    let point = Point { cp: 16, launching: Launching::Fused, ..Point::test("dist-flash") };
    let (plan, cluster) = (point.plan().unwrap(), Cluster { gpus_per_node: 16, ..threads() });
    let predicted = Predicted::of((&plan, point.launching), &cluster, Load::Sustained).unwrap();
    let launched: Vec<(u32, u32)> = predicted.launches().iter().map(|s| (s.rank, s.op)).collect();
    let begins = |op: &Op| matches!(op.kind, OpKind::Attend { init: true, .. });
    let begun: Vec<(u32, u32)> = (0..)
        .zip(&plan.programs)
        .flat_map(|(rank, program)| {
            let first = (0..).zip(&program.ops).filter(|(_, op)| begins(op));
            first.map(move |(op, _)| (rank, op))
        })
        .collect();
    assert_eq!(launched, begun);
    assert!(begun.iter().filter(|(rank, _)| *rank == 0).count() > 1 + 2, "{begun:?}");
}

#[test]
fn what_cannot_be_predicted_is_left_out_and_said() {
    let many = RecordedPoint { cp: 3, ..record("ulysses", 1.0) };
    let wide = RecordedPoint { head_dim: 512, ..record("ring", 1.0) };
    let spread = RecordedPoint { cp: 4, ..record("ring", 1.0) };
    let report = all(&[many, off_by("ring", 1.0), wide, spread]);
    assert_eq!(report.points.len(), 1);
    let [heads, kernel, devices] = &report.left_out[..] else { panic!("{:?}", report.left_out) };
    assert!(
        heads.starts_with("ulysses forward cp 3") && heads.contains("cannot share 2 query heads"),
        "{heads}"
    );
    assert!(kernel.ends_with("d 512 fp32 copies: the cluster has no kernel for it"), "{kernel}");
    assert!(devices.starts_with("ring forward cp 4") && devices.contains("2 GPUs"), "{devices}");
}

#[test]
fn what_was_not_predicted_when_stopped_is_listed() {
    let points = ["ring", "zigzag", "all-gather"].map(|name| off_by(name, 1.25));
    let report = predict_anew(&points, (&threads(), &threads()), &mut |i, _| i < 1);
    assert_eq!((report.points.len(), report.not_reached.len(), &report.broke), (1, 2, &None));
    assert!(report.not_reached[1].starts_with("all-gather forward"), "{:?}", report.not_reached);
    assert!(close(report.bias, -0.2));
}

#[test]
fn virtual_ranks_are_predicted_on_the_links_that_they_were_measured_on() {
    let mut slow = threads();
    slow.fabric.copy.bandwidth.0 /= 1000.0;
    let ring = record("ring", 1.0);
    let group =
        RecordedPoint { cp: 4, launching: Launching::Virtual, load: Load::Virtual, ..record("ring", 1.0) };
    let report = predict_anew(&[ring, group.clone()], (&threads(), &slow), &mut |_, _| true);
    let four = |cluster: &Cluster| {
        let cluster = Cluster { gpus_per_node: 4, ..cluster.clone() };
        simulated(&cluster, &group.point()).makespan.as_secs_f64()
    };
    assert!(close(
        report.points[0].predicted_s,
        simulated(&threads(), &Point::test("ring")).makespan.as_secs_f64()
    ));
    assert!(close(report.points[1].predicted_s, four(&slow)) && four(&slow) > 2.0 * four(&threads()));
}

#[test]
fn points_are_predicted_as_loaded_as_they_were_measured() {
    let power = "[device.power]\nboost = 1.25\nidle = 0.17\nexponent = 2.5\nsource = \"test\"\n";
    let limited = Cluster::parse("limited", &(threads().to_toml() + power)).unwrap();
    let at = |cluster: &Cluster, load| {
        let point = RecordedPoint { cp: 1, load, ..record("ring", 1.0) };
        predict_anew(&[point], (cluster, cluster), &mut |_, _| true).points[0].predicted_s
    };
    // A single call: 1.25 times as fast, but for what no clock speeds up.
    let ratio = at(&limited, Load::Sustained) / at(&limited, Load::Cold);
    assert!((1.2..=1.2501).contains(&ratio), "{ratio}");
    assert!(close(at(&threads(), Load::Cold), at(&threads(), Load::Sustained)), "no clock is known");
}
