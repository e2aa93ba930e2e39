//! `ringlab simulate`: the prediction.

mod row;
mod table;

use anyhow::{Result, bail};
use ringlab_sim::engine::{Machine, SimOptions};
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::timeline::Timeline;
use serde::Serialize;

use self::row::Row;
use super::Outcome;
use crate::args::SimulateArgs;
use crate::disturbance::{Repeats, Spread};
use crate::figures::{self, Picture, Run};
use crate::output::{self, FORMAT_VERSION};
use crate::setup::Setup;

/// Tokens of the sequence if none are given.
const DEFAULT_SEQ: u64 = 128 << 10;

/// A schedule's simulated passes.
struct Simulated {
    schedule: Schedule,
    passes: Vec<(Plan, Timeline, Metrics)>,
    /// Over the repeats of a disturbed run.
    spread: Option<Spread>,
}

#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    cluster: &'a str,
    model: &'a str,
    layers: u64,
    mask: String,
    results: &'a [Row],
    left_out: &'a [String],
    assumptions: Vec<table::Constant>,
}

/// Simulates every schedule that was asked for and prints the figures.
pub fn run(args: &SimulateArgs) -> Result<Outcome> {
    args.plot.as_deref().map(Picture::of).transpose()?;
    let setup = Setup::new(&args.setup, DEFAULT_SEQ)?;
    let repeats = args.disturb.repeats()?;
    let repeats = repeats.as_ref();
    let mut left_out = Vec::new();
    let mut simulated = Vec::new();
    for &schedule in &setup.schedules {
        match simulate(&setup, schedule, setup.cp, repeats) {
            Ok(s) => simulated.push(s),
            Err(error) if Setup::tolerates(&args.setup) => left_out.push(format!("{schedule}: {error:#}")),
            Err(error) => return Err(error),
        }
    }
    if simulated.is_empty() {
        bail!("no schedule can take this problem:\n  {}", left_out.join("\n  "));
    }
    let ring = match simulated.iter().find(|s| s.schedule == Schedule::Ring) {
        Some(ring) => Some(row::Baseline::of(ring)),
        None => simulate(&setup, Schedule::Ring, setup.cp, repeats).ok().as_ref().map(row::Baseline::of),
    };
    let one_gpu = simulate(&setup, Schedule::Ring, 1, None).ok().as_ref().map(row::Baseline::of);
    let rows: Vec<Row> =
        simulated.iter().map(|s| Row::new(&setup, s, ring.as_ref(), one_gpu.as_ref())).collect();
    write_pictures(args, &setup, &simulated)?;
    let report = Report {
        version: FORMAT_VERSION,
        cluster: &setup.cluster.name,
        model: &setup.model.name,
        layers: setup.model.layers,
        mask: setup.problem.pattern.to_string(),
        results: &rows,
        left_out: &left_out,
        assumptions: table::constants(&setup),
    };
    output::emit(&args.out, || table::render(&setup, &rows, &left_out, args), &report, &rows)?;
    Ok(Outcome::Fine)
}

fn simulate(setup: &Setup, schedule: Schedule, ranks: u32, repeats: Option<&Repeats>) -> Result<Simulated> {
    let plan = |&pass: &Pass| setup.plan_on(schedule, pass, ranks);
    let plans = setup.passes.iter().map(plan).collect::<Result<Vec<_>>>()?;
    let mut machine = Machine::new(&setup.cluster, ranks, &SimOptions::default())?;
    let spread = repeats.map(|r| r.spread(&mut machine, &plans.iter())).transpose()?;
    let mut passes = Vec::new();
    for (pass, plan) in plans.into_iter().enumerate() {
        if let (Some(repeats), Some(spread)) = (repeats, &spread) {
            machine.disturb(Some(repeats.conditions(ranks, spread.median, pass)?))?;
        }
        let timeline = machine.timeline(&plan)?;
        let metrics = Metrics::of(&plan, &timeline);
        passes.push((plan, timeline, metrics));
    }
    Ok(Simulated { schedule, passes, spread })
}

fn write_pictures(args: &SimulateArgs, setup: &Setup, simulated: &[Simulated]) -> Result<()> {
    let passes = simulated.iter().flat_map(|s| &s.passes);
    let runs: Vec<Run<'_>> =
        passes.map(|(plan, timeline, metrics)| Run { plan, timeline, metrics }).collect();
    if let Some(path) = &args.trace {
        figures::trace(path, &runs)?;
    }
    if let Some(path) = &args.plot {
        figures::gantt(path, &table::title(setup), &runs)?;
    }
    if let Some(path) = &args.spans {
        figures::spans(path, &runs)?;
    }
    Ok(())
}
