//! The families of every schedule: what a pass has, what a rank has, and how long steps take.

use prometheus::{CounterVec, GaugeVec, HistogramOpts, HistogramVec, Opts, Registry, exponential_buckets};
use ringlab_sim::plan::Rank;
use ringlab_sim::timeline::SpanKind;

use super::steps::{communication, steps};
use super::{Labels, MetricsError, Observed, PASS, RANK};
use crate::verify::Errors;

/// Buckets of times: powers of two from a microsecond on, the last about 67 s.
const BUCKETS: (f64, f64, usize) = (1e-6, 2.0, 27);
/// Labels of an error.
const TENSOR: [&str; 4] = ["schedule", "pass", "cp", "tensor"];

/// All of them.
pub(super) struct Families {
    pass: PassFamilies,
    rank: RankFamilies,
    steps: StepFamilies,
}

struct PassFamilies {
    makespan: GaugeVec,
    repeats: HistogramVec,
    bubble: GaugeVec,
    imbalance: GaugeVec,
    rate: GaugeVec,
    row_error: GaugeVec,
    l2_error: GaugeVec,
}

struct RankFamilies {
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

struct StepFamilies {
    compute: HistogramVec,
    communication: HistogramVec,
}

impl Families {
    pub fn new(registry: &Registry) -> Result<Self, MetricsError> {
        let new = Maker(registry);
        Ok(Self {
            pass: PassFamilies::new(&new)?,
            rank: RankFamilies::new(&new)?,
            steps: StepFamilies::new(&new)?,
        })
    }

    pub fn add(&self, observed: &Observed<'_>) -> Result<(), MetricsError> {
        let labels = Labels::of(observed.plan);
        self.pass.add(observed, labels.pass())?;
        for (rank, steps) in (0..).zip(steps(observed.timeline)) {
            let rank_label = rank.to_string();
            let labels = labels.rank(&rank_label);
            for step in steps.values() {
                let times =
                    [(&self.steps.compute, step.compute), (&self.steps.communication, step.communication)];
                for (family, time) in times.into_iter().filter_map(|(family, time)| Some((family, time?))) {
                    family.get_metric_with_label_values(&labels)?.observe(time.as_secs_f64());
                }
            }
            self.rank.add(observed, rank, &labels)?;
        }
        Ok(())
    }
}

impl PassFamilies {
    fn new(new: &Maker<'_>) -> Result<Self, MetricsError> {
        let gauge = |name, help| new.gauge(name, help, &PASS);
        Ok(Self {
            makespan: gauge("makespan_seconds", "Makespan of the timeline, on the slowest rank.")?,
            repeats: new.histogram("pass_duration_seconds", "Time of the pass, over the repeats.", &PASS)?,
            bubble: gauge("bubble_ratio", "1 - sum(busy) / (ranks * makespan).")?,
            imbalance: gauge("imbalance_ratio", "Busiest rank's compute time over the mean; 1 is balanced.")?,
            rate: gauge("flops_per_second_per_rank", "FLOPs of the mask's area over ranks * makespan.")?,
            row_error: new.gauge("max_relative_error_ratio", "Worst row against softmax in f64.", &TENSOR)?,
            l2_error: new.gauge(
                "l2_error_ratio",
                "L2 norm of the error over that of the result.",
                &TENSOR,
            )?,
        })
    }

    fn add(&self, observed: &Observed<'_>, pass: [&str; 3]) -> Result<(), MetricsError> {
        let metrics = observed.metrics;
        let gauges = [
            (&self.makespan, metrics.makespan.as_secs_f64()),
            (&self.bubble, metrics.bubble_ratio),
            (&self.imbalance, metrics.imbalance),
            (&self.rate, metrics.tflops_per_gpu * 1e12),
        ];
        for (family, value) in gauges {
            family.get_metric_with_label_values(&pass)?.set(value);
        }
        let repeats = self.repeats.get_metric_with_label_values(&pass)?;
        observed.makespans.iter().for_each(|m| repeats.observe(m.as_secs_f64()));
        let [schedule, which, cp] = pass;
        for (tensor, row, l2) in observed.errors.map(tensors).into_iter().flatten() {
            for (family, error) in [(&self.row_error, row), (&self.l2_error, l2)] {
                if let Some(error) = error {
                    family.get_metric_with_label_values(&[schedule, which, cp, tensor])?.set(error);
                }
            }
        }
        Ok(())
    }
}

impl RankFamilies {
    fn new(new: &Maker<'_>) -> Result<Self, MetricsError> {
        let counter = |name, help| new.counter(name, help, &RANK);
        Ok(Self {
            compute: counter("compute_seconds_total", "Time a rank computes in one pass.")?,
            communication: counter(
                "comm_seconds_total",
                "Time in which a rank's messages move in one pass.",
            )?,
            exposed: counter(
                "exposed_comm_seconds_total",
                "Time a rank stands still for a transfer that moves in one pass.",
            )?,
            wait: counter(
                "wait_seconds_total",
                "Time a rank neither computes nor stands still for a transfer in one pass.",
            )?,
            sent: counter("sent_bytes_total", "Bytes a rank sends in one pass.")?,
            received: counter("received_bytes_total", "Bytes a rank receives in one pass.")?,
            flops: counter("flops_total", "FLOPs of a rank by the mask's area in one pass.")?,
            idle: new.gauge("idle_ratio", "1 - busy / makespan of a rank.", &RANK)?,
            memory: new.gauge("peak_memory_bytes", "Attention buffers of a rank, as allocated.", &RANK)?,
        })
    }

    fn add(&self, observed: &Observed<'_>, rank: Rank, labels: &[&str; 4]) -> Result<(), MetricsError> {
        let Observed { timeline, metrics, .. } = *observed;
        let spans = || timeline.spans.iter().filter(|s| s.rank == rank);
        let bytes =
            |kind: SpanKind| spans().filter(|s| s.kind == kind).map(|s| s.bytes.0).sum::<u64>() as f64;
        let times = metrics.ranks.get(rank as usize).copied().unwrap_or_default();
        let (busy, makespan) = (times.busy.as_secs_f64(), metrics.makespan.as_secs_f64());
        let counters = [
            (&self.compute, busy),
            (&self.communication, communication(timeline, rank).as_secs_f64()),
            (&self.exposed, times.exposed.as_secs_f64()),
            (&self.wait, times.wait.as_secs_f64()),
            (&self.sent, bytes(SpanKind::Send)),
            (&self.received, bytes(SpanKind::Recv)),
            (&self.flops, spans().map(|s| s.flops).sum()),
        ];
        for (family, value) in counters {
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

impl StepFamilies {
    fn new(new: &Maker<'_>) -> Result<Self, MetricsError> {
        let histogram = |name, help| new.histogram(name, help, &RANK);
        Ok(Self {
            compute: histogram("compute_latency_seconds", "Time a rank computes in a step, over the steps.")?,
            communication: histogram(
                "comm_latency_seconds",
                "Time in which a rank's messages of a step move, over the steps.",
            )?,
        })
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

/// Both errors of every tensor that there may be.
fn tensors(e: &Errors) -> [(&'static str, Option<f64>, Option<f64>); 5] {
    [
        ("o", e.o_max_rel_error, e.o_l2_error),
        ("lse", e.lse_max_rel_error, None),
        ("dq", e.dq_max_rel_error, e.dq_l2_error),
        ("dk", e.dk_max_rel_error, e.dk_l2_error),
        ("dv", e.dv_max_rel_error, e.dv_l2_error),
    ]
}
