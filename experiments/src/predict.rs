//! The prediction of a set-up: every schedule simulated, every figure beside its baselines.

mod row;

use anyhow::{Context, Result, bail};
use rayon::prelude::*;
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::engine::{Discard, Machine, SimOptions, simulate_with};
use ringlab_sim::interval::{Interval, interval};
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::timeline::Timeline;
use ringlab_sim::units::SimTime;
use serde::Serialize;

pub use self::row::Row;
use crate::disturbance::{Repeats, Spread};
use crate::nccl::Nccl;
use crate::output::FORMAT_VERSION;
use crate::setup::Setup;

/// Tokens of the sequence if none are given.
pub const DEFAULT_SEQ: u64 = 128 << 10;

/// One simulated pass.
pub struct Simulated {
    /// What was simulated.
    pub plan: Plan,
    /// What happened when.
    pub timeline: Timeline,
    /// What it means.
    pub metrics: Metrics,
    /// How fast each rank computed over the kernels' rates; empty on a cluster without a power limit.
    pub speeds: Vec<f64>,
}

/// A schedule's simulated passes, in the order in which they run.
pub struct Passes {
    /// The schedule.
    pub schedule: Schedule,
    /// One or two of them.
    pub passes: Vec<Simulated>,
    /// Over the repeats of a disturbed run, of which the passes are the median.
    pub spread: Option<Spread>,
    /// Where 90% of measurements are expected, on a calibrated cluster that nothing disturbs.
    pub interval: Option<Interval>,
}

/// All schedules of a set-up.
pub struct Prediction {
    /// The schedules that can take the problem.
    pub simulated: Vec<Passes>,
    /// Their figures, in the same order.
    pub rows: Vec<Row>,
    /// The schedules that cannot, and why.
    pub left_out: Vec<String>,
}

/// A constant that went into the result.
#[derive(Serialize, schemars::JsonSchema)]
pub struct Constant {
    /// Where it stands in the cluster's TOML.
    pub what: String,
    /// Its value, with its unit.
    pub value: String,
    /// Where it comes from.
    pub source: String,
}

/// The JSON form of a prediction.
#[derive(Serialize, schemars::JsonSchema)]
pub struct Report<'a> {
    version: u32,
    cluster: &'a str,
    model: &'a str,
    layers: u64,
    mask: String,
    results: &'a [Row],
    left_out: &'a [String],
    /// How NCCL is set up; `null` where messages do not go by it.
    nccl: Option<Nccl>,
    assumptions: Vec<Constant>,
}

impl Prediction {
    /// Simulates every schedule of `setup`. Of several, one that cannot take the problem is left out with a remark if
    /// `tolerant`, and an error otherwise; that none can is always an error.
    pub fn of(setup: &Setup, tolerant: bool) -> Result<Self> {
        Self::watched(setup, tolerant, &|| ())
    }

    /// As [`Prediction::of`], with a call of `repeated` after every repeat of a schedule: [`Prediction::repeats`] in all.
    pub fn watched(setup: &Setup, tolerant: bool, repeated: &(dyn Fn() + Sync)) -> Result<Self> {
        let tolerant = tolerant && setup.schedules.len() > 1;
        let gpus = setup.cluster.gpus();
        if setup.cp > gpus {
            bail!(
                "{} has {gpus} GPUs, too few for --cp {}; use at most {gpus} ranks or a larger cluster, such as \
                 h100-16x8-rail",
                setup.cluster.name,
                setup.cp
            );
        }
        let repeats = setup.repeats.as_ref().map(|repeats| (repeats, repeated));
        let simulate_one = |&schedule| simulate(setup, schedule, setup.cp, repeats);
        let (results, one_gpu): (Vec<_>, _) = rayon::join(
            || setup.schedules.par_iter().map(simulate_one).collect(),
            || simulate(setup, Schedule::Ring, 1, None).ok().as_ref().map(row::Baseline::of),
        );
        let mut results = results.into_iter();
        let (simulated, left_out) =
            setup.each_schedule(tolerant, |_| results.next().context("a schedule was not simulated")?)?;
        let ring =
            simulated.iter().find(|s| s.schedule == Schedule::Ring).map(row::Baseline::of).or_else(|| {
                let ring = simulate(setup, Schedule::Ring, setup.cp, repeats);
                ring.ok().as_ref().map(row::Baseline::of)
            });
        let rows = simulated.iter().map(|s| Row::new(setup, s, ring.as_ref(), one_gpu.as_ref())).collect();
        Ok(Self { simulated, rows, left_out })
    }

