//! Lines over a column of a sweep: one for each schedule, or for each value of another column.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use ringlab_plots::chart::{Axis, Chart, Line, Marker, Scale, Series, Style};
use ringlab_plots::format;
use ringlab_sim::bound;
use ringlab_sim::schedule::Schedule;

use super::Kind;
use super::picture::Request;
use super::reference::references;
use super::table::{Row, Table};

/// Columns that make up a configuration.
pub const CONFIGURATION: &[&str] = &[
    "cluster",
    "link_bandwidth_bytes_per_s",
    "nic_bandwidth_bytes_per_s",
    "model",
    "heads",
    "kv_heads",
    "head_dim",
    "dtype",
    "batch",
    "mask",
    "seq_len",
    "cp",
    "schedule",
    "pass",
    "transport",
    "nccl_ctas",
    "nccl_priority",
    "route",
    "chunks",
    "prefetch",
    "needed_only",
    "pad",
    "straggler",
    "jitter",
    "slow_link",
    "failed_link",
    "repeats",
    "seed",
];

/// A chart of `table`, as `request` asks.
///
/// # Errors
/// Columns that are missing or have several values, or nothing to draw.
pub fn chart(table: &Table, request: &Request) -> Result<Chart> {
    let (x, by) = (request.x(), request.by());
    table.column(x)?;
    table.column(by)?;
    let fixed: Vec<&str> = CONFIGURATION.iter().copied().filter(|c| *c != x && *c != by).collect();
    table.require_one_value(&fixed)?;
    let rings = (request.kind == Kind::Speedup).then(|| makespans_of_ring(table));
    let mut series = Vec::new();
    for name in values_of(table, by) {
        let rows = || table.rows().filter(|r| r.text(by) == name);
        let y = |row: Row<'_>| value(request.kind, row, rings.as_ref());
        let points = rows().filter_map(|r| Some((r.number(x)?, y(r)?))).collect::<Vec<_>>();
        if !points.is_empty() {
            series.push((name.clone(), sorted(points)));
        }
    }
    if series.is_empty() {
        bail!("{}: no row has both {x} and {}", table.label(), needed(request.kind));
    }
    let mut drawn = styled(merged(series));
    if request.kind == Kind::Speedup && by == "schedule" {
        drawn.extend(bounds(table, x, &drawn));
    }
    let values: Vec<f64> = drawn.iter().flat_map(|s| &s.points).map(|p| p.1).collect();
    Ok(Chart {
        title: request.title.clone().unwrap_or_else(|| title(request.kind, table)),
        x: x_axis(x),
        y: y_axis(request.kind, &values),
        references: references(request.kind, table, x),
        series: drawn,
    })
}

/// The values of a column in the order of their first rows.
pub fn values_of(table: &Table, column: &str) -> Vec<String> {
    let mut values: Vec<String> = Vec::new();
    for row in table.rows() {
        if !values.iter().any(|v| v == row.text(column)) {
            values.push(row.text(column).to_owned());
        }
    }
    values
}

/// All of a row's configuration but its schedule.
fn configuration(row: Row<'_>) -> Vec<&str> {
    CONFIGURATION.iter().filter(|c| **c != "schedule").map(|c| row.text(c)).collect()
}

/// By configuration, the time of the contiguous ring.
fn makespans_of_ring(table: &Table) -> BTreeMap<Vec<&str>, f64> {
    let rings = table.rows().filter(|r| r.text("schedule") == "ring");
    rings.filter_map(|r| Some((configuration(r), r.number("makespan_s")?))).collect()
}

fn value(kind: Kind, row: Row<'_>, rings: Option<&BTreeMap<Vec<&str>, f64>>) -> Option<f64> {
    match kind {
        Kind::Speedup => Some(rings?.get(&configuration(row))? / row.number("makespan_s")?),
        Kind::Exposed => Some(row.number("exposed_comm_s")? / row.number("makespan_s")?),
        _ => row.number(needed(kind)),
    }
}

/// The column that a kind draws.
fn needed(kind: Kind) -> &'static str {
    match kind {
        Kind::Bubble => "bubble_ratio",
        Kind::Exposed => "exposed_comm_s",
        Kind::Memory => "peak_memory_bytes",
        Kind::Rate => "tflops_per_gpu",
        _ => "makespan_s",
    }
}

