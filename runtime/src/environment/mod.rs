//! The variables by which NCCL and CUDA are told how to move and queue work, and which of their settings hurts a plan.
//!
//! Nothing here reads the process's environment: variables are given, so that what is said of them can be tested. What a
//! setting costs is taken from the cluster's own figures (rate and SMs of an NCCL transfer) and from what was measured on
//! two H200s with NCCL 2.28 (see [`advise`]).

mod collectives;
mod queues;
mod transfers;

use std::collections::BTreeMap;

use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::{OpKind, Plan, Rank, Transport};
use ringlab_sim::units::BytesPerSec;
use serde::Serialize;

/// Environment variables by name.
pub type Variables = BTreeMap<String, String>;

/// Variables of CUDA that decide speed; of NCCL and its PyTorch wrapper every variable is recorded.
const CUDA: [&str; 5] = [
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
];

/// Hardware queues that the GPU executor's streams need: with fewer, streams share one and wait for each other.
pub const QUEUES: u32 = 16;

/// What the advice depends on.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The plan that runs.
    pub plan: &'a Plan,
    /// Figures of its run, measured or predicted: how long ranks compute says how fast their transfers must be.
    pub metrics: Option<&'a Metrics>,
    /// Rates, SMs and GPUs of a node.
    pub cluster: &'a Cluster,
    /// Ranks, and so GPUs, that this process drives.
    pub ranks_here: u32,
    /// Nodes that the ranks are on.
    pub nodes: u32,
    /// Whether attention runs as one grid that holds every SM from its first step to its last.
    pub persistent: bool,
    /// The most CTAs of a transfer, where an option says so; it wins over the variables.
    pub max_ctas: Option<u32>,
}

/// A variable as it was set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A setting that hurts a plan, or that is there without effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The variable.
    pub variable: String,
    /// Its value; `None` if the trouble is that it is not set.
    pub value: Option<String>,
    /// What it does to this plan.
    pub effect: String,
    /// What to set instead.
    pub instead: String,
}

/// The variables of NCCL and CUDA among `all`, by name.
pub fn recorded(all: &Variables) -> Vec<Variable> {
    let counts =
        |name: &str| name.starts_with("NCCL_") || name.starts_with("TORCH_NCCL_") || CUDA.contains(&name);
    let kept = all.iter().filter(|(name, _)| counts(name));
    kept.map(|(name, value)| Variable { name: name.clone(), value: value.clone() }).collect()
}

/// Which settings hurt the plan, and why; in the order of [`recorded`], missing settings last.
///
/// Measured on two H200s (132 SMs, NCCL 2.28) with a persistent attention kernel beside a transfer: an exchange by NCCL
/// with its default of 32 CTAs is exposed to 94%, with `NCCL_MAX_CTAS=8` and a stream of high priority to 7-17% of an
/// exchange that takes 1.7 to 2.6 times as long; one by copy engine, to 5-29%.
pub fn advise(variables: &Variables, situation: &Situation<'_>) -> Vec<Advice> {
    let mut advice = Vec::new();
    for (name, value) in variables {
        let found = queues::of(name, value, situation)
            .or_else(|| transfers::of(name, value, variables, situation))
            .or_else(|| collectives::of(name, value, situation));
        if let Some((effect, instead)) = found {
            advice.push(Advice { variable: name.clone(), value: Some(value.clone()), effect, instead });
        }
    }
    advice.extend(transfers::missing(variables, situation));
    advice.extend(queues::missing(variables, situation));
    advice
}

/// What a setting does, and what to set instead.
type Finding = (String, String);

fn finding(effect: impl Into<String>, instead: impl Into<String>) -> Finding {
    (effect.into(), instead.into())
}

impl Situation<'_> {
    fn uses_nccl(&self) -> bool {
        self.plan.transport == Transport::Nccl && self.communicates()
    }

    fn communicates(&self) -> bool {
        !self.plan.messages.is_empty()
    }

    /// The rate at which transfers must arrive to stay behind computing: the largest, over ranks, of the bytes that a rank
    /// receives over the time that it computes. With equal steps that is a step's bytes over its compute time.
    fn needed_rate(&self) -> Option<BytesPerSec> {
        let metrics = self.metrics?;
        let received = |rank: Rank| {
            let ops = &self.plan.programs[rank as usize].ops;
            let bytes = ops.iter().filter_map(|op| match op.kind {
                OpKind::Recv { message, .. } => Some(self.plan.message(message).bytes.0),
                _ => None,
            });
            bytes.sum::<u64>() as f64
        };
        let rates = (0..).zip(&metrics.ranks).map(|(rank, times)| received(rank) / times.busy.as_secs_f64());
        rates.filter(|r| r.is_finite()).max_by(f64::total_cmp).map(BytesPerSec)
    }

    /// What one CTA of an NCCL transfer carries inside a node, by the cluster's figures.
    fn rate_of_a_cta(&self) -> Option<BytesPerSec> {
        let nccl = &self.cluster.fabric.nccl;
        (nccl.sms > 0).then(|| BytesPerSec(nccl.bandwidth.0 / f64::from(nccl.sms)))
    }

    /// CTAs that the needed rate takes.
    fn needed_ctas(&self) -> Option<u32> {
        let (needed, each) = (self.needed_rate()?, self.rate_of_a_cta()?);
        Some((needed.0 / each.0).ceil().max(1.0) as u32)
    }

    /// Communication lanes of the rank that has most of them.
    fn lanes(&self) -> usize {
        let lanes = self.plan.programs.iter().map(|program| {
            let mut lanes: Vec<u8> = program.ops.iter().map(|op| op.lane.0).collect();
            lanes.sort_unstable();
            lanes.dedup();
            lanes.len()
        });
        lanes.max().unwrap_or(0)
    }
}

/// A switch as NCCL and CUDA read it: any number but 0 is on.
fn is_on(value: &str) -> bool {
    value.trim().parse::<i64>().is_ok_and(|n| n != 0)
}

fn number(value: &str) -> Option<u64> {
    value.trim().parse().ok()
}
