use ringlab_sim::config::cluster::Power;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::{Dtype, Shape};
use ringlab_sim::units::{Bytes, SimTime};

use super::*;
use crate::calibrate::tests::{Simulated, truth};
use crate::cuda::CudaError;
use crate::machine::{CpuMachine, Identity, LaunchCosts, MachineKernel, Runs, Sizes};

fn at(schedule: &str, predicted_s: f64, measured_s: f64, inside: Option<bool>) -> Compared {
    let point = Point::test(schedule);
    Compared {
        point,
        predicted_s,
        predicted_low_s: None,
        predicted_high_s: None,
        measured_s,
        spread: 0.0,
        spread_s: 0.0,
        error: predicted_s / measured_s - 1.0,
        inside,
        predicted_bubble_ratio: 0.0,
        measured_bubble_ratio: 0.0,
        predicted_exposed_s: 0.0,
        measured_exposed_s: 0.0,
        median_step_error: None,
        worst_step_error: None,
        calls: Vec::new(),
        load: Load::Sustained,
        loaded_s: 0.0,
        duty: 0.0,
    }
}

#[test]
fn the_summary_by_hand() {
    // Errors +10% and -20%; the speed-up of zigzag is 1.1/0.8 = 1.375 predicted and 1 measured.
    let points = vec![at("ring", 1.1, 1.0, Some(true)), at("zigzag", 0.8, 1.0, Some(false))];
    let report = Report::of(points, Vec::new());
    assert!((report.mape - 0.15).abs() < 1e-12);
    assert!((report.max_error - 0.2).abs() < 1e-12);
    assert!((report.bias + 0.05).abs() < 1e-12);
    assert_eq!(report.coverage, Some(0.5));
    assert!((report.speedup_mape.unwrap() - 0.375).abs() < 1e-12);
    // One whose speed-up, 1.1 / 2.2 and 1 / 2, is as predicted, and of which there is no interval.
    let points = [report.points.clone(), vec![at("dist-flash", 2.2, 2.0, None)]].concat();
    let report = Report::of(points, Vec::new());
    assert!((report.speedup_mape.unwrap() - 0.375 / 2.0).abs() < 1e-12);
    assert!((report.speedup_max_error.unwrap() - 0.375).abs() < 1e-12);
    assert_eq!(report.coverage, None);
}

#[test]
fn without_intervals_or_a_ring_there_is_no_figure_for_them() {
    let report = Report::of(vec![at("zigzag", 1.0, 1.0, None)], Vec::new());
    assert_eq!((report.coverage, report.speedup_mape), (None, None));
    let nothing = Report::of(Vec::new(), Vec::new());
    assert_eq!((nothing.mape, nothing.max_error, nothing.coverage), (0.0, 0.0, None));
}

#[test]
fn classes_are_of_what_differs_and_by_hand() {
    let points = vec![
        at("ring", 1.1, 1.0, None),
        at("zigzag", 0.8, 1.0, None),
        Compared { point: Point { seq_len: 64, ..Point::test("ring") }, ..at("ring", 1.3, 1.0, None) },
    ];
    let classes = Report::of(points, Vec::new()).classes;
    let all: Vec<(&str, &str, usize)> = classes.iter().map(|c| (c.by, c.value.as_str(), c.points)).collect();
    let expected =
        [("schedule", "ring", 2), ("schedule", "zigzag", 1), ("tokens", "64", 1), ("tokens", "256", 2)];
    assert_eq!(all, expected, "pass, transport and heads are the same in all");
    let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
    assert!(close(classes[0].mape, 0.2) && close(classes[0].bias, 0.2) && close(classes[0].max_error, 0.3));
    // +10% and -20%.
    assert!(
        close(classes[3].mape, 0.15) && close(classes[3].bias, -0.05) && close(classes[3].max_error, 0.2)
    );
}

/// Threads that refuse one schedule and break at another, and are said to be loaded so.
struct Faulty(CpuMachine, Load);

impl Machine for Faulty {
    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        self.0.kernels()
    }

    fn sizes(&self) -> Sizes {
        Sizes { repeats: 1, ..self.0.sizes() }
    }

    fn load(&self, _: &Plan, _: Launching) -> Load {
        self.1
    }

    fn beyond(&self, plan: &Plan) -> Option<String> {
        self.0.beyond(plan)
    }

    fn run(&mut self, plan: &Plan, launching: Launching, repeats: u32) -> Result<Runs, MachineError> {
        match plan.name.as_str() {
            "zigzag" => Err(MachineError::new(plan, CudaError::NotFusable { rank: 0, reason: "no" })),
            "striped" => Err(MachineError::new(plan, CudaError::NoNccl)),
            _ => self.0.run(plan, launching, repeats),
        }
    }

    fn launch_costs(&mut self) -> Result<LaunchCosts, MachineError> {
        self.0.launch_costs()
    }
}

