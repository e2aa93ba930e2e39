//! `ringlab run`: the plan executed, and its result held against the reference.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ringlab_runtime::cpu::{self, RunError, RunOptions};
use ringlab_runtime::inputs::Inputs;
use ringlab_runtime::outcome::Outcome as Executed;
use ringlab_runtime::verify::{Errors, Reference, verify};
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::{Dtype, Pass};
use ringlab_sim::schedule::Schedule;
use ringlab_sim::units::{Bytes, SimTime};
use serde::Serialize;

use super::Outcome;
use crate::args::RunArgs;
use crate::figures::{self, Picture, Run};
use crate::grid::grid;
use crate::output::{self, FORMAT_VERSION};
use crate::setup::Setup;

/// A size that two cores do in seconds with the default model's heads.
const DEFAULT_SEQ: u64 = 1 << 10;
/// FLOPs of full attention that a CPU does within the hour.
const MAX_FLOPS: f64 = 2e13;

#[derive(Serialize, schemars::JsonSchema)]
struct Row {
    schedule: String,
    backend: &'static str,
    cp: u32,
    seq_len: u64,
    padding: u64,
    pass: String,
    time_s: f64,
    bytes_moved: u64,
    peak_memory_bytes: u64,
    o_max_rel_error: Option<f64>,
    lse_max_rel_error: Option<f64>,
    dq_max_rel_error: Option<f64>,
    dk_max_rel_error: Option<f64>,
    dv_max_rel_error: Option<f64>,
    /// Padding rows that are not exactly 0, or -inf for lse.
    wrong_padding_rows: usize,
    within_bound: bool,
    notes: String,
}

#[derive(Serialize, schemars::JsonSchema)]
struct Report<'a> {
    version: u32,
    max_error: f64,
    seed: u64,
    results: &'a [Row],
    left_out: &'a [String],
}

/// A pass that was executed.
struct Done {
    plan: Plan,
    executed: Executed,
    metrics: Metrics,
}

/// JSON Schema of the result.
pub fn schema(generator: schemars::SchemaGenerator) -> schemars::Schema {
    generator.into_root_schema_for::<Report<'static>>()
}

/// Executes every plan that was asked for.
pub fn run(args: &RunArgs) -> Result<Outcome> {
    args.plot.as_deref().map(Picture::of).transpose()?;
    output::check_targets([&args.out.output, &args.trace, &args.plot])?;
    if !args.max_error.is_finite() || args.max_error < 0.0 {
        bail!("--max-error must be a finite number that is not negative, not {}", args.max_error);
    }
    let mut setup = Setup::new(&args.setup, DEFAULT_SEQ)?;
    setup.problem.shape.dtype = Dtype::Fp32;
    check_size(&setup)?;
    let plannable = |schedule| {
        setup.passes.iter().try_for_each(|&p| setup.plan(schedule, p).map(|_| ())).map(|()| schedule)
    };
    let (schedules, left_out) = setup.each_schedule(Setup::tolerates(&args.setup), plannable)?;
    let progress = Progress::new(schedules.len());
    let inputs = Inputs::random(args.seed, &setup.problem)?;
    progress.say("reference");
    let reference = if setup.passes.contains(&Pass::Backward) {
        Reference::with_gradients(&setup.problem, &inputs)?
    } else {
        Reference::forward(&setup.problem, &inputs)?
    };
    let (mut rows, mut done) = (Vec::new(), Vec::new());
    for schedule in schedules {
        progress.say(&schedule.to_string());
        match execute(args, &setup, schedule, &inputs, &reference) {
            Ok(passes) => passes.into_iter().for_each(|(row, pass)| {
                rows.push(row);
                done.push(pass);
            }),
            Err(error) if error.is::<RunError>() || error.root_cause().is::<RunError>() => {
                anstream::eprintln!("failed: {error:#}");
                return Ok(Outcome::Failed);
            }
            Err(error) => return Err(error),
        }
    }
    progress.end();
    write_pictures(args, &done)?;
    let report = Report {
        version: FORMAT_VERSION,
        max_error: args.max_error,
        seed: args.seed,
        results: &rows,
        left_out: &left_out,
    };
    output::emit(&args.out, || table(args, &rows, &left_out), &report, &rows)?;
    Ok(if rows.iter().all(|r| r.within_bound) { Outcome::Fine } else { Outcome::Failed })
}

/// The reference and the run hold whole tensors in memory and take time with N^2.
fn check_size(setup: &Setup) -> Result<()> {
    let s = &setup.problem.shape;
    let n = setup.problem.tokens() as f64;
    let flops = 4.0 * n * n * f64::from(s.heads) * f64::from(s.head_dim) * f64::from(s.batch);
    if flops > MAX_FLOPS {
        bail!(
            "{n:.0} tokens with {} heads of {} are too much for the CPU: about {:.0e} FLOPs; use fewer tokens (--seq) or \
             heads (--heads, --kv-heads, --head-dim)",
            s.heads,
            s.head_dim,
            flops
        );
    }
    Ok(())
}

