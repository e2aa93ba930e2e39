//! Ring Attention (arXiv 2310.01889): minimum blocks, longest contexts, and the utilisation it expects.

use anyhow::{Context, Result};
use serde::Deserialize;

use super::printed;
use super::row::Row;
use super::setup::Setup;

pub fn rows(setup: &Setup) -> Result<Vec<Row>> {
    let mut rows = table2()?;
    rows.append(&mut table3(setup)?);
    rows.append(&mut table4(setup)?);
    Ok(rows)
}

#[derive(Deserialize)]
#[allow(non_snake_case, reason = "column names as printed")]
struct Table2 {
    spec: String,
    TFLOPS: f64,
    interconnect_GBps_unidirectional: f64,
    min_block_1e3: f64,
    min_seq_1e3: f64,
}

fn table2() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for r in printed::<Table2>(include_str!("../../papers/ring-attention/table2_min_block.csv"))? {
        // F/B tokens, and 6 blocks of them (section 3).
        let block = r.TFLOPS / r.interconnect_GBps_unidirectional;
        let contradicts = (r.min_seq_1e3 / 6.0 - r.min_block_1e3).abs() > 0.1;
        let reason = format!(
            "six times the printed block of {}K are not the printed {}K",
            r.min_block_1e3, r.min_seq_1e3
        );
        let draft = Row::of("table 2", &r.spec, "minimum block", "1000 tokens");
        rows.push(draft.inconsistent(contradicts.then_some(reason)).numbers(r.min_block_1e3, block));
        let draft = Row::of("table 2", &r.spec, "minimum sequence", "1000 tokens");
        rows.push(draft.numbers(r.min_seq_1e3, 6.0 * block));
    }
    Ok(rows)
}

/// A model of the tables, LLaMA-like with three feed-forward matrices.
struct Shape {
    layers: f64,
    hidden: f64,
    intermediate: f64,
}

const VOCAB: f64 = 32000.0;

impl Shape {
    fn of(name: &str) -> Result<Self> {
        let (layers, hidden, intermediate) = match name {
            "3B" => (26.0, 3200.0, 8640.0),
            "7B" => (32.0, 4096.0, 11008.0),
            "13B" => (40.0, 5120.0, 13824.0),
            "30B" => (60.0, 6656.0, 17920.0),
            "65B" => (80.0, 8192.0, 22016.0),
            other => anyhow::bail!("no shape for model {other:?}"),
        };
        Ok(Self { layers, hidden, intermediate })
    }

    fn layer(&self) -> f64 {
        self.hidden * (4.0 * self.hidden + 3.0 * self.intermediate)
    }

    fn weights(&self) -> f64 {
        self.layers * self.layer() + 2.0 * VOCAB * self.hidden
    }
}

#[derive(Deserialize)]
struct Table3 {
    hardware: String,
    model: String,
    ring_attention: u64,
}

struct Devices {
    count: f64,
    memory: f64,
    kept: f64,
}

const GIB: f64 = 1_073_741_824.0;

/// A pod's name counts cores: TPUv3 and TPUv4 have two a chip, TPUv5e one.
fn devices(setup: &Setup, hardware: &str) -> Result<Devices> {
    let gpu = setup.value("bytes kept a layer and element on GPU")?;
    let tpu = setup.value("bytes kept a layer and element on TPU")?;
    let (count, gib, kept) = match hardware {
        "8x A100 NVLink" => (8.0, setup.value("GiB of a GPU in the 8x A100 server")?, gpu),
        "32x A100 InfiniBand" => (32.0, 80.0, gpu),
        "TPUv4-1024" => (512.0, 32.0, tpu),
        "TPUv3-512" | "TPUv5e-256" => (256.0, 16.0, tpu),
        other => anyhow::bail!("no memory for {other:?}"),
    };
    Ok(Devices { count, memory: gib * GIB, kept })
}

/// Bytes of a device with `tokens` tokens: the cut state, a gathered layer with its gradient in fp32, what each layer
/// keeps, and the paper's 6 bytes an element for the blocks of the ring.
fn bytes(shape: &Shape, devices: &Devices, state: f64, tokens: f64) -> f64 {
    let layers = devices.kept * shape.layers + 6.0;
    state * shape.weights() / devices.count + 8.0 * shape.layer() + tokens * shape.hidden * layers
}

fn table3(setup: &Setup) -> Result<Vec<Row>> {
    let state = setup.value("bytes a state")?;
    let mut rows = Vec::new();
    for r in printed::<Table3>(include_str!("../../papers/ring-attention/table3_max_context.csv"))? {
        let (shape, devices) = (Shape::of(&r.model)?, devices(setup, &r.hardware)?);
        let mut powers = (0..24).rev().map(|k| f64::from(1u32 << k));
        let fits = |c: &f64| bytes(&shape, &devices, state, *c) <= devices.memory;
        let tokens = powers.find(fits).unwrap_or(0.0);
        let fitted = (r.hardware.as_str(), r.model.as_str()) == ("TPUv4-1024", "7B");
        let draft =
            Row::of("table 3", format!("{} {}", r.hardware, r.model), "longest context", "1024 tokens");
        rows.push(draft.fitted(fitted).numbers(r.ring_attention as f64, tokens * devices.count / 1024.0));
    }
    Ok(rows)
}

#[derive(Deserialize)]
#[allow(non_snake_case, reason = "column names as printed")]
struct Table4 {
    model: String,
    compute: String,
    ctx_BPT_1e3: f64,
    ctx_ring_1e3: f64,
    MFU_BPT: f64,
    MFU_expected_ring: f64,
    MFU_ring: f64,
}

/// The BPT run's utilisation, with attention's larger share at its own rate.
fn table4(setup: &Setup) -> Result<Vec<Row>> {
    let ratio = setup.value("rate of attention over that of matrix products")?;
    let mut rows = Vec::new();
    for r in printed::<Table4>(include_str!("../../papers/ring-attention/table4_mfu.csv"))? {
        let shape = Shape::of(&r.model).context("table 4")?;
        // Utilisation of a mix, over that of matrix products alone.
        let relative = |kilo_tokens: f64| {
            let (dense, attention) =
                (2.0 * shape.weights(), 2.0 * shape.layers * kilo_tokens * 1024.0 * shape.hidden);
            (dense + attention) / (dense + attention / ratio)
        };
        let predicted = r.MFU_BPT * relative(r.ctx_ring_1e3) / relative(r.ctx_BPT_1e3);
        let case = format!("{} on {}", r.model, r.compute);
        let fitted = case == "7B on 8x A100";
        let row = |what| Row::of("table 4", &case, what, "%").fitted(fitted);
        rows.push(row("MFU expected of the ring").numbers(r.MFU_expected_ring, predicted));
        rows.push(row("MFU of the ring").numbers(r.MFU_ring, predicted));
    }
    Ok(rows)
}
