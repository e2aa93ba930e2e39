use super::*;
use crate::calibrate::{Calibrated, calibrate};
use crate::machine::{CpuMachine, Identity, LaunchCosts, Launching, Machine, MachineError, Sizes};
use ringlab_sim::config::cluster::{Cluster, Dtype, Grid, Items};
use ringlab_sim::engine::{SimOptions, simulate};
use ringlab_sim::tiles::TileShape;

/// A simulated GPU under a power limit. It rests a little longer than it is told to.
struct Limited {
    name: &'static str,
    cluster: Cluster,
    power: Power,
    is_cold: bool,
}

/// Share of the time that it is busy when it is to be so for nine tenths.
const REACHED: f64 = 0.88;

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
        power: Power { boost, idle: IDLE, exponent, speeds: Vec::new(), source: "test".into() },
        is_cold: false,
    }
}

impl Limited {
    fn at_speed(&self, plan: &Plan, speed: f64, duty: f64) -> Runs {
        let mut cluster = self.cluster.clone();
        cluster.kernels.iter_mut().for_each(|row| row.rate.0 *= speed);
        let timeline = simulate(plan, &cluster, &SimOptions::default()).unwrap();
        Runs { makespans: vec![timeline.makespan], timeline, loaded_s: 1.0, duty }
    }
}

impl Machine for Limited {
    fn identity(&self) -> Identity {
        Identity { device: self.name.into(), devices: 1, versions: "1".into() }
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        let kernel = |pass| MachineKernel {
            name: "test".into(),
            head_dim: 128,
            dtype: Dtype::Bf16,
            pass,
            tile: TileShape { q: 128, kv: 128 },
            items: Items::QueryTiles,
            grid: Grid::Persistent,
            used_for: None,
            fitted_above: 0,
        };
        vec![kernel(Pass::Forward), kernel(Pass::Backward)]
    }

    fn sizes(&self) -> Sizes {
        Sizes { heads: 16, calls: vec![1 << 10, 1 << 11, 1 << 12], ..CpuMachine::new().sizes() }
    }

    fn has_power_limit(&self) -> bool {
        true
    }

    fn run(&mut self, plan: &Plan, _: Launching, _: u32) -> Result<Runs, MachineError> {
        Ok(self.at_speed(plan, if self.is_cold { self.power.boost } else { 1.0 }, 1.0))
    }

    fn is_cold(&self) -> bool {
        self.is_cold
    }

    fn run_at(&mut self, plan: &Plan, duty: Duty, _: u32) -> Result<Runs, MachineError> {
        Ok(match duty {
            Duty::Sustained => self.at_speed(plan, 1.0, 1.0),
            Duty::Cold => self.at_speed(plan, self.power.boost, 0.1),
            Duty::Resting(_) => self.at_speed(plan, self.power.speed(REACHED), REACHED),
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
    assert_eq!((power.boost, power.idle, power.exponent), (1.127, 0.17, 2.5));
    assert!(power.source.contains("busy for 88% and 88% of the time"), "{}", power.source);
    let fit = found.fits.iter().find(|fit| fit.what == "clock").unwrap();
    assert_eq!(fit.points.len(), 4);
    assert!(fit.worst < 1e-3, "{fit:?}");
    let spreads = &found.cluster.calibration.as_ref().unwrap().spreads;
    assert!(spreads.iter().any(|s| s.of == Quantity::Boost && s.samples == 4));
    assert_eq!(Cluster::parse("again", &found.cluster.to_toml()).unwrap(), found.cluster);
    assert!(!found.notes.iter().any(|note| note.contains("clock")), "{:?}", found.notes);
}

#[test]
fn kernels_measured_cold_are_those_of_sustained_load_all_the_same() {
    let machine = || limited("NVIDIA H200", (1.127, 2.5));
    let rows = |found: Calibrated| found.cluster.kernels;
    let of = |rows: &[KernelRow], pass| rows.iter().find(|r| (r.pass, r.head_dim) == (pass, 128)).cloned();
    let truth = machine().cluster.kernels;
    let cold = rows(calibrated(Limited { is_cold: true, ..machine() }));
    let warm = rows(calibrated(machine()));
    // The backward's tiles are not those of the made-up machine: its fit is poor, and equally so.
    for (pass, made) in [(Pass::Forward, &truth), (Pass::Backward, &warm)] {
        let (found, made) = (of(&cold, pass).unwrap(), of(made, pass).unwrap());
        assert!((found.rate.0 / made.rate.0 - 1.0).abs() < 0.01, "{found:?} for {made:?}");
        assert!(found.source.contains("1.127 times as long"), "{}", found.source);
    }
    // What was not measured stays as it is.
    let other = |rows: &[KernelRow]| rows.iter().find(|r| r.head_dim == 64).map(|r| r.rate);
    assert_eq!(other(&cold), other(&truth));
    assert!(warm.iter().all(|row| !row.source.contains("highest clock")));
}

#[test]
fn devices_are_told_apart_by_their_times() {
    let times = |each: &[f64]| Times {
        call: String::new(),
        sustained: (1.0, 0.0),
        cold: (1.0, 0.0),
        resting: (1.0, 0.0),
        busy: 0.9,
        each: each.to_vec(),
    };
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