/// What is being done, on a terminal's standard error only.
struct Progress(indicatif::ProgressBar);

impl Progress {
    fn new(schedules: usize) -> Self {
        let bar = indicatif::ProgressBar::new(schedules as u64 + 1);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar.with_style(indicatif::ProgressStyle::default_spinner()))
    }

    fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    fn end(&self) {
        self.0.finish_and_clear();
    }
}

fn execute(
    args: &RunArgs,
    setup: &Setup,
    schedule: Schedule,
    inputs: &Inputs,
    reference: &Reference,
) -> Result<Vec<(Row, Done)>> {
    let options = RunOptions { timeout: Duration::from_secs_f64(args.timeout.as_secs_f64()), fault: None };
    let execute_pass = |pass: Pass, inputs: &Inputs| -> Result<(Row, Done)> {
        let plan = setup.plan(schedule, pass)?;
        let executed =
            cpu::run(&plan, inputs, &options).with_context(|| format!("{schedule} {pass} did not finish"))?;
        let errors = verify(&executed, reference)?;
        let metrics = Metrics::of(&plan, &executed.timeline);
        Ok((row(args, setup, schedule, &plan, &executed, &errors), Done { plan, executed, metrics }))
    };
    let (row, forward) = execute_pass(Pass::Forward, inputs)?;
    if setup.passes == [Pass::Forward] {
        return Ok(vec![(row, forward)]);
    }
    let result = forward.executed.results.forward().cloned().context("the forward gave no result")?;
    let backward = execute_pass(Pass::Backward, &inputs.clone().with_forward(result))?;
    Ok(if setup.passes.contains(&Pass::Forward) { vec![(row, forward), backward] } else { vec![backward] })
}

fn row(args: &RunArgs, setup: &Setup, s: Schedule, plan: &Plan, executed: &Executed, errors: &Errors) -> Row {
    let error = |e: Option<f64>| e.filter(|e| e.is_finite());
    Row {
        schedule: s.to_string(),
        backend: "cpu",
        cp: setup.cp,
        seq_len: setup.problem.tokens(),
        padding: plan.layout.documents().padding(),
        pass: plan.pass.to_string(),
        time_s: executed.wall_time.as_secs_f64(),
        bytes_moved: executed.bytes_moved.0,
        peak_memory_bytes: executed.peak_bytes.iter().max().map_or(0, |b| b.0),
        o_max_rel_error: error(errors.o_max_rel_error),
        lse_max_rel_error: error(errors.lse_max_rel_error),
        dq_max_rel_error: error(errors.dq_max_rel_error),
        dk_max_rel_error: error(errors.dk_max_rel_error),
        dv_max_rel_error: error(errors.dv_max_rel_error),
        wrong_padding_rows: errors.wrong_padding_rows,
        within_bound: errors.worst() <= args.max_error,
        notes: plan.notes.join("; "),
    }
}

fn write_pictures(args: &RunArgs, done: &[Done]) -> Result<()> {
    let runs: Vec<Run<'_>> = done
        .iter()
        .map(|d| Run { plan: &d.plan, timeline: &d.executed.timeline, metrics: &d.metrics })
        .collect();
    if let Some(path) = &args.trace {
        figures::trace(path, &runs)?;
    }
    if let Some(path) = &args.plot {
        figures::gantt(path, "Measured on CPU threads", &runs)?;
    }
    Ok(())
}

fn table(args: &RunArgs, rows: &[Row], left_out: &[String]) -> String {
    let error = |e: Option<f64>| e.map_or("-".into(), |e| format!("{e:.1e}"));
    let cells = rows.iter().map(|r| {
        [
            r.schedule.clone(),
            r.pass.clone(),
            SimTime::from_secs_f64(r.time_s).to_string(),
            Bytes(r.bytes_moved).to_string(),
            Bytes(r.peak_memory_bytes).to_string(),
            error(r.o_max_rel_error),
            error(r.lse_max_rel_error),
            error(r.dq_max_rel_error),
            error(r.dk_max_rel_error),
            error(r.dv_max_rel_error),
            if r.within_bound { "exact".into() } else { "WRONG".into() },
        ]
    });
    let header = ["schedule", "pass", "time", "moved", "memory", "o", "lse", "dq", "dk", "dv", "verdict"];
    let table = grid(header, 2, cells);
    let mut text = format!(
        "{} threads, one a rank, {} tokens, fp32 whatever the model stores, random inputs of seed {}\n\n{table}",
        rows[0].cp, rows[0].seq_len, args.seed
    );
    for r in rows.iter().filter(|r| !r.notes.is_empty()) {
        text += &format!("  {} {}: {}\n", r.schedule, r.pass, r.notes);
    }
    for line in left_out {
        text += &format!("  left out: {line}\n");
    }
    text + &format!(
        "  o, lse, dq, dk, dv: largest relative error against plain softmax in f64; exact: all at most {:e}\n",
        args.max_error
    )
}
