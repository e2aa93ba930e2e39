//! Megatron's sequence parallelism and selective recomputation (arXiv 2205.05198): a layer, and iterations.

use anyhow::{Context as _, Result};
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::config::model::Model;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::{
    AttentionKernel, Checkpointing, Context, Grid, Materialised, Sharding, Stack, Training, iteration, layer,
};
use serde::Deserialize;

use super::printed;
use super::row::Row;
use super::setup::Setup;

const SEQ: u64 = 2048;
const TENSOR: u64 = 8;
const PEAK: f64 = 312e12;

/// A model of the paper's table 3 and how it was cut.
struct Run {
    name: &'static str,
    layers: u64,
    hidden: u64,
    heads: u64,
    pp: u64,
    interleave: u64,
    micro_batch: u64,
    micro_batches: u64,
}

const RUNS: [Run; 4] = [
    Run {
        name: "22B",
        layers: 48,
        hidden: 6144,
        heads: 64,
        pp: 1,
        interleave: 1,
        micro_batch: 4,
        micro_batches: 1,
    },
    Run {
        name: "175B",
        layers: 96,
        hidden: 12288,
        heads: 96,
        pp: 8,
        interleave: 3,
        micro_batch: 1,
        micro_batches: 64,
    },
    Run {
        name: "530B",
        layers: 105,
        hidden: 20480,
        heads: 128,
        pp: 35,
        interleave: 3,
        micro_batch: 1,
        micro_batches: 280,
    },
    Run {
        name: "1T",
        layers: 128,
        hidden: 25600,
        heads: 160,
        pp: 64,
        interleave: 1,
        micro_batch: 1,
        micro_batches: 512,
    },
];

impl Run {
    fn model(&self) -> Result<Model> {
        let Self { name, layers, hidden, heads, .. } = self;
        let text = format!(
            "name = \"{name}\"\nsource = \"arXiv 2205.05198, table 3\"\nlayers = {layers}\nhidden = {hidden}\n\
             heads = {heads}\nintermediate = {}\nvocab = 51200\ngated_mlp = false\ntied_embeddings = true\n",
            4 * hidden
        );
        Ok(Model::parse(name, &text)?)
    }

    fn training(&self, sequence_parallel: bool, checkpointing: Checkpointing, dp: u64) -> Training {
        let kernel = AttentionKernel::Materialised(Materialised::MEGATRON);
        let grid = Grid { dp, pp: self.pp, interleave: self.interleave, ..Grid::tensor(TENSOR) };
        Training {
            context: Context { kernel, ..Context::new(Schedule::Ring) },
            sequence_parallel,
            checkpointing,
            micro_batch: self.micro_batch,
            micro_batches: self.micro_batches,
            sharding: Sharding::None,
            stack: Stack::MEGATRON,
            gradient_bytes: 4,
            overlap_gradients: false,
            ..Training::new(grid, SEQ, Schedule::Ring)
        }
    }

    fn cluster(&self, setup: &Setup, dp: u64) -> Result<Cluster> {
        let cluster = setup.cluster("selene")?;
        Ok(Cluster { nodes: (dp * self.pp) as u32, ..cluster })
    }
}

pub fn rows(setup: &Setup) -> Result<Vec<Row>> {
    let mut rows = table4(setup)?;
    rows.append(&mut iterations(setup)?);
    Ok(rows)
}

#[derive(Deserialize)]
struct Table4 {
    config: String,
    fwd_ms: f64,
    bwd_ms: f64,
    combined_ms: f64,
}

fn table4(setup: &Setup) -> Result<Vec<Row>> {
    let run = &RUNS[0];
    let (model, cluster) = (run.model()?, run.cluster(setup, 1)?);
    let mut rows = Vec::new();
    for r in printed::<Table4>(include_str!("../../papers/megatron-sp/table4_layer.csv"))? {
        let (parallel, checkpointing) = match r.config.as_str() {
            "baseline (no recompute)" => (false, Checkpointing::None),
            name if name.starts_with("sequence parallel") => (true, Checkpointing::None),
            "full recompute" => (false, Checkpointing::FullLayer),
            "selective recompute" => (false, Checkpointing::Selective),
            _ => (true, Checkpointing::Selective),
        };
        let times = layer(&model, &cluster, &run.training(parallel, checkpointing, 1))?;
        let there = 1e3 * times.forward.total().as_secs_f64();
        let back = 1e3 * (times.backward.total() + times.recompute.total()).as_secs_f64();
        let row = |what| Row::of("table 4", &r.config, what, "ms");
        rows.push(row("forward").numbers(r.fwd_ms, there));
        rows.push(row("backward").numbers(r.bwd_ms, back));
        rows.push(row("both").numbers(r.combined_ms, there + back));
    }
    Ok(rows)
}

#[derive(Deserialize)]
struct Iteration {
    model: String,
    iter_s_full_recompute: Option<f64>,
    iter_s_present_work: f64,
    throughput_gain: String,
    #[serde(rename = "MFU")]
    mfu: String,
}

const SUSTAINED: &str = "products are taken at 265 TFLOP/s, a short run's rate; under hours of load at the power limit the \
                         clock falls, and the larger the model the larger the products' share";

fn iterations(setup: &Setup) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for r in printed::<Iteration>(include_str!("../../papers/megatron-sp/iteration.csv"))? {
        let name = r.model.split(' ').next().unwrap_or_default();
        let run = RUNS.iter().find(|run| run.name == name).context("a model of the table")?;
        let dp = if r.model.contains("DP8") { 8 } else { 1 };
        let (model, cluster) = (run.model()?, run.cluster(setup, dp)?);
        let seconds = |parallel, checkpointing| -> Result<f64> {
            let training = run.training(parallel, checkpointing, dp);
            Ok(iteration(&model, &cluster, &training)?.total.as_secs_f64())
        };
        let present = seconds(true, Checkpointing::Selective)?;
        let row = |what, unit| Row::of("table 5", &r.model, what, unit).because(SUSTAINED);
        if let Some(full) = r.iter_s_full_recompute {
            let recomputed = seconds(false, Checkpointing::FullLayer)?;
            rows.push(row("iteration, full recomputation", "s").numbers(full, recomputed));
            let gain: f64 = r.throughput_gain.trim_end_matches('%').parse()?;
            rows.push(row("speed-up over it", "x").numbers(1.0 + gain / 100.0, recomputed / present));
        }
        rows.push(
            row("iteration, selective and sequence parallel", "s").numbers(r.iter_s_present_work, present),
        );
        let mfu: f64 = r.mfu.trim_end_matches('%').parse()?;
        let gpus = f64::from(cluster.gpus());
        let utilisation = 100.0 * model_flops(&model, run, dp) / (present * gpus * PEAK);
        rows.push(row("MFU", "%").numbers(mfu, utilisation));
    }
    Ok(rows)
}

/// Model FLOPs of an iteration, the paper's appendix A: 72 B L s h^2 (1 + s/6h + V/12hL).
fn model_flops(model: &Model, run: &Run, dp: u64) -> f64 {
    let (l, s, h) = (model.layers as f64, SEQ as f64, model.hidden as f64);
    let batch = (run.micro_batch * run.micro_batches * dp) as f64;
    72.0 * batch * l * s * h * h * (1.0 + s / (6.0 * h) + model.vocab as f64 / (12.0 * h * l))
}
