use std::collections::BTreeMap;

use ringlab_sim::plan::Plan;
use ringlab_sim::problem::Pass;

use super::*;
use crate::calibrate::tests::{Simulated, preset, truth};
use crate::calibrate::{Calibrated, calibrate};
use crate::cuda::LIMITER_PERIOD;
use crate::validate::matrix::tests::Gpus;
use crate::validate::{Filter, Report, matrix, validate};

fn all_of(gpus: u32) -> Vec<Point> {
    matrix(&Gpus(gpus), &Filter { cp: ranks(gpus), ..Filter::default() })
}

/// Names of schedules by ranks, Ki tokens, kv heads and transport.
type Groups = BTreeMap<(u32, u64, u32, &'static str), Vec<String>>;

/// Those of points, all of which both passes have.
fn groups(points: &[Point]) -> Groups {
    let mut groups = Groups::new();
    let of = |pass| points.iter().filter(move |p| p.pass == pass).cloned();
    for point in of(Pass::Forward) {
        let twin = Point { pass: Pass::Backward, ..point.clone() };
        assert!(points.contains(&twin), "{twin}");
        let key = (point.cp, point.seq_len >> 10, point.shape.kv_heads, point.transport_name());
        groups.entry(key).or_default().push(point.schedule.to_string());
    }
    assert_eq!(2 * of(Pass::Forward).count(), points.len());
    for names in groups.values_mut() {
        names.sort();
    }
    groups
}

fn sorted(names: &str) -> Vec<String> {
    let mut names: Vec<String> = names.split(' ').map(str::to_owned).collect();
    names.sort();
    names
}

const PLAIN_NAMES: &str = "ring zigzag striped striped:64 dist-flash all-gather all-gather-zigzag ulysses";
const TRANSFER_NAMES: &str = "ring zigzag dist-flash all-gather ulysses";

#[test]
fn numbers_of_ranks_are_all_and_some() {
    assert_eq!(ranks(8), [8, 7, 5, 4, 3]);
    assert_eq!(ranks(4), [4, 3]);
    assert_eq!((ranks(6), ranks(3), ranks(2)), (vec![6, 5, 4, 3], vec![3], vec![2]));
    assert_eq!(ranks(16), [16, 8, 7, 5, 4, 3]);
}

/// What a host of `gpus` runs on all of them.
fn on_all(gpus: u32, levels: &str, two_levels: &str) -> Groups {
    let (every, sizes) = (format!("{PLAIN_NAMES} {levels}"), format!("{TRANSFER_NAMES} striped"));
    let each_way = format!("{TRANSFER_NAMES} {two_levels}");
    let copies = |kib, kv, names: &str| ((gpus, kib, kv, "copy-engine"), sorted(names));
    let mut all = Groups::from([copies(64, 8, &every), copies(64, 32, &each_way)]);
    all.insert((gpus, 64, 8, "nccl"), sorted(&each_way));
    all.extend([32, 128].map(|kib| copies(kib, 8, &sizes)));
    all.extend([copies(256, 8, "ring zigzag striped"), copies(512, 8, "zigzag"), copies(1024, 8, "zigzag")]);
    all
}

/// What odd numbers of ranks run.
fn odd(cp: u32, middle: u64, twice: u64) -> Groups {
    let keys = [(middle, 8, "copy-engine"), (middle, 8, "nccl"), (twice, 8, "copy-engine")];
    keys.map(|(kib, kv, by)| ((cp, kib, kv, by), sorted("dist-flash"))).into()
}

#[test]
fn eight_gpus_run_every_form_of_every_schedule_on_eight_four_and_odd_numbers() {
    let points = all_of(8);
    let mut expected = on_all(8, "double-ring:2 double-ring:4 usp:2x4 usp:4x2", "double-ring:4 usp:4x2");
    let four = |kib, kv, by, names: &str| ((4, kib, kv, by), sorted(names));
    expected.extend([four(64, 8, "copy-engine", &format!("{PLAIN_NAMES} double-ring:2 usp:2x2"))]);
    expected.extend([four(64, 32, "copy-engine", "zigzag ulysses"), four(64, 8, "nccl", "zigzag ulysses")]);
    expected.extend([four(128, 8, "copy-engine", "ring zigzag striped")]);
    expected.extend([four(512, 8, "copy-engine", "zigzag")]);
    // 64Ki and 128Ki less what is no multiple of 256 tokens a rank.
    expected.extend(odd(3, 63, 127).into_iter().chain(odd(5, 63, 127)).chain(odd(7, 63, 127)));
    assert_eq!(groups(&points), expected);
    assert_eq!(points.len(), 140, "as docs/eight-gpus.md says");
    assert!(points.iter().all(|p| (p.shape.heads, p.shape.head_dim) == (32, 128)));
}

#[test]
fn four_gpus_run_the_same_on_four_and_three() {
    let points = all_of(4);
    let mut expected = on_all(4, "double-ring:2 usp:2x2", "double-ring:2 usp:2x2");
    expected.extend(odd(3, 63, 127));
    assert_eq!(groups(&points), expected);
    assert_eq!(points.len(), 88, "as docs/eight-gpus.md says");
}

#[test]
fn other_numbers_of_gpus_have_points_too() {
    for gpus in [3, 5, 6, 7, 16] {
        let points = all_of(gpus);
        for schedule in [Schedule::Ring, Schedule::Zigzag, Schedule::Striped { block: 64 }] {
            assert!(points.iter().any(|p| p.cp == gpus && p.schedule == schedule), "{schedule} on {gpus}");
        }
    }
}

/// Lasting load before a point, in seconds.
const LOAD: f64 = 1.5;
/// Rest before a point that is measured after one, in seconds, and after each run over its length.
const REST: (f64, f64) = (0.1, 6.0);
/// What preparing one takes besides its upload, in seconds.
const PREPARED: f64 = 0.3;
/// Communicators of eight ranks, on each of up to three lanes, in seconds.
const JOINED: f64 = 1.5;
/// Elements that hosts round and upload in a second.
const UPLOADED: f64 = 2e9;
/// FLOPs a second.
const RATE: f64 = 600e12;

/// What a point may take, in seconds, where runs under lasting load are measured for `window` seconds or longer.
fn lasts(point: &Point, plan: &Plan, window: f64) -> f64 {
    let of = |p: &ringlab_sim::plan::Program| p.ops.iter().map(|op| plan.flops(&op.kind)).sum::<f64>();
    let pass = plan.programs.iter().map(of).fold(0.0, f64::max) / RATE;
    let repeats = if point.seq_len < 256 << 10 {
        5.0
    } else if point.seq_len < 1 << 20 {
        3.0
    } else {
        1.0
    };
    // As long as a GPU machine takes it to last; the first run loads kernels, the second warms up.
    let expected = pass * RATE / 500e12;
    let measured = if expected <= 0.04 {
        REST.0 + (2.0 + repeats) * (pass + REST.1 * expected)
    } else {
        pass * (1.0 + repeats.max((window / pass).ceil())) + pass.max(LOAD)
    };
    let tensors = if point.pass == Pass::Forward { 1 } else { 3 };
    let heads = u64::from(tensors * point.shape.heads + 2 * point.shape.kv_heads);
    let uploaded = (point.seq_len * heads * u64::from(point.shape.head_dim)) as f64 / UPLOADED;
    let joined = if point.transport == Transport::Nccl { JOINED } else { 0.0 };
    measured + PREPARED + uploaded + joined
}

/// Seconds of all points and of the first of each class, and the bytes of the largest GPU.
fn costs(points: &[Point], window: f64) -> (f64, f64, u64) {
    let (mut all, mut first, mut largest) = (0.0, 0.0, 0);
    let mut classes: Vec<String> = Vec::new();
    for point in points {
        let plan = point.plan().unwrap();
        let took = lasts(point, &plan, window);
        all += took;
        if !classes.contains(&point.class()) {
            classes.push(point.class());
            first += took;
        }
        largest = plan.programs.iter().map(|p| p.peak_memory().0).fold(largest, u64::max);
    }
    (all, first, largest)
}

#[test]
fn the_estimate_is_what_two_h200s_took() {
    // 117 points, less Megatron-SP's two, took 225 s (experiments/results/h200-validation-2026-11-30/fifth), five runs each.
    let (all, ..) = costs(&all_of(2), 0.0);
    assert!((all / 225.0 - 1.0).abs() < 0.05, "{all} s");
}

#[test]
fn a_host_of_h200s_has_time_and_memory_for_it_as_the_docs_say() {
    let docs = include_str!("../../../../../docs/eight-gpus.md");
    let (four, eight) = (all_of(4), all_of(8));
    let window = LIMITER_PERIOD.as_secs_f64();
    let costs = [costs(&four, window), costs(&eight, window)];
    for (all, first, largest) in costs {
        assert!(all < 420.0 && first < 180.0, "{all} and {first} s");
        assert!(largest < 120_000_000_000, "{largest} bytes on 141 GB");
    }
    let [a, b] = costs;
    for row in [
        format!("| together | {} | {} |", four.len(), eight.len()),
        format!("| seconds, estimated | {:.0} | {:.0} |", a.0, b.0),
        format!("| of which the shortest point of every class | {:.0} | {:.0} |", a.1, b.1),
        format!("| largest GPU's buffers | {:.1} GB | {:.1} GB |", a.2 as f64 / 1e9, b.2 as f64 / 1e9),
    ] {
        assert!(docs.contains(&row), "the docs have no line {row}");
    }
}

#[test]
fn simulated_hosts_are_calibrated_and_every_point_is_predicted_and_run() {
    for gpus in [4, 8] {
        let mut machine =
            Simulated::new(ringlab_sim::config::cluster::Cluster { gpus_per_node: gpus, ..truth() });
        let Calibrated { cluster, .. } =
            calibrate(&mut machine, &preset(), "2026-11-30", &mut |_| true).unwrap();
        assert_eq!((cluster.nodes, cluster.gpus_per_node), (1, gpus));
        let points = matrix(&machine, &Filter { cp: ranks(gpus), ..Filter::default() });
        assert_eq!(points, all_of(gpus));
        let report: Report = validate(&mut machine, &cluster, &points, &mut |_, _| true).unwrap();
        assert_eq!((report.points.len(), &report.left_out, &report.broke), (points.len(), &vec![], &None));
        // The model describes such a machine, and calibration finds its constants again.
        assert!(report.max_error < 1e-4, "{} {}", report.mape, report.max_error);
    }
}
