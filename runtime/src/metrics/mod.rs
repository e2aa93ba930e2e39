//! Figures of a run as Prometheus reads them: text format 0.0.4, base units, one family a figure.
//!
//! Every family has the labels `schedule`, `pass` and `cp`, and `rank` where it is one rank's. Seconds, bytes and ratios of
//! a run are those of its median repeat; what they mean is defined with [`Metrics`]. A step is a schedule's step.

mod steps;

use prometheus::{
    CounterVec, Encoder, GaugeVec, HistogramOpts, HistogramVec, Opts, Registry, TextEncoder,
    exponential_buckets,
};
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::{Plan, Rank};
use ringlab_sim::timeline::{SpanKind, Timeline};
use ringlab_sim::units::{Bytes, SimTime};
use thiserror::Error;

pub use steps::{Step, communication, steps};

use crate::verify::Errors;

/// The text format's media type.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Labels of what a whole pass has.
const PASS: [&str; 3] = ["schedule", "pass", "cp"];
/// Labels of what one rank has.
const RANK: [&str; 4] = ["schedule", "pass", "cp", "rank"];
/// Buckets of times: powers of two from a microsecond on, the last about 67 s.
const BUCKETS: (f64, f64, usize) = (1e-6, 2.0, 27);

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

/// The families of every schedule.
struct Families {
    makespan: GaugeVec,
    repeats: HistogramVec,
    bubble: GaugeVec,
    imbalance: GaugeVec,
    rate: GaugeVec,
    error: GaugeVec,
    compute_steps: HistogramVec,
    communication_steps: HistogramVec,
    compute: CounterVec,
    communication: CounterVec,
    exposed: CounterVec,
    wait: CounterVec,
    sent: CounterVec,
    received: CounterVec,
    flops: CounterVec,
    idle: GaugeVec,
    memory: GaugeVec,
}

impl Families {
    fn new(registry: &Registry) -> Result<Self, MetricsError> {
        let new = Maker(registry);
        let tensor = ["schedule", "pass", "cp", "tensor"];
        Ok(Self {
            makespan: new.gauge(
                "makespan_seconds",
                "Time of one attention layer, on the slowest rank; median of the repeats.",
                &PASS,
            )?,
            repeats: new.histogram(
                "pass_duration_seconds",
                "Time of one attention layer, over the repeats.",
                &PASS,
            )?,
            bubble: new.gauge("bubble_ratio", "1 - sum(busy) / (ranks * makespan).", &PASS)?,
            imbalance: new.gauge(
                "imbalance_ratio",
                "Busiest rank's compute time over the mean; 1 is balanced.",
                &PASS,
            )?,
            rate: new.gauge(
                "flops_per_second_per_rank",
                "FLOPs of the mask's area over ranks * makespan.",
                &PASS,
            )?,
            error: new.gauge(
                "max_relative_error_ratio",
                "Largest relative error against plain softmax in f64.",
                &tensor,
            )?,
            compute_steps: new.histogram(
                "compute_latency_seconds",
                "Time a rank computes in a step, over the steps.",
                &RANK,
            )?,
            communication_steps: new.histogram(
                "comm_latency_seconds",
                "Time in which a rank's messages of a step move, over the steps.",
                &RANK,
            )?,
            compute: new.counter("compute_seconds_total", "Time a rank computes in one pass.", &RANK)?,
            communication: new.counter(
                "comm_seconds_total",
                "Time in which at least one message of a rank moves in one pass.",
                &RANK,
            )?,
            exposed: new.counter(
                "exposed_comm_seconds_total",
                "Time a rank stands still for a transfer that moves in one pass.",
                &RANK,
            )?,
            wait: new.counter(
                "wait_seconds_total",
                "Time a rank neither computes nor stands still for a transfer in one pass.",
                &RANK,
            )?,
            sent: new.counter("sent_bytes_total", "Bytes a rank sends in one pass.", &RANK)?,
            received: new.counter("received_bytes_total", "Bytes a rank receives in one pass.", &RANK)?,
            flops: new.counter("flops_total", "FLOPs of a rank by the mask's area in one pass.", &RANK)?,
            idle: new.gauge("idle_ratio", "1 - busy / makespan of a rank.", &RANK)?,
            memory: new.gauge("peak_memory_bytes", "Attention buffers of a rank, as allocated.", &RANK)?,
        })
    }

