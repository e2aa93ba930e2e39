//! Medians of absolute errors over rows on which nothing was fitted.

use ringlab_experiments::papers::{Cell, Paper, Row, Verdict, median_abs_error, run};

fn paper(name: &str) -> Paper {
    run(name).unwrap().papers.remove(0)
}

fn rows<'a>(paper: &'a Paper, table: &str, quantity: &str) -> Vec<&'a Row> {
    let found: Vec<&Row> =
        paper.rows.iter().filter(|r| r.table == table && r.quantity.starts_with(quantity)).collect();
    assert!(!found.is_empty(), "{table}, {quantity}");
    found
}

fn within(rows: &[&Row], tolerance: f64) {
    let median = median_abs_error(rows.iter().copied()).unwrap();
    assert!(median <= tolerance, "{} {}: {median:.3} above {tolerance}", rows[0].table, rows[0].quantity);
}

fn value(cell: Cell) -> f64 {
    cell.number().expect("a number")
}

#[test]
fn distflashattn_against_megatron() {
    let paper = paper("distflashattn");
    let speedups = rows(&paper, "table 1", "speed-up");
    assert_eq!(speedups.len(), 18);
    within(&speedups, 0.04);
    for row in &speedups {
        assert_eq!(value(row.published) > 1.0, value(row.predicted) > 1.0, "winner of {}", row.case);
    }
    within(&rows(&paper, "table 1", "DistFlashAttn iteration"), 0.05);
    within(&rows(&paper, "table 1", "Megatron-LM iteration"), 0.04);
    // Padded to 40 or 48 heads: nothing is left beyond what the other rows miss.
    for row in paper.rows.iter().filter(|r| r.case.contains("33H") && r.quantity != "DistFlashAttn iteration")
    {
        assert!(row.error.unwrap().abs() < 0.06, "{} {}: {:?}", row.case, row.quantity, row.error);
    }
}

#[test]
fn distflashattn_lengths_and_memory() {
    let paper = paper("distflashattn");
    let lengths = rows(&paper, "table 2", "longest");
    let right = lengths.iter().filter(|r| r.published == r.predicted).count();
    assert_eq!((right, lengths.len()), (11, 12));
    for row in rows(&paper, "table 3", "longest") {
        assert_eq!(row.published, row.predicted, "{} {}", row.case, row.quantity);
    }
    within(&rows(&paper, "table 6", "memory"), 0.10);
}

#[test]
fn distflashattn_against_others_and_checkpointing() {
    let paper = paper("distflashattn");
    for table in ["table 3", "table 4", "table 5"] {
        within(&rows(&paper, table, "speed-up"), 0.12);
    }
}

#[test]
fn distflashattn_ablations() {
    let paper = paper("distflashattn");
    for row in paper.rows.iter().filter(|r| r.table == "ablations" && r.verdict != Verdict::Explained) {
        assert!(row.error.unwrap().abs() <= 0.10, "{}: {:?}", row.quantity, row.error);
    }
    for row in paper.rows.iter().filter(|r| r.table == "sends") {
        assert_eq!(row.published, row.predicted, "{} {}", row.case, row.quantity);
    }
}

/// Nothing was fitted on this table.
#[test]
fn lightseqs_module() {
    let paper = paper("lightseq");
    assert!(paper.assumptions.iter().all(|a| a.fitted_on.is_none()));
    for what in ["DFA/LightSeq communication", "DFA/LightSeq compute", "total", "net"] {
        within(&rows(&paper, "attention module", what), 0.05);
    }
}

#[test]
fn striped_speedups_and_losses() {
    let paper = paper("striped");
    within(&rows(&paper, "A100 and TPUv4", "speed-up"), 0.06);
    assert_eq!(paper.rows.len(), 137);
    for row in &paper.rows {
        assert!(row.published.number() <= row.bound, "{} exceeds the paper's own maximum", row.case);
        assert!(row.predicted.number() <= row.bound, "{} predicted beyond the maximum", row.case);
        if value(row.published) < 1.0 {
            assert!(value(row.predicted) <= 1.0, "no gain where the paper measured a loss: {}", row.case);
        }
    }
}

#[test]
fn ring_attentions_contexts() {
    let paper = paper("ring-attention");
    let contexts = rows(&paper, "table 3", "longest");
    let right = contexts.iter().filter(|r| r.counts() && r.published == r.predicted).count();
    assert!(right >= 11 && contexts.len() == 13, "{right} of {}", contexts.len());
    within(&rows(&paper, "table 4", "MFU"), 0.05);
}

#[test]
fn ring_flash_attentions_percentages() {
    let paper = paper("ring-flash-attention");
    let mut points: Vec<f64> = rows(&paper, "README", "of one GPU's rate")
        .iter()
        .map(|r| (value(r.published) - value(r.predicted)).abs())
        .collect();
    points.sort_by(f64::total_cmp);
    assert!(points[points.len() / 2] <= 6.0, "{points:?}");
    assert!(points[points.len() - 1] <= 10.0, "{points:?}");
}

#[test]
fn ulysses_and_its_baselines() {
    let paper = paper("ulysses");
    within(&rows(&paper, "throughput", "Ulysses"), 0.12);
    within(&rows(&paper, "throughput", "Megatron-LM SP"), 0.12);
    for row in &paper.rows {
        assert_eq!(row.published == Cell::Oom, row.predicted == Cell::Oom, "{} {}", row.case, row.quantity);
    }
}

#[test]
fn megatrons_layer_and_iterations() {
    let paper = paper("megatron-sp");
    for quantity in ["forward", "backward", "both"] {
        for row in rows(&paper, "table 4", quantity) {
            assert!(row.error.unwrap().abs() <= 0.08, "{} {quantity}: {:?}", row.case, row.error);
        }
    }
    within(&rows(&paper, "table 5", "speed-up"), 0.12);
    within(&rows(&paper, "table 5", "iteration, full"), 0.08);
    within(&rows(&paper, "table 5", "iteration, selective"), 0.15);
}

#[test]
fn usp_where_the_device_sets_the_pace() {
    within(&rows(&paper("usp"), "device-bound", "iterations"), 0.15);
}

#[test]
fn ring_self_attention_in_weak_scaling() {
    let paper = paper("ring-self-attention");
    within(&rows(&paper, "table 4", "memory"), 0.10);
    within(&rows(&paper, "table 4", "rate"), 0.15);
}
