//! Settings of NCCL on simulated machines whose constants are known, and on ones that do not do what the simulator's rule says.

use ringlab_sim::config::cluster::{Cluster, Ramp};
use ringlab_sim::plan::Plan;
use ringlab_sim::units::SimTime;

use super::*;
use crate::calibrate::tests::{Altered, Simulated, preset, truth};
use crate::calibrate::{Calibrated, calibrate};
use crate::cuda::CudaError;
use crate::machine::{Machine, MachineError, Runs};
use crate::validate::{Filter, Point as Schedule, Report, matrix, validate};

/// What a machine does with settings.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    /// As the simulator's rule.
    ByRule,
    /// High priority is none.
    IgnoresPriority,
    /// A limit of 4 CTAs is an error.
    RefusesFour,
    /// No setting runs.
    RefusesAll,
    /// A limit of 8 CTAs never ends.
    HangsAtEight,
    /// Limits are faster than the link.
    TooFast,
    /// With a limit of 8 CTAs, messages below 64 MB take twice as long as they should.
    UnevenAtEight,
    /// There are no settings.
    HasNone,
}

struct State {
    does: Does,
    /// Settings of every run of a plan for NCCL.
    seen: Vec<NcclSettings>,
}

type Set = Altered<State>;

fn machine(truth: Cluster, does: Does) -> Set {
    let simulated = Simulated { is_settable: does != Does::HasNone, ..Simulated::new(truth) };
    Altered { simulated, state: State { does, seen: Vec::new() }, run }
}

fn run(simulated: &mut Simulated, state: &mut State, plan: &Plan) -> Result<Runs, MachineError> {
    let settings = simulated.nccl;
    if plan.transport == Transport::Nccl {
        state.seen.push(settings);
    }
    let is_refused = match state.does {
        Does::RefusesFour => settings.ctas == Some(4),
        Does::RefusesAll => settings != NcclSettings::default(),
        _ => false,
    };
    if is_refused {
        let (rank, doing, code) = (0, "join the group", "ncclInvalidArgument".into());
        return Err(MachineError::new(plan, CudaError::Nccl { rank, doing, code }));
    }
    match state.does {
        Does::HangsAtEight if settings.ctas == Some(8) => {
            Err(MachineError::new(plan, CudaError::Thread { rank: 1, reason: "it hung".into() }))
        }
        Does::TooFast if settings.ctas.is_some() => {
            let mut runs = simulated.simulate(plan)?;
            for span in &mut runs.timeline.spans {
                span.end = span.start + SimTime(span.duration().0 / 4);
            }
            Ok(runs)
        }
        Does::UnevenAtEight if settings.ctas == Some(8) => {
            let mut runs = simulated.simulate(plan)?;
            for span in runs.timeline.spans.iter_mut().filter(|s| s.bytes < Bytes(64 << 20)) {
                span.end = span.start + SimTime(2 * span.duration().0);
            }
            Ok(runs)
        }
        Does::IgnoresPriority => {
            let nccl = NcclSettings { priority: Priority::Normal, ..settings };
            Simulated { nccl, ..Simulated::new(simulated.truth.clone()) }.simulate(plan)
        }
        _ => simulated.simulate(plan),
    }
}

fn calibrated(machine: &mut Set) -> Calibrated {
    calibrate(machine, &preset(), "2026-11-30", &mut |_| true).unwrap()
}

#[track_caller]
fn assert_near(found: f64, truth: f64, within: f64) {
    assert!((found / truth - 1.0).abs() < within, "{found} for {truth}");
}

/// The report of predictions at high priority.
fn predicted(found: &Calibrated) -> &FitReport {
    found.fits.iter().find(|fit| fit.what == "NCCL of high priority, as predicted").unwrap()
}

fn sample(bytes: f64, seconds: f64) -> Sample {
    Sample { probe: String::new(), factors: vec![1.0, bytes], seconds, spread: 0.0 }
}

