use super::*;
use crate::calibrate::tests::{Altered, Simulated, truth};
use crate::calibrate::{Calibrated, calibrate};
use crate::machine::{CpuMachine, Identity, LaunchCosts, Launching, Machine, MachineError, Sizes};
use ringlab_sim::config::cluster::{Cluster, Dtype, Grid, Pass};
use ringlab_sim::engine::{Load, SimOptions, simulate};
use ringlab_sim::tiles::TileShape;

/// A simulated GPU under a power limit: its cluster's rates are those of multiplying all the time. It rests a little longer
/// than it is told to.
struct Limited {
    name: &'static str,
    cluster: Cluster,
    power: Power,
    /// How many times as long every second run under load takes.
    when_warm: f64,
    is_warm: bool,
}

/// Shares of the time that it works without pauses, and when it is to do so for four fifths.
const REACHED: [f64; 2] = [0.97, 0.85];

fn limited(name: &'static str, (boost, exponent): (f64, f64)) -> Limited {
    let host =
        "[host]\nkernel_launch = \"3 us\"\ncopy_launch = \"3 us\"\nnccl_launch = \"9 us\"\nsource = \"test\"";
    let preset = include_str!("../../../../experiments/presets/clusters/hgx-h200.toml");
    let mut cluster = Cluster::parse("test", &format!("{preset}\n{host}\n")).unwrap();
    // Rates of calls: nothing but tiles.
    for row in &mut cluster.kernels {
        (row.prologue, row.epilogue) = (SimTime::ZERO, SimTime::ZERO);
    }
    Limited {
        name,
        cluster,
        power: Power {
            boost,
            idle: IDLE,
            exponent,
            speeds: Vec::new(),
            cold_speeds: Vec::new(),
            source: "test".into(),
        },
        when_warm: 1.0,
        is_warm: false,
    }
}

impl Limited {
    fn at_speed(&self, plan: &Plan, speed: f64, duty: f64) -> Runs {
        let mut cluster = self.cluster.clone();
        cluster.kernels.iter_mut().for_each(|row| row.rate.0 *= speed);
        let timeline = simulate(plan, &cluster, &SimOptions::default()).unwrap();
        Runs { loaded_s: 1.0, ..Runs::once(timeline, duty) }
    }

    /// Under a load in which it works for the share `duty` of the time: its full call's FLOPs over what its rate gives in
    /// that time are the share in which it multiplies.
    fn loaded(&self, plan: &Plan, duty: f64, slower: f64) -> Runs {
        let alone = self.at_speed(plan, 1.0, duty);
        let call = alone.timeline.spans.iter().find(|span| span.flops > 0.0).unwrap();
        let row = self.cluster.kernel(128, Dtype::Bf16, plan.pass).unwrap();
        let activity = call.flops / (row.rate.0 * call.duration().as_secs_f64());
        self.at_speed(plan, self.power.speed(duty * activity) / slower, duty)
    }
}

impl Machine for Limited {
    fn identity(&self) -> Identity {
        Identity { device: self.name.into(), devices: 1, versions: "1".into() }
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        let kernel = |pass| {
            let row = self.cluster.kernel(128, Dtype::Bf16, pass).unwrap();
            MachineKernel {
                name: "test".into(),
                head_dim: 128,
                dtype: Dtype::Bf16,
                pass,
                tile: TileShape { q: u64::from(row.tile_q), kv: u64::from(row.tile_kv) },
                items: row.items,
                grid: Grid::Persistent,
                used_for: None,
                sections: None,
                fitted_above: 0,
            }
        };
        vec![kernel(Pass::Forward), kernel(Pass::Backward)]
    }

    fn sms(&self) -> Option<u32> {
        Some(self.cluster.device.sms)
    }

    fn sizes(&self) -> Sizes {
        Sizes { heads: 16, calls: vec![1 << 10, 1 << 11, 1 << 12], ..CpuMachine::new().sizes() }
    }

    fn has_power_limit(&self) -> bool {
        true
    }

    fn load(&self, _: &Plan, _: Launching) -> Load {
        Load::Cold
    }

    fn run(&mut self, plan: &Plan, _: Launching, _: u32) -> Result<Runs, MachineError> {
        Ok(self.at_speed(plan, self.power.boost, 0.1))
    }

    fn run_at(&mut self, plan: &Plan, duty: Duty, _: u32) -> Result<Runs, MachineError> {
        Ok(match duty {
            Duty::Sustained => {
                let slower = if self.is_warm { self.when_warm } else { 1.0 };
                self.is_warm = !self.is_warm;
                self.loaded(plan, REACHED[0], slower)
            }
            Duty::Resting(pause) => {
                let works = self.loaded(plan, REACHED[0], 1.0).makespan.as_secs_f64();
                self.loaded(plan, REACHED[1] / 0.8 * works / (works + pause.as_secs_f64()), 1.0)
            }
        })
    }

    fn launch_costs(&mut self) -> Result<LaunchCosts, MachineError> {
        CpuMachine::new().launch_costs()
    }
}

