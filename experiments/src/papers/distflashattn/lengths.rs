//! How long a sequence fits, and what memory the stages of a pipeline need.

use anyhow::Result;
use ringlab_sim::config::model::Model;
use ringlab_sim::training::{Grid, Sharding, Training, longest, stage_memory};
use serde::Deserialize;

use super::{distflash, megatron, ring_self_attention};
use crate::papers::row::Row;
use crate::papers::setup::Setup;
use crate::papers::{printed, tokens};
use crate::presets;

const GPUS: u64 = 16;
const MODELS: [(&str, u64); 4] = [("LLaMA-16H", 16), ("LLaMA-8H", 8), ("LLaMA-4H", 4), ("LLaMA-2H", 2)];

#[derive(Deserialize)]
struct Table2 {
    method: String,
    #[serde(rename = "LLaMA-16H")]
    h16: String,
    #[serde(rename = "LLaMA-8H")]
    h8: String,
    #[serde(rename = "LLaMA-4H")]
    h4: String,
    #[serde(rename = "LLaMA-2H")]
    h2: String,
}

/// The tensor degree is the number of heads; what is left is data or pipeline parallelism.
fn method(name: &str, heads: u64) -> Training {
    match name {
        // The replicas share the optimiser's state, Megatron's distributed optimizer.
        "Megatron TP+DP" => Training {
            sharding: Sharding::Optimizer,
            ..megatron(Grid { dp: GPUS / heads, ..Grid::tensor(heads) }, 0)
        },
        "Megatron TP+PP" => {
            let pp = GPUS / heads;
            Training { micro_batches: pp, ..megatron(Grid { pp, ..Grid::tensor(heads) }, 0) }
        }
        _ => distflash(GPUS, 0),
    }
}

pub fn table2(setup: &Setup) -> Result<Vec<Row>> {
    let cluster = setup.cluster("16xA100-40GB")?;
    let mut rows = Vec::new();
    for r in printed::<Table2>(include_str!("../../../papers/distflashattn/table2_max_length.csv"))? {
        for ((name, heads), cell) in MODELS.iter().zip([&r.h16, &r.h8, &r.h4, &r.h2]) {
            let found = longest(&presets::model(name)?, &cluster, &method(&r.method, *heads))?;
            let draft = Row::of("table 2", format!("{name}, {}", r.method), "longest sequence", "tokens");
            let near = "at 512K the model fills 92% of the memory; the allocator's fragmentation decides, which it does not have";
            rows.push(draft.because(near).numbers(tokens(cell)? as f64, found.power_of_two as f64));
        }
    }
    Ok(rows)
}

#[derive(Deserialize)]
#[allow(non_snake_case, reason = "column names as printed")]
struct Table3 {
    nodes: u64,
    max_len_RSA: String,
    max_len_DFA: String,
}

pub fn table3(setup: &Setup, model: &Model) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for r in printed::<Table3>(include_str!("../../../papers/distflashattn/table3_vs_rsa.csv"))? {
        let cluster = setup.cluster(if r.nodes == 1 { "1x8" } else { "2x8" })?;
        let gpus = u64::from(cluster.gpus());
        let case = format!("{} node(s)", r.nodes);
        let rsa = longest(model, &cluster, &ring_self_attention(setup, gpus, 0)?)?.power_of_two;
        let draft = Row::of("table 3", &case, "longest sequence, Ring Self-Attention", "tokens");
        rows.push(draft.numbers(tokens(&r.max_len_RSA)? as f64, rsa as f64));
        let at_least = tokens(&r.max_len_DFA)?;
        let ours = longest(model, &cluster, &distflash(gpus, 0))?.power_of_two;
        let draft =
            Row::of("table 3", &case, "longest sequence, DistFlashAttn (printed: more than)", "tokens");
        // Printed as a lower limit: anything from there on agrees.
        rows.push(draft.numbers(at_least as f64, if ours > at_least { at_least } else { ours } as f64));
    }
    Ok(rows)
}

#[derive(Deserialize)]
struct Table6 {
    node: u64,
    gpu0: f64,
    gpu1: f64,
    gpu2: f64,
    gpu3: f64,
    gpu4: f64,
    gpu5: f64,
    gpu6: f64,
    gpu7: f64,
}

/// Pipeline of eight stages, two GPUs each, at the longest sequence of table 2.
pub fn table6(setup: &Setup) -> Result<Vec<Row>> {
    let (cluster, model) = (setup.cluster("16xA100-40GB")?, presets::model("LLaMA-2H")?);
    let training = Training { seq: 128 * 1024, ..method("Megatron TP+PP", 2) };
    let mut rows = Vec::new();
    for r in printed::<Table6>(include_str!("../../../papers/distflashattn/table6_memory.csv"))? {
        let cells = [r.gpu0, r.gpu1, r.gpu2, r.gpu3, r.gpu4, r.gpu5, r.gpu6, r.gpu7];
        for (gpu, cell) in (0u64..).zip(cells) {
            let stage = (r.node - 1) * 4 + gpu / 2;
            let memory = stage_memory(&model, &cluster, &training, stage)?;
            let case = format!("node {} GPU {gpu}", r.node);
            let draft = Row::of("table 6", case, "memory", "GB");
            rows.push(draft.numbers(cell, memory.total.0 as f64 / 1e9));
        }
    }
    Ok(rows)
}
