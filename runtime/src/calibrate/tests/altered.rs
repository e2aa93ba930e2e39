//! Machines that do otherwise than any cluster says.

use ringlab_sim::plan::Op;
use ringlab_sim::timeline::SpanKind;

use super::*;

#[test]
fn calls_between_messages_that_break_are_named_and_the_rest_is_measured() {
    let run = |simulated: &mut Simulated, (): &mut (), plan: &Plan| {
        if plan.name.contains("between messages") {
            return Err(MachineError::new(plan, "out of order"));
        }
        simulated.simulate(plan)
    };
    let mut machine = Altered { simulated: Simulated::new(truth()), state: (), run };
    let found = calibrate(&mut machine, &preset(), "2026-11-30", &mut |_| true).unwrap();
    let named = found.notes.iter().filter(|n| n.contains("between messages") && n.contains("out of order"));
    assert_eq!(named.count(), 3, "{:?}", found.notes);
    assert!(found.cluster.kernels.iter().all(|row| row.linked.is_none()));
    assert!(found.fits.iter().any(|fit| fit.what == "copies beside attention calls"));
}

/// Calls between messages take so many tenths of the time that they should.
fn otherwise_in_company(
    simulated: &mut Simulated,
    tenths: &mut u64,
    plan: &Plan,
) -> Result<Runs, MachineError> {
    let mut runs = simulated.simulate(plan)?;
    if plan.name.contains("between messages") {
        for span in &mut runs.timeline.spans {
            span.end = SimTime(span.start.0 + span.duration().0 / 10 * *tenths);
        }
    }
    Ok(runs)
}

fn calibrated_in_company(tenths: u64) -> Calibrated {
    let mut machine =
        Altered { simulated: Simulated::new(truth()), state: tenths, run: otherwise_in_company };
    calibrate(&mut machine, &preset(), "2026-11-30", &mut |_| true).unwrap()
}

/// Three times as long, but for 1.02, 1.05 and 1.
#[test]
fn what_messages_cost_beyond_what_a_cluster_can_say_is_said() {
    let found = calibrated_in_company(30);
    let linked = found.cluster.kernels.iter().filter(|row| row.head_dim == 128).map(|row| row.linked);
    assert_eq!(linked.collect::<Vec<_>>(), [Some(2.0); 3]);
    for ratio in ["3.060", "3.150", "3.000"] {
        let text = format!("a call between messages took {ratio} times as long as by itself");
        let said = found.notes.iter().filter(|note| note.contains(&text) && note.contains(": 2 is kept"));
        assert_eq!(said.count(), 1, "{:?}", found.notes);
    }
    assert_eq!(Cluster::parse("written", &found.cluster.to_toml()).unwrap(), found.cluster);
}

#[test]
fn calls_that_messages_make_faster_are_said() {
    // By itself, but for 1.02 and 1.05: 0.918, 0.945 and 0.9 times as long.
    let found = calibrated_in_company(9);
    assert!(found.cluster.kernels.iter().all(|row| row.linked.is_none()));
    let fit = found.fits.iter().find(|fit| fit.what == "calls between messages").unwrap();
    assert_near(fit.worst, 1.0 / 0.9 - 1.0, 1e-3);
    for ratio in ["0.918", "0.945", "0.900"] {
        let text = format!("a call between messages took {ratio} times as long as by itself");
        assert_eq!(found.notes.iter().filter(|note| note.contains(&text)).count(), 1, "{:?}", found.notes);
    }
}

/// Of four GPUs, with copies to and from the last one that take a tenth longer.
fn with_a_slow_one(simulated: &mut Simulated, (): &mut (), plan: &Plan) -> Result<Runs, MachineError> {
    let mut runs = simulated.simulate(plan)?;
    let slow =
        |op: &Op| op.kind.message().is_some_and(|m| [plan.message(m).from, plan.message(m).to].contains(&3));
    for span in &mut runs.timeline.spans {
        if slow(&plan.programs[span.rank as usize].ops[span.op as usize]) {
            span.end += SimTime(span.duration().0 / 10);
        }
    }
    Ok(runs)
}