/// 20 us and 1 MB at 100 GB/s, 10 us, are 30; 16 MB 180 us. With a ramp of 8 us, half of it at 16 MB, there are 8/17 us and 4 us
/// more.
#[test]
fn a_bandwidth_by_hand() {
    let mut nccl = preset().fabric.nccl;
    (nccl.latency, nccl.ramp) = (SimTime(20_000_000), None);
    let found = bandwidth(&[sample(1e6, 30e-6), sample(16e6, 180e-6)], &nccl).unwrap();
    assert_near(found.0, 100e9, 1e-12);
    nccl.ramp = Some(Ramp { time: SimTime(8_000_000), bytes: Bytes(16_000_000) });
    let ramped = [sample(1e6, 30e-6 + 8e-6 / 17.0), sample(16e6, 184e-6)];
    let found = bandwidth(&ramped, &nccl).unwrap();
    assert_near(found.0, 100e9, 1e-6);
    assert_near(fitted(&ramped[1], &nccl, found).fitted_s, 184e-6, 1e-6);
    // One time a tenth too long, the other a tenth too short. By weights of bytes over time, 1/33 and 16/162 MB/us, least squares
    // give ((1/33)^2 + (16/162)^2) / (1/33 (1 - 20/33) + 16/162 (1 - 20/162)) MB/us.
    nccl.ramp = None;
    let found = bandwidth(&[sample(1e6, 33e-6), sample(16e6, 162e-6)], &nccl).unwrap();
    let (a, b) = (1.0 / 33.0, 16.0 / 162.0);
    assert_near(found.0, 1e12 * (a * a + b * b) / (a * (13.0 / 33.0) + b * (142.0 / 162.0)), 1e-12);
    assert_eq!(bandwidth(&[sample(1e6, 19e-6)], &nccl), None, "less than the latency");
    assert_eq!(bandwidth(&[], &nccl), None);
}

#[test]
fn two_sizes_are_apart() {
    let ki = |sizes: &[u64]| two_of(&sizes.iter().map(|s| s << 10).collect::<Vec<_>>());
    assert_eq!(ki(&[64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10]), [16 << 20, 256 << 20]);
    assert_eq!(ki(&[64, 1 << 10]), [64 << 10, 1 << 20]);
    assert_eq!(ki(&[64, 512]), [512 << 10]);
    assert!(ki(&[]).is_empty());
}

/// The machine moves 75, 140 and 230 GB/s with 4, 8 and 16 CTAs, holds 4, 8 and 17 of 132 SMs, and loses nothing, 5% and 10%
/// beside a call.
#[test]
fn limits_of_a_simulated_machine_are_found_again() {
    let (truth, mut machine) = (truth(), machine(truth(), Does::ByRule));
    let Calibrated { cluster, fits, notes } = calibrated(&mut machine);
    let found = &cluster.fabric.nccl.limits;
    let of = |f: fn(&NcclLimit) -> u32| found.iter().map(f).collect::<Vec<_>>();
    assert_eq!((of(|l| l.ctas), of(|l| l.sms)), (vec![4, 8, 16], vec![4, 8, 17]));
    for (limit, (rate, lost)) in found.iter().zip([(75e9, 0.0), (140e9, 0.05), (230e9, 0.1)]) {
        assert_near(limit.bandwidth.0, rate, 0.02);
        assert!((limit.slowed_by_calls - lost).abs() < 0.01, "{limit:?}");
        assert!(limit.source.contains("measured 2026-11-30"), "{}", limit.source);
    }
    let nccl = &cluster.fabric.nccl;
    assert_eq!((nccl.sms, nccl.priority), (24, Priority::Normal), "what has no limit stays as it was");
    assert_near(nccl.bandwidth.0, truth.fabric.nccl.bandwidth.0, 1e-3);
    let spreads = &cluster.calibration.as_ref().unwrap().spreads;
    let kept: Vec<_> = spreads.iter().filter(|s| matches!(s.of, Quantity::NcclLimit(_))).collect();
    assert_eq!(kept.len(), 3);
    assert!(kept.iter().all(|s| s.samples == 2 && s.residual < 0.01), "{kept:?}");
    let what: Vec<&str> = fits.iter().map(|f| f.what.as_str()).filter(|w| w.contains("8 CTAs")).collect();
    assert_eq!(what, ["NCCL of 8 CTAs, both ways", "NCCL of 8 CTAs before attention calls"]);
    assert!(!notes.iter().any(|note| note.contains("CTAs") || note.contains("priority")), "{notes:?}");
    let written = cluster.to_toml();
    assert_eq!(Cluster::parse("written", &written).unwrap().to_toml(), written);
}