    /// Repeats of all schedules, and of the ring that they are held against, if none is left out.
    pub fn repeats(setup: &Setup) -> u64 {
        let schedules = setup.schedules.len() + usize::from(!setup.schedules.contains(&Schedule::Ring));
        setup.repeats.as_ref().map_or(0, |repeats| u64::from(repeats.count) * schedules as u64)
    }

    /// All passes of all schedules.
    pub fn passes(&self) -> impl Iterator<Item = &Simulated> {
        self.simulated.iter().flat_map(|s| &s.passes)
    }

    /// What `--format json` prints.
    pub fn report<'a>(&'a self, setup: &'a Setup) -> Report<'a> {
        Report {
            version: FORMAT_VERSION,
            cluster: &setup.cluster.name,
            model: &setup.model.name,
            layers: setup.model.layers,
            mask: setup.problem.pattern.to_string(),
            results: &self.rows,
            left_out: &self.left_out,
            nccl: setup.nccl().map(Nccl::from),
            assumptions: constants(setup),
        }
    }
}

/// Every constant of the cluster and the model, with its source.
pub fn constants(setup: &Setup) -> Vec<Constant> {
    let cluster = setup.cluster.assumptions().into_iter();
    let model = std::iter::once(Constant {
        what: "model".into(),
        value: setup.model.name.clone(),
        source: setup.model.source.clone(),
    });
    cluster.map(|a| Constant { what: a.path, value: a.value, source: a.source }).chain(model).collect()
}

/// What is repeated, and what is called after each repeat.
type Watched<'a> = (&'a Repeats, &'a (dyn Fn() + Sync));

/// One GPU is no one's straggler: it is simulated without `repeats`.
fn simulate(setup: &Setup, schedule: Schedule, ranks: u32, repeats: Option<Watched<'_>>) -> Result<Passes> {
    let plan = |&pass: &Pass| setup.plan_on(schedule, pass, ranks);
    let plans = setup.passes.iter().map(plan).collect::<Result<Vec<_>>>()?;
    let options = setup.sim_options();
    let mut machine = Machine::new(&setup.cluster, ranks, &options)?;
    let spread = repeats.map(|(r, repeated)| r.spread(&mut machine, &plans.iter(), repeated)).transpose()?;
    let mut passes = Vec::new();
    for (pass, plan) in plans.into_iter().enumerate() {
        if let (Some((repeats, _)), Some(spread)) = (repeats, &spread) {
            machine.disturb(Some(repeats.conditions(ranks, spread.median, pass)?))?;
        }
        let timeline = machine.timeline(&plan)?;
        let metrics = Metrics::of(&plan, &timeline);
        let speeds = machine.speeds().to_vec();
        passes.push(Simulated { plan, timeline, metrics, speeds });
    }
    let interval = match repeats {
        None => {
            let time = passes.iter().map(|s| s.metrics.makespan).sum();
            interval(&setup.cluster, time, |cluster| time_of(cluster, ranks, &options, &passes))?
        }
        Some(_) => None,
    };
    Ok(Passes { schedule, passes, spread, interval })
}

/// Sum of the makespans of the plans of `passes` on `cluster`.
fn time_of(cluster: &Cluster, ranks: u32, options: &SimOptions, passes: &[Simulated]) -> Result<SimTime> {
    let mut machine = Machine::new(cluster, ranks, options)?;
    let times = passes.iter().map(|s| Ok(simulate_with(&s.plan, &mut machine, &mut Discard)?));
    times.sum()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::runfile::{Entry, Value, run_args};

    /// Three repeats of each schedule, and of the ring that others are held against.
    #[test]
    fn every_repeat_is_told() {
        for (schedules, expected) in [("ring,zigzag", 6), ("zigzag", 6), ("ring", 3)] {
            let entries =
                [("schedule", schedules), ("seq", "8Ki"), ("straggler", "any:1.1"), ("repeats", "3")];
            let entry =
                |(key, text): (&str, &str)| Entry { key: key.into(), value: Value::Text(text.into()) };
            let args = run_args(&entries.map(entry)).unwrap();
            let setup =
                Setup::new(&args.setup, DEFAULT_SEQ).unwrap().disturbed(args.disturb.repeats().unwrap());
            let told = AtomicU64::new(0);
            Prediction::watched(&setup, false, &|| {
                told.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!((told.into_inner(), Prediction::repeats(&setup)), (expected, expected), "{schedules}");
        }
    }
}
