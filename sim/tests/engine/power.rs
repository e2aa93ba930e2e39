//! Clocks under a power limit, against closed forms.

use ringlab_sim::config::cluster::{Cluster, Device, Power, Quantity};
use ringlab_sim::disturb::{Disturbance, Straggler};
use ringlab_sim::engine::{Discard, Done, Load, Machine, SimError, SimOptions, simulate_with};
use ringlab_sim::mask::Pattern;
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::{Pass, Problem};
use ringlab_sim::schedule::{Options, Schedule};
use ringlab_sim::timeline::SpanKind;
use ringlab_sim::units::{BytesPerSec, SimTime};

use crate::support;

/// Queries of a rank: one call takes as many picoseconds as it has pairs of one head.
const CHUNK: u64 = 1 << 10;
const CALL: u64 = CHUNK * CHUNK;

fn limited(ranks: u32, power: (f64, f64, f64)) -> Cluster {
    let mut cluster = support::ideal(ranks);
    let (boost, idle, exponent) = power;
    cluster.device.power = Some(Power {
        boost,
        idle,
        exponent,
        speeds: Vec::new(),
        cold_speeds: Vec::new(),
        source: "test".into(),
    });
    cluster
}

fn ring(pattern: Pattern, ranks: u32) -> Plan {
    let problem = support::causal(CHUNK * u64::from(ranks), support::shape(1, support::HEAD_DIM));
    support::build(Schedule::Ring, &Problem { pattern, ..problem }, ranks, &Options::new(Pass::Forward))
}

fn machine(cluster: &Cluster, ranks: u32) -> Machine {
    Machine::new(cluster, ranks, &SimOptions::default()).unwrap()
}

fn assert_near(found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() < tolerance, "{found} for {expected}");
}

#[test]
fn ranks_that_never_rest_take_as_long_as_without_a_limit() {
    for ranks in [1, 2, 5] {
        let mut machine = machine(&limited(ranks, (1.127, 0.17, 2.5)), ranks);
        let time = simulate_with(&ring(Pattern::Full, ranks), &mut machine, &mut Discard).unwrap();
        assert_eq!(time, SimTime(u64::from(ranks) * CALL));
        assert_eq!(machine.speeds(), vec![1.0; ranks as usize]);
    }
}

#[test]
fn what_calls_do_besides_multiplying_saves_power() {
    // Work items of one query each, half of whose time is their prologue: d = 1/2, so with idle = 0.2 and exponent 2 the
    // speed is the root of 0.9 / 0.5.
    let mut cluster = limited(2, (2.0, 0.2, 2.0));
    cluster.kernels.iter_mut().for_each(|row| row.prologue = SimTime(CHUNK));
    let mut machine = machine(&cluster, 2);
    let time = simulate_with(&ring(Pattern::Full, 2), &mut machine, &mut Discard).unwrap();
    let speed = 1.8_f64.sqrt();
    machine.speeds().iter().for_each(|&found| assert_near(found, speed, 1e-6));
    assert_eq!(time, SimTime(2 * (2.0 * CALL as f64 / speed).round() as u64));
}

#[test]
fn each_rank_has_its_own_clock() {
    // Under a causal mask rank 0 computes a diagonal, and rank 1 a full block more, without a pause.
    let mut machine = machine(&limited(2, (1.25, 0.0, 2.0)), 2);
    let timeline = machine.timeline(&ring(Pattern::Causal, 2)).unwrap();
    let diagonal = CHUNK * (CHUNK + 1) / 2;
    assert_eq!(timeline.makespan, SimTime(CALL + diagonal));
    assert_eq!(machine.speeds(), [1.25, 1.0]);
    let first = timeline.spans.iter().find(|s| s.rank == 0 && s.flops > 0.0).unwrap();
    assert_eq!(first.duration(), SimTime((diagonal as f64 / 1.25).round() as u64));
}

