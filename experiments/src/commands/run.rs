//! `ringlab run`: plans executed, and their results held against the reference and the prediction.

mod advice;
mod engine;
mod executed;
mod judge;
mod prepare;
mod report;
mod row;
mod scrape;
mod share;
mod table;
mod world;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use ringlab_runtime::cuda;
use ringlab_runtime::environment::Variables;
use ringlab_runtime::inputs::Inputs;
use ringlab_runtime::metrics::{Observed, exposition};
use ringlab_runtime::outcome::{Gradients, Results};
use ringlab_runtime::verify::Errors;
use ringlab_sim::engine::{Machine, SimOptions};
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::Schedule;

use self::advice::Environment;
use self::engine::{Engine, is_failure};
use self::executed::Executed;
use self::judge::Judge;
use self::prepare::{During, Interrupt};
use self::report::Report;
use self::row::{Prediction, RankRow, Row};
use self::scrape::Scrape;
use self::world::World;
use super::Outcome;
use crate::args::{Backend, RunArgs};
use crate::figures::{self, Run};
use crate::limit::Limit;
use crate::output;
use crate::setup::Setup;

pub use self::report::schema;
pub use self::scrape::Target;

/// A pass that was executed.
pub struct Done {
    plan: Plan,
    executed: Executed,
    metrics: Metrics,
    prediction: Option<Prediction>,
    errors: Errors,
}

/// Executes every plan that was asked for.
pub fn run(args: &RunArgs) -> Result<Outcome> {
    prepare::check(args)?;
    let target = Target::of(&args.metrics)?;
    let text = |value: OsString| value.into_string().ok();
    // What is no text is no launcher's.
    let variables: Variables =
        std::env::vars_os().filter_map(|(name, value)| text(name).zip(text(value))).collect();
    if args.backend == Backend::Cuda {
        prepare::environment(&variables)?;
    }
    let world = match World::find(args, &variables) {
        Ok(world) => world,
        Err(error) if is_failure(&error) => {
            say!("failed: {}", output::message(&error));
            return Ok(Outcome::Failed);
        }
        Err(error) => return Err(error),
    };
    let result = Session::new(args, &world, &variables, target).and_then(Session::run);
    world.end(result.as_ref().err());
    result
}

/// A run from its arguments to its result.
struct Session<'a> {
    args: &'a RunArgs,
    world: &'a World,
    variables: &'a Variables,
    setup: Setup,
    inputs: Inputs,
    judge: Judge,
    engine: Engine<'a>,
    scrape: Option<Scrape>,
    progress: prepare::Progress,
    stop: Interrupt,
    limit: Limit,
    limited: bool,
    rows: Vec<Row>,
    ranks: Vec<Vec<RankRow>>,
    done: Vec<Done>,
    left_out: Vec<String>,
    unpredicted: Option<String>,
    is_predictable: bool,
}

/// How the passes of a run ended.
enum Ended {
    All,
    Stopped,
    /// The limit was near; `left_out` says what was not run.
    Limited,
    Broke(anyhow::Error),
}

impl<'a> Session<'a> {
    fn new(
        args: &'a RunArgs,
        world: &'a World,
        variables: &'a Variables,
        target: Option<Target>,
    ) -> Result<Self> {
        let (mut setup, unknown) = prepare::setup(args)?;
        setup.cp = world.ranks();
        judge::check_size(args, &setup.problem)?;
        if world.launch().processes > 1 && (args.limit.is_some() || args.sustain.is_some()) {
            bail!(
                "--limit and --sustain are for runs of one process: several would not end at the same pass"
            );
        }
        let limit = Limit::new(args.limit);
        let stop = Interrupt::catch()?;
        let scrape = target.filter(|_| world.is_first()).map(Scrape::start).transpose()?;
        let progress = prepare::Progress::new();
        progress.say("inputs and reference");
        if world.launch().processes == 1 {
            stop.enter(During::Preparation);
        }
        let inputs = Inputs::random(args.seed, &setup.problem)?;
        let inputs = if args.backend == Backend::Cuda { inputs.rounded() } else { inputs };
        // Only the first process compares.
        let judge = if world.is_first() { Judge::new(args, &setup, &inputs)? } else { Judge::Nothing };
        stop.enter(During::Passes);
        Ok(Self {
            args,
            world,
            variables,
            setup,
            inputs,
            judge,
            engine: Engine::new(args, world),
            scrape,
            progress,
            stop,
            limit,
            limited: false,
            rows: Vec::new(),
            ranks: Vec::new(),
            done: Vec::new(),
            left_out: Vec::new(),
            unpredicted: unknown.as_ref().map(ToString::to_string),
            is_predictable: unknown.is_none(),
        })
    }

