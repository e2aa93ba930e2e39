//! The prediction as a page.

use ringlab_sim::units::{Bytes, SimTime};

use super::table::{bars, title};
use crate::nccl::Nccl;
use crate::predict::{self, Prediction, Row};
use crate::report::view::View;
use crate::report::{Body, Cell, Column, Section, Table, page};
use crate::runfile::quoted;
use crate::setup::Setup;

/// The page; `command` is what was typed.
pub fn render(setup: &Setup, prediction: &Prediction, command: &[String]) -> String {
    let mut sections = vec![
        Section::new(
            "Schedules",
            "One attention layer; the speed-ups are over Ring Attention. Sort by any column.",
            Body::Table(figures(&prediction.rows)),
        ),
        Section::new(
            "Timelines",
            "What every rank does when. Drag to move, + and - to zoom, point at a bar for its details.",
            Body::Timelines(prediction.passes().map(View::of).collect()),
        ),
    ];
    let remarks = remarks(setup, prediction);
    if !remarks.is_empty() {
        sections.push(Section::new("Remarks", "", Body::Text(remarks)));
    }
    let intro = "Every constant that went in, with its source.";
    sections.push(Section::new("Assumptions", intro, Body::Table(assumptions(setup))).folded());
    let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    sections.push(Section::new("Command", "What made this page.", Body::Code(words.join(" "))));
    page(&title(setup), &subtitle(setup), &sections)
}

fn subtitle(setup: &Setup) -> String {
    let s = &setup.problem.shape;
    let cluster = &setup.cluster;
    format!(
        "{} query and {} kv heads of {}, {}; {} of {} GPUs of {}: {}{}",
        s.heads,
        s.kv_heads,
        s.head_dim,
        s.dtype,
        setup.cp,
        cluster.gpus(),
        cluster.name,
        cluster.source,
        setup.nccl().map_or(String::new(), |settings| Nccl::from(settings).text()),
    )
}

/// Heading, meaning and cell of a figure.
type Figure = (&'static str, &'static str, fn(&Row) -> Cell);

const FIGURES: [Figure; 11] = [
    ("time", "One attention layer, all passes that were asked for", |r| seconds(r.makespan_s)),
    ("vs ring", "Speed-up over Ring Attention", |r| ratio(r.speedup_vs_ring)),
    ("bound", "Speed-up over ring that balance alone allows, at equal kernel rates", |r| {
        ratio(r.bound_speedup_vs_ring)
    }),
    ("vs 1 GPU", "Speed-up over one GPU that does it all", |r| ratio(r.speedup_vs_one_gpu)),
    ("bubble", "Share of all GPU time in which no kernel runs", |r| percent(Some(r.bubble_ratio))),
    ("exposed comm.", "Time in which the worst rank stands still for a transfer", |r| {
        seconds(r.exposed_comm_s)
    }),
    ("imbalance", "The busiest rank's compute time over the mean; 1 is balanced", |r| {
        ratio(Some(r.imbalance))
    }),
    ("TFLOP/s/GPU", "FLOPs of the mask's area over the time, a GPU", |r| {
        Cell::number(r.tflops_per_gpu, format!("{:.0}", r.tflops_per_gpu))
    }),
    ("MFU", "That over the device's dense peak for the element type", |r| percent(r.mfu)),
    (
        "memory",
        "Attention buffers of one layer on the largest rank, without weights and other activations",
        |r| bytes(r.peak_memory_bytes),
    ),
    ("moved", "Bytes that all ranks send", |r| bytes(r.bytes_moved)),
];

fn figures(rows: &[Row]) -> Table {
    let column = |name: &str, help: &str, numeric| Column { name: name.into(), help: help.into(), numeric };
    let mut columns = vec![column("schedule", "", false), column("pass", "", false)];
    columns.extend(FIGURES.map(|(name, help, _)| column(name, help, true)));
    let cells = |row: &Row| {
        let names = [Cell::text(&row.schedule), Cell::text(&row.pass)];
        names.into_iter().chain(FIGURES.map(|(_, _, cell)| cell(row))).collect()
    };
    Table { columns, rows: rows.iter().map(cells).collect() }
}

fn seconds(s: f64) -> Cell {
    Cell::number(s, if s == 0.0 { "0".to_owned() } else { SimTime::from_secs_f64(s).to_string() })
}

fn ratio(ratio: Option<f64>) -> Cell {
    Cell::number(ratio, ratio.map_or("-".into(), |r| format!("{r:.2}x")))
}

fn percent(share: Option<f64>) -> Cell {
    Cell::number(share, share.map_or("-".into(), |s| format!("{:.1}%", 100.0 * s)))
}

fn bytes(count: u64) -> Cell {
    Cell::number(count as f64, Bytes(count).to_string())
}

fn remarks(setup: &Setup, prediction: &Prediction) -> Vec<String> {
    let mut remarks = bars(setup, &prediction.rows);
    let notes = prediction.rows.iter().filter(|r| !r.notes.is_empty());
    remarks.extend(notes.map(|r| format!("{}: {}", r.schedule, r.notes)));
    for row in prediction.rows.iter().filter(|r| !r.fits) {
        let memory = Bytes(row.device_memory_bytes);
        remarks.push(format!("{} does not fit into the {memory} of a GPU", row.schedule));
    }
    remarks.extend(prediction.left_out.iter().map(|line| format!("left out: {line}")));
    remarks
}

fn assumptions(setup: &Setup) -> Table {
    let column = |name: &str| Column { name: name.into(), help: String::new(), numeric: false };
    let row = |c: predict::Constant| vec![Cell::text(c.what), Cell::text(c.value), Cell::text(c.source)];
    Table {
        columns: ["constant", "value", "source"].map(column).into(),
        rows: predict::constants(setup).into_iter().map(row).collect(),
    }
}