fn sorted(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

fn same(a: &[(f64, f64)], b: &[(f64, f64)]) -> bool {
    let close = |p: f64, q: f64| (p - q).abs() <= 1e-3 * p.abs().max(q.abs());
    a.len() == b.len() && a.iter().zip(b).all(|(p, q)| p.0 == q.0 && close(p.1, q.1))
}

type Named = (String, Vec<(f64, f64)>);

/// Series that are the same to a thousandth are one, with both names: a line below another cannot be seen.
fn merged(series: Vec<Named>) -> Vec<Named> {
    let mut out: Vec<Named> = Vec::new();
    for (name, points) in series {
        match out.iter_mut().find(|(_, known)| same(known, &points)) {
            Some((names, _)) => *names = format!("{names}, {name}"),
            None => out.push((name, points)),
        }
    }
    out
}

/// Lines without dots, which are for bounds.
fn styled(series: Vec<Named>) -> Vec<Series> {
    const LINES: [Line; 3] = [Line::Solid, Line::Dashed, Line::DashDot];
    let style = |(i, (name, points))| Series { name, points, style: Style::nth(i).with_line(LINES[i % 3]) };
    series.into_iter().enumerate().map(style).collect()
}

/// What balance alone allows each schedule over the ring, for causal masks.
fn bounds(table: &Table, x: &str, drawn: &[Series]) -> Vec<Series> {
    let bound = |row: Row<'_>, schedule: Schedule| {
        let (ranks, tokens) = (row.number("cp")? as u32, row.number("seq_len")? as u64);
        let causal = row.text("mask") == "causal" && row.number("padding")? == 0.0 && ranks > 0;
        let share = causal.then(|| bound::speedup_over_ring(schedule, ranks, tokens / u64::from(ranks)))?;
        Some((row.number(x)?, share))
    };
    let of_series = |(i, series): (usize, &Series)| {
        let name = series.name.split(", ").next()?;
        let schedule: Schedule = name.parse().ok().filter(|s| *s != Schedule::Ring)?;
        let rows = table.rows().filter(|r| r.text("schedule") == name);
        let points = sorted(rows.filter_map(|r| bound(r, schedule)).collect());
        let style = Style::nth(i).with_line(Line::Dotted).with_marker(Marker::None);
        (!points.is_empty()).then(|| (format!("{name}, bound"), points, style))
    };
    let all: Vec<_> = drawn.iter().enumerate().filter_map(of_series).collect();
    let mut out: Vec<Series> = Vec::new();
    for (name, points, style) in all {
        match out.iter_mut().find(|s| same(&s.points, &points)) {
            Some(known) => known.name = format!("{}, {name}", known.name.trim_end_matches(", bound")),
            None => out.push(Series { name, points, style }),
        }
    }
    out
}

/// A sentence on what all rows have in common.
pub fn title(kind: Kind, table: &Table) -> String {
    let what = match kind {
        Kind::Time => "Time of one layer",
        Kind::Speedup => "Speed-up over ring",
        Kind::Bubble => "GPU time without work",
        Kind::Exposed => "Exposed communication",
        Kind::Memory => "Attention buffers",
        Kind::Rate => "Throughput a GPU",
        Kind::Winner => "Fastest, with speed-up over ring",
        Kind::Kernels => "Attention kernels",
        Kind::Validate | Kind::Paper => "Predictions",
    };
    let one = |column: &str| match &values_of(table, column)[..] {
        [value] if !value.is_empty() => Some(value.clone()),
        _ => None,
    };
    let mut parts: Vec<String> = ["model", "cluster", "pass"].into_iter().filter_map(one).collect();
    parts.extend(one("cp").map(|cp| format!("{cp} ranks")));
    parts
        .extend(one("seq_len").and_then(|n| n.parse().ok()).map(|n| format!("{} tokens", format::tokens(n))));
    parts.extend(one("mask"));
    if parts.is_empty() { what.to_owned() } else { format!("{what}: {}", parts.join(", ")) }
}

/// The axis of a sweep's column.
pub fn x_axis(column: &str) -> Axis {
    let (label, scale, format): (&str, Scale, fn(f64) -> String) = match column {
        "seq_len" => ("sequence length (tokens)", Scale::Log2, format::tokens),
        "cp" => ("context-parallel ranks", Scale::Log2, format::number),
        "link_bandwidth_bytes_per_s" => {
            ("bandwidth between GPUs, each way", Scale::Log10, format::bytes_per_sec)
        }
        "nic_bandwidth_bytes_per_s" => {
            ("bandwidth between nodes, each way", Scale::Log10, format::bytes_per_sec)
        }
        other => (other, Scale::Linear, format::number),
    };
    Axis::new(label, scale, format)
}

fn y_axis(kind: Kind, values: &[f64]) -> Axis {
    let most = values.iter().copied().fold(0.0, f64::max);
    let positive = values.iter().all(|v| *v > 0.0);
    let logarithmic = if positive { Scale::Log10 } else { Scale::Linear };
    match kind {
        Kind::Speedup => {
            // Ratios start near the least of them, not at nothing.
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let ends = ((least * 10.0 - 1.0).floor() / 10.0, (most * 10.0 + 1.0).ceil() / 10.0);
            Axis::new("speed-up over ring", Scale::Linear, format::ratio).over(ends.0.max(0.0), ends.1)
        }
        Kind::Bubble => Axis::new("bubble: share of GPU time", Scale::Linear, format::percent)
            .over(0.0, (most * 1.08).max(0.05)),
        Kind::Exposed => {
            Axis::new("exposed communication: share of the time", Scale::Linear, format::percent)
                .over(0.0, (most * 1.08).max(0.05))
        }
        Kind::Memory => Axis::new("attention buffers of the largest rank", logarithmic, format::bytes),
        Kind::Rate => Axis::new("mask-area TFLOP/s a GPU", Scale::Linear, format::number),
        _ => Axis::new("time of one layer", logarithmic, format::seconds),
    }
}

/// A number that must be in a row.
pub fn numeric(row: Row<'_>, column: &str) -> Result<f64> {
    row.number(column).with_context(|| format!("{column} is {:?}, which is not a number", row.text(column)))
}