/// Two messages and three runs of pairs with messages for each limit, six for high priority; nothing else has settings.
#[test]
fn what_has_settings_is_counted_and_nothing_else_has_any() {
    let mut machine = machine(truth(), Does::ByRule);
    calibrated(&mut machine);
    let count = |ctas, priority| {
        machine.state.seen.iter().filter(|&&seen| seen == NcclSettings { ctas, priority }).count()
    };
    let limited = [4, 8, 16].map(|ctas| count(Some(ctas), Priority::Normal));
    assert_eq!((limited, count(None, Priority::High)), ([5; 3], 6));
    assert_eq!(machine.state.seen.len() - 21, count(None, Priority::Normal));
    let first = machine.state.seen.iter().position(|seen| *seen != NcclSettings::default()).unwrap();
    assert!(machine.state.seen[first..first + 21].iter().all(|seen| *seen != NcclSettings::default()));
}

/// High priority is not in the file of a machine on which it takes the same SMs, and the rule predicts it.
#[test]
fn a_machine_that_does_as_the_rule_says_gives_no_note() {
    let found = calibrated(&mut machine(truth(), Does::ByRule));
    assert_eq!(found.cluster.fabric.nccl.high_priority, None);
    let fit = predicted(&found);
    assert!(fit.constants.starts_with("goes before a call that was posted with it"), "{}", fit.constants);
    assert!(fit.constants.ends_with("and goes before the next call"), "{}", fit.constants);
    assert_eq!(fit.points.len(), 8, "two orders, two calls, a call and a message each");
    assert!(fit.worst < 0.01, "{fit:?}");
    assert!(!found.notes.iter().any(|note| note.contains("priority")), "{:?}", found.notes);
}

#[test]
fn sms_of_high_priority_are_kept_where_they_differ() {
    let mut truth = truth();
    let high = HighPriority { sms: 30, slowed_by_calls: 0.04, source: "truth".into() };
    truth.fabric.nccl.high_priority = Some(high);
    let found = calibrated(&mut machine(truth, Does::ByRule)).cluster;
    let high = found.fabric.nccl.high_priority.as_ref().unwrap();
    assert_eq!((high.sms, found.fabric.nccl.sms), (30, 24));
    assert_near(high.slowed_by_calls, 0.04, 0.05);
    assert_eq!(Cluster::parse("written", &found.to_toml()).unwrap(), found);
}

/// A share that is lost counts from a hundredth on, SMs from one on.
#[test]
fn a_share_or_sms_of_high_priority_are_kept_where_they_differ() {
    for (more, more_sms, is_kept) in [(0.03, 0, true), (0.004, 0, false), (0.0, 6, true)] {
        let mut truth = truth();
        let nccl = &mut truth.fabric.nccl;
        let (sms, slowed_by_calls) = (nccl.sms + more_sms, nccl.slowed_by_calls + more);
        nccl.high_priority = Some(HighPriority { sms, slowed_by_calls, source: "truth".into() });
        let found = calibrated(&mut machine(truth, Does::ByRule)).cluster.fabric.nccl;
        assert_eq!(found.high_priority.is_some(), is_kept, "{more}: {found:?}");
        if let Some(high) = found.high_priority {
            assert_eq!(high.sms, sms);
            assert_near(high.slowed_by_calls, slowed_by_calls, 0.05);
        }
    }
}

/// The call takes its SMs first, as at normal priority, and the message moves after its end, its latency long past. By the
/// rule it moves at once.
#[test]
fn a_message_of_high_priority_that_waits_all_the_same_is_noted() {
    let found = calibrated(&mut machine(truth(), Does::IgnoresPriority));
    let fit = predicted(&found);
    let waits = "waits for the end of a call that was posted with it";
    assert!(fit.constants.starts_with(waits), "{}", fit.constants);
    let late = || fit.points.iter().filter(|p| p.probe.contains("message with a call"));
    let [call_1, message_1, call_2, message_2] = late().collect::<Vec<_>>()[..] else { panic!("{fit:?}") };
    // 32Ki tokens of 16 heads of 128, K and V, in 16 bits.
    let moves = f64::from(32 << 10) * 2.0 * 16.0 * 128.0 * 2.0 / truth().fabric.nccl.bandwidth.0;
    for (call, message) in [(call_1, message_1), (call_2, message_2)] {
        assert!(call.probe.starts_with("call, ") && message.probe.starts_with("message, "));
        assert_near(message.measured_s, call.measured_s + moves, 0.001);
        // With nothing beside it but 24 of 132 SMs that are held, the call is slower and the message hardly.
        assert!(
            message.fitted_s < 1.2 * moves && call.fitted_s > 1.02 * call.measured_s,
            "{call:?} {message:?}"
        );
    }
    let note = found.notes.iter().find(|note| note.contains("at high priority are off by up to")).unwrap();
    assert!(note.contains(&format!("it {waits}")), "{note}");
}

