//! Predictions over what was measured or printed, with the diagonal and a band of equal error.

use anyhow::{Result, bail};
use ringlab_plots::chart::{Axis, Chart, Colour, Line, Marker, Scale, Series, Style};
use ringlab_plots::format;

use super::Kind;
use super::curves::values_of;
use super::picture::Request;
use super::table::{Row, Table};

/// Errors inside the band, either way.
const BAND: f64 = 0.1;
/// Beyond the least and the most of the values, as a factor.
const ROOM: f64 = 1.1;

/// Which columns are compared.
struct Columns {
    truth: &'static str,
    prediction: &'static str,
    /// How far repeats lie apart, where the file says so.
    spread: &'static str,
    labels: [&'static str; 2],
    format: fn(f64) -> String,
}

const MEASURED: Columns = Columns {
    truth: "measured_s",
    prediction: "predicted_s",
    spread: "spread_s",
    labels: ["measured", "predicted"],
    format: format::seconds,
};
const PRINTED: Columns = Columns {
    truth: "published",
    prediction: "predicted",
    spread: "",
    labels: ["printed", "predicted"],
    format: format::number,
};

/// The scatter of `table`, as `request` asks.
///
/// # Errors
/// Columns that are missing, several units, or nothing to draw.
pub fn chart(table: &Table, request: &Request) -> Result<Chart> {
    let columns = if request.kind == Kind::Validate { MEASURED } else { PRINTED };
    table.column(columns.truth)?;
    table.column(columns.prediction)?;
    table.require_one_value(&["unit"])?;
    let by = match (&request.by, request.kind) {
        (Some(by), _) => by.as_str(),
        (None, Kind::Validate) => "schedule",
        (None, _) => "paper",
    };
    if request.by.is_some() {
        table.column(by)?;
    }
    let (series, ends) = points(table, &columns, by);
    let Some((low, high)) = ends else {
        bail!(
            "{}: no row has both {} and {} as positive numbers",
            table.label(),
            columns.truth,
            columns.prediction
        );
    };
    let (low, high) = (low / ROOM, high * ROOM);
    let mut drawn = band(low, high);
    drawn.extend(spread(table, &columns, (low, high)));
    drawn.extend(series);
    let unit = table.rows().next().map_or("", |row| row.text("unit"));
    let unit = if unit.is_empty() { String::new() } else { format!(" ({unit})") };
    // Within a factor of four a logarithmic axis has too few ticks.
    let scale = if high < 4.0 * low { Scale::Linear } else { Scale::Log10 };
    let axis = |label: &str| Axis::new(format!("{label}{unit}"), scale, columns.format).over(low, high);
    let [x, y] = columns.labels.map(axis);
    Ok(Chart {
        title: request.title.clone().unwrap_or_else(|| title(table, &columns)),
        x,
        y,
        series: drawn,
        references: Vec::new(),
    })
}

fn pair(row: Row<'_>, columns: &Columns) -> Option<(f64, f64)> {
    let both = (row.number(columns.truth)?, row.number(columns.prediction)?);
    (both.0 > 0.0 && both.1 > 0.0).then_some(both)
}

/// A series for each value of `by`, and the least and the most of all values.
fn points(table: &Table, columns: &Columns, by: &str) -> (Vec<Series>, Option<(f64, f64)>) {
    let names = if table.has(by) { values_of(table, by) } else { vec![String::new()] };
    let mut series: Vec<Series> = Vec::new();
    let mut ends: Option<(f64, f64)> = None;
    for name in names {
        let points: Vec<(f64, f64)> =
            table.rows().filter(|r| r.text(by) == name).filter_map(|r| pair(r, columns)).collect();
        for value in points.iter().flat_map(|p| [p.0, p.1]) {
            let (low, high) = ends.unwrap_or((value, value));
            ends = Some((low.min(value), high.max(value)));
        }
        if !points.is_empty() {
            let style = Style::nth(series.len()).with_line(Line::None);
            let name = if name.is_empty() { "points".to_owned() } else { name };
            series.push(Series { name, points, style });
        }
    }
    (series, ends)
}

/// The diagonal, and where the prediction is off by so much, from one end of the square to the other.
fn band(from: f64, to: f64) -> Vec<Series> {
    let line = |name: String, points, line| Series {
        name,
        points,
        style: Style { colour: Colour::Black, line, marker: Marker::None },
    };
    let (above, below) = (1.0 + BAND, 1.0 - BAND);
    let edges = vec![
        (from, from * above),
        (to / above, to),
        // A break: both edges are one series, so that the legend names them once.
        (f64::NAN, f64::NAN),
        (from / below, from),
        (to, to * below),
    ];
    let exact = vec![(from, from), (to, to)];
    let off = format!("off by {}", format::percent(BAND));
    vec![line("exact".into(), exact, Line::Dashed), line(off, edges, Line::Dotted)]
}

/// Bars about the measurement, as long as the repeats' standard deviation where the file has it, as far as the axes reach.
fn spread(table: &Table, columns: &Columns, (low, high): (f64, f64)) -> Option<Series> {
    let mut points = Vec::new();
    for row in table.rows() {
        if let (Some((truth, prediction)), Some(spread)) = (pair(row, columns), row.number(columns.spread))
            && spread > 0.0
        {
            points.extend([
                ((truth - spread / 2.0).max(low), prediction),
                ((truth + spread / 2.0).min(high), prediction),
                (f64::NAN, f64::NAN),
            ]);
        }
    }
    let style = Style { colour: Colour::Black, line: Line::Solid, marker: Marker::None };
    (!points.is_empty()).then(|| Series { name: "spread of the repeats".into(), points, style })
}

/// How far the predictions are off: median and most, over all points.
fn title(table: &Table, columns: &Columns) -> String {
    let mut errors: Vec<f64> =
        table.rows().filter_map(|r| pair(r, columns)).map(|(truth, p)| (p / truth - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let (median, most) = (errors[errors.len() / 2], errors[errors.len() - 1]);
    let (count, what) = (errors.len(), columns.labels[0]);
    format!(
        "Predicted over {what}: {count} points, median error {:.1} %, largest {:.1} %",
        100.0 * median,
        100.0 * most
    )
}
