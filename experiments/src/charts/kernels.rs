//! Rates of attention kernels, from the rows of a benchmark.

use anyhow::{Result, bail};
use ringlab_plots::bars::Bars;
use ringlab_plots::format;

use super::curves::values_of;
use super::picture::Request;
use super::table::Table;

/// Columns in which the rows of one chart may not differ.
const FIXED: &[&str] =
    &["dtype", "head_dim", "heads", "kv_heads", "len", "batch", "layout", "ranks", "device", "cuda"];

/// Bars for each implementation, in groups by pass and mask.
///
/// # Errors
/// Columns that are missing or have several values.
pub fn bars(table: &Table, request: &Request) -> Result<Bars> {
    for column in ["implementation", "pass", "mask", "tflops", "len"] {
        table.column(column)?;
    }
    table.require_one_value(FIXED)?;
    let series = values_of(table, "implementation");
    let mut groups = Vec::new();
    let mut values = Vec::new();
    for pass in values_of(table, "pass") {
        for mask in values_of(table, "mask") {
            let rate = |implementation: &String| {
                let mut rows = table.rows().filter(|r| {
                    r.text("implementation") == implementation
                        && r.text("pass") == pass
                        && r.text("mask") == mask
                });
                rows.next().and_then(|r| r.number("tflops"))
            };
            groups.push(format!("{pass}, {mask}"));
            values.extend(series.iter().map(rate));
        }
    }
    if values.iter().flatten().next().is_none() {
        bail!("{}: no row has a rate", table.label());
    }
    let first = table.rows().next();
    let common = first.map_or(String::new(), |r| {
        let tokens = r.number("len").map_or(String::new(), format::tokens);
        format!(
            "{}, {} tokens, {} heads of {}, {}",
            r.text("device"),
            tokens,
            r.text("heads"),
            r.text("head_dim"),
            r.text("dtype")
        )
    });
    Ok(Bars {
        title: request.title.clone().unwrap_or_else(|| format!("Attention kernels: {common}")),
        label: "mask-area TFLOP/s".into(),
        format: format::number,
        groups,
        series,
        values,
    })
}
