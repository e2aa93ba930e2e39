//! `ringlab train`: one training iteration, its time part by part and its memory.

mod table;

use anyhow::Result;
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::config::model::Model;
use ringlab_sim::training::{
    Context, Grid, KernelFamily, Longest, Moment, Passes, Prediction, Training, longest, over_time, predict,
    work,
};
use serde::Serialize;

use super::Outcome;
use crate::args::TrainArgs;
use crate::output::{self, FORMAT_VERSION};
use crate::presets;

/// What was asked, and what it gives.
pub struct Iteration {
    /// The model.
    pub model: Model,
    /// The cluster, with the kernels that were asked for.
    pub cluster: Cluster,
    /// The iteration.
    pub training: Training,
    /// Its time and memory.
    pub prediction: Prediction,
    /// The longest sequences that fit.
    pub longest: Longest,
    /// Memory phase by phase.
    pub moments: Vec<Moment>,
}

/// A part of the time or of the memory.
#[derive(Serialize)]
struct Part {
    /// `time` or `memory`.
    kind: &'static str,
    part: &'static str,
    seconds: Option<f64>,
    bytes: Option<u64>,
}

#[derive(Serialize)]
struct MomentRow {
    phase: ringlab_sim::training::Phase,
    layers: u64,
    at_s: f64,
    fixed_bytes: u64,
    activations_bytes: u64,
    attention_bytes: u64,
    logits_bytes: u64,
    working_bytes: u64,
    total_bytes: u64,
}

#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    cluster: &'a str,
    model: &'a str,
    gpus: u64,
    padding: u64,
    training: &'a Training,
    iteration_s: f64,
    tokens_per_s: f64,
    mfu: f64,
    parts: &'a [Part],
    memory_bytes: u64,
    capacity_bytes: u64,
    fits: bool,
    over_bytes: Option<u64>,
    longest_seq: u64,
    longest_power_of_two: u64,
    over_time: Vec<MomentRow>,
}

/// Predicts the iteration.
pub fn run(args: &TrainArgs) -> Result<Outcome> {
    let iteration = Iteration::of(args)?;
    let parts = iteration.parts();
    output::emit(&args.out, || table::table(&iteration, args.over_time), &iteration.report(&parts), &parts)?;
    Ok(Outcome::Fine)
}

fn training(args: &TrainArgs, gpus: u64) -> Training {
    let others = args.tp * args.dp * args.pp;
    let cp = args.cp.unwrap_or((gpus / others).max(1));
    let grid = Grid {
        tp: args.tp,
        cp,
        ulysses: args.ulysses,
        ring: (cp / args.ulysses).max(1),
        dp: args.dp,
        pp: args.pp,
        interleave: args.interleave,
        experts: args.experts,
    };
    let transport = args.transport.into();
    Training {
        micro_batch: args.micro_batch,
        micro_batches: args.micro_batches,
        context: Context { transport, prefetch: args.prefetch, ..Context::new(args.schedule) },
        sequence_parallel: !args.no_sequence_parallel,
        pad_heads: args.pad_heads,
        sharding: args.zero.into(),
        checkpointing: args.checkpointing.into(),
        stack: args.stack.into(),
        passes: if args.forward_only { Passes::Forward } else { Passes::ForwardBackward },
        ..Training::new(grid, args.seq.0, args.schedule)
    }
}

impl Iteration {
    fn of(args: &TrainArgs) -> Result<Self> {
        let (cluster, model) = (presets::cluster(&args.cluster)?, presets::model(&args.model)?);
        let cluster = args.kernels.map_or(cluster.clone(), |k| KernelFamily::from(k).on(&cluster));
        let training = training(args, u64::from(cluster.gpus()));
        let prediction = predict(&model, &cluster, &training)?;
        let longest = longest(&model, &cluster, &training)?;
        let moments = over_time(&model, &cluster, &training)?;
        Ok(Self { model, cluster, training, prediction, longest, moments })
    }

    /// Tokens of an iteration.
    pub fn tokens(&self) -> u64 {
        let t = &self.training;
        t.seq * t.micro_batch * t.micro_batches * t.grid.dp
    }

    /// Tokens that a sequence is padded with to fit the schedule's layout.
    pub fn padding(&self) -> u64 {
        let t = &self.training;
        t.context.schedule.layout().pad(&[t.seq], t.grid.ring as u32).padding()
    }

    /// Tokens a second, without padding.
    pub fn rate(&self) -> f64 {
        self.tokens() as f64 / self.prediction.time.total.as_secs_f64()
    }

    /// Model FLOPs over what all GPUs could do at their bf16 peak.
    pub fn mfu(&self) -> f64 {
        let peak = self.cluster.device.peak.bf16.0 * f64::from(self.cluster.gpus());
        let flops = work::model_flops(&self.model, &self.training).0;
        flops / (self.prediction.time.total.as_secs_f64() * peak)
    }

    fn parts(&self) -> Vec<Part> {
        let time = |(part, t): (&'static str, ringlab_sim::units::SimTime)| Part {
            kind: "time",
            part,
            seconds: Some(t.as_secs_f64()),
            bytes: None,
        };
        let memory = |(part, b): (&'static str, ringlab_sim::units::Bytes)| Part {
            kind: "memory",
            part,
            seconds: None,
            bytes: Some(b.0),
        };
        let (times, bytes) = (table::times(&self.prediction.time), table::memory(&self.prediction.memory));
        times.into_iter().map(time).chain(bytes.into_iter().map(memory)).collect()
    }

    fn report<'a>(&'a self, parts: &'a [Part]) -> Report<'a> {
        let memory = &self.prediction.memory;
        let moment = |m: &Moment| MomentRow {
            phase: m.phase,
            layers: m.layers,
            at_s: m.at.as_secs_f64(),
            fixed_bytes: m.fixed.0,
            activations_bytes: m.activations.0,
            attention_bytes: m.attention.0,
            logits_bytes: m.logits.0,
            working_bytes: m.working.0,
            total_bytes: m.total().0,
        };
        Report {
            version: FORMAT_VERSION,
            cluster: &self.cluster.name,
            model: &self.model.name,
            gpus: self.training.grid.gpus(),
            padding: self.padding(),
            training: &self.training,
            iteration_s: self.prediction.time.total.as_secs_f64(),
            tokens_per_s: self.rate(),
            mfu: self.mfu(),
            parts,
            memory_bytes: memory.total.0,
            capacity_bytes: memory.capacity.0,
            fits: memory.over.is_none(),
            over_bytes: memory.over.map(|b| b.0),
            longest_seq: self.longest.exact,
            longest_power_of_two: self.longest.power_of_two,
            over_time: self.moments.iter().map(moment).collect(),
        }
    }
}