/// A cluster of threads of this many devices.
fn threads() -> Cluster {
    Cluster::parse("threads", include_str!("../../../experiments/presets/clusters/cpu-threads.toml")).unwrap()
}

fn validated(schedules: &[&str], until: usize) -> Result<Report, ValidateError> {
    let points: Vec<Point> = schedules.iter().map(|name| Point::test(name)).collect();
    validate(&mut Faulty(CpuMachine::new(), Load::Sustained), &threads(), &points, &mut |i, _| i < until)
}

#[test]
fn what_was_measured_is_kept_when_time_is_up() {
    let report = validated(&["ring", "dist-flash", "all-gather"], 2).unwrap();
    assert_eq!((report.points.len(), report.not_reached.len()), (2, 1));
    assert!(report.not_reached[0].starts_with("all-gather forward"), "{:?}", report.not_reached);
    assert_eq!(report.broke, None);
}

#[test]
fn calls_are_listed_rank_by_rank() {
    // Of a causal ring of two, rank 0 has its own keys only, and rank 1 those of rank 0 too.
    let report = validated(&["ring"], 1).unwrap();
    let calls: Vec<(u32, u32)> = report.points[0].calls.iter().map(|c| (c.rank, c.step)).collect();
    assert_eq!(calls, [(0, 0), (1, 0), (1, 1)]);
    let errors = report.points[0].calls.iter().map(|c| (c.predicted_s / c.measured_s - 1.0).abs());
    assert_eq!(errors.reduce(f64::max), report.points[0].worst_step_error);
}

#[test]
fn without_a_clock_rates_are_those_that_were_measured() {
    let points = [Point::test("ring")];
    let found =
        validate(&mut Faulty(CpuMachine::new(), Load::Cold), &threads(), &points, &mut |_, _| true).unwrap();
    let plain = validated(&["ring"], 1).unwrap();
    assert_eq!(found.points[0].load, Load::Cold);
    assert_eq!(found.points[0].predicted_s, plain.points[0].predicted_s);
}

#[test]
fn threads_do_less_than_plans_with_scores_in_memory_count() {
    let report = validated(&["ring", "ring-self-attention"], 9).unwrap();
    assert_eq!((report.points.len(), report.left_out.len()), (1, 1));
    assert!(report.left_out[0].contains("skip masked pairs"), "{:?}", report.left_out);
}

#[test]
fn keys_and_values_that_go_along_are_beyond_a_plan_on_threads_too() {
    let report = validated(&["ring", "megatron-sp"], 9).unwrap();
    assert_eq!((report.points.len(), report.left_out.len()), (1, 1));
    // Each rank sends k and v of its 128 tokens, 2 heads of 64 in fp32, and lse of the other's 128 for its own head.
    let bytes = Bytes(2 * (128 * 2 * 2 * 64 * 4 + 128 * 2 * 4)).to_string();
    let said = format!("{bytes} go along with its messages beyond what the plan counts");
    assert!(report.left_out[0].contains(&said), "{:?}", report.left_out);
}

#[test]
fn refused_points_are_left_out_and_a_break_ends_the_runs() {
    let report = validated(&["ring", "zigzag", "striped", "all-gather"], 9).unwrap();
    assert_eq!((report.points.len(), report.left_out.len(), report.not_reached.len()), (1, 1, 1));
    assert!(report.left_out[0].contains("cannot be fused"), "{:?}", report.left_out);
    assert!(report.broke.unwrap().contains("NCCL"), "and says why");
    assert!(validated(&["striped", "ring"], 9).is_err(), "nothing is kept where nothing was measured");
}

#[test]
fn virtual_ranks_exchange_nothing_with_other_gpus() {
    let mut cluster = truth();
    cluster.kernels[0].linked = Some(1.5);
    let linked = |launching| {
        let point = Point { launching, cp: 4, ..Point::test("ring") };
        let on = on_enough(&cluster, &point);
        (on.gpus_per_node, on.kernels[0].linked)
    };
    assert_eq!(linked(Launching::Stepwise), (2, Some(1.5)));
    assert_eq!(linked(Launching::Virtual), (4, None));
}

