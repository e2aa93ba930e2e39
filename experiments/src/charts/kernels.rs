//! Rates of attention kernels, from the rows of a benchmark.

use anyhow::{Result, bail};
use ringlab_plots::bars::Bars;
use ringlab_plots::chart::{Axis, Chart, Line, Scale, Series, Style};
use ringlab_plots::format;

use super::curves::{values_of, x_axis};
use super::picture::Request;
use super::table::{Row, Table};

/// Columns in which the rows of one chart may not differ.
const FIXED: &[&str] =
    &["dtype", "head_dim", "heads", "kv_heads", "len", "batch", "layout", "ranks", "scope", "device", "cuda"];
/// The same for lines over the length, where the batch goes with it.
const FIXED_OVER_LENGTH: &[&str] =
    &["dtype", "head_dim", "heads", "kv_heads", "pass", "layout", "ranks", "scope", "device", "cuda"];

/// The columns are there, and rates are rates; a cell may be empty.
fn check(table: &Table) -> Result<()> {
    for column in ["implementation", "pass", "mask", "tflops", "len"] {
        table.column(column)?;
    }
    for (index, row) in table.rows().enumerate() {
        let text = row.text("tflops");
        let is_rate = row.number("tflops").is_some_and(|rate| rate.is_finite() && rate > 0.0);
        if !text.is_empty() && !is_rate {
            bail!("{}: row {}: tflops is {text}, expected a positive number", table.label(), index + 1);
        }
    }
    Ok(())
}

/// Bars for each implementation, in groups by pass and mask.
///
/// # Errors
/// Columns that are missing or have several values.
pub fn bars(table: &Table, request: &Request) -> Result<Bars> {
    check(table)?;
    table.require_one_value(FIXED)?;
    let series = values_of(table, "implementation");
    let mut groups = Vec::new();
    let mut values = Vec::new();
    for pass in values_of(table, "pass") {
        for mask in values_of(table, "mask") {
            groups.push(format!("{pass}, {mask}"));
            for implementation in &series {
                let mut rates = table
                    .rows()
                    .filter(|r| r.text("implementation") == implementation)
                    .filter(|r| r.text("pass") == pass && r.text("mask") == mask)
                    .filter_map(|r| r.number("tflops"));
                values.push(rates.next());
                if rates.next().is_some() {
                    bail!(
                        "{}: {implementation} has several rates of {pass}, {mask}; choose with --where",
                        table.label()
                    );
                }
            }
        }
    }
    if values.iter().flatten().next().is_none() {
        bail!("{}: no row has a rate", table.label());
    }
    let common =
        common(table, |r| format!("{} tokens", r.number("len").map_or(String::new(), format::tokens)));
    Ok(Bars {
        title: request.title.clone().unwrap_or_else(|| format!("Attention kernels: {common}")),
        label: "mask-area TFLOP/s".into(),
        format: format::number,
        groups,
        series,
        values,
    })
}

/// A line over the length for each implementation and mask: a colour an implementation, a dash a mask.
///
/// # Errors
/// Another column along the picture, columns that are missing or have several values, or nothing to draw.
pub fn lines(table: &Table, request: &Request) -> Result<Chart> {
    const DASHES: [Line; 3] = [Line::Solid, Line::Dashed, Line::Dotted];
    if request.x() != "len" {
        bail!("kernels are drawn over len (--x len), or without --x as bars at one length");
    }
    check(table)?;
    table.require_one_value(FIXED_OVER_LENGTH)?;
    let masks = values_of(table, "mask");
    let mut series = Vec::new();
    for (colour, implementation) in values_of(table, "implementation").iter().enumerate() {
        for (dash, mask) in masks.iter().enumerate() {
            let rows =
                table.rows().filter(|r| r.text("implementation") == implementation && r.text("mask") == mask);
            let mut points: Vec<(f64, f64)> =
                rows.filter_map(|r| Some((r.number("len")?, r.number("tflops")?))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            if let Some(pair) = points.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                bail!(
                    "{}: {implementation} has several rates at {} tokens, {mask}; choose with --where",
                    table.label(),
                    format::tokens(pair[0].0)
                );
            }
            if !points.is_empty() {
                let style = Style::nth(colour).with_line(DASHES[dash % DASHES.len()]);
                series.push(Series { name: format!("{implementation}, {mask}"), points, style });
            }
        }
    }
    let most = series.iter().flat_map(|s: &Series| &s.points).map(|p| p.1).fold(0.0, f64::max);
    if most <= 0.0 {
        bail!("{}: no row has a rate", table.label());
    }
    let common = common(table, |r| r.text("pass").to_owned());
    Ok(Chart {
        title: request.title.clone().unwrap_or_else(|| format!("Attention kernels: {common}")),
        x: Axis { label: "tokens of a sequence".into(), ..x_axis("seq_len") },
        y: Axis::new("mask-area TFLOP/s", Scale::Linear, format::number).over(0.0, most * 1.05),
        references: Vec::new(),
        series,
    })
}

/// What the rows of a chart have in common, `what` after the device.
fn common(table: &Table, what: impl Fn(Row<'_>) -> String) -> String {
    table.rows().next().map_or(String::new(), |r| {
        let [device, heads, head_dim, dtype] = ["device", "heads", "head_dim", "dtype"].map(|c| r.text(c));
        format!("{device}, {}, {heads} heads of {head_dim}, {dtype}", what(r))
    })
}