#[test]
fn copies_between_all_pairs_are_held_against_the_first_one() {
    let ramp = Some(Ramp { time: SimTime(32_000_000), bytes: Bytes(8 << 20) });
    let four = || {
        let mut four = Cluster { gpus_per_node: 4, ..truth() };
        four.fabric.copy.ramp = ramp;
        Simulated::new(four)
    };
    let pairs = |found: &Calibrated| found.fits.iter().find(|fit| fit.what == "copies, all pairs").cloned();
    let even = calibrate(&mut four(), &preset(), "2026-11-30", &mut |_| true).unwrap();
    let fit = pairs(&even).unwrap();
    assert_eq!(fit.points.len(), 6 + 1, "six pairs, and all to the next");
    assert!(fit.worst < 1e-3, "{fit:?}");
    assert!(!even.notes.iter().any(|note| note.contains("first two GPUs")), "{:?}", even.notes);
    let mut one_slow = Altered { simulated: four(), state: (), run: with_a_slow_one };
    let uneven = calibrate(&mut one_slow, &preset(), "2026-11-30", &mut |_| true).unwrap();
    let named: Vec<&String> = uneven.notes.iter().filter(|note| note.contains("first two GPUs")).collect();
    assert_eq!(named.len(), 3 + 1, "{named:?}");
    assert!(named[0].contains("0 and 3") && named[0].contains("-9.1%"), "{named:?}");
    // Two GPUs are one pair.
    let two = calibrate(&mut Simulated::new(truth()), &preset(), "2026-11-30", &mut |_| true).unwrap();
    assert!(pairs(&two).is_none());
}

/// Messages of both ways at once take twice as long as those of one.
#[test]
fn a_links_constants_are_those_of_both_ways_at_once() {
    let run = |simulated: &mut Simulated, (): &mut (), plan: &Plan| {
        let mut runs = simulated.simulate(plan)?;
        if plan.messages.len() == 2 && plan.op_count() == 4 {
            for span in &mut runs.timeline.spans {
                span.end = span.start + SimTime(2 * span.duration().0);
            }
        }
        Ok(runs)
    };
    let mut machine = Altered { simulated: Simulated::new(truth()), state: (), run };
    let found = calibrate(&mut machine, &preset(), "2026-11-30", &mut |_| true).unwrap().cluster.fabric;
    let truth = truth().fabric;
    assert_near(found.copy.bandwidth.0, truth.copy.bandwidth.0 / 2.0, 1e-3);
    assert_near(found.nccl.bandwidth.0, truth.nccl.bandwidth.0 / 2.0, 1e-3);
}

/// Steps that take the less time the more bytes they move.
#[test]
fn a_rate_of_memory_that_cannot_be_told_stays_the_bases() {
    let run = |simulated: &mut Simulated, (): &mut (), plan: &Plan| {
        let mut runs = simulated.simulate(plan)?;
        let time = SimTime(10_000_000 - 100 * plan.layout.documents().tokens().min(50_000));
        for span in &mut runs.timeline.spans {
            if matches!(span.kind, SpanKind::Merge | SpanKind::Preprocess | SpanKind::Accumulate) {
                span.end = span.start + time;
            }
        }
        Ok(runs)
    };
    let mut machine = Altered { simulated: Simulated::new(truth()), state: (), run };
    let found = calibrate(&mut machine, &preset(), "2026-11-30", &mut |_| true).unwrap();
    assert_eq!(found.cluster.device.reached, preset().device.reached);
    let spreads = &found.cluster.calibration.as_ref().unwrap().spreads;
    assert!(!spreads.iter().any(|known| known.of == Quantity::Hbm), "{spreads:?}");
    assert!(found.notes.iter().any(|note| note.contains("no rate could be told")), "{:?}", found.notes);
    assert_eq!(Cluster::parse("written", &found.cluster.to_toml()).unwrap(), found.cluster);
}

/// Of three repeats of what computes nothing the last one takes ten times as long.
fn at_odds(simulated: &mut Simulated, (): &mut (), plan: &Plan) -> Result<Runs, MachineError> {
    let mut runs = simulated.simulate(plan)?;
    let computes = |op: &Op| matches!(op.kind, OpKind::Attend { .. } | OpKind::AttendBackward { .. });
    if !plan.programs.iter().flat_map(|program| &program.ops).any(computes) {
        let time = runs.makespans[0];
        runs.makespans = vec![time, time, SimTime(10 * time.0)];
    }
    Ok(runs)
}

#[test]
fn spreads_that_no_cluster_can_carry_are_said() {
    // Of t, t and 10 t the mean is 4 t and the standard deviation sqrt((9 + 9 + 36) / 2) t, 5.196 medians.
    let mut machine = Altered { simulated: Simulated::new(truth()), state: (), run: at_odds };
    let found = calibrate(&mut machine, &preset(), "2026-11-30", &mut |_| true).unwrap();
    let kept = found.cluster.calibration.unwrap().spreads;
    assert_eq!(kept.iter().find(|u| u.of == Quantity::CopyBandwidth).unwrap().spread, 1.0);
    let said = "fabric.copy.bandwidth: repeats of 520% are kept as 100%, the most that a cluster can say";
    assert!(found.notes.iter().any(|note| note == said), "{:?}", found.notes);
}
