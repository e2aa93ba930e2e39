//! Ring Self-Attention (arXiv 2105.13120): BERT in weak scaling, tensor against sequence parallelism.

use anyhow::Result;
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::config::model::Model;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::{
    AttentionKernel, Checkpointing, Context, Grid, Materialised, Sharding, Stack, Training, predict,
};
use ringlab_sim::units::FlopsPerSec;
use serde::Deserialize;

use super::printed;
use super::row::{Cell, Row};
use super::setup::Setup;

#[derive(Deserialize)]
#[allow(non_snake_case, reason = "column names as printed")]
struct Point {
    parallel_size: u64,
    batch: u64,
    seq: u64,
    TP_mem_MB: String,
    TP_tokens_s: String,
    SP_mem_MB: String,
    SP_tokens_s: String,
}

const BERT: &str = r#"
name = "BERT Base"
source = "arXiv 1810.04805"
layers = 12
hidden = 768
heads = 12
intermediate = 3072
vocab = 30522
tied_embeddings = true
gated_mlp = false
"#;

/// Mixed precision, layers computed again.
fn training(grid: Grid, point: &Point) -> Training {
    let kernel = AttentionKernel::Materialised(Materialised::MEGATRON);
    Training {
        context: Context { causal: false, kernel, ..Context::new(Schedule::Ring) },
        micro_batch: point.batch,
        sequence_parallel: false,
        pad_heads: true,
        sharding: Sharding::None,
        checkpointing: Checkpointing::FullLayer,
        stack: Stack::MEGATRON,
        ..Training::new(grid, point.seq, Schedule::Ring)
    }
}

/// Weak scaling runs on as many nodes as it has ranks.
fn part(cluster: &Cluster, gpus: u64) -> Cluster {
    Cluster { nodes: gpus as u32, ..cluster.clone() }
}

/// Megabytes: weights, fp16 logits, the kept inputs of all layers, and one layer at work: Megatron's 34 bytes an element
/// and its scores. Tensor parallelism cuts weights, logits and the inside of a layer; sequence parallelism cuts all but
/// the weights.
fn megabytes(setup: &Setup, model: &Model, point: &Point, tensor: bool) -> Result<f64> {
    let p = point.parallel_size as f64;
    let tokens = (point.batch * point.seq) as f64 / if tensor { 1.0 } else { p };
    let cut = if tensor { p } else { 1.0 };
    let h = model.hidden as f64;
    let state = setup.value("bytes a weight")? * model.parameters() as f64 / cut;
    let logits = 2.0 * tokens * model.vocab as f64 / cut;
    let kept = 2.0 * tokens * h * model.layers as f64;
    let scores = setup.value("bytes a score element")? * tokens * (point.seq * model.heads) as f64 / cut;
    let layer = tokens * h * (10.0 + 24.0 / cut) + scores;
    Ok((state + logits + kept + layer) / 1e6)
}

const UNKNOWN: &str = "the table says neither the precision nor what its memory figure counts";

pub fn rows(setup: &Setup) -> Result<Vec<Row>> {
    let model = Model::parse("bert", BERT)?;
    let mut cluster = setup.cluster("P100")?;
    cluster.device.reached.matmul = FlopsPerSec(1e12 * setup.value("matmul TFLOP/s")?);
    let capacity = cluster.device.memory.0 as f64 / 1e6;
    let mut rows = Vec::new();
    for r in printed::<Point>(include_str!("../../papers/ring-self-attention/weak_scaling.csv"))? {
        let p = r.parallel_size;
        for (what, grid, memory, rate) in [
            ("tensor parallelism", Grid::tensor(p), &r.TP_mem_MB, &r.TP_tokens_s),
            ("sequence parallelism", Grid::ring(p), &r.SP_mem_MB, &r.SP_tokens_s),
        ] {
            let case = format!("{p} x P100, batch {}, sequence {}, {what}", r.batch, r.seq);
            let needed = megabytes(setup, &model, &r, what.starts_with("tensor"))?;
            let fits = needed <= capacity;
            let time = predict(&model, &part(&cluster, p), &training(grid, &r))?.time.total;
            let tokens_per_second = (r.batch * r.seq) as f64 / time.as_secs_f64();
            let or_oom = |value| if fits { Cell::Number(value) } else { Cell::Oom };
            let cell = |text: &str| Cell::parse(text).unwrap_or(Cell::Oom);
            let fitted = p == 1 && r.seq == 512 && what.starts_with("tensor");
            let longest = p == 8 && r.seq == 2048 && !what.starts_with("tensor");
            let row = |quantity, unit| Row::of("table 4", &case, quantity, unit);
            rows.push(
                row("memory", "MB").because(UNKNOWN).fitted(longest).judge(cell(memory), or_oom(needed)),
            );
            rows.push(
                row("rate", "tokens/s")
                    .because(UNKNOWN)
                    .fitted(fitted)
                    .judge(cell(rate), or_oom(tokens_per_second)),
            );
        }
    }
    Ok(rows)
}
