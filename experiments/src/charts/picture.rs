//! A picture and the data in it.

use anyhow::Result;
use ringlab_plots::bars::{self, Bars};
use ringlab_plots::chart::{self, Chart};
use ringlab_plots::heatmap::{self, HeatMap};

use super::table::Table;
use super::{Kind, curves, kernels, scatter, winner};
use crate::figures::{PNG_SCALE, Picture};

/// What to draw.
#[derive(Debug, Clone)]
pub struct Request {
    /// The kind of chart.
    pub kind: Kind,
    /// The column along the picture.
    pub x: Option<String>,
    /// The column up the picture, for maps.
    pub y: Option<String>,
    /// The column whose values are lines.
    pub by: Option<String>,
    /// Above the picture, instead of what the rows have in common.
    pub title: Option<String>,
}

impl Request {
    /// A chart of its kind's usual columns.
    pub fn of(kind: Kind) -> Self {
        Self { kind, x: None, y: None, by: None, title: None }
    }

    /// The column along the picture.
    pub fn x(&self) -> &str {
        let usual = if self.kind == Kind::Exposed { "link_bandwidth_bytes_per_s" } else { "seq_len" };
        self.x.as_deref().unwrap_or(usual)
    }

    /// The column up a map.
    pub fn y(&self) -> &str {
        self.y.as_deref().unwrap_or("cp")
    }

    /// The column whose values are lines.
    pub fn by(&self) -> &str {
        self.by.as_deref().unwrap_or("schedule")
    }
}

/// A picture ready to be written.
pub enum Drawn {
    /// Lines.
    Lines(Chart),
    /// A map.
    Map(HeatMap),
    /// Bars.
    Bars(Bars),
}

/// Makes the picture of `table` that `request` asks for.
///
/// # Errors
/// Columns that are missing or have several values, or nothing to draw.
pub fn draw(table: &Table, request: &Request) -> Result<Drawn> {
    Ok(match request.kind {
        Kind::Winner => Drawn::Map(winner::map(table, request)?),
        Kind::Kernels if request.x.is_some() => Drawn::Lines(kernels::lines(table, request)?),
        Kind::Kernels => Drawn::Bars(kernels::bars(table, request)?),
        Kind::Validate | Kind::Paper => Drawn::Lines(scatter::chart(table, request)?),
        _ => Drawn::Lines(curves::chart(table, request)?),
    })
}

impl Drawn {
    /// The picture's bytes.
    ///
    /// # Errors
    /// Data that cannot be drawn.
    pub fn bytes(&self, as_what: Picture) -> Result<Vec<u8>> {
        Ok(match (self, as_what) {
            (Self::Lines(chart), Picture::Svg) => chart::lines(chart)?.into_bytes(),
            (Self::Lines(chart), Picture::Png) => chart::png(chart, PNG_SCALE)?,
            (Self::Map(map), Picture::Svg) => heatmap::svg(map)?.into_bytes(),
            (Self::Map(map), Picture::Png) => heatmap::png(map, PNG_SCALE)?,
            (Self::Bars(chart), Picture::Svg) => bars::svg(chart)?.into_bytes(),
            (Self::Bars(chart), Picture::Png) => bars::png(chart, PNG_SCALE)?,
        })
    }

    /// The data in the picture as CSV: series, x, y.
    ///
    /// # Errors
    /// Never: the rows are written to memory.
    pub fn data(&self) -> Result<String> {
        let mut out = csv::Writer::from_writer(Vec::new());
        out.write_record(["series", "x", "y"])?;
        match self {
            Self::Lines(chart) => {
                for series in &chart.series {
                    for (x, y) in series.points.iter().filter(|p| p.0.is_finite()) {
                        out.write_record([series.name.clone(), x.to_string(), y.to_string()])?;
                    }
                }
            }
            Self::Map(map) => {
                for (i, cell) in map.cells.iter().enumerate() {
                    let (column, row) = (i % map.x.names.len(), i / map.x.names.len());
                    let winner = cell.kind.map_or("", |k| map.kinds[k].as_str());
                    let named = format!("{winner} {}", cell.texts.first().map_or("", String::as_str));
                    out.write_record([named.trim(), &map.x.names[column], &map.y.names[row]])?;
                }
            }
            Self::Bars(chart) => {
                for (i, value) in chart.values.iter().enumerate() {
                    let (group, series) = (i / chart.series.len(), i % chart.series.len());
                    let value = value.map_or(String::new(), |v| v.to_string());
                    out.write_record([&chart.series[series], &chart.groups[group], &value])?;
                }
            }
        }
        Ok(String::from_utf8(out.into_inner()?)?)
    }
}