/// Two ranks compute, wait for keys that take longer than the first call, and compute again: `T = L + W/c`,
/// `d = 2 W / (c T)`. At the power limit `c^2 d = 1 - idle (1 - d)`, so with idle = 0.2 a speed of c = 1.1 has
/// d = 0.8 / 1.01, and needs L = (2/d - 1) W/c.
#[test]
fn speed_and_busy_share_agree_where_transfers_are_exposed() {
    let speed = 1.1;
    let share = 0.8 / (speed * speed - 0.2);
    let call = CALL as f64 / speed;
    let latency = (2.0 / share - 1.0) * call;
    let mut cluster = limited(2, (2.0, 0.2, 2.0));
    cluster.fabric.copy.latency = SimTime(latency.round() as u64);

    let plan = ring(Pattern::Full, 2);
    let mut machine = machine(&cluster, 2);
    let timeline = machine.timeline(&plan).unwrap();
    assert_near(timeline.makespan.0 as f64, latency + call, 1e-4);
    for &found in machine.speeds() {
        assert_near(found, speed, 2e-4);
    }
    for rank in Metrics::of(&plan, &timeline).ranks {
        assert_near(rank.busy.0 as f64 / timeline.makespan.0 as f64, share, 4e-4);
    }
}

#[test]
fn what_records_is_told_once_and_hears_what_others_measure() {
    let mut cluster = limited(2, (1.127, 0.17, 2.5));
    cluster.fabric.copy.latency = SimTime(3 * CALL);
    let plan = ring(Pattern::Full, 2);
    let mut machine = machine(&cluster, 2);
    let mut done: Vec<Done> = Vec::new();
    let told = simulate_with(&plan, &mut machine, &mut done).unwrap();
    assert_eq!(done.len(), plan.op_count());
    assert_eq!(done.iter().map(|d| d.end).max(), Some(told));
    assert_eq!(simulate_with(&plan, &mut machine, &mut Discard).unwrap(), told);
    assert_eq!(machine.timeline(&plan).unwrap().makespan, told);
    // Busy for about half the time: 2 W of 4 W.
    assert_eq!(told, SimTime(3 * CALL + (CALL as f64 / 1.127).round() as u64));
}

#[test]
fn a_straggler_is_slow_beside_its_own_clock() {
    let mut machine = machine(&limited(2, (1.2, 0.0, 1.0)), 2);
    let straggler: Straggler = "1:1.5".parse().unwrap();
    let disturbance = Disturbance { stragglers: vec![straggler], ..Disturbance::default() };
    machine.disturb(Some(disturbance.draw(2, 0, 0).unwrap())).unwrap();
    let time = simulate_with(&ring(Pattern::Full, 2), &mut machine, &mut Discard).unwrap();
    // It never rests; the other one, busy for two thirds or less, is at its boost.
    assert_eq!(time, SimTime(3 * CALL));
    assert_eq!(machine.speeds(), [1.2, 1.0]);
}

#[test]
fn a_cold_clock_is_the_highest_whatever_the_busy_share() {
    let options = SimOptions { load: Load::Cold, ..SimOptions::default() };
    let plan = ring(Pattern::Full, 2);
    let mut machine = Machine::new(&limited(2, (1.25, 0.17, 2.5)), 2, &options).unwrap();
    let time = simulate_with(&plan, &mut machine, &mut Discard).unwrap();
    assert_eq!(time, SimTime(2 * (CALL as f64 / 1.25).round() as u64));

    let error = Machine::new(&support::ideal(2), 2, &options).unwrap_err();
    assert_eq!(error, SimError::NoPower { cluster: "ideal".into() });
}

#[test]
fn measured_computations_keep_their_clock() {
    let (plain, mut limited) = (support::ideal(2), limited(2, (1.25, 0.17, 2.5)));
    limited.fabric.copy.latency = SimTime(3 * CALL);
    let plan = ring(Pattern::Full, 2);
    let measured = machine(&plain, 2).timeline(&plan).unwrap();
    let mut machine = machine(&limited, 2);
    machine.timeline(&plan).unwrap();
    assert_eq!(machine.replay(&plan, &measured).unwrap().makespan, SimTime(4 * CALL));
}

