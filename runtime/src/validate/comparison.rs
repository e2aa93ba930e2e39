//! A prediction beside what was measured of the same plan.

use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::engine::{self, Load, SimError};
use ringlab_sim::interval::{Interval, interval};
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::{Buf, OpKind, Plan};
use ringlab_sim::timeline::{Span, SpanKind, Timeline};
use ringlab_sim::units::SimTime;
use statrs::statistics::{Data, OrderStatistics};

use super::{Call, Compared, MOST_CALLS, Point};
use crate::machine::{Launching, Runs, predicted_under};

/// A plan as it is predicted.
pub(super) struct Predicted<'a> {
    pub plan: &'a Plan,
    launching: Launching,
    pub timeline: Timeline,
    /// 90% interval of the makespan; `None` without a calibration.
    pub bars: Option<Interval>,
}

/// What was measured of a plan.
pub(super) struct Measured {
    pub makespan_s: f64,
    /// Standard deviation of the makespans over their median.
    pub spread: f64,
    pub bubble_ratio: f64,
    pub exposed_s: f64,
    /// All calls that have both times.
    pub calls: Vec<Call>,
    pub load: Load,
    pub loaded_s: f64,
    pub duty: f64,
}

impl<'a> Predicted<'a> {
    /// `plan`, launched like this, on `cluster`, of devices that are loaded like this.
    pub fn of(
        (plan, launching): (&'a Plan, Launching),
        cluster: &Cluster,
        load: Load,
    ) -> Result<Self, SimError> {
        let options = predicted_under(load, cluster);
        let timeline = engine::simulate(plan, cluster, &options)?;
        let makespan = |c: &Cluster| engine::simulate(plan, c, &options).map(|t| t.makespan);
        let bars = interval(cluster, timeline.makespan, makespan)?;
        Ok(Self { plan, launching, timeline, bars })
    }

    /// Its attention launches.
    pub fn launches(&self) -> Vec<Span> {
        launches((self.plan, self.launching), &self.timeline)
    }

    /// Held against what was measured of `point`.
    pub fn against(&self, point: &Point, measured: Measured) -> Compared {
        let metrics = Metrics::of(self.plan, &self.timeline);
        let Measured { makespan_s, spread, calls, .. } = measured;
        let errors: Vec<f64> = calls.iter().map(|c| (c.predicted_s / c.measured_s - 1.0).abs()).collect();
        let predicted_s = self.timeline.makespan.as_secs_f64();
        Compared {
            point: point.clone(),
            predicted_s,
            predicted_low_s: self.bars.map(|b| b.low.as_secs_f64()),
            predicted_high_s: self.bars.map(|b| b.high.as_secs_f64()),
            measured_s: makespan_s,
            spread,
            spread_s: spread * makespan_s,
            error: predicted_s / makespan_s - 1.0,
            inside: self.bars.map(|b| b.contains(SimTime::from_secs_f64(makespan_s))),
            predicted_bubble_ratio: metrics.bubble_ratio,
            measured_bubble_ratio: measured.bubble_ratio,
            predicted_exposed_s: metrics.exposed_comm.as_secs_f64(),
            measured_exposed_s: measured.exposed_s,
            worst_step_error: errors.iter().copied().reduce(f64::max),
            median_step_error: (!errors.is_empty()).then(|| Data::new(errors).median()),
            calls: if calls.len() > MOST_CALLS { Vec::new() } else { calls },
            load: measured.load,
            loaded_s: measured.loaded_s,
            duty: measured.duty,
        }
    }
}

impl Measured {
    /// What `runs` under `load` gave: a timeline, which need not be that of `runs`, and a makespan.
    pub fn of(
        predicted: &Predicted<'_>,
        timeline: &Timeline,
        makespan: SimTime,
        (runs, load): (&Runs, Load),
    ) -> Self {
        let metrics = Metrics::of(predicted.plan, timeline);
        Self {
            makespan_s: makespan.as_secs_f64(),
            spread: runs.spread(),
            bubble_ratio: metrics.bubble_ratio,
            exposed_s: metrics.exposed_comm.as_secs_f64(),
            calls: calls(predicted, timeline),
            load,
            loaded_s: runs.loaded_s,
            duty: runs.duty,
        }
    }
}

/// Every attention launch that both timelines have, with times that are not zero.
fn calls(predicted: &Predicted<'_>, measured: &Timeline) -> Vec<Call> {
    let measured = launches((predicted.plan, predicted.launching), measured);
    let call = |one: &Span| {
        let at = measured.binary_search_by_key(&(one.rank, one.op), |s| (s.rank, s.op)).ok()?;
        call(one, measured[at].duration().as_secs_f64())
    };
    predicted.launches().iter().filter_map(call).collect()
}

/// The attention launches of a timeline, rank by rank in the order of its operations: each call, or, where launches are fused,
/// each that begins a state with all that go on with it, from the first one's start to the last one's end.
fn launches((plan, launching): (&Plan, Launching), timeline: &Timeline) -> Vec<Span> {
    let attends = |s: &&Span| matches!(s.kind, SpanKind::Attend | SpanKind::AttendBackward);
    let mut calls: Vec<Span> = timeline.spans.iter().filter(attends).copied().collect();
    calls.sort_by_key(|s| (s.rank, s.op));
    if matches!(launching, Launching::Stepwise | Launching::Virtual) {
        return calls;
    }
    let mut launches: Vec<(Option<Buf>, Span)> = Vec::new();
    for call in calls {
        let (state, begins) = state(plan, &call);
        let into = |(of, first): &&mut (Option<Buf>, Span)| (*of, first.rank) == (state, call.rank);
        match launches.iter_mut().rev().find(into).filter(|_| !begins) {
            Some((_, launch)) => {
                (launch.start, launch.end) = (launch.start.min(call.start), launch.end.max(call.end));
            }
            None => launches.push((state, call)),
        }
    }
    launches.into_iter().map(|(_, launch)| launch).collect()
}

/// The state that a forward call goes into, and whether the call begins a launch: with a new state or with none.
fn state(plan: &Plan, call: &Span) -> (Option<Buf>, bool) {
    let program = plan.programs.get(call.rank as usize);
    match program.and_then(|program| program.ops.get(call.op as usize)).map(|op| op.kind) {
        Some(OpKind::Attend { state, init, .. }) => (Some(state), init),
        _ => (None, true),
    }
}

/// A predicted call beside its measured time; `None` if either is zero.
pub(super) fn call(predicted: &Span, measured_s: f64) -> Option<Call> {
    let predicted_s = predicted.duration().as_secs_f64();
    let are_times = predicted_s > 0.0 && measured_s > 0.0;
    are_times.then_some(Call { rank: predicted.rank, step: predicted.step, predicted_s, measured_s })
}
