//! Figures of a run as Prometheus reads them: text format 0.0.4, base units, one family a figure.
//!
//! Every family has the labels `schedule`, `pass` and `cp`, and `rank` where it is one rank's. Seconds, bytes and ratios of
//! a run are those of its median repeat; what they mean is defined with [`Metrics`]. A step is a schedule's step.

mod families;
mod steps;

use prometheus::{Encoder, GaugeVec, Opts, Registry, TextEncoder};
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::Plan;
use ringlab_sim::timeline::Timeline;
use ringlab_sim::units::{Bytes, SimTime};
use thiserror::Error;

use families::Families;
pub use steps::{Step, communication, steps};

use crate::verify::Errors;

/// The text format's media type.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Labels of what a whole pass has.
const PASS: [&str; 3] = ["schedule", "pass", "cp"];
/// Labels of what one rank has.
const RANK: [&str; 4] = ["schedule", "pass", "cp", "rank"];
/// One executed pass.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// What was executed.
    pub plan: &'a Plan,
    /// Of the median repeat.
    pub timeline: &'a Timeline,
    /// Its figures.
    pub metrics: &'a Metrics,
    /// Makespan of every repeat.
    pub makespans: &'a [SimTime],
    /// Memory of each rank, as it was allocated.
    pub peak_bytes: &'a [Bytes],
    /// Against the reference, where there is one.
    pub errors: Option<&'a Errors>,
}

/// Why there is no text.
#[derive(Debug, Error)]
#[error("cannot write metrics: {0}")]
pub struct MetricsError(#[from] prometheus::Error);

/// The text of a run: `info` are labels of `ringlab_run_info`, such as the backend and the element type.
///
/// # Errors
/// A label's name that Prometheus does not allow.
pub fn exposition(info: &[(&str, String)], passes: &[Observed<'_>]) -> Result<String, MetricsError> {
    let registry = Registry::new();
    let names: Vec<&str> = info.iter().map(|(name, _)| *name).collect();
    let values: Vec<&str> = info.iter().map(|(_, value)| value.as_str()).collect();
    let run = GaugeVec::new(Opts::new("ringlab_run_info", "What was run; always 1."), &names)?;
    registry.register(Box::new(run.clone()))?;
    run.get_metric_with_label_values(&values)?.set(1.0);
    let families = Families::new(&registry)?;
    let helpers = Helpers::new(&registry)?;
    for observed in passes {
        families.add(observed)?;
        if observed.plan.name.starts_with("dist-flash") {
            helpers.add(observed)?;
        }
    }
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The families that dashboards of DistFlashAttn expect, in milliseconds as their names say.
struct Helpers {
    communication: GaugeVec,
    compute: GaugeVec,
    bubble: GaugeVec,
}

impl Helpers {
    fn new(registry: &Registry) -> Result<Self, MetricsError> {
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            let family = GaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(family.clone()))?;
            Ok::<_, MetricsError>(family)
        };
        Ok(Self {
            communication: gauge(
                "distflashattn_comm_latency_ms",
                "Mean over steps of the milliseconds in which a rank's messages of a step move.",
                &RANK,
            )?,
            compute: gauge(
                "distflashattn_compute_latency_ms",
                "Mean over steps of the milliseconds that a rank computes in a step.",
                &RANK,
            )?,
            bubble: gauge("distflashattn_idle_bubble_ratio", "1 - sum(busy) / (ranks * makespan).", &PASS)?,
        })
    }

    fn add(&self, observed: &Observed<'_>) -> Result<(), MetricsError> {
        let labels = Labels::of(observed.plan);
        self.bubble.get_metric_with_label_values(&labels.pass())?.set(observed.metrics.bubble_ratio);
        for (rank, steps) in steps(observed.timeline).into_iter().enumerate() {
            let rank = rank.to_string();
            let labels = labels.rank(&rank);
            for (family, times) in [
                (&self.compute, steps.values().filter_map(|s| s.compute).collect::<Vec<_>>()),
                (&self.communication, steps.values().filter_map(|s| s.communication).collect()),
            ] {
                let sum: f64 = times.iter().map(|t| t.as_secs_f64()).sum();
                let mean = if times.is_empty() { 0.0 } else { sum / times.len() as f64 };
                family.get_metric_with_label_values(&labels)?.set(mean * 1e3);
            }
        }
        Ok(())
    }
}

/// Label values of one pass.
struct Labels {
    schedule: String,
    pass: String,
    cp: String,
}

impl Labels {
    fn of(plan: &Plan) -> Self {
        Self { schedule: plan.name.clone(), pass: plan.pass.to_string(), cp: plan.ranks().to_string() }
    }

    fn pass(&self) -> [&str; 3] {
        [&self.schedule, &self.pass, &self.cp]
    }

    fn rank<'a>(&'a self, rank: &'a str) -> [&'a str; 4] {
        [&self.schedule, &self.pass, &self.cp, rank]
    }
}
