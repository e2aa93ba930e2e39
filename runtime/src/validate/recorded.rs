//! Points that were measured earlier, as a report lists them, predicted anew.

#[cfg(test)]
mod tests;

use std::fmt::{self, Formatter};
use std::ops::RangeInclusive;

use ringlab_sim::config::cluster::{Cluster, NcclSettings, NoKernel, Priority};
use ringlab_sim::engine::{Load, SimError};
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::{Dtype, Pass, Shape};
use ringlab_sim::schedule::Schedule;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::comparison::{Measured, Predicted, call};
use super::{Call, Compared, Point, Report, on_enough};
use crate::machine::Launching;

/// What of a report was measured; what it predicted is not read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(expecting = "a report")]
pub struct Recorded {
    /// The cluster on whose links virtual ranks were put.
    pub cluster: String,
    /// Devices and versions, as `2 x NVIDIA H200 (CUDA 13.0 driver)`.
    pub machine: String,
    /// Where the measurements are from, if the report is itself one of earlier measurements.
    #[serde(default)]
    pub measured_in: Option<Origin>,
    /// How NCCL was set up, if not as it is by default.
    #[serde(default)]
    pub nccl: Option<RecordedNccl>,
    /// Points that were not run for want of time.
    #[serde(default)]
    pub not_reached: Vec<String>,
    /// Every point that was run.
    pub points: Vec<RecordedPoint>,
}

/// Where measurements are from that a report did not make itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "where the measurements are from")]
pub struct Origin {
    /// The file, as it was given.
    pub file: String,
    /// The cluster of the first report of them, on whose links virtual ranks were put.
    pub cluster: String,
    /// The cluster on whose links virtual ranks are predicted.
    pub links_of: String,
}

/// Settings of NCCL as a report lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(expecting = "settings of NCCL")]
pub struct RecordedNccl {
    /// The most CTAs of a transfer.
    #[serde(default, deserialize_with = "ctas")]
    pub ctas: Option<u32>,
    /// Of the streams.
    pub priority: Priority,
}

impl Recorded {
    /// How NCCL was set up.
    pub fn nccl_settings(&self) -> NcclSettings {
        let set = |RecordedNccl { ctas, priority }| NcclSettings { ctas, priority };
        self.nccl.map_or_else(NcclSettings::default, set)
    }

    /// The cluster on whose links virtual ranks were put when they were measured.
    pub fn cluster_of_links(&self) -> &str {
        self.measured_in.as_ref().map_or(&self.cluster, |origin| &origin.cluster)
    }
}

/// A point as a report lists it; the fields are those of [`Compared`].
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(expecting = "a point")]
pub struct RecordedPoint {
    /// The schedule.
    #[serde(deserialize_with = "schedule")]
    pub schedule: Schedule,
    /// Forward or backward.
    pub pass: Pass,
    /// Ranks P.
    #[serde(deserialize_with = "whole::<_, _, 1024>")]
    pub cp: u32,
    /// Tokens N.
    #[serde(deserialize_with = "whole::<_, _, 0x8000_0000>")]
    pub seq_len: u64,
    /// Query heads H.
    #[serde(deserialize_with = "whole::<_, _, 65536>")]
    pub heads: u32,
    /// Key/value heads K.
    #[serde(deserialize_with = "whole::<_, _, 65536>")]
    pub kv_heads: u32,
    /// Head dimension D.
    #[serde(deserialize_with = "whole::<_, _, 65536>")]
    pub head_dim: u32,
    /// Element type.
    pub dtype: Dtype,
    /// Sequences in a batch.
    #[serde(deserialize_with = "whole::<_, _, 1_000_000>")]
    pub batch: u32,
    /// How messages travelled.
    pub transport: Transport,
    /// How calls followed each other.
    pub launching: Launching,
    /// Messages that a transfer was cut into.
    pub chunks: u32,
    /// Median makespan, in seconds.
    #[serde(deserialize_with = "time")]
    pub measured_s: f64,
    /// Standard deviation of the makespans over their median.
    #[serde(deserialize_with = "from_zero")]
    pub spread: f64,
    /// Bubble ratio.
    #[serde(deserialize_with = "share")]
    pub measured_bubble_ratio: f64,
    /// Exposed communication of the worst rank, in seconds.
    #[serde(deserialize_with = "from_zero")]
    pub measured_exposed_s: f64,
    /// Attention calls, rank by rank; none where the report does not list them.
    #[serde(default)]
    pub calls: Vec<RecordedCall>,
    /// How the devices were loaded.
    #[serde(with = "LoadName")]
    pub load: Load,
    /// How long they had been working, in seconds.
    #[serde(deserialize_with = "from_zero")]
    pub loaded_s: f64,
    /// Makespans over the wall time of the measured repeats.
    #[serde(deserialize_with = "from_zero")]
    pub duty: f64,
}

/// An attention call as a report lists it.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(expecting = "an attention call")]
pub struct RecordedCall {
    /// Whose.
    pub rank: u32,
    /// In which step.
    pub step: u32,
    /// In seconds.
    #[serde(deserialize_with = "time")]
    pub measured_s: f64,
}

/// The names of [`Load`] in reports.
#[derive(Deserialize)]
#[serde(remote = "Load", rename_all = "kebab-case")]
enum LoadName {
    Sustained,
    Cold,
    Virtual,
}

/// Seconds that a measured time can be: from the resolution of simulated time on.
const TIMES: RangeInclusive<f64> = 1e-12..=1e6;

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    real(deserializer, TIMES, "a time of 1e-12 to 1e6 seconds")
}

/// Seconds, or a ratio, that can be zero.
fn from_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    real(deserializer, 0.0..=*TIMES.end(), "a number from 0 to 1e6")
}

fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    real(deserializer, 0.0..=1.0, "a number from 0 to 1")
}

fn real<'de, D: Deserializer<'de>>(
    deserializer: D,
    allowed: RangeInclusive<f64>,
    expected: &str,
) -> Result<f64, D::Error> {
    deserializer.deserialize_f64(Real { allowed, expected })
}

/// Takes numbers within a range, and says of all others that it is expected.
struct Real<'e> {
    allowed: RangeInclusive<f64>,
    expected: &'e str,
}

impl Visitor<'_> for Real<'_> {
    type Value = f64;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<f64, E> {
        let out_of_range = || E::invalid_value(Unexpected::Float(number), &self);
        self.allowed.contains(&number).then_some(number).ok_or_else(out_of_range)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<f64, E> {
        self.visit_f64(number as f64)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<f64, E> {
        self.visit_f64(number as f64)
    }
}

/// A limit that the command line takes too.
fn ctas<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    Option::<Ctas>::deserialize(deserializer).map(|limit| limit.map(|Ctas(ctas)| ctas))
}

#[derive(Deserialize)]
struct Ctas(#[serde(deserialize_with = "whole::<_, _, 64>")] u32);

/// A size that the command line takes too: from 1 to `MOST`.
fn whole<'de, D: Deserializer<'de>, T: TryFrom<u64>, const MOST: u64>(
    deserializer: D,
) -> Result<T, D::Error> {
    let number = deserializer.deserialize_u64(Whole { most: MOST })?;
    T::try_from(number)
        .map_err(|_| D::Error::invalid_value(Unexpected::Unsigned(number), &Whole { most: MOST }))
}

/// Takes whole numbers from 1 to `most`, as [`Real`] does.
struct Whole {
    most: u64,
}

impl Visitor<'_> for Whole {
    type Value = u64;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 1 to {}", self.most)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        let out_of_range = || E::invalid_value(Unexpected::Unsigned(number), &self);
        (1..=self.most).contains(&number).then_some(number).ok_or_else(out_of_range)
    }
}

fn schedule<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Schedule, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

impl RecordedPoint {
    /// What was run.
    pub fn point(&self) -> Point {
        let &Self { heads, kv_heads, head_dim, dtype, batch, .. } = self;
        Point {
            schedule: self.schedule,
            pass: self.pass,
            cp: self.cp,
            seq_len: self.seq_len,
            shape: Shape { heads, kv_heads, head_dim, dtype, batch },
            transport: self.transport,
            launching: self.launching,
            chunks: self.chunks,
        }
    }

    /// The calls beside `predicted` ones of the same rank and step, in the order of operations; `None` if there is no such call.
    fn calls(&self, predicted: &Predicted<'_>) -> Option<Vec<Call>> {
        let mut left = predicted.launches();
        let mut calls = Vec::new();
        for recorded in &self.calls {
            let at = left.iter().position(|s| (s.rank, s.step) == (recorded.rank, recorded.step))?;
            calls.extend(call(&left.remove(at), recorded.measured_s));
        }
        Some(calls)
    }

    fn measured(&self, calls: Vec<Call>) -> Measured {
        Measured {
            makespan_s: self.measured_s,
            spread: self.spread,
            bubble_ratio: self.measured_bubble_ratio,
            exposed_s: self.measured_exposed_s,
            calls,
            load: self.load,
            loaded_s: self.loaded_s,
            duty: self.duty,
        }
    }
}

/// Predicts every point, as loaded as it was measured, and holds it against what was measured, until `progress` says to stop.
/// Virtual ranks are predicted on the links of `links`: their measured makespans are computations that were put on such ones. What
/// has no plan or no prediction is left out, and said.
pub fn predict_anew(
    points: &[RecordedPoint],
    (cluster, links): (&Cluster, &Cluster),
    progress: &mut dyn FnMut(usize, &Point) -> bool,
) -> Report {
    let (mut compared, mut left_out) = (Vec::new(), Vec::new());
    let mut reached = points.len();
    for (i, recorded) in points.iter().enumerate() {
        let point = recorded.point();
        if !progress(i, &point) {
            reached = i;
            break;
        }
        match compare(recorded, &point, (cluster, links)) {
            Ok((done, has_its_calls)) => {
                if !has_its_calls {
                    left_out.push(format!("the steps of {point}: the plan of today has other calls"));
                }
                compared.push(done);
            }
            Err(reason) => left_out.push(format!("{point}: {reason}")),
        }
    }
    let not_reached = points[reached..].iter().map(|recorded| recorded.point().to_string()).collect();
    Report { not_reached, ..Report::of(compared, left_out) }
}

/// Predicts one point, and whether the plan has the calls that were recorded; or why there is no prediction.
fn compare(
    recorded: &RecordedPoint,
    point: &Point,
    (cluster, links): (&Cluster, &Cluster),
) -> Result<(Compared, bool), String> {
    let mut cluster = on_enough(cluster, point);
    if point.launching == Launching::Virtual {
        (cluster.fabric, cluster.network) = (links.fabric.clone(), links.network.clone());
    }
    let plan = point.plan().map_err(|error| error.to_string())?;
    let predicted =
        Predicted::of((&plan, point.launching), &cluster, recorded.load).map_err(|error| match error {
            SimError::Kernel(NoKernel { .. }) => "the cluster has no kernel for it".into(),
            other => other.to_string(),
        })?;
    let calls = recorded.calls(&predicted);
    let has_its_calls = calls.is_some();
    Ok((predicted.against(point, recorded.measured(calls.unwrap_or_default())), has_its_calls))
}
