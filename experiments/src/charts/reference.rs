//! Lines across a chart: what a card holds, and from which bandwidth on a block hides its transfer.

use ringlab_plots::chart::Reference;
use ringlab_plots::format;
use ringlab_sim::bound::{RingStep, min_block_tokens};
use ringlab_sim::config::Keyword;
use ringlab_sim::problem::{Dtype, Pass};
use ringlab_sim::units::{BytesPerSec, FlopsPerSec};

use super::Kind;
use super::curves::values_of;
use super::table::{Row, Table};
use crate::presets;

/// Shares of a block that a step computes under a causal mask, and for which schedules.
const SHARES: [(f64, &str); 2] = [(1.0, "min. block, ring"), (0.5, "min. block, zigzag")];

/// The lines of a kind of chart over the column `x`.
pub fn references(kind: Kind, table: &Table, x: &str) -> Vec<Reference> {
    match kind {
        Kind::Memory => card(table).into_iter().collect(),
        Kind::Exposed if x == "link_bandwidth_bytes_per_s" => minimum_blocks(table),
        _ => Vec::new(),
    }
}

fn card(table: &Table) -> Option<Reference> {
    let values = values_of(table, "device_memory_bytes");
    let [bytes] = &values[..] else { return None };
    let y = bytes.parse().ok()?;
    Some(Reference::Horizontal { label: format!("card: {}", format::bytes(y)), y })
}

/// For a single configuration on a preset cluster: the link bandwidths from which on its blocks are long enough.
fn minimum_blocks(table: &Table) -> Vec<Reference> {
    let Some(row) = table.rows().next() else { return Vec::new() };
    let line = |(share, label): (f64, &str)| {
        Some(Reference::Vertical { label: label.to_owned(), x: needed_bandwidth(row, share)? })
    };
    SHARES.into_iter().filter_map(line).collect()
}

/// The bandwidth B at which `c = F e / (2 B (H/K) share)` is the row's own block.
fn needed_bandwidth(row: Row<'_>, block_share: f64) -> Option<f64> {
    let cluster = presets::cluster(row.text("cluster")).ok()?;
    let [heads, kv_heads, head_dim] =
        ["heads", "kv_heads", "head_dim"].map(|c| row.number(c).map(|n| n as u32));
    let dtype = Dtype::NAMES.iter().find(|(name, _)| *name == row.text("dtype"))?.1;
    let kernel = cluster.kernel(head_dim?, dtype, Pass::Forward).ok()?;
    let step = RingStep {
        compute: FlopsPerSec(kernel.rate.0),
        link: BytesPerSec(1.0),
        element_bytes: dtype.size().0,
        group: heads? / kv_heads?,
        block_share,
    };
    let block = row.number("seq_len")? / row.number("cp")?;
    let bandwidth = min_block_tokens(&step) / block;
    bandwidth.is_finite().then_some(bandwidth)
}
