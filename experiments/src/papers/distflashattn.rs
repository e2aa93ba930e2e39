//! DistFlashAttn (arXiv 2310.03294v2): iterations, lengths, memory and ablations.

mod ablations;
mod lengths;

use anyhow::Result;
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::config::model::Model;
use ringlab_sim::plan::Partials;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::{
    AttentionKernel, Checkpointing, Context, Grid, Materialised, Sharding, Stack, Training, predict,
};
use ringlab_sim::units::SimTime;
use serde::Deserialize;

use super::row::Row;
use super::setup::Setup;
use super::{printed, tokens};
use crate::presets;

pub use ablations::lightseq;

/// All tables.
pub fn rows(setup: &Setup) -> Result<Vec<Row>> {
    let mut rows = table1(setup)?;
    rows.append(&mut lengths::table2(setup)?);
    rows.append(&mut table3(setup)?);
    rows.append(&mut table4(setup)?);
    rows.append(&mut table5(setup)?);
    rows.append(&mut lengths::table6(setup)?);
    rows.append(&mut ablations::rows(setup)?);
    Ok(rows)
}

/// Helpers' schedule with FSDP and rematerialisation-aware checkpointing, as released: fp16 on the wire, HuggingFace's
/// layers.
pub(super) fn distflash(gpus: u64, seq: u64) -> Training {
    Training {
        context: Context { partials: Partials::Element, ..Context::new(Schedule::DistFlash) },
        checkpointing: Checkpointing::RematAware,
        stack: Stack::EAGER,
        ..Training::new(Grid::ring(gpus), seq, Schedule::DistFlash)
    }
}

/// Megatron-LM with tensor and sequence parallelism over all GPUs, padded heads and full recomputation.
fn megatron(grid: Grid, seq: u64) -> Training {
    Training {
        checkpointing: Checkpointing::FullLayer,
        stack: Stack { dropout: false, ..Stack::MEGATRON },
        pad_heads: true,
        sharding: Sharding::None,
        ..Training::new(grid, seq, Schedule::Ring)
    }
}

/// The model that runs where `ranks` ranks share the heads: dummy heads up to their multiple, and a residual stream as wide
/// as all heads. The paper names the heads only; its padded rows take 1.23-1.24 and 1.44-1.51 times as long as those
/// without padding at every length, so products and collectives grow with attention.
fn padded(model: &Model, ranks: u64) -> Model {
    let heads = model.heads.next_multiple_of(ranks);
    if heads == model.heads {
        return model.clone();
    }
    let kv_heads = if model.kv_heads == model.heads { heads } else { model.kv_heads };
    Model { hidden: heads * model.head_dim, heads, kv_heads, ..model.clone() }
}

/// DeepSpeed-Ulysses with FSDP and HuggingFace's checkpointing; heads padded.
fn ulysses(gpus: u64, seq: u64) -> Training {
    Training {
        checkpointing: Checkpointing::FullLayer,
        stack: Stack::EAGER,
        pad_heads: true,
        ..Training::new(Grid::ulysses(gpus), seq, Schedule::Ring)
    }
}

/// Ring Self-Attention: scores in memory, no mask skipped, nothing overlapped.
fn ring_self_attention(setup: &Setup, gpus: u64, seq: u64) -> Result<Training> {
    let traffic = setup.value("score traffic over the counted")?;
    let kernel = Materialised::RING_SELF_ATTENTION.with_traffic(traffic);
    let kernel = AttentionKernel::Materialised(kernel);
    Ok(Training {
        context: Context { causal: false, kernel, ..Context::new(Schedule::Ring) },
        ..Training { checkpointing: Checkpointing::FullLayer, ..distflash(gpus, seq) }
    })
}

/// An iteration with the fixed time that was fitted.
fn seconds(setup: &Setup, model: &Model, cluster: &Cluster, training: &Training) -> Result<f64> {
    let fixed = SimTime::from_secs_f64(setup.value("fixed seconds an iteration")?);
    Ok(predict(model, cluster, &Training { fixed, ..*training })?.time.total.as_secs_f64())
}

#[derive(Deserialize)]
struct Table1 {
    cluster: String,
    seq_per_gpu: String,
    seq_total: String,
    model: String,
    megatron_s_per_iter: f64,
    distflashattn_s_per_iter: f64,
    speedup_printed: f64,
}

/// A printed ratio that its own two numbers contradict by more than their last digits.
fn contradiction(printed: f64, quotient: f64) -> Option<String> {
    let text = format!("the row prints {printed}, its own times give {quotient:.3}");
    ((printed - quotient).abs() > 0.02).then_some(text)
}

