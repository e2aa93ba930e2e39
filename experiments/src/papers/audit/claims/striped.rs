//! Claims of the guide to Striped Attention.

use anyhow::{Context as _, Result};
use ringlab_sim::bound::{self, RingStep, min_block_tokens};
use ringlab_sim::problem::{Dtype, Pass};
use ringlab_sim::schedule::Schedule;

use super::{Claim, refuted};
use crate::papers::guides::balance_bound;
use crate::presets;

const STRIPED: &str = "guide to Striped Attention";
const STRIPED_ROWS: [(u64, f64); 5] = [(4, 1.70), (8, 1.84), (8, 1.94), (16, 1.96), (32, 1.98)];

pub fn table() -> Claim {
    let beyond: Vec<String> = STRIPED_ROWS
        .iter()
        .filter(|(p, x)| *x > balance_bound(*p))
        .map(|(p, x)| format!("{x:.2}x at P = {p} exceeds {:.4}", balance_bound(*p)))
        .collect();
    refuted(
        "Striped Attention on LLaMA-3",
        STRIPED,
        "1.70x to 1.98x end to end over Ring Attention",
        format!(
            "with perfect skipping attention alone gains 2 - 1/P: {}; a step gains less",
            beyond.join(", ")
        ),
        Some("no paper has this table; the paper's largest are 1.45x on 8 A100 and 1.65x on 16 TPUv4"),
    )
}

pub fn bubbles() -> Claim {
    let rows = [(4.0, 42.0), (8.0, 47.0), (8.0, 48.0), (16.0, 49.0), (32.0, 49.5)];
    let text = rows.iter().map(|(p, printed): &(f64, f64)| {
        let (full, half) = (100.0 * (1.0 - (p + 1.0) / (2.0 * p)), 100.0 * (1.0 - p / (2.0 * p - 1.0)));
        format!("P = {p}: {printed}% against {full:.1}% or {half:.1}%")
    });
    refuted(
        "idle share of the ring",
        STRIPED,
        "42% at 4 GPUs to 49.5% at 32, depending on the sequence",
        format!(
            "with a full or a half-full diagonal, and at any length: {}",
            text.collect::<Vec<_>>().join("; ")
        ),
        None,
    )
}

pub fn block() -> Claim {
    let c = 1024;
    let balance = |block| 100.0 * bound::balance(Schedule::Striped { block }, 8, c);
    refuted(
        "stripes of 64 or 128 tokens",
        STRIPED,
        "the paper stripes by blocks, which balances perfectly; single tokens ruin memory access",
        format!(
            "the paper stripes token by token and permutes once before the first layer; with 1K tokens a rank and P = 8 \
             the balance is {:.1}% by tokens, {:.1}% by 64 and {:.1}% by 128. The guide's listing masks by block only, \
             which lets a token see later ones of its own block",
            balance(1),
            balance(64),
            balance(128)
        ),
        None,
    )
}

pub fn overlap_always() -> Result<Claim> {
    let cluster = presets::cluster("dgx-h100")?;
    let network = cluster.network.as_ref().context("a network")?;
    let row = cluster.kernel(128, Dtype::Bf16, Pass::Forward)?;
    let need = |group| {
        let link = network.transport.bandwidth;
        min_block_tokens(&RingStep { compute: row.rate, link, element_bytes: 2, group, block_share: 0.5 })
    };
    Ok(refuted(
        "communication always hidden",
        STRIPED,
        "transfers hide completely even over 400 Gb/s InfiniBand or PCIe",
        format!(
            "stripes compute half blocks, which doubles the least block: at the reached {} over one NIC's {} it is {:.0} \
             tokens a rank, or {:.0} with four query heads a kv head; below that the rest of every transfer is exposed",
            row.rate,
            network.transport.bandwidth,
            need(1),
            need(4)
        ),
        None,
    ))
}
