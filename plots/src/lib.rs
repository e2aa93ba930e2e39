//! Timelines and result rows as pictures and files: Gantt, line and bar charts and maps (SVG, PNG), Chrome traces, CSV.
//!
//! Everything here turns values into text or bytes, or writes into a writer that it is given; nothing opens a file, and
//! no font of the system is asked for. The same input gives the same bytes.

mod axis;
pub mod bars;
pub mod chart;
pub mod chrome;
pub mod csv;
mod fill;
mod font;
pub mod format;
pub mod gantt;
pub mod heatmap;
mod legend;
mod palette;
mod panel;
mod raster;
mod svg;

use thiserror::Error;

pub use panel::Panel;

/// Why there is no picture.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PlotError {
    /// A scale that is not a positive number.
    #[error("a picture cannot be scaled by {scale}; use a positive number, such as 2")]
    Scale {
        /// What was asked for.
        scale: f32,
    },
    /// A PNG that would not fit into memory.
    #[error("a PNG of {width:.0} x {height:.0} pixels is too large; use a smaller scale, or SVG")]
    TooLarge {
        /// In pixels.
        width: f64,
        /// In pixels.
        height: f64,
    },
    /// A chart without a single finite point.
    #[error("the chart {title:?} has no point to draw")]
    NoPoints {
        /// The chart's title.
        title: String,
    },
    /// A value that a logarithmic axis cannot show.
    #[error("{series:?} has {value} on the logarithmic axis {axis:?}; leave it out or use a linear axis")]
    NotPositive {
        /// The series or reference.
        series: String,
        /// The axis' label.
        axis: String,
        /// The value.
        value: f64,
    },
    /// A value with which no axis can be laid out.
    #[error("{series:?} has {value:e} on the axis {axis:?}; values are from 1e-100 to 1e100; leave it out")]
    Extreme {
        /// The series or reference.
        series: String,
        /// The axis' label.
        axis: String,
        /// The value.
        value: f64,
    },
    /// A range that is empty, reversed or not finite.
    #[error("the axis {axis:?} cannot run from {from} to {to}; the first must be less than the second")]
    Range {
        /// The axis' label.
        axis: String,
        /// Lower end.
        from: f64,
        /// Upper end.
        to: f64,
    },
    /// Cells or bars that do not fill their chart, or are of a kind that it does not have.
    #[error(
        "the chart {title:?} needs {expected} values of {known} kinds, but got {found} of {kinds}; give one for each place"
    )]
    Cells {
        /// The chart's title.
        title: String,
        /// Places of the chart.
        expected: usize,
        /// Values given.
        found: usize,
        /// Kinds that the values name.
        kinds: usize,
        /// Kinds that the legend has.
        known: usize,
    },
    /// The rasteriser refused its own input.
    #[error("failed to render the picture: {0}")]
    Raster(String),
}
