//! One thread's tools: machines and plans that neighbouring configurations share.

use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::engine::{self, Done, Machine, SimOptions};
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::{Pass, Problem};
use ringlab_sim::schedule::{self, Options, Schedule};
use ringlab_sim::timeline::{Span, SpanKind, Timeline};
use ringlab_sim::units::Bytes;

use super::grid::Grid;
use super::point::{Point, Rates};
use super::row::{self, Figures};
use crate::nccl::Asked;

/// Simulates configurations of one grid, one after the other.
pub struct Worker<'g> {
    grid: &'g Grid,
    /// By cluster: the machine that ran last.
    machines: Vec<Option<Prepared>>,
    plans: Option<Plans>,
    done: Vec<Done>,
    timeline: Timeline,
}

/// A cluster's machine, for so many ranks, with these rates and settings of NCCL.
struct Prepared {
    machine: Machine,
    ranks: u32,
    rates: Rates,
    nccl: Asked,
}

/// What plans depend on.
#[derive(PartialEq)]
struct PlanKey {
    problem: Problem,
    schedule: Schedule,
    ranks: u32,
    options: Options,
    passes: &'static [Pass],
}

/// The plans of the passes, with their FLOPs by the mask's area, or why there are none.
struct Plans {
    key: PlanKey,
    built: Result<Vec<(Plan, f64)>, String>,
}

impl<'g> Worker<'g> {
    /// A worker that has nothing prepared.
    pub fn new(grid: &'g Grid) -> Self {
        let machines = grid.clusters.iter().map(|_| None).collect();
        Self { grid, machines, plans: None, done: Vec::new(), timeline: Timeline::default() }
    }

    /// Appends the CSV line of the configuration at `index`.
    pub fn append_row(&mut self, index: u64, out: &mut String) {
        let point = self.grid.point(index);
        let result = self.figures(&point);
        row::write(out, self.grid, index, &point, &result);
    }

    /// The figures of one configuration, or why there are none.
    ///
    /// # Errors
    /// The reason, in one line.
    pub fn figures(&mut self, point: &Point) -> Result<Figures, String> {
        let problem = point.problem(self.grid.model(point), self.grid.mask(point))?;
        let key = PlanKey {
            problem,
            schedule: point.schedule(),
            ranks: point.cp,
            options: point.options,
            passes: point.passes,
        };
        let plans = match self.plans.take() {
            Some(plans) if plans.key == key => plans,
            _ => Plans::build(key),
        };
        let figures = self.simulate(point, &plans);
        self.plans = Some(plans);
        figures
    }

    fn simulate(&mut self, point: &Point, plans: &Plans) -> Result<Figures, String> {
        let plans = plans.built.as_ref().map_err(Clone::clone)?;
        let cluster = &self.grid.clusters[point.cluster];
        let prepared = Prepared::get(&mut self.machines[point.cluster], cluster, point)?;
        let machine = &mut prepared.machine;
        let repeats = self.grid.repeats(point);
        let each = plans.iter().map(|(plan, _)| plan);
        let spread = repeats.as_ref().map(|r| r.spread(machine, &each, || ()));
        let spread = spread.transpose().map_err(|e| e.to_string())?;
        let mut metrics = Vec::with_capacity(plans.len());
        for (pass, (plan, _)) in plans.iter().enumerate() {
            let conditions = repeats.as_ref().zip(spread.as_ref());
            let conditions = conditions.map(|(r, s)| r.conditions(plan.ranks(), s.median, pass)).transpose();
            machine.disturb(conditions.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
            self.done.clear();
            let makespan = engine::simulate_with(plan, machine, &mut self.done).map_err(|e| e.to_string())?;
            self.timeline.ranks = plan.ranks();
            self.timeline.makespan = makespan;
            self.timeline.spans.clear();
            self.timeline.spans.extend(self.done.iter().map(|done| span(plan, done)));
            metrics.push(Metrics::of(plan, &self.timeline));
        }
        let passes = plans.iter().zip(metrics).map(|((plan, flops), metrics)| (plan, *flops, metrics));
        Ok(Figures { percentiles: spread.map(|s| s.percentiles), ..Figures::of(passes) })
    }
}

impl Prepared {
    /// The machine in `slot`, made anew or given other links if it does not fit.
    fn get<'a>(slot: &'a mut Option<Self>, cluster: &Cluster, point: &Point) -> Result<&'a mut Self, String> {
        point.check_changes(cluster)?;
        let &Point { cp: ranks, rates, nccl, .. } = point;
        let prepared = match slot.take_if(|p| p.ranks >= ranks) {
            Some(prepared) if prepared.rates == rates && prepared.nccl == nccl => prepared,
            Some(mut prepared) => {
                prepared.machine.relink(&point.changed(cluster)?).map_err(|e| e.to_string())?;
                Self { rates, nccl, ..prepared }
            }
            None => {
                let cluster = point.changed(cluster)?;
                let machine =
                    Machine::new(&cluster, ranks, &SimOptions::default()).map_err(|e| e.to_string())?;
                Self { machine, ranks, rates, nccl }
            }
        };
        Ok(slot.insert(prepared))
    }
}

impl Plans {
    fn build(key: PlanKey) -> Self {
        let build = |&pass: &Pass| {
            let options = Options { pass, ..key.options };
            let plan = schedule::build(key.schedule, &key.problem, key.ranks, &options)?;
            let flops = plan.mask_area_flops();
            Ok((plan, flops))
        };
        let built: Result<_, schedule::BuildError> = key.passes.iter().map(build).collect();
        Self { built: built.map_err(|e| e.to_string()), key }
    }
}

/// A span without its FLOPs, which no column needs.
fn span(plan: &Plan, done: &Done) -> Span {
    let op = &plan.programs[done.rank as usize].ops[done.op as usize];
    Span {
        rank: done.rank,
        lane: done.lane,
        op: done.op,
        step: op.step,
        kind: SpanKind::of(&op.kind),
        start: done.start,
        end: done.end,
        bytes: Bytes(0),
        flops: 0.0,
    }
}
