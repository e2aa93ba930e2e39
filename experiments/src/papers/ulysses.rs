//! DeepSpeed-Ulysses (arXiv 2309.14509): throughput of 7B and 30B against Megatron-LM and Colossal-AI.

use anyhow::{Result, bail};
use ringlab_sim::config::model::Model;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::{
    AttentionKernel, Checkpointing, Context, Grid, Materialised, Sharding, Stack, Training, predict,
};
use serde::Deserialize;

use super::row::{Cell, Row};
use super::setup::Setup;
use super::{printed, tokens};

#[derive(Deserialize)]
struct Point {
    model: String,
    gpus: u64,
    method: String,
    seq: String,
    #[serde(rename = "TFLOPs_per_gpu_DIGITISED")]
    printed: String,
}

const MODEL_7B: &str = r#"
name = "GPT-7B"
source = "assumed: 32 layers of 4096, 32 heads; the paper prints the size only"
layers = 32
hidden = 4096
heads = 32
intermediate = 16384
vocab = 50304
gated_mlp = false
"#;

const MODEL_30B: &str = r#"
name = "GPT-30B"
source = "assumed: 64 layers of 6144, 64 heads, which 64 ranks can share; the paper prints the size only"
layers = 64
hidden = 6144
heads = 64
intermediate = 24576
vocab = 50304
gated_mlp = false
"#;

/// Dense attention: no mask.
fn dense(training: &Training) -> Training {
    Training {
        context: Context { causal: false, ..training.context },
        checkpointing: Checkpointing::FullLayer,
        stack: Stack::MEGATRON,
        ..*training
    }
}

fn training(setup: &Setup, point: &Point) -> Result<Training> {
    let (gpus, seq) = (point.gpus, tokens(&point.seq)?);
    let ring = |grid| dense(&Training::new(grid, seq, Schedule::Ring));
    Ok(match point.method.as_str() {
        "Ulysses" => {
            let batch = (setup.value("Ulysses tokens a step")? as u64 / seq).max(1);
            Training { micro_batch: batch, ..ring(Grid::ulysses(gpus)) }
        }
        "Megatron-LM SP" => {
            let tp = setup.value(&format!("Megatron tensor degree at {}", point.model))? as u64;
            let checkpointing = if tp == gpus { Checkpointing::None } else { Checkpointing::FullLayer };
            Training {
                checkpointing,
                sharding: Sharding::None,
                gradient_bytes: 4,
                overlap_gradients: false,
                ..ring(Grid { dp: gpus / tp, ..Grid::tensor(tp) })
            }
        }
        "ColAI-SP" => {
            let sp = setup.value(&format!("ColAI sequence degree at {}", point.model))? as u64;
            let kernel = AttentionKernel::Materialised(Materialised::FUSED_SOFTMAX);
            let base = ring(Grid { dp: gpus / sp, ..Grid::ring(sp) });
            Training { context: Context { kernel, ..base.context }, ..base }
        }
        other => bail!("no method {other:?}"),
    })
}

/// FLOPs that run in an iteration: Megatron's formula, four forwards with recomputation and three without.
fn flops(model: &Model, training: &Training) -> f64 {
    let (s, h) = (training.seq as f64, model.hidden as f64);
    let sequences = (training.micro_batch * training.micro_batches * training.grid.dp) as f64;
    let layers = model.layers as f64;
    let dense = 2.0 * (model.attention_weights() + model.mlp_weights()) as f64;
    let layer = dense + 4.0 * s * h;
    let passes = if training.checkpointing == Checkpointing::FullLayer { 4.0 } else { 3.0 };
    sequences * s * (passes * layers * layer + 6.0 * h * model.vocab as f64)
}

const CHOICES: &str = "batch, degrees and the shape of the models are not printed; for Colossal-AI neither are the \
                       operations around the score matrix";

pub fn rows(setup: &Setup) -> Result<Vec<Row>> {
    let models = [Model::parse("7B", MODEL_7B)?, Model::parse("30B", MODEL_30B)?];
    let mut rows = Vec::new();
    for r in printed::<Point>(include_str!("../../papers/ulysses/throughput.csv"))? {
        // One bar is hidden by the legend, one is a range.
        let text = r.printed.trim_start_matches('~');
        let published = match text.split_once('-') {
            Some((low, high)) => Cell::Number(low.parse::<f64>()?.midpoint(high.parse()?)),
            None => match Cell::parse(text) {
                Some(cell) => cell,
                None => continue,
            },
        };
        let model = &models[usize::from(r.model == "30B")];
        let cluster = setup.cluster(&r.gpus.to_string())?;
        let training = training(setup, &r)?;
        let found = predict(model, &cluster, &training)?;
        let rate = flops(model, &training) / found.time.total.as_secs_f64() / r.gpus as f64 / 1e12;
        let predicted = if found.memory.over.is_some() { Cell::Oom } else { Cell::Number(rate) };
        let case = format!("{} on {}, {}", r.model, r.gpus, r.seq);
        let draft = Row::of("throughput", case, &r.method, "TFLOP/s a GPU");
        rows.push(draft.because(CHOICES).judge(published, predicted));
    }
    Ok(rows)
}