#[test]
fn grids_that_keep_no_sms_are_told_apart() {
    let mut truth = truth();
    for row in &mut truth.kernels {
        row.grid = Grid::PerItem;
    }
    let found = calibrated(&mut machine(truth, Does::ByRule));
    let fit = predicted(&found);
    assert!(fit.constants.starts_with("moves beside a call"), "{}", fit.constants);
    assert!(fit.worst < 0.01, "{fit:?}");
}

/// CTAs of the limits in a cluster.
fn limits(cluster: &Cluster) -> Vec<u32> {
    cluster.fabric.nccl.limits.iter().map(|limit| limit.ctas).collect()
}

/// Notes on what was not measured, by what they are about.
fn unmeasured(notes: &[String]) -> Vec<&str> {
    notes.iter().filter_map(|note| Some(note.split_once(" was not measured")?.0)).collect()
}

#[test]
fn a_limit_that_does_not_run_is_left_out_and_named() {
    let mut machine = machine(truth(), Does::RefusesFour);
    let found = calibrated(&mut machine);
    assert_eq!((limits(&found.cluster), unmeasured(&found.notes)), (vec![8, 16], vec!["NCCL of 4 CTAs"]));
    assert!(found.notes.iter().any(|note| note.contains("ncclInvalidArgument")), "{:?}", found.notes);
    assert_eq!(machine.simulated.nccl, NcclSettings::default());
    assert_eq!(Cluster::parse("written", &found.cluster.to_toml()).unwrap(), found.cluster);
}

/// All that a machine that does everything is said to be, but for the settings.
#[test]
fn without_any_setting_everything_else_is_there() {
    let whole = calibrated(&mut machine(truth(), Does::ByRule)).cluster;
    let every = ["NCCL of high priority", "NCCL of 8 CTAs", "NCCL of 16 CTAs", "NCCL of 4 CTAs"];
    for does in [Does::RefusesAll, Does::HasNone] {
        let mut base = preset();
        base.fabric.nccl.limits = truth().fabric.nccl.limits;
        let high = HighPriority { sms: 30, slowed_by_calls: 0.04, source: "base".into() };
        base.fabric.nccl.high_priority = Some(high);
        let mut machine = machine(truth(), does);
        let found = calibrate(&mut machine, &base, "2026-11-30", &mut |_| true).unwrap();
        assert_eq!(unmeasured(&found.notes), every, "{:?}", found.notes);
        let mut expected = whole.clone();
        expected.fabric.nccl.limits.clear();
        let spreads = &mut expected.calibration.as_mut().unwrap().spreads;
        spreads.retain(|spread| !matches!(spread.of, Quantity::NcclLimit(_)));
        assert_eq!(found.cluster, expected);
        assert_eq!(machine.simulated.nccl, NcclSettings::default());
    }
}

#[test]
fn after_a_hang_nothing_more_is_tried() {
    let mut machine = machine(truth(), Does::HangsAtEight);
    let found = calibrated(&mut machine);
    assert!(limits(&found.cluster).is_empty());
    assert_eq!(unmeasured(&found.notes), ["NCCL of 8 CTAs"]);
    let untried: Vec<&String> = found.notes.iter().filter(|note| note.contains("not tried")).collect();
    assert_eq!(
        untried,
        ["NCCL of 16 CTAs was not tried after that", "NCCL of 4 CTAs was not tried after that"]
    );
    assert_eq!(machine.state.seen.last(), Some(&NcclSettings { ctas: Some(8), ..NcclSettings::default() }));
    assert!(found.fits.iter().any(|fit| fit.what == "check runs"), "what comes before is there");
}