fn table1(setup: &Setup) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for r in printed::<Table1>(include_str!("../../papers/distflashattn/table1.csv"))? {
        let name = r.cluster.split_whitespace().next().unwrap_or_default();
        let cluster = setup.cluster(name)?;
        let model = presets::model(&r.model)?;
        let (gpus, seq) = (u64::from(cluster.gpus()), tokens(&r.seq_total)?);
        let d = seconds(setup, &model, &cluster, &distflash(gpus, seq))?;
        let m = seconds(setup, &padded(&model, gpus), &cluster, &megatron(Grid::tensor(gpus), seq))?;
        let case = format!("{name} {}, {} a GPU", r.model, r.seq_per_gpu);
        let row = |quantity, unit| Row::of("table 1", &case, quantity, unit);
        rows.push(row("DistFlashAttn iteration", "s").numbers(r.distflashattn_s_per_iter, d));
        rows.push(row("Megatron-LM iteration", "s").numbers(r.megatron_s_per_iter, m));
        let quotient = r.megatron_s_per_iter / r.distflashattn_s_per_iter;
        let draft = row("speed-up", "x").inconsistent(contradiction(r.speedup_printed, quotient));
        rows.push(draft.numbers(r.speedup_printed, m / d));
    }
    Ok(rows)
}

#[derive(Deserialize)]
#[allow(non_snake_case, reason = "column names as printed")]
struct Table3 {
    nodes: u64,
    timed_seq_total: String,
    RSA_s_per_iter: f64,
    DFA_s_per_iter: f64,
    speedup_printed: f64,
}

fn table3(setup: &Setup) -> Result<Vec<Row>> {
    let model = presets::model("llama-7b")?;
    let mut rows = lengths::table3(setup, &model)?;
    for r in printed::<Table3>(include_str!("../../papers/distflashattn/table3_vs_rsa.csv"))? {
        let cluster = setup.cluster(if r.nodes == 1 { "1x8" } else { "2x8" })?;
        let (gpus, seq) = (u64::from(cluster.gpus()), tokens(&r.timed_seq_total)?);
        let d = seconds(setup, &model, &cluster, &distflash(gpus, seq))?;
        let ring = seconds(setup, &model, &cluster, &ring_self_attention(setup, gpus, seq)?)?;
        let case = format!("{} node(s), {}", r.nodes, r.timed_seq_total);
        let row = |quantity, unit| Row::of("table 3", &case, quantity, unit);
        rows.push(row("DistFlashAttn iteration", "s").numbers(r.DFA_s_per_iter, d));
        let fitted = r.nodes == 1;
        rows.push(row("Ring Self-Attention iteration", "s").fitted(fitted).numbers(r.RSA_s_per_iter, ring));
        rows.push(row("speed-up", "x").fitted(fitted).numbers(r.speedup_printed, ring / d));
    }
    Ok(rows)
}

#[derive(Deserialize)]
struct Table4 {
    model: String,
    seq_total: String,
    ulysses_s_per_iter: f64,
    speedup_printed: f64,
    #[serde(rename = "quotient_DERIVED")]
    quotient: f64,
}

fn table4(setup: &Setup) -> Result<Vec<Row>> {
    let cluster = setup.cluster("2x8")?;
    let mut rows = Vec::new();
    for r in printed::<Table4>(include_str!("../../papers/distflashattn/table4_vs_ulysses.csv"))? {
        let (model, seq) = (presets::model(&r.model)?, tokens(&r.seq_total)?);
        let d = seconds(setup, &model, &cluster, &distflash(16, seq))?;
        let u = seconds(setup, &padded(&model, 16), &cluster, &ulysses(16, seq))?;
        let case = format!("2x8 {}, {}", r.model, r.seq_total);
        let row = |quantity, unit| Row::of("table 4", &case, quantity, unit);
        rows.push(row("Ulysses iteration", "s").numbers(r.ulysses_s_per_iter, u));
        let draft = row("speed-up", "x").inconsistent(contradiction(r.speedup_printed, r.quotient));
        rows.push(draft.numbers(r.speedup_printed, u / d));
    }
    Ok(rows)
}

#[derive(Deserialize)]
struct Table5 {
    seq_per_gpu: String,
    hf_ckpt_s_per_iter: f64,
    ours_s_per_iter: f64,
    speedup_printed: f64,
}

fn table5(setup: &Setup) -> Result<Vec<Row>> {
    let (cluster, model) = (setup.cluster("1x8")?, presets::model("llama-7b")?);
    let small = "below 4K tokens a GPU the host's launches set the pace: recomputing an attention that the host does not \
                 wait for costs nothing, and the split segments cost more launches";
    let mut rows = Vec::new();
    for r in printed::<Table5>(include_str!("../../papers/distflashattn/table5_checkpointing.csv"))? {
        let ours = distflash(8, 8 * tokens(&r.seq_per_gpu)?);
        let full = Training { checkpointing: Checkpointing::FullLayer, ..ours };
        let (a, b) = (seconds(setup, &model, &cluster, &ours)?, seconds(setup, &model, &cluster, &full)?);
        let case = format!("1x8 LLaMA-7B, {} a GPU", r.seq_per_gpu);
        let row = |quantity, unit| Row::of("table 5", &case, quantity, unit).because(small);
        let fitted = r.seq_per_gpu == "1K";
        rows.push(row("rematerialisation-aware iteration", "s").fitted(fitted).numbers(r.ours_s_per_iter, a));
        rows.push(row("HuggingFace checkpointing iteration", "s").numbers(r.hf_ckpt_s_per_iter, b));
        rows.push(row("speed-up", "x").numbers(r.speedup_printed, b / a));
    }
    Ok(rows)
}
