//! The fastest schedule of every pair of values of two columns.

use anyhow::{Result, bail};
use ringlab_plots::heatmap::{Categories, Cell, HeatMap};

use super::Kind;
use super::curves::{CONFIGURATION, numeric, title, values_of, x_axis};
use super::picture::Request;
use super::table::Table;

/// A winner that is ahead by less than this is a tie.
const TIE: f64 = 1.005;

/// The map of `table`, as `request` asks.
///
/// # Errors
/// Columns that are missing, no numbers, or have several values where one is needed.
pub fn map(table: &Table, request: &Request) -> Result<HeatMap> {
    let (x, y) = (request.x(), request.y());
    if x == y {
        bail!("a map needs two different columns, not {x} twice");
    }
    let fixed: Vec<&str> =
        CONFIGURATION.iter().copied().filter(|c| ![x, y, "schedule"].contains(c)).collect();
    table.require_one_value(&fixed)?;
    let (columns, rows) = (places(table, x)?, places(table, y)?);
    let kinds = values_of(table, "schedule");
    let mut cells = Vec::new();
    for &(_, row) in &rows {
        for &(_, column) in &columns {
            cells.push(cell(table, &kinds, (x, column), (y, row)));
        }
    }
    let axis = |column: &str, places: &[(String, f64)]| {
        let axis = x_axis(column);
        let names = places.iter().map(|(_, value)| (axis.format)(*value)).collect();
        Categories { label: axis.label, names }
    };
    Ok(HeatMap {
        title: request.title.clone().unwrap_or_else(|| title(Kind::Winner, table)),
        x: axis(x, &columns),
        y: axis(y, &rows),
        kinds,
        cells,
    })
}

/// The values of a column, in increasing order.
fn places(table: &Table, column: &str) -> Result<Vec<(String, f64)>> {
    table.column(column)?;
    let mut places: Vec<(String, f64)> = Vec::new();
    for row in table.rows() {
        let value = numeric(row, column)?;
        if !places.iter().any(|(_, known)| *known == value) {
            places.push((row.text(column).to_owned(), value));
        }
    }
    places.sort_by(|a, b| a.1.total_cmp(&b.1));
    Ok(places)
}

fn cell(table: &Table, kinds: &[String], x: (&str, f64), y: (&str, f64)) -> Cell {
    let here = table.rows().filter(|r| r.number(x.0) == Some(x.1) && r.number(y.0) == Some(y.1));
    let mut times: Vec<(f64, &str)> =
        here.filter_map(|r| Some((r.number("makespan_s")?, r.text("schedule")))).collect();
    // The first of equals is the one that the file names first.
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let ring = times.iter().find(|t| t.1 == "ring").map(|t| t.0);
    let Some(&(best, name)) = times.first() else { return Cell { kind: None, texts: vec!["-".into()] } };
    let tie = times.get(1).is_some_and(|second| second.0 < best * TIE);
    let mark = if tie { " =" } else { "" };
    let texts = match ring {
        Some(ring) => {
            let ratio = ring / best;
            vec![format!("{ratio:.2}x{mark}"), format!("{ratio:.1}{mark}"), String::new()]
        }
        None => vec![mark.trim().to_owned()],
    };
    Cell { kind: kinds.iter().position(|k| k == name), texts }
}