    fn run(mut self) -> Result<Outcome> {
        let ended = self.run_all()?;
        self.progress.end();
        if matches!(ended, Ended::Limited) {
            let left = if self.rows.is_empty() { "nothing" } else { "not all" };
            say!("{} was near: {left} was run", self.limit.text());
            if self.rows.is_empty() {
                return Ok(Outcome::Failed);
            }
        }
        let broke = match ended {
            Ended::Broke(error) if self.rows.is_empty() && !is_failure(&error) => return Err(error),
            Ended::Broke(error) => Some(error),
            Ended::All | Ended::Stopped | Ended::Limited => None,
        };
        if self.world.is_first() && !self.rows.is_empty() {
            self.report()?;
        }
        let stopped = self.stop.is_asked();
        if let Some(error) = broke {
            say!("failed: {}", output::message(&error));
            self.world.end(Some(&error));
            return Ok(Outcome::Failed);
        }
        if stopped {
            say!("stopped after {} passes", self.rows.len());
            self.world.end(Some(&anyhow!("stopped by Ctrl-C")));
            return Ok(Outcome::Interrupted);
        }
        self.hold();
        Ok(if self.rows.iter().all(|r| r.within_bound) { Outcome::Fine } else { Outcome::Failed })
    }

    /// Every schedule on every number of ranks.
    fn run_all(&mut self) -> Result<Ended> {
        let ranks = if self.args.errors_over_cp.is_empty() {
            vec![self.setup.cp]
        } else {
            self.args.errors_over_cp.clone()
        };
        for cp in ranks {
            self.setup.cp = cp;
            let plannable = |schedule| {
                let plan = |&pass: &Pass| -> Result<()> {
                    let plan = self.setup.plan(schedule, pass)?;
                    if self.args.backend == Backend::Cuda {
                        cuda::check(&plan)?;
                    }
                    Ok(())
                };
                self.setup.passes.iter().try_for_each(plan).map(|()| schedule)
            };
            let tolerant = Setup::tolerates(&self.args.setup) || !self.args.errors_over_cp.is_empty();
            let (schedules, left_out) = self.setup.each_schedule(tolerant, plannable)?;
            self.left_out.extend(left_out);
            for schedule in schedules {
                if self.stop.is_asked() {
                    return Ok(Ended::Stopped);
                }
                self.progress.say(&format!("{schedule} on {cp} ranks"));
                if let Err(error) = self.run_schedule(schedule) {
                    return Ok(Ended::Broke(error));
                }
            }
        }
        Ok(if self.limited { Ended::Limited } else { Ended::All })
    }

    fn run_schedule(&mut self, schedule: Schedule) -> Result<()> {
        let wanted = self.setup.passes.clone();
        if !self.has_time(schedule, &wanted) {
            return Ok(());
        }
        let results = self.execute(schedule, Pass::Forward, wanted.contains(&Pass::Forward))?;
        if wanted.contains(&Pass::Backward) && self.has_time(schedule, &[Pass::Backward]) {
            self.inputs.forward = match results {
                Results::Forward(forward) => Some(forward),
                Results::Backward(_) => None,
            };
            self.execute(schedule, Pass::Backward, true)?;
            self.inputs.forward = None;
        }
        Ok(())
    }

    /// Whether there is time for another pass; if not, `passes` are left out, and so is all that comes after.
    fn has_time(&mut self, schedule: Schedule, passes: &[Pass]) -> bool {
        self.limited = self.limited || !self.limit.allows_next();
        if self.limited {
            let passes: Vec<String> = passes.iter().map(ToString::to_string).collect();
            let (passes, cp) = (passes.join(" and "), self.setup.cp);
            self.left_out.push(format!("{schedule} {passes} on {cp} ranks: {} was near", self.limit.text()));
        }
        !self.limited
    }

