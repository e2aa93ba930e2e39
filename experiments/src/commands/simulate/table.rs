//! The result as a person reads it.

use ringlab_sim::units::{Bytes, SimTime};

use crate::disturbance::Repeats;
use crate::grid::grid;
use crate::nccl::Nccl;
use crate::predict::{self, Prediction, Row};
use crate::setup::Setup;

/// The table, what it means, and what it rests on.
pub fn render(setup: &Setup, prediction: &Prediction, explain: bool) -> String {
    let rows = &prediction.rows;
    let mut text = heading(setup, rows);
    text += &figures(rows);
    text += "\n";
    for line in bars(setup, rows).into_iter().chain(remarks(setup, rows)) {
        text += &format!("  {line}\n");
    }
    for line in &prediction.left_out {
        text += &format!("  left out: {line}\n");
    }
    if explain {
        text += "\nConstants and their sources\n";
        for c in predict::constants(setup) {
            text += &format!("  {} = {}\n      {}\n", c.what, c.value, c.source);
        }
    }
    text
}

/// One line that says what was simulated.
pub fn title(setup: &Setup) -> String {
    format!(
        "{} on {} x {}: {} tokens{}, {} mask, one attention layer",
        setup.model.name,
        setup.cp,
        setup.cluster.device.name,
        tokens(setup.problem.tokens()),
        documents(setup),
        setup.problem.pattern,
    )
}

fn documents(setup: &Setup) -> String {
    match setup.problem.documents.len() {
        1 => String::new(),
        n => format!(" in {n} documents"),
    }
}

fn heading(setup: &Setup, rows: &[Row]) -> String {
    let s = &setup.problem.shape;
    let documents = documents(setup);
    let batch = if s.batch > 1 { format!(", batch {}", s.batch) } else { String::new() };
    format!(
        "One attention layer of {}: {} query and {} kv heads of {}, {}{batch}\n{} tokens{documents}, {} mask, {}, on \
         {} of {} x {} ({}){}\n\n",
        setup.model.name,
        s.heads,
        s.kv_heads,
        s.head_dim,
        s.dtype,
        tokens(setup.problem.tokens()),
        setup.problem.pattern,
        rows[0].pass,
        setup.cp,
        setup.cluster.gpus(),
        setup.cluster.device.name,
        setup.cluster.name,
        setup.nccl().map_or(String::new(), |settings| Nccl::from(settings).text()),
    )
}

fn figures(rows: &[Row]) -> String {
    let header = [
        "schedule",
        "time",
        "vs ring",
        "bound",
        "vs 1 GPU",
        "bubble",
        "exposed comm.",
        "TFLOP/s/GPU",
        "memory",
        "fits",
    ];
    let cells = rows.iter().map(|row| {
        [
            row.schedule.clone(),
            seconds(row.makespan_s),
            times(row.speedup_vs_ring),
            times(row.bound_speedup_vs_ring),
            times(row.speedup_vs_one_gpu),
            format!("{:.1}%", 100.0 * row.bubble_ratio),
            seconds(row.exposed_comm_s),
            format!("{:.0}", row.tflops_per_gpu),
            Bytes(row.peak_memory_bytes).to_string(),
            if row.fits { "yes".into() } else { "no".into() },
        ]
    });
    grid(header, 1, cells)
}

/// How well the times are known: error bars of a calibrated cluster, percentiles of a disturbed run.
pub fn bars(setup: &Setup, rows: &[Row]) -> Vec<String> {
    let mut lines = intervals(rows);
    if setup.cluster.calibration.is_some() && setup.repeats.is_some() {
        lines.push("no 90% interval: the calibration of the cluster knows nothing of disturbances".into());
    }
    lines.extend(spreads(setup, rows));
    lines
}

/// The error bars of a calibrated cluster. The lower end is cut off at zero, so the upper one is what is as wide as said.
fn intervals(rows: &[Row]) -> Vec<String> {
    let line = |row: &Row| {
        let (low, high) = (row.makespan_low_s?, row.makespan_high_s?);
        let half = 100.0 * (high / row.makespan_s - 1.0);
        Some(format!("{}: {} to {} (±{half:.1}%)", row.schedule, seconds(low), seconds(high)))
    };
    let mut lines: Vec<String> = rows.iter().filter_map(line).collect();
    if !lines.is_empty() {
        lines.insert(0, "time, 90% interval by the calibration of the cluster".into());
    }
    lines
}

/// How long the repeats of a disturbed run take.
fn spreads(setup: &Setup, rows: &[Row]) -> Vec<String> {
    let Some(Repeats { count, seed, .. }) = &setup.repeats else { return Vec::new() };
    let mut lines =
        vec![format!("disturbed, time over {count} repeats of seed {seed}; figures are the median's")];
    let line = |row: &Row| {
        let at = |t: Option<f64>| t.map(seconds);
        let (p5, p50) = (at(row.makespan_p5_s)?, at(row.makespan_p50_s)?);
        let (p95, p99) = (at(row.makespan_p95_s)?, at(row.makespan_p99_s)?);
        Some(format!("{}: {p5} (p5), {p50} (p50), {p95} (p95), {p99} (p99)", row.schedule))
    };
    lines.extend(rows.iter().filter_map(line));
    lines
}

fn remarks(setup: &Setup, rows: &[Row]) -> Vec<String> {
    let all_layers = match setup.model.layer_mix {
        Some(_) => "layers differ, so there is no figure for all of them".to_owned(),
        None => format!(
            "the model has {}, so attention takes {} for {}",
            setup.model.layers,
            seconds(rows[0].makespan_s * setup.model.layers as f64),
            rows[0].schedule
        ),
    };
    let mut lines = vec![
        format!("time: one layer; {all_layers}"),
        "vs ring, vs 1 GPU: speed-up; bound: what balance alone allows over ring, at equal kernel rates"
            .into(),
        "bubble: share of the GPUs' time in which they do not compute".into(),
        "exposed comm.: time a rank stands still for a transfer, on the worst rank".into(),
        "memory: attention buffers of one layer on the largest rank, without weights and other activations"
            .into(),
    ];
    let mut notes: Vec<String> =
        rows.iter().filter(|r| !r.notes.is_empty()).map(|r| format!("{}: {}", r.schedule, r.notes)).collect();
    notes.dedup();
    lines.append(&mut notes);
    for row in rows.iter().filter(|r| !r.fits) {
        let over = Bytes(row.peak_memory_bytes.saturating_sub(row.device_memory_bytes));
        lines.push(format!("{}: does not fit, {over} too much", row.schedule));
    }
    lines.push(format!(
        "rates and latencies: {} (--explain lists every constant and its source)",
        setup.cluster.source
    ));
    lines
}

fn seconds(s: f64) -> String {
    const DAY: f64 = 86_400.0;
    match s {
        _ if s == 0.0 => "0".into(),
        _ if s >= DAY => format!("{:.1} days", s / DAY),
        _ => SimTime::from_secs_f64(s).to_string(),
    }
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |r| format!("{r:.2}x"))
}

/// A token count with the suffix that divides it.
pub fn tokens(n: u64) -> String {
    match n {
        _ if n > 0 && n.is_multiple_of(1 << 20) => format!("{}Mi", n >> 20),
        _ if n > 0 && n.is_multiple_of(1 << 10) => format!("{}Ki", n >> 10),
        _ => n.to_string(),
    }
}