#[test]
fn chips_differ() {
    // Rank 1 never rests; rank 0 is busy for d = 0.8 / c of the time, so c = 1.25 (c / 0.8)^(1/4).
    let mut cluster = limited(2, (2.0, 0.0, 4.0));
    cluster.device.power.as_mut().unwrap().speeds = vec![1.25, 0.8];
    let mut machine = machine(&cluster, 2);
    let time = simulate_with(&ring(Pattern::Full, 2), &mut machine, &mut Discard).unwrap();
    assert_eq!(time, SimTime(2 * (CALL as f64 / 0.8).round() as u64));
    assert_near(machine.speeds()[0], (1.25_f64.powi(4) / 0.8).cbrt(), 3e-4);
    assert_eq!(machine.speeds()[1], 0.8);
}

#[test]
fn a_boost_that_is_less_known_makes_lasting_load_less_known() {
    // Rates are known after a rest; twice the boost is half the rate of lasting load.
    let mut cluster = limited(2, (1.2, 0.17, 2.5));
    cluster.kernels.iter_mut().for_each(|row| row.boost = Some(1.2));
    let doubled = cluster.scaled(Quantity::Boost, 2.0);
    let time = |cluster: &Cluster, load| {
        let options = SimOptions { load, ..SimOptions::default() };
        let mut machine = Machine::new(cluster, 2, &options).unwrap();
        simulate_with(&ring(Pattern::Full, 2), &mut machine, &mut Discard).unwrap().0 as f64
    };
    assert_near(time(&doubled, Load::Sustained), 2.0 * time(&cluster, Load::Sustained), 1e-5);
    assert_near(time(&doubled, Load::Cold), time(&cluster, Load::Cold), 1e-5);
    // Never slower after a rest than under load.
    let least = cluster.scaled(Quantity::Boost, 0.5);
    assert_near(time(&least, Load::Sustained), time(&cluster, Load::Cold), 1e-5);
}

#[test]
fn chips_differ_after_a_rest_too() {
    // Far longer than a millisecond, and far shorter.
    for (scale, reached) in [(1_000_000.0, [0.9, 1.2]), (1.0, [1.0, 1.0])] {
        let mut cluster = limited(2, (1.25, 0.17, 2.5));
        cluster.kernels.iter_mut().for_each(|row| row.rate.0 /= scale);
        cluster.device.power.as_mut().unwrap().cold_speeds = vec![0.9, 1.2];
        let cold = SimOptions { load: Load::Cold, ..SimOptions::default() };
        let mut machine = Machine::new(&cluster, 2, &cold).unwrap();
        let time = simulate_with(&ring(Pattern::Full, 2), &mut machine, &mut Discard).unwrap();
        assert_near(time.0 as f64, 2.0 * CALL as f64 * scale / (1.25 * reached[0]), 2e-3);
        machine
            .speeds()
            .iter()
            .zip(reached)
            .for_each(|(&speed, reach)| assert_near(speed, 1.25 * reach, 2e-3));
        // Under lasting load nothing is faster than after a rest.
        cluster.kernels.iter_mut().for_each(|row| row.boost = Some(1.0));
        let mut machine = Machine::new(&cluster, 2, &SimOptions::default()).unwrap();
        let time = simulate_with(&ring(Pattern::Full, 2), &mut machine, &mut Discard).unwrap();
        assert_near(time.0 as f64, 2.0 * CALL as f64 * scale / reached[0], 2e-3);
    }
}

#[test]
fn a_gpu_that_runs_all_ranks_rests_while_it_copies() {
    // With idle = 0 and exponent 1, c = 1 / d, and copies of a quarter of the computing: c = 1 + c / 4.
    let plan = ring(Pattern::Full, 2);
    let bytes: u64 = plan.messages.iter().map(|m| m.bytes.0).sum();
    let mut cluster = limited(2, (10.0, 0.0, 1.0));
    let computing = 4.0 * CALL as f64 * 1e-12;
    cluster.device.reached.hbm = BytesPerSec(2.0 * bytes as f64 / (computing / 4.0));
    let options = SimOptions { load: Load::Virtual, ..SimOptions::default() };
    let mut machine = Machine::new(&cluster, 2, &options).unwrap();
    simulate_with(&plan, &mut machine, &mut Discard).unwrap();
    machine.speeds().iter().for_each(|&speed| assert_near(speed, 4.0 / 3.0, 1e-4));
    // Slower chips than the table's have as much less to begin with: c = 0.8 (1 + c / 4).
    cluster.device.power.as_mut().unwrap().speeds = vec![0.8, 5.0];
    let mut slower = Machine::new(&cluster, 2, &options).unwrap();
    simulate_with(&plan, &mut slower, &mut Discard).unwrap();
    slower.speeds().iter().for_each(|&speed| assert_near(speed, 1.0, 1e-4));
    // Whatever the links are like: there are none.
    cluster.fabric.copy.latency = SimTime(3 * CALL);
    let mut far = Machine::new(&cluster, 2, &options).unwrap();
    simulate_with(&plan, &mut far, &mut Discard).unwrap();
    assert_eq!(far.speeds(), slower.speeds());
}

