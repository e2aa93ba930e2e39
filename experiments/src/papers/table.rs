//! Papers as a person reads them.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};

use super::row::{Paper, Row, Verdict};

/// All papers, one after the other.
pub fn render(papers: &[Paper]) -> String {
    papers.iter().map(paper).collect::<Vec<_>>().join("\n")
}

fn paper(paper: &Paper) -> String {
    let mut text = format!("{}\n{}\n{}\n", paper.name, paper.title, paper.source);
    text += &rows(&paper.rows);
    text += "\n";
    for s in &paper.tables {
        if let (Some(median), Some(max)) = (s.median_abs_error, s.max_abs_error) {
            let (median, max) = (median * 100.0, max * 100.0);
            text += &format!("  {}, {}: median error {median:.1}%, largest {max:.1}%\n", s.table, s.quantity);
        }
    }
    for a in &paper.assumptions {
        let fitted = a.fitted_on.as_ref().map_or(String::new(), |row| format!(" (FITTED on {row})"));
        text += &format!("  assumed {} = {}{fitted}: {}\n", a.name, a.value, a.source);
    }
    let mut reasons: Vec<&str> = paper.rows.iter().filter_map(|r| r.reason.as_deref()).collect();
    reasons.dedup();
    for (i, reason) in reasons.iter().enumerate() {
        if !reasons[..i].contains(reason) {
            text += &format!("  {reason}\n");
        }
    }
    text
}

fn rows(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    table.set_header(["table", "case", "quantity", "published", "predicted", "error", "bound", "verdict"]);
    for column in 3..7 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for row in rows {
        table.add_row([
            row.table.clone(),
            row.case.clone(),
            if row.unit.is_empty() {
                row.quantity.clone()
            } else {
                format!("{} [{}]", row.quantity, row.unit)
            },
            row.published.text(),
            row.predicted.text(),
            row.error.map_or(String::new(), |e| format!("{:+.1}%", e * 100.0)),
            row.bound.map_or(String::new(), |b| format!("{b:.2}")),
            verdict(row),
        ]);
    }
    table.to_string()
}

/// The verdict in words.
pub fn verdict(row: &Row) -> String {
    match (row.verdict, row.within_percent) {
        (Verdict::Reproduced, Some(_)) if row.error.is_none() => "reproduced".to_owned(),
        (Verdict::Reproduced, Some(within)) => format!("reproduced within {within}%"),
        (other, _) => other.name().to_owned(),
    }
}
