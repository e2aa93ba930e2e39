//! Striped Attention (arXiv 2311.09431): a training step of the released JAX code, tile by tile.
//!
//! A round computes its tiles and then passes k and v on: XLA overlapped neither on these machines. A tile is skipped
//! only if all of it is masked, and a skipped tile still copies the scan's carry. The ring's slowest rank computes its
//! diagonal and P - 1 whole blocks; a striped rank P blocks of which it skips what lies above the diagonal.

use anyhow::{Context, Result};
use ringlab_sim::bound::{StripedStep, striped_maximum};
use serde::Deserialize;

use super::printed;
use super::row::Row;
use super::setup::Setup;

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "model")]
    name: String,
    #[serde(rename = "n_vocab")]
    vocab: u64,
    #[serde(rename = "d_model")]
    hidden: u64,
    #[serde(rename = "d_ff")]
    intermediate: u64,
    #[serde(rename = "n_layer")]
    layers: u64,
}

#[derive(Deserialize)]
struct Point {
    hardware: String,
    model: String,
    model_parallel: u64,
    seq_parallel: u64,
    n_seq: u64,
    block_c: u64,
    speedup_printed: f64,
}

/// Rates of one device, in units a second.
struct Machine {
    tile_q: u64,
    tile_kv: u64,
    attention: f64,
    matmul: f64,
    link: f64,
    memory: f64,
}

impl Machine {
    fn of(setup: &Setup, hardware: &str) -> Result<Self> {
        let value = |what: &str| setup.value(&format!("{hardware} {what}"));
        Ok(Self {
            tile_q: value("tile queries")? as u64,
            tile_kv: value("tile keys")? as u64,
            attention: 1e12 * value("attention TFLOP/s")?,
            matmul: 1e12 * value("matmul TFLOP/s")? * value("efficiency outside attention")?,
            link: 1e9 * value("link GB/s")?,
            memory: 1e9 * value("memory GB/s")?,
        })
    }
}

/// Tiles of a c x c block under its causal diagonal that are visited, and all of them.
fn tiles(c: u64, machine: &Machine) -> (f64, f64) {
    let (rows, columns) = (c.div_ceil(machine.tile_q), c.div_ceil(machine.tile_kv));
    let visited: u64 = (1..=rows).map(|row| (row * machine.tile_q).min(c).div_ceil(machine.tile_kv)).sum();
    (visited as f64, (rows * columns) as f64)
}

/// Times of one layer, forward and backward, on the slowest rank.
struct Step {
    ring: f64,
    striped: f64,
    rest: f64,
}

/// Forwards that run, the rematerialised one included, and the FLOPs of a backward over a forward's.
const FORWARDS: f64 = 2.0;
const BACKWARD: f64 = 2.5;
/// Bytes of k (fp32, cast before the ring) and v (bf16) an element, and with their fp32 gradients.
const FORWARD_BYTES: f64 = 4.0 + 2.0;
const BACKWARD_BYTES: f64 = 4.0 + 2.0 + 4.0 + 4.0;

fn step(machine: &Machine, model: &Model, point: &Point) -> Step {
    let (p, c) = (point.seq_parallel as f64, (point.n_seq / point.seq_parallel) as f64);
    let mp = point.model_parallel as f64;
    let (d, ff) = (model.hidden as f64, model.intermediate as f64);
    let width = d / mp;
    let (visited, all) = tiles(point.n_seq / point.seq_parallel, machine);
    let area = (machine.tile_q * machine.tile_kv) as f64;
    let tile = (FORWARDS + BACKWARD) * 4.0 * area * width / machine.attention;
    // The carry of queries, in and out, three times; parts of dk and dv written, read twice and written again.
    let carry =
        4.0 * width * (2.0 * 3.0 * machine.tile_q as f64 + 4.0 * machine.tile_kv as f64) / machine.memory;
    let dense =
        2.0 * (4.0 * d * d + 2.0 * d * ff) + 2.0 * (model.vocab * model.hidden) as f64 / model.layers as f64;
    let products = (FORWARDS + 2.0) * c * dense / mp / machine.matmul;
    let rounds = p * c * width * (FORWARDS * FORWARD_BYTES + BACKWARD_BYTES) / machine.link;
    // Two all-reduces a pass over the model-parallel ranks, bf16, each way 2 (mp-1)/mp of the payload.
    let reduces = 6.0 * c * d * 2.0 * 2.0 * (mp - 1.0) / mp / machine.link;
    Step {
        ring: (p - 1.0) * all * tile + visited * tile + p * all * carry,
        striped: p * (visited * tile + all * carry),
        rest: products + rounds + reduces,
    }
}

pub fn rows(setup: &Setup) -> Result<Vec<Row>> {
    let models: Vec<Model> = printed(include_str!("../../papers/striped/models.csv"))?;
    let points: Vec<Point> = printed(include_str!("../../papers/striped/speedups.csv"))?;
    points.iter().map(|point| row(setup, &models, point)).collect()
}

const LOSSES: &str = "below one tile a block nothing can be skipped, which makes 1.00; the paper measures 0.92-0.98 on A100 \
                      only, where XLA decides every tile's skip on the host and each round waits for its slowest \
                      neighbour, which the model leaves out";

fn row(setup: &Setup, models: &[Model], point: &Point) -> Result<Row> {
    let model = models.iter().find(|m| m.name == point.model).context("a model of the table")?;
    let hardware = ["A100", "TPUv3", "TPUv4"].into_iter().find(|h| point.hardware.starts_with(h));
    let hardware = hardware.context("hardware of the table")?;
    let times = step(&Machine::of(setup, hardware)?, model, point);
    let bound = striped_maximum(&StripedStep {
        tokens: point.n_seq,
        hidden: model.hidden,
        intermediate: model.intermediate,
        vocab: model.vocab,
        layers: model.layers,
        ranks: point.seq_parallel,
        attention_slowdown: if hardware == "A100" { 2.0 } else { 1.0 },
    });
    let (mp, sp, c) = (point.model_parallel, point.seq_parallel, point.block_c);
    let case = format!("{} {}, mp {mp}, sp {sp}, block {c}", point.hardware, point.model);
    let fitted = hardware == "A100" && (point.model.as_str(), mp, sp, c) == ("3B", 2, 4, 16384);
    let table = if hardware == "TPUv3" { "TPUv3" } else { "A100 and TPUv4" };
    let draft = Row::of(table, case, "speed-up over Ring Attention", "x").bound(bound);
    let predicted = (times.ring + times.rest) / (times.striped + times.rest);
    Ok(draft.because(LOSSES).fitted(fitted).numbers(point.speedup_printed, predicted))
}