fn calibrated(mut machine: Limited) -> Calibrated {
    let base = machine.cluster.clone();
    calibrate(&mut machine, &base, "2026-11-30", &mut |_| true).unwrap()
}

#[test]
fn a_clock_is_found_as_it_was_made() {
    let found = calibrated(limited("NVIDIA H200", (1.127, 2.5)));
    let power = found.cluster.device.power.clone().unwrap();
    assert!(power.idle == 0.17 && (power.exponent - 2.5).abs() < 0.02, "{power:?}");
    assert!((power.boost / 1.127 - 1.0).abs() < 2e-3, "{power:?}");
    // 8192 items in 63 rounds of 132 multiply for 0.985 of the time: 0.97 and 0.85 of that.
    assert!(power.source.contains("multiplying for 96% and 84%"), "{}", power.source);
    let fit = found.fits.iter().find(|fit| fit.what == "clock").unwrap();
    assert_eq!(fit.points.len(), 3);
    assert!(fit.worst < 2e-3, "{fit:?}");
    let spreads = &found.cluster.calibration.as_ref().unwrap().spreads;
    assert!(spreads.iter().any(|s| s.of == Quantity::Boost && s.samples == 3));
    assert_eq!(Cluster::parse("again", &found.cluster.to_toml()).unwrap(), found.cluster);
    assert!(!found.notes.iter().any(|note| note.contains("clock")), "{:?}", found.notes);
}

#[test]
fn a_device_of_other_sms_than_the_base_has_its_own() {
    let mut machine = limited("NVIDIA H200", (1.127, 2.5));
    let mut base = machine.cluster.clone();
    base.device.sms = 114;
    let found = calibrate(&mut machine, &base, "2026-11-30", &mut |_| true).unwrap();
    assert_eq!(found.cluster.device.sms, 132);
    assert!(found.notes.iter().any(|note| note.contains("132 SMs, not 114")), "{:?}", found.notes);
}

#[test]
fn kernels_measured_after_a_rest_are_those_of_multiplying_all_the_time() {
    let truth = limited("NVIDIA H200", (1.127, 2.5)).cluster.kernels;
    let found = calibrated(limited("NVIDIA H200", (1.127, 2.5))).cluster.kernels;
    let of = |rows: &[KernelRow], head_dim| {
        rows.iter().find(|r| (r.pass, r.head_dim) == (Pass::Forward, head_dim)).cloned().unwrap()
    };
    let (row, made) = (of(&found, 128), of(&truth, 128));
    assert!((row.rate.0 / made.rate.0 - 1.0).abs() < 0.01, "{row:?} for {made:?}");
    assert!((row.boost.unwrap() / 1.127 - 1.0).abs() < 2e-3, "{row:?}");
    let said = format!("{:.3} times as long", row.boost.unwrap());
    assert!(row.source.contains(&said), "{}", row.source);
    // What was not measured stays as it is.
    assert_eq!(of(&found, 64).rate, of(&truth, 64).rate);
}

/// A second on all devices, under load and after a rest.
fn second() -> Times {
    let loaded = Timed { seconds: 1.0, spread: 0.0, busy: 1.0 };
    let (each, each_rested) = (Vec::new(), Vec::new());
    Times { kernel: String::new(), loaded, unlimited_s: 1.0, resting: None, each, each_rested }
}

#[test]
fn the_most_of_several_boosts_is_the_devices() {
    let loaded = |seconds| Times { loaded: Timed { seconds, ..second().loaded }, ..second() };
    let boost = |times: &[Times]| fitted(times, IDLE, "").0.boost;
    assert_eq!(boost(&[loaded(1.3), loaded(1.1)]), 1.3);
    assert_eq!(boost(&[loaded(1.1), loaded(1.3)]), 1.3);
    // Faster under load makes no sense: there is no boost then, and it is said.
    let (power, notes) = fitted(&[loaded(0.9)], IDLE, "");
    assert_eq!(power.boost, 1.0);
    assert!(notes.iter().any(|note| note.contains("slower than under load")), "{notes:?}");
    let (_, notes) = fitted(&[loaded(1.1)], IDLE, "");
    assert!(!notes.iter().any(|note| note.contains("slower than under load")), "{notes:?}");
}

#[test]
fn devices_have_speeds_under_load_and_others_after_a_rest() {
    let times = Times { each: vec![1.0, 1.1], each_rested: vec![1.0, 0.9], ..second() };
    let power = fitted(&[times], IDLE, "").0;
    assert_eq!((power.speeds, power.cold_speeds), (vec![1.05, 0.955], vec![0.95, 1.056]));
}

#[test]
fn power_at_rest_is_the_bases_where_it_says_so() {
    let mut machine = limited("Difference Engine", (1.127, 2.5));
    let mut base = machine.cluster.clone();
    base.device.power = Some(Power { idle: 0.3, ..machine.power.clone() });
    machine.power.idle = 0.3;
    let found = calibrate(&mut machine, &base, "2026-11-30", &mut |_| true).unwrap();
    let power = found.cluster.device.power.unwrap();
    assert!(power.idle == 0.3 && (power.exponent - 2.5).abs() < 0.02, "{power:?}");
}