/// Work of 2 ms at the boost, of which the first is at full speed on every chip: 0.9 and 1.2 in the other half.
#[test]
fn how_long_work_lasts_after_a_rest_counts_at_the_highest_clock() {
    let mut cluster = limited(2, (1.25, 0.17, 2.5));
    let scale = 1.25 * 2e9 / (2.0 * CALL as f64);
    cluster.kernels.iter_mut().for_each(|row| row.rate.0 /= scale);
    cluster.device.power.as_mut().unwrap().cold_speeds = vec![0.9, 1.2];
    let cold = SimOptions { load: Load::Cold, ..SimOptions::default() };
    let mut machine = Machine::new(&cluster, 2, &cold).unwrap();
    simulate_with(&ring(Pattern::Full, 2), &mut machine, &mut Discard).unwrap();
    machine.speeds().iter().zip([0.95, 1.1]).for_each(|(&speed, reach)| {
        assert_near(speed, 1.25 * reach, 1e-6);
    });
}

/// Ranks that do nothing but matrix products multiply all the time.
#[test]
fn products_of_scores_take_power_too() {
    let problem = support::causal(2 * CHUNK, support::shape(1, support::HEAD_DIM));
    let problem = Problem { pattern: Pattern::Full, ..problem };
    let options = Options::new(Pass::Forward);
    let plan = support::build(Schedule::RingSelfAttention, &problem, 2, &options);
    let mut machine = machine(&limited(2, (1.25, 0.17, 2.5)), 2);
    simulate_with(&plan, &mut machine, &mut Discard).unwrap();
    assert_eq!(machine.speeds(), [1.0, 1.0]);
}

#[test]
fn a_kernel_may_have_a_boost_of_its_own_and_memory_has_none() {
    let cold = SimOptions { load: Load::Cold, ..SimOptions::default() };
    let mut cluster = limited(2, (1.25, 0.17, 2.5));
    cluster.kernels.iter_mut().for_each(|row| row.boost = Some(1.1));
    let time = Machine::new(&cluster, 2, &cold).unwrap().timeline(&ring(Pattern::Full, 2)).unwrap().makespan;
    assert_eq!(time, SimTime(2 * (CALL as f64 / 1.1).round() as u64));

    // Row sums stream memory, whatever the clock.
    cluster.device.reached.hbm = BytesPerSec(1e9);
    let problem = support::causal(2 * CHUNK, support::shape(1, support::HEAD_DIM));
    let backward = support::build(Schedule::Ring, &problem, 2, &Options::new(Pass::Backward));
    let sums = |options: &SimOptions, cluster: &Cluster| {
        let timeline = Machine::new(cluster, 2, options).unwrap().timeline(&backward).unwrap();
        let of = |kind| timeline.spans.iter().find(|s| s.kind == kind).unwrap().duration();
        (of(SpanKind::Preprocess), of(SpanKind::AttendBackward))
    };
    let without = Cluster { device: Device { power: None, ..cluster.device.clone() }, ..cluster.clone() };
    let (plain, fast) = (sums(&SimOptions::default(), &without), sums(&cold, &cluster));
    assert!(plain.0 > SimTime::ZERO && plain.0 == fast.0);
    assert_near(plain.1.0 as f64 / fast.1.0 as f64, 1.1, 1e-6);
}