    /// Executes one pass and gives its tensors; its figures are kept if they are `wanted`.
    fn execute(&mut self, schedule: Schedule, pass: Pass, wanted: bool) -> Result<Results> {
        let plan = self.setup.plan(schedule, pass)?;
        let mut executed = self
            .engine
            .execute(&plan, &self.inputs)
            .with_context(|| format!("{schedule} {pass} did not finish"))?;
        if !wanted || !self.world.is_first() {
            return Ok(executed.outcome.results);
        }
        let errors = self.judge.errors(&self.setup.problem, &self.inputs, &executed.outcome)?;
        // Tensors of all passes together would fill the memory.
        let results =
            std::mem::replace(&mut executed.outcome.results, Results::Backward(Gradients::default()));
        let metrics = Metrics::of(&plan, &executed.outcome.timeline);
        let prediction = self.predict(&plan, &executed);
        let done = Done { plan, executed, metrics, prediction, errors };
        self.rows.push(Row::new(self.args, &self.setup, &done, &errors, self.judge.sampled()));
        self.ranks.push(row::ranks(&done));
        self.done.push(done);
        self.publish()?;
        Ok(results)
    }

    /// The same plan on the cluster's model; nothing for CPU threads, nor for ranks that take turns, nor with settings that the
    /// cluster does not know.
    fn predict(&mut self, plan: &Plan, executed: &Executed) -> Option<Prediction> {
        if self.args.backend == Backend::Cpu || executed.is_virtual() || !self.is_predictable {
            return None;
        }
        let machine = Machine::new(&self.setup.cluster, plan.ranks(), &SimOptions::default());
        match machine.and_then(|mut machine| machine.timeline(plan)) {
            Ok(timeline) => Some(Metrics::of(plan, &timeline).into()),
            Err(error) => {
                self.unpredicted = Some(format!("{}: {error}", self.setup.cluster.name));
                None
            }
        }
    }

    /// Brings the metrics up to date.
    fn publish(&mut self) -> Result<()> {
        let Some(scrape) = &mut self.scrape else { return Ok(()) };
        let shape = &self.setup.problem.shape;
        let info = [
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("backend", self.args.backend.name().to_owned()),
            ("dtype", shape.dtype.to_string()),
            ("heads", shape.heads.to_string()),
            ("kv_heads", shape.kv_heads.to_string()),
            ("head_dim", shape.head_dim.to_string()),
            ("seq_len", self.setup.problem.tokens().to_string()),
            ("mask", self.setup.problem.pattern.to_string()),
            ("virtual", self.rows.iter().any(|r| r.is_virtual).to_string()),
        ];
        let passes: Vec<Observed<'_>> = self.done.iter().map(Done::observed).collect();
        scrape.update(exposition(&info, &passes)?);
        Ok(())
    }

    fn report(&self) -> Result<()> {
        let runs: Vec<Run<'_>> = self
            .done
            .iter()
            .map(|d| Run { plan: &d.plan, timeline: &d.executed.outcome.timeline, metrics: &d.metrics })
            .collect();
        if let Some(path) = &self.args.trace {
            figures::trace(path, &runs)?;
        }
        if let Some(path) = &self.args.timeline_csv {
            figures::spans(path, &runs)?;
        }
        if let Some(path) = &self.args.plot {
            let on = if self.args.backend == Backend::Cpu { "CPU threads" } else { "GPUs" };
            figures::gantt(path, &format!("Measured on {on}"), &runs)?;
        }
        if let Some(scrape) = &self.scrape {
            scrape.finish()?;
        }
        let environment = Environment::of(self.args, &self.setup, self.world, self.variables, &self.done);
        let launch = self.world.launch();
        let report = Report {
            rows: &self.rows,
            ranks: &self.ranks,
            left_out: &self.left_out,
            environment: &environment,
            unpredicted: self.unpredicted.as_deref(),
            processes: launch.processes,
            launcher: launch.launcher.name(),
            driver: self.done.first().and_then(|d| d.executed.gpu.as_ref()).map(|g| g.driver.as_str()),
        };
        let json = report.json(self.args);
        output::emit(&self.args.out, || table::table(self.args, &report), &json, &self.rows)
    }

    /// Keeps serving metrics until Ctrl-C, if that was asked for.
    fn hold(&self) {
        if self.args.metrics.hold && self.world.is_first() {
            self.stop.enter(During::Holding);
            say!("serving metrics; stop with Ctrl-C");
            while !self.stop.is_asked() {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

impl Done {
    fn observed(&self) -> Observed<'_> {
        Observed {
            plan: &self.plan,
            timeline: &self.executed.outcome.timeline,
            metrics: &self.metrics,
            makespans: if self.executed.unrecorded.is_empty() {
                &self.executed.recorded
            } else {
                &self.executed.unrecorded
            },
            peak_bytes: &self.executed.outcome.peak_bytes,
            errors: Some(&self.errors),
        }
    }
}