    fn add(&self, observed: &Observed<'_>) -> Result<(), MetricsError> {
        let Observed { plan, timeline, metrics, .. } = *observed;
        let labels = Labels::of(plan);
        let pass = labels.pass();
        self.makespan.get_metric_with_label_values(&pass)?.set(metrics.makespan.as_secs_f64());
        let repeats = self.repeats.get_metric_with_label_values(&pass)?;
        observed.makespans.iter().for_each(|m| repeats.observe(m.as_secs_f64()));
        self.bubble.get_metric_with_label_values(&pass)?.set(metrics.bubble_ratio);
        self.imbalance.get_metric_with_label_values(&pass)?.set(metrics.imbalance);
        self.rate.get_metric_with_label_values(&pass)?.set(metrics.tflops_per_gpu * 1e12);
        for (tensor, error) in observed.errors.map(tensors).into_iter().flatten() {
            let [schedule, which, cp] = pass;
            self.error.get_metric_with_label_values(&[schedule, which, cp, tensor])?.set(error);
        }
        for (rank, steps) in (0..).zip(steps(timeline)) {
            let rank_label = rank.to_string();
            let labels = labels.rank(&rank_label);
            for step in steps.values() {
                if let Some(time) = step.compute {
                    self.compute_steps.get_metric_with_label_values(&labels)?.observe(time.as_secs_f64());
                }
                if let Some(time) = step.communication {
                    self.communication_steps
                        .get_metric_with_label_values(&labels)?
                        .observe(time.as_secs_f64());
                }
            }
            self.add_rank(observed, rank, &labels)?;
        }
        Ok(())
    }

    fn add_rank(&self, observed: &Observed<'_>, rank: Rank, labels: &[&str; 4]) -> Result<(), MetricsError> {
        let Observed { timeline, metrics, .. } = *observed;
        let spans = || timeline.spans.iter().filter(|s| s.rank == rank);
        let bytes =
            |kind: SpanKind| spans().filter(|s| s.kind == kind).map(|s| s.bytes.0).sum::<u64>() as f64;
        let times = metrics.ranks.get(rank as usize).copied().unwrap_or_default();
        let makespan = metrics.makespan.as_secs_f64();
        let busy = times.busy.as_secs_f64();
        let seconds = [
            (&self.compute, busy),
            (&self.communication, communication(timeline, rank).as_secs_f64()),
            (&self.exposed, times.exposed.as_secs_f64()),
            (&self.wait, times.wait.as_secs_f64()),
            (&self.sent, bytes(SpanKind::Send)),
            (&self.received, bytes(SpanKind::Recv)),
            (&self.flops, spans().map(|s| s.flops).sum()),
        ];
        for (family, value) in seconds {
            family.get_metric_with_label_values(labels)?.inc_by(value);
        }
        let idle = if makespan > 0.0 { (1.0 - busy / makespan).max(0.0) } else { 0.0 };
        self.idle.get_metric_with_label_values(labels)?.set(idle);
        if let Some(peak) = observed.peak_bytes.get(rank as usize) {
            self.memory.get_metric_with_label_values(labels)?.set(peak.0 as f64);
        }
        Ok(())
    }
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

/// Makes families of this program and registers them.
struct Maker<'a>(&'a Registry);

impl Maker<'_> {
    fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, MetricsError> {
        let family = GaugeVec::new(Opts::new(format!("ringlab_{name}"), help), labels)?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }

    fn counter(&self, name: &str, help: &str, labels: &[&str]) -> Result<CounterVec, MetricsError> {
        let family = CounterVec::new(Opts::new(format!("ringlab_{name}"), help), labels)?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }

    fn histogram(&self, name: &str, help: &str, labels: &[&str]) -> Result<HistogramVec, MetricsError> {
        let buckets = exponential_buckets(BUCKETS.0, BUCKETS.1, BUCKETS.2)?;
        let options = HistogramOpts::new(format!("ringlab_{name}"), help).buckets(buckets);
        let family = HistogramVec::new(options, labels)?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
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

/// The errors that a pass has, by tensor.
fn tensors(errors: &Errors) -> impl Iterator<Item = (&'static str, f64)> + use<> {
    let all = [
        ("o", errors.o_max_rel_error),
        ("lse", errors.lse_max_rel_error),
        ("dq", errors.dq_max_rel_error),
        ("dk", errors.dk_max_rel_error),
        ("dv", errors.dv_max_rel_error),
    ];
    all.into_iter().filter_map(|(tensor, error)| Some((tensor, error?)))
}