/// Two loads, of which the second takes twice as long.
#[test]
fn each_device_has_the_mean_of_two_loads() {
    let run = |simulated: &mut Simulated, factors: &mut Vec<u64>, plan: &Plan| {
        let (mut runs, factor) = (simulated.simulate(plan)?, factors.pop().unwrap());
        for span in &mut runs.timeline.spans {
            (span.start.0, span.end.0) = (span.start.0 * factor, span.end.0 * factor);
        }
        Ok(runs)
    };
    let mut machine = Altered { simulated: Simulated::new(truth()), state: vec![2, 1], run };
    let shape = machine.kernels()[0].shape(16);
    let plan = probes::call(shape, Pass::Forward, Pattern::Full, 2 << 10, 2).unwrap();
    let call = of_kind(&machine.simulated.simulate(&plan).unwrap().timeline, SpanKind::Attend);
    let (_, each) = session(&mut machine, &mut |_| true).under_load(&plan).unwrap();
    assert!(each.len() == 2 && each.iter().all(|own| (own / (1.5 * call) - 1.0).abs() < 1e-9), "{each:?}");
}

/// With heads in sections, too, a call by its row is what the simulator makes of its plan.
#[test]
fn a_call_by_its_constants_takes_as_long_as_it_is_predicted_to() {
    let mut machine = Simulated::new(truth());
    let kernels = machine.kernels();
    let (full, causal) = (Pattern::Full, Pattern::Causal);
    // Only where items differ do sections matter.
    for (i, pattern, tokens) in
        [(0, full, 2 << 10), (0, causal, 16 << 10), (1, full, 16 << 10), (2, full, 16 << 10)]
    {
        let kernel = &kernels[i];
        let plan = probes::call(kernel.shape(16), kernel.pass, pattern, tokens, 2).unwrap();
        let predicted = of_kind(&machine.simulate(&plan).unwrap().timeline, kernel.span_kind());
        let found = session(&mut machine, &mut |_| true).found(kernel, (pattern, tokens)).seconds;
        assert!((found / predicted - 1.0).abs() < 1e-9, "{found} for {predicted}, kernel {i}, {pattern}");
    }
}

fn session<'a>(machine: &'a mut dyn Machine, progress: &'a mut dyn FnMut(&str) -> bool) -> Session<'a> {
    Session { machine, cluster: truth(), fits: Vec::new(), notes: Vec::new(), spreads: Vec::new(), progress }
}

#[test]
fn a_time_under_load_is_the_mean_of_two_loads() {
    let mut warming = limited("NVIDIA H200", (1.127, 2.5));
    warming.when_warm = 1.04;
    let of = |machine| {
        let fits = calibrated(machine).fits;
        fits.iter().find(|fit| fit.what == "clock").unwrap().points[0].clone()
    };
    let (warm, cold) = (of(warming), of(limited("NVIDIA H200", (1.127, 2.5))));
    assert!((warm.measured_s / cold.measured_s - 1.02).abs() < 1e-3, "{warm:?} for {cold:?}");
    // Of 1 and 1.04 the standard deviation is 0.04 / sqrt 2, the mean 1.02.
    assert!((warm.spread - 0.04 / 2.0_f64.sqrt() / 1.02).abs() < 1e-4 && cold.spread == 0.0, "{warm:?}");
}

#[test]
fn devices_are_told_apart_by_their_times() {
    let times = |each: &[f64]| Times { each: each.to_vec(), ..second() };
    let speeds = |times: &[Times]| speeds(times, |t| &t.each);
    // 1.05 / 1 and 1.05 / 1.1; then with a call of equal times.
    assert_eq!(speeds(&[times(&[1.0, 1.1])]), [1.05, 0.955]);
    assert_eq!(speeds(&[times(&[1.0, 1.1]), times(&[2.0, 2.0])]), [1.025, 0.977]);
    assert!(speeds(&[times(&[1.0])]).is_empty() && speeds(&[times(&[1.0, 0.0])]).is_empty());
}

#[test]
fn what_cannot_be_is_clamped_and_said() {
    for (made, kept) in [(1.2, 1.5), (8.0, 4.0)] {
        let found = calibrated(limited("NVIDIA H100", (1.3, made)));
        assert_eq!(found.cluster.device.power.unwrap().exponent, kept);
        let said = format!("{kept} is kept");
        assert!(found.notes.iter().any(|note| note.contains(&said)), "{:?}", found.notes);
    }
    let found = calibrated(limited("NVIDIA H200", (1.03, 2.0)));
    assert!(found.notes.iter().any(|note| note.contains("at its highest already")), "{:?}", found.notes);
    let unknown = calibrated(limited("Difference Engine", (1.1, 2.5)));
    assert_eq!(unknown.cluster.device.power, None);
    assert!(
        unknown.notes.iter().any(|note| note.contains("its clock was not measured")),
        "{:?}",
        unknown.notes
    );
}
