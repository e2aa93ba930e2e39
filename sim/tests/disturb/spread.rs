use ringlab_sim::disturb::{DisturbError, Disturbance, Jitter, Percentiles};
use ringlab_sim::plan::{self, Plan};
use ringlab_sim::problem::{Pass, Problem};
use ringlab_sim::schedule::{Options, Schedule};
use ringlab_sim::units::SimTime;

use crate::{calm, makespan, support};

const TOKENS: u64 = 256;

/// One call of the same work on every rank and nothing that waits for another: a document a rank.
fn alone(ranks: u32) -> Plan {
    let causal = support::causal(TOKENS * u64::from(ranks), support::shape(1, support::HEAD_DIM));
    let problem = Problem { documents: vec![TOKENS; ranks as usize], ..causal };
    support::build(Schedule::Ring, &problem, ranks, &Options::new(Pass::Forward))
}

fn jitter(text: &str) -> Disturbance {
    Disturbance { jitter: text.parse().unwrap(), ..Disturbance::default() }
}

/// Makespans of `count` repeats over the usual one.
fn ratios(ranks: u32, text: &str, count: u64) -> Vec<f64> {
    let (plan, cluster, jitter) = (alone(ranks), support::ideal(ranks), jitter(text));
    let usual = calm(&plan, &cluster) as f64;
    assert_eq!(usual, (TOKENS * (TOKENS + 1) / 2) as f64, "one call and no waiting");
    (0..count).map(|i| makespan(&plan, &cluster, &jitter, 1, i) as f64 / usual).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Expectations and deviations of the largest of P standard normals (Harter 1961, Annals of Mathematical Statistics).
const LARGEST: [(u32, f64, f64); 4] =
    [(1, 0.0, 1.0), (2, 0.564_19, 0.825_65), (8, 1.423_60, 0.610_65), (16, 1.765_99, 0.541_44)];

#[test]
fn the_slowest_of_independent_ranks_is_the_largest_of_as_many_normals() {
    const REPEATS: u64 = 2000;
    for (ranks, expected, deviation) in LARGEST {
        let ratios = ratios(ranks, "normal:2%", REPEATS);
        let z = (mean(&ratios) - 1.0) / 0.02;
        assert!(
            (z - expected).abs() < 4.0 * deviation / (REPEATS as f64).sqrt(),
            "P {ranks}: {z} for {expected}"
        );
    }
}

#[test]
fn percentiles_of_one_rank_are_those_of_the_distribution() {
    const REPEATS: u64 = 4000;
    let of = |text: &str| {
        let ratios = ratios(1, text, REPEATS);
        let scaled: Vec<SimTime> = ratios.iter().map(|r| SimTime((r * 1e9) as u64)).collect();
        let p = Percentiles::of(&scaled).unwrap();
        ([p.p5, p.p50, p.p95, p.p99].map(|t| t.0 as f64 / 1e9), mean(&ratios))
    };
    let z = [-1.644_85, 0.0, 1.644_85, 2.326_35];
    let sigma: f64 = 0.1;
    let (normal, normal_mean) = of("normal:10%");
    let (lognormal, lognormal_mean) = of("10%");
    for (i, z) in z.into_iter().enumerate() {
        assert!((normal[i] - (1.0 + sigma * z)).abs() < 0.012, "normal {i}: {}", normal[i]);
        let expected = (sigma * z - sigma * sigma / 2.0).exp();
        assert!((lognormal[i] - expected).abs() < 0.014, "lognormal {i}: {} for {expected}", lognormal[i]);
    }
    assert!((normal_mean - 1.0).abs() < 0.007 && (lognormal_mean - 1.0).abs() < 0.007, "means stay 1");
}

#[test]
fn jitter_of_transfers_spreads_their_bytes() {
    let mut cluster = support::ideal(2);
    cluster.fabric.copy.bandwidth = ringlab_sim::units::BytesPerSec(1e12);
    let plan = support::transfers(2, &[(0, 1, 10_000)], plan::Transport::CopyEngine);
    let usual = calm(&plan, &cluster) as f64;
    assert_eq!(usual, (10_000 * support::TOKEN) as f64, "a byte a picosecond");
    let jitter = jitter("normal:5%");
    let ratios: Vec<f64> =
        (0..2000).map(|i| makespan(&plan, &cluster, &jitter, 5, i) as f64 / usual).collect();
    let deviation = mean(&ratios.iter().map(|r| (r - 1.0) * (r - 1.0)).collect::<Vec<_>>()).sqrt();
    assert!((mean(&ratios) - 1.0).abs() < 0.005, "{}", mean(&ratios));
    assert!((deviation - 0.05).abs() < 0.004, "{deviation}");
}

#[test]
fn a_seed_decides_everything_and_nothing_else_does() {
    let problem = support::causal(8 << 10, support::shape(8, 128));
    let plan = support::build(Schedule::Zigzag, &problem, 4, &Options::new(Pass::Forward));
    let (cluster, jitter) = (support::nvswitch(1), jitter("5%"));
    let run = |seed, repeat| makespan(&plan, &cluster, &jitter, seed, repeat);
    assert_eq!(run(3, 0), run(3, 0));
    assert!(run(3, 0) != run(4, 0) && run(3, 0) != run(3, 1));
    let undisturbed =
        ringlab_sim::engine::simulate(&plan, &cluster, &ringlab_sim::engine::SimOptions::default());
    assert_eq!(
        calm(&plan, &cluster),
        undisturbed.unwrap().makespan.0,
        "conditions of nothing change nothing"
    );
}

#[test]
fn spreads_that_make_no_sense_are_refused() {
    for text in ["", "3", "%", "-1%", "101%", "nan%", "uniform:3%", "normal:", "normal:3"] {
        assert!(matches!(text.parse::<Jitter>(), Err(DisturbError::Form { .. })), "{text}");
    }
    assert_eq!("normal:2.5%".parse::<Jitter>().unwrap().to_string(), "normal:2.5%");
    assert_eq!("lognormal:3%".parse::<Jitter>().unwrap().to_string(), "3%");
}
