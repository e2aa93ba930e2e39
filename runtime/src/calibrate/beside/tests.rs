//! Calls and messages beside each other, by hand.

use ringlab_sim::config::cluster::{Power, Quantity};
use ringlab_sim::engine::Load;
use ringlab_sim::plan::Lane;
use ringlab_sim::problem::Pass;
use ringlab_sim::units::Bytes;

use super::model::Modelled;
use super::*;
use crate::calibrate::tests::{Simulated, preset, truth};
use crate::machine::{Identity, LaunchCosts, Machine, MachineError, Runs, Sizes};

/// A span of rank 0, in seconds.
fn span(kind: SpanKind, start: u64, end: u64) -> Span {
    let at = |seconds: u64| SimTime(seconds * 1_000_000_000_000);
    let lane = if kind == SpanKind::Attend { Lane(0) } else { Lane::comm(0) };
    let (start, end) = (at(start), at(end));
    Span { rank: 0, lane, op: 0, step: 0, kind, start, end, bytes: Bytes(0), flops: 0.0 }
}

fn together(spans: Vec<Span>) -> Together {
    Together::of(&Timeline { ranks: 1, spans, makespan: SimTime::ZERO })
}

#[test]
fn a_message_lasts_from_its_first_start_to_its_last_end() {
    use SpanKind::{Attend, Recv, Send};
    // Calls of 10 and 4 s; a message from 8 to 20, of which 2 s beside the first, longest call and 4 beside the other one.
    let spans = vec![span(Attend, 0, 10), span(Recv, 8, 18), span(Send, 9, 20), span(Attend, 12, 16)];
    let expected = Together { call: 10.0, message: 12.0, overlap: 2.0, accompanied: 6.0, after: 10.0 };
    assert_eq!(together(spans), expected);
    // All of a message that begins later comes after the call, but not the time between them.
    let apart = together(vec![span(Attend, 0, 10), span(Send, 14, 20), span(Recv, 15, 20)]);
    let expected = Together { call: 10.0, message: 6.0, overlap: 0.0, accompanied: 0.0, after: 6.0 };
    assert_eq!(apart, expected);
}

/// A call of 10 s and a message of 8 alone, and what they took beside each other for 4 s.
fn pair(call: f64, message: f64, linked: f64) -> (Together, Alone) {
    let both = Together { call, message, overlap: 4.0, accompanied: 4.0, after: 0.0 };
    (both, Alone { call: 10.0, linked, message: 8.0 })
}

#[test]
fn shares_that_are_lost_by_hand() {
    assert_eq!(losses(&[pair(11.0, 9.0, 1.0)]), (0.25, 0.25));
    // What messages cost calls anyway is not lost to those beside them.
    assert_eq!(losses(&[pair(12.0, 10.0, 1.1)]), (0.25, 0.5));
    // Faster than alone is no gain, and nothing ever stops.
    assert_eq!(losses(&[pair(9.0, 7.0, 1.0)]), (0.0, 0.0));
    assert_eq!(losses(&[pair(30.0, 30.0, 1.0)]), (0.99, 0.99));
    assert_eq!(losses(&[]), (0.0, 0.0));
}

#[test]
fn messages_wait_if_half_of_them_comes_after_the_call() {
    let after = |after| {
        let (both, alone) = pair(10.0, 8.0, 1.0);
        waits_for_calls(&[(Together { after, ..both }, alone)])
    };
    assert!(!after(0.0) && !after(3.9) && after(4.1) && after(8.0));
}

#[test]
fn a_call_keeps_one_sm_whatever_it_loses() {
    let (mut machine, mut progress) = (Simulated::new(truth()), |_: &str| true);
    let (fits, notes, spreads) = (Vec::new(), Vec::new(), Vec::new());
    let mut session =
        Session { machine: &mut machine, cluster: preset(), fits, notes, spreads, progress: &mut progress };
    session.cluster.device.sms = 10;
    assert_eq!(session.report_held("all", &[pair(30.0, 8.0, 1.0)]), (9, 0.0));
    assert_eq!(session.report_held("a quarter", &[pair(12.0, 8.0, 1.1)]), (3, 0.0), "2.5, rounded");
    // 11 s by the call's factor, and a quarter of 4 s.
    assert_eq!(session.fits[1].points[0].fitted_s, 12.0);
}

/// Simulated GPUs that are measured after a rest.
struct Rested(Simulated);

impl Machine for Rested {
    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        self.0.kernels()
    }

    fn sizes(&self) -> Sizes {
        self.0.sizes()
    }

    fn load(&self, _: &Plan, _: Launching) -> Load {
        Load::Cold
    }

    fn run(&mut self, plan: &Plan, _: Launching, _: u32) -> Result<Runs, MachineError> {
        self.0.simulate(plan)
    }

    fn launch_costs(&mut self) -> Result<LaunchCosts, MachineError> {
        self.0.launch_costs()
    }
}

#[test]
fn the_model_of_a_machine_is_as_loaded_as_the_machine() {
    let rested = Rested(Simulated::new(truth()));
    let mut cluster = truth();
    let (speeds, cold_speeds, source) = (Vec::new(), Vec::new(), "test".into());
    cluster.device.power = Some(Power { boost: 1.25, idle: 0.0, exponent: 2.5, speeds, cold_speeds, source });
    // A call without what no clock speeds up: rows of tiles only, and far more than SMs.
    let shape = rested.kernels()[0].shape(16);
    let plan = probes::call(shape, Pass::Forward, Pattern::Full, 16 << 10, 2).unwrap();
    let modelled = Modelled { cluster: &cluster, of: &rested }.run(&plan, Launching::Stepwise, 1).unwrap();
    let loaded = rested.0.simulate(&plan).unwrap();
    let ratio = loaded.timeline.makespan.as_secs_f64() / modelled.timeline.makespan.as_secs_f64();
    assert!((ratio - 1.25).abs() < 1e-6, "{ratio}");
}

#[test]
fn launches_are_told_apart() {
    let mut known = truth();
    let us = |us: u64| SimTime(1_000_000 * us);
    (known.host.kernel_launch, known.host.copy_launch, known.host.nccl_launch) =
        (us(3), SimTime::ZERO, us(9));
    let (of, mut progress) = (Simulated::new(truth()), |_: &str| true);
    let mut machine = Modelled { cluster: &known, of: &of };
    let (fits, notes, spreads) = (Vec::new(), Vec::new(), Vec::new());
    let mut session =
        Session { machine: &mut machine, cluster: preset(), fits, notes, spreads, progress: &mut progress };
    session.launches("2026-11-30").unwrap();
    let host = &session.cluster.host;
    assert_eq!((host.kernel_launch, host.copy_launch, host.nccl_launch), (us(3), SimTime::ZERO, us(9)));
    let known: Vec<_> = session.spreads.iter().map(|spread| spread.of).collect();
    assert_eq!(known, [Quantity::KernelLaunch, Quantity::NcclLaunch], "no time has no spread");
}