#[test]
fn a_bandwidth_above_the_links_is_left_out() {
    let found = calibrated(&mut machine(truth(), Does::TooFast));
    assert_eq!(limits(&found.cluster), [4], "75 GB/s four times as fast are below 478");
    assert_eq!(unmeasured(&found.notes), ["NCCL of 8 CTAs", "NCCL of 16 CTAs"]);
    assert!(
        found.notes.iter().any(|note| note.contains("up to the 478 GB/s of its link")),
        "{:?}",
        found.notes
    );
    assert_eq!(Cluster::parse("written", &found.cluster.to_toml()).unwrap(), found.cluster);
}

#[test]
fn a_limit_whose_messages_fit_no_bandwidth_is_said_to_fit_poorly() {
    let found = calibrated(&mut machine(truth(), Does::UnevenAtEight));
    let poor: Vec<&String> = found.notes.iter().filter(|note| note.starts_with("poor fit")).collect();
    assert!(poor.len() == 1 && poor[0].starts_with("poor fit of NCCL of 8 CTAs, both ways"), "{poor:?}");
    assert_eq!(limits(&found.cluster), [4, 8, 16]);
}

#[test]
fn settings_that_a_calibration_has_no_time_for_are_named() {
    let mut machine = machine(truth(), Does::ByRule);
    let mut progress = |_: &str| true;
    let (fits, notes, spreads) = (Vec::new(), Vec::new(), Vec::new());
    let mut session =
        Session { machine: &mut machine, cluster: truth(), fits, notes, spreads, progress: &mut progress };
    let within = |seconds| Instant::now() + Duration::from_secs(seconds);
    session.nccl_settings("2026-11-30", within(11)).unwrap();
    assert_eq!((unmeasured(&session.notes).len(), limits(&session.cluster)), (4, vec![]));
    session.notes.clear();
    session.nccl_settings("2026-11-30", within(65)).unwrap();
    assert_eq!((session.notes.len(), limits(&session.cluster)), (0, vec![4, 8, 16]));
    session.cluster.device.sms = 15;
    session.nccl_settings("2026-11-30", within(65)).unwrap();
    assert_eq!(limits(&session.cluster), [4, 8], "more CTAs than SMs are not tried");
}

#[test]
fn stopping_leaves_the_default_behind() {
    let mut machine = machine(truth(), Does::ByRule);
    let mut under_limit = 0;
    let mut go_on = |what: &str| {
        under_limit += u32::from(what == "NCCL of 8 CTAs");
        under_limit == 0 || what != "NCCL beside attention, 32768 queries, 8192 keys"
    };
    let error = calibrate(&mut machine, &preset(), "2026-11-30", &mut go_on).unwrap_err();
    assert!(matches!(error, CalibrateError::Stopped), "{error}");
    assert_eq!(machine.state.seen.last().unwrap().ctas, Some(8));
    assert_eq!(machine.simulated.nccl, NcclSettings::default());
}

/// Schedules by NCCL on the calibrated machine, predicted and run with these settings.
fn validated(machine: &mut Set, cluster: &Cluster, predicted: NcclSettings, run: NcclSettings) -> Report {
    let points = matrix(machine, &Filter { cp: vec![2], ..Filter::default() });
    let by_nccl = |point: Schedule| Schedule { transport: Transport::Nccl, ..point };
    let points: Vec<Schedule> = points.into_iter().map(by_nccl).collect();
    assert!(points.len() > 10, "{}", points.len());
    assert!(machine.set_nccl(run));
    validate(machine, &cluster.with_nccl(predicted).unwrap(), &points, &mut |_, _| true).unwrap()
}

/// What is predicted with the settings that are run is right; with others it is not.
#[test]
fn schedules_are_predicted_with_the_settings_that_are_run() {
    let mut truth = truth();
    let high = HighPriority { sms: 60, slowed_by_calls: 0.3, source: "truth".into() };
    truth.fabric.nccl.high_priority = Some(high);
    let mut machine = machine(truth, Does::ByRule);
    let found = calibrated(&mut machine).cluster;
    let with = |ctas, priority| NcclSettings { ctas, priority };
    let default = NcclSettings::default();
    for settings in
        [with(Some(8), Priority::Normal), with(None, Priority::High), with(Some(4), Priority::High)]
    {
        let same = validated(&mut machine, &found, settings, settings);
        assert!(same.max_error < 0.002, "{settings:?}: {}", same.max_error);
        let other = validated(&mut machine, &found, default, settings);
        assert!(other.max_error > 0.02, "{settings:?}: {}", other.max_error);
    }
}
