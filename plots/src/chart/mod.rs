//! Line charts: series of points over a linear or logarithmic axis.

mod draw;
mod frame;
mod style;

use frame::Frame;

pub use style::{Colour, Line, Marker, Style};

use crate::{PlotError, raster};

/// How values are spread along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scale {
    /// Equal differences are equal lengths.
    Linear,
    /// Equal ratios are equal lengths, ticks at powers of two.
    Log2,
    /// Equal ratios are equal lengths, ticks at 1, 2 and 5 times powers of ten.
    Log10,
}

/// An axis.
#[derive(Debug, Clone)]
pub struct Axis {
    /// What it shows, with its unit if the ticks do not say it.
    pub label: String,
    /// How values are spread.
    pub scale: Scale,
    /// Writes a tick's value; see [`crate::format`].
    pub format: fn(f64) -> String,
    /// First and last value; from the points if not given.
    pub range: Option<(f64, f64)>,
}

impl Axis {
    /// An axis over the range of the points.
    pub fn new(label: impl Into<String>, scale: Scale, format: fn(f64) -> String) -> Self {
        Self { label: label.into(), scale, format, range: None }
    }

    /// Sets the range.
    pub fn over(self, from: f64, to: f64) -> Self {
        Self { range: Some((from, to)), ..self }
    }
}

/// Points that belong together.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its entry in the legend.
    pub name: String,
    /// Points (x, y) in drawing order. One that is not finite breaks the line: there is no result.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub style: Style,
}

/// A line across the chart at one value: a bound, a published number.
#[derive(Debug, Clone)]
pub enum Reference {
    /// At one y.
    Horizontal {
        /// What it is.
        label: String,
        /// Where.
        y: f64,
    },
    /// At one x.
    Vertical {
        /// What it is.
        label: String,
        /// Where.
        x: f64,
    },
}

/// A line chart.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Above the chart; none if empty.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is drawn, later ones on top.
    pub series: Vec<Series>,
    /// Lines at single values.
    pub references: Vec<Reference>,
}

/// The chart as SVG. Points outside a given range are left out, which a footer says.
///
/// # Errors
/// [`PlotError`] if there is no finite point, or a value or range does not fit its axis.
pub fn lines(chart: &Chart) -> Result<String, PlotError> {
    let frame = Frame::new(chart)?;
    Ok(draw::chart(chart, &frame))
}

/// [`lines`] as PNG with `scale` pixels per SVG pixel.
///
/// # Errors
/// As for [`lines`], and [`PlotError::Scale`] or [`PlotError::TooLarge`] if `scale` does not fit.
pub fn png(chart: &Chart, scale: f32) -> Result<Vec<u8>, PlotError> {
    raster::png(&lines(chart)?, scale)
}