#[test]
fn virtual_ranks_are_all_as_fast_as_the_first_gpu() {
    let mut cluster = truth();
    let (speeds, cold_speeds, source) = (vec![1.02, 0.98], vec![0.99, 1.01], "test".into());
    cluster.device.power = Some(Power { boost: 1.1, idle: 0.1, exponent: 2.5, speeds, cold_speeds, source });
    let speeds = |launching| {
        let power = on_enough(&cluster, &Point { launching, ..Point::test("ring") }).device.power.unwrap();
        (power.speeds, power.cold_speeds)
    };
    assert_eq!(speeds(Launching::Virtual), (vec![1.02], vec![0.99]));
    assert_eq!(speeds(Launching::Stepwise), (vec![1.02, 0.98], vec![0.99, 1.01]));
}

/// Simulated GPUs, of which three repeats take 1, 9 and 2 s, whatever their timeline; and how many were asked for.
struct Repeated(Simulated, Vec<u32>);

impl Machine for Repeated {
    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        self.0.kernels()
    }

    fn sizes(&self) -> Sizes {
        Sizes { repeats: 5, ..self.0.sizes() }
    }

    fn run(&mut self, plan: &Plan, _: Launching, repeats: u32) -> Result<Runs, MachineError> {
        self.1.push(repeats);
        let mut runs = self.0.simulate(plan)?;
        runs.makespans = [1, 9, 2].map(|seconds| SimTime(seconds * 1_000_000_000_000)).to_vec();
        runs.makespan = runs.makespans[2];
        Ok(runs)
    }

    fn launch_costs(&mut self) -> Result<LaunchCosts, MachineError> {
        self.0.launch_costs()
    }
}

/// Eleven GPUs on which calls and copies cost each other nothing.
fn many_gpus() -> Cluster {
    let mut cluster = Cluster { gpus_per_node: 11, ..truth() };
    let copy = &mut cluster.fabric.copy;
    (copy.slows_calls, copy.slowed_by_calls) = (0.0, 0.0);
    cluster
}

fn repeated(points: &[Point]) -> (Report, Vec<u32>) {
    let truth = many_gpus();
    let mut machine = Repeated(Simulated::new(truth.clone()), Vec::new());
    let report = validate(&mut machine, &truth, points, &mut |_, _| true).unwrap();
    (report, machine.1)
}

/// A point of the simulated GPUs' kernels.
fn on_gpus(seq_len: u64, launching: Launching) -> Point {
    let shape = Shape { heads: 2, kv_heads: 2, head_dim: 128, dtype: Dtype::Bf16, batch: 1 };
    Point { seq_len, launching, shape, cp: 4, ..Point::test("ring") }
}

#[test]
fn long_points_are_repeated_less() {
    let lengths = [255, 256, 1023, 1024].map(|ki: u64| ki << 10);
    let points = lengths.map(|seq_len| on_gpus(seq_len, Launching::Stepwise));
    let (report, repeats) = repeated(&points);
    assert_eq!((report.points.len(), repeats), (4, vec![5, 3, 3, 1]));
}

/// Of devices the makespan that stands for all is measured, of virtual ranks what their computations take on the links.
#[test]
fn makespans_are_those_of_devices_or_those_that_links_make() {
    let points = [Launching::Stepwise, Launching::Virtual].map(|launching| on_gpus(16 << 10, launching));
    let (report, _) = repeated(&points);
    assert_eq!(report.points[0].measured_s, 2.0);
    let plan = points[1].plan().unwrap();
    let simulated = engine::simulate(&plan, &many_gpus(), &SimOptions::default()).unwrap();
    assert!((report.points[1].measured_s / simulated.makespan.as_secs_f64() - 1.0).abs() < 1e-9);
    let [first, second] = [0, 1].map(|i| &report.points[i]);
    assert!(first.measured_bubble_ratio > 0.1, "{first:?}");
    assert!((first.measured_bubble_ratio - second.measured_bubble_ratio).abs() < 1e-9);
}

/// Of p causal ranks on a ring one makes r calls in its place r: p (p + 1) / 2 in all, for 11 ranks 66.
#[test]
fn more_calls_than_are_shown_are_not_listed() {
    let point = |cp| Point { cp, ..on_gpus(u64::from(cp) << 10, Launching::Virtual) };
    let (report, _) = repeated(&[point(10), point(11)]);
    assert_eq!(report.points.iter().map(|p| p.calls.len()).collect::<Vec<_>>(), [55, 0]);
    assert!(report.points[1].median_step_error.is_some(), "but counted");
}
