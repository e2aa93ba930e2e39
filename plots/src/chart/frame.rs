//! The plotting area of a chart: ranges, projection, ticks and margins.

use super::{Axis, Chart, Reference, Scale};
use crate::axis::{Along, Tick, first_that_fits, multiples, nice_step};
use crate::font::Font;
use crate::{PlotError, legend};

/// Size of the picture.
pub(crate) const WIDTH: f64 = 760.0;
/// Height of the plotting area, unless the labels of references need more.
const PLOT_HEIGHT: f64 = 320.0;
/// Height of a label of a reference.
const REFERENCE_LINE: f64 = 12.0;
/// Longest label of a tick.
const TICK_WIDTH: f64 = 140.0;
pub(crate) const MARGIN: f64 = 16.0;
pub(crate) const TITLE: Font = Font::bold(14.0);
pub(crate) const LABEL: Font = Font::regular(11.0);
pub(crate) const TICK: Font = Font::regular(10.0);
/// Longest label of a reference beside the plot.
const REFERENCE_WIDTH: f64 = 150.0;
/// Length of the line before a legend's entry.
pub(crate) const SAMPLE: f64 = 34.0;

/// One axis in pixels: `value -> start + (scaled(value) - from) * pixels`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Projection {
    scale: Scale,
    from: f64,
    to: f64,
    start: f64,
    pixels: f64,
}

impl Projection {
    fn new(scale: Scale, (from, to): (f64, f64), start: f64, end: f64) -> Self {
        let (from, to) = (scaled(scale, from), scaled(scale, to));
        Self { scale, from, to, start, pixels: (end - start) / (to - from) }
    }

    /// Where a value is.
    pub fn at(&self, value: f64) -> f64 {
        self.start + (scaled(self.scale, value) - self.from) * self.pixels
    }

    /// Whether a value is in the range, but for rounding.
    pub fn contains(&self, value: f64) -> bool {
        let slack = (self.to - self.from) * 1e-9;
        (self.from - slack..=self.to + slack).contains(&scaled(self.scale, value))
    }
}

fn scaled(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Log2 => value.log2(),
        Scale::Log10 => value.log10(),
    }
}

fn unscaled(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Log2 => value.exp2(),
        Scale::Log10 => 10f64.powf(value),
    }
}

/// Where everything of a chart is.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
    /// Baseline of the title.
    pub title_y: f64,
    /// Top of the legend.
    pub legend_y: f64,
    pub legend: Vec<(f64, usize)>,
    pub x: Projection,
    pub y: Projection,
    pub x_ticks: Vec<Tick>,
    pub y_ticks: Vec<Tick>,
    /// Labels of horizontal references, with their baseline.
    pub beside: Vec<(f64, String)>,
    /// Labels of vertical references: left end, baseline, text.
    pub above: Vec<(f64, f64, String)>,
}

impl Frame {
    pub fn new(chart: &Chart) -> Result<Self, PlotError> {
        let (x_range, y_range) = ranges(chart)?;
        let (horizontal, vertical) = reference_labels(chart);
        let widest = horizontal.iter().map(|(_, l)| TICK.width(l)).fold(0.0, f64::max);
        let right = WIDTH - MARGIN - if widest > 0.0 { widest + 6.0 } else { 10.0 };
        let widths: Vec<f64> =
            chart.series.iter().map(|s| SAMPLE + 6.0 + legend::FONT.width(&entry(&s.name))).collect();
        let (legend, lines) = legend::flow(&widths, WIDTH - 2.0 * MARGIN);
        let title_y = MARGIN + 11.0;
        let legend_y = if chart.title.is_empty() { MARGIN } else { title_y + 10.0 };
        let head = legend_y + lines as f64 * legend::LINE + 6.0;
        let top = head + if vertical.is_empty() { 4.0 } else { vertical.len() as f64 * REFERENCE_LINE + 6.0 };
        let bottom = top + PLOT_HEIGHT.max(REFERENCE_LINE * (horizontal.len() + 1) as f64);
        let y = Projection::new(chart.y.scale, y_range, bottom, top);
        let y_ticks = ticks(&chart.y, y_range, &y, Along::Height);
        let widest = y_ticks.iter().map(|t| TICK.width(&t.label)).fold(0.0, f64::max);
        let left = (MARGIN + LABEL.size + 10.0 + widest + 8.0).ceil();
        let x = Projection::new(chart.x.scale, x_range, left, right);
        let x_ticks = ticks(&chart.x, x_range, &x, Along::Width);
        let beside = place_beside(&horizontal, &y, top, bottom);
        let above = place_above(&vertical, &x, left, top);
        Ok(Self {
            left,
            right,
            top,
            bottom,
            title_y,
            legend_y,
            legend,
            x,
            y,
            x_ticks,
            y_ticks,
            beside,
            above,
        })
    }
}

/// A legend's entry, never wider than the picture.
pub(crate) fn entry(name: &str) -> String {
    legend::FONT.shorten(name, WIDTH - 2.0 * MARGIN - SAMPLE - 6.0)
}

type Range = (f64, f64);

/// Ranges of both axes: as given, or of all points and references.
fn ranges(chart: &Chart) -> Result<(Range, Range), PlotError> {
    let finite = |p: &&(f64, f64)| p.0.is_finite() && p.1.is_finite();
    let (mut xs, mut ys) = (Vec::new(), Vec::new());
    for series in &chart.series {
        for &(x, y) in series.points.iter().filter(finite) {
            shown(&chart.x, &series.name, x)?;
            shown(&chart.y, &series.name, y)?;
            xs.push(x);
            ys.push(y);
        }
    }
    if xs.is_empty() {
        return Err(PlotError::NoPoints { title: chart.title.clone() });
    }
    for reference in &chart.references {
        let (axis, label, value, values) = match reference {
            Reference::Horizontal { label, y } => (&chart.y, label, *y, &mut ys),
            Reference::Vertical { label, x } => (&chart.x, label, *x, &mut xs),
        };
        shown(axis, label, value)?;
        values.extend(Some(value).filter(|v| v.is_finite()));
    }
    Ok((range(&chart.x, &xs, false)?, range(&chart.y, &ys, true)?))
}

/// Beyond this, and below its inverse, sums and ratios of the values of an axis stop being finite numbers.
const EXTREME: f64 = 1e100;

/// Whether an axis can show a value.
fn shown(axis: &Axis, series: &str, value: f64) -> Result<(), PlotError> {
    let size = value.abs();
    if value.is_finite() && (size > EXTREME || (size > 0.0 && size < EXTREME.recip())) {
        return Err(PlotError::Extreme { series: series.to_owned(), axis: axis.label.clone(), value });
    }
    if axis.scale == Scale::Linear || value > 0.0 || value.is_nan() {
        return Ok(());
    }
    Err(PlotError::NotPositive { series: series.to_owned(), axis: axis.label.clone(), value })
}

fn range(axis: &Axis, values: &[f64], from_zero: bool) -> Result<Range, PlotError> {
    if let Some((from, to)) = axis.range {
        let fits = from < to && to - from < f64::INFINITY && (axis.scale == Scale::Linear || from > 0.0);
        let error = || PlotError::Range { axis: axis.label.clone(), from, to };
        return fits.then_some((from, to)).ok_or_else(error);
    }
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if axis.scale == Scale::Linear {
        let low = if from_zero && low > 0.0 && low < 0.6 * high { 0.0 } else { low };
        let spread = if high > low { high - low } else { low.abs().max(1.0) };
        let step = nice_step(spread / 6.0);
        let floor = if low == 0.0 { 0.0 } else { ((low - 0.02 * spread) / step).floor() * step };
        return Ok((floor, ((high + 0.02 * spread) / step).ceil() * step));
    }
    let (low, high) = (scaled(axis.scale, low), scaled(axis.scale, high));
    let pad = if high > low { 0.04 * (high - low) } else { 0.5 };
    Ok((unscaled(axis.scale, low - pad), unscaled(axis.scale, high + pad)))
}

fn ticks(axis: &Axis, (from, to): Range, projection: &Projection, along: Along) -> Vec<Tick> {
    let tick = |value: f64| Tick {
        at: projection.at(value),
        label: TICK.shorten(&(axis.format)(value), TICK_WIDTH),
    };
    let linear = (2..=10).rev().map(|n| multiples(from, to, nice_step((to - from) / f64::from(n))));
    let logarithmic: Vec<Vec<f64>> = match axis.scale {
        Scale::Linear => Vec::new(),
        Scale::Log2 => [1, 2, 3, 4, 6, 8, 10].map(|every| powers(2.0, &[1.0], every, from, to)).into(),
        Scale::Log10 => [(&[1.0, 2.0, 5.0][..], 1), (&[1.0], 1), (&[1.0], 2), (&[1.0], 3), (&[1.0], 6)]
            .map(|(factors, every)| powers(10.0, factors, every, from, to))
            .into(),
    };
    let candidates = logarithmic.into_iter().filter(|values| values.len() > 1).chain(linear);
    first_that_fits(candidates.map(|values| values.into_iter().map(tick).collect()), TICK, along)
}

/// `factors` times every `every`-th power of `base`, within the range.
fn powers(base: f64, factors: &[f64], every: i32, from: f64, to: f64) -> Vec<f64> {
    let exponent = |v: f64| (v.ln() / base.ln()).floor() as i32;
    let exponents = (exponent(from) - 1..=exponent(to) + 1).filter(|e| e.rem_euclid(every) == 0);
    let values = exponents.flat_map(|e| factors.iter().map(move |f| f * base.powi(e)));
    values.filter(|v| (from * (1.0 - 1e-9)..=to * (1.0 + 1e-9)).contains(v)).collect()
}

type Labels = Vec<(f64, String)>;

/// Labels of horizontal and of vertical references.
fn reference_labels(chart: &Chart) -> (Labels, Labels) {
    let (mut horizontal, mut vertical) = (Vec::new(), Vec::new());
    for reference in &chart.references {
        match reference {
            Reference::Horizontal { label, y } if y.is_finite() => {
                horizontal.push((*y, TICK.shorten(label, REFERENCE_WIDTH)));
            }
            Reference::Vertical { label, x } if x.is_finite() => {
                vertical.push((*x, TICK.shorten(label, REFERENCE_WIDTH)));
            }
            _ => {}
        }
    }
    vertical.sort_by(|a, b| a.0.total_cmp(&b.0));
    (horizontal, vertical)
}

/// Baselines beside the plot, pushed apart where values are close.
fn place_beside(labels: &Labels, y: &Projection, top: f64, bottom: f64) -> Vec<(f64, String)> {
    let inside = labels.iter().filter(|(value, _)| y.contains(*value));
    let mut placed: Vec<(f64, String)> = inside.map(|(v, l)| (y.at(*v) + 3.6, l.clone())).collect();
    placed.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut below = bottom + REFERENCE_LINE;
    for (baseline, _) in &mut placed {
        *baseline = baseline.min(below - REFERENCE_LINE);
        below = *baseline;
    }
    let overflow = placed.last().map_or(0.0, |l| (top + 7.0 - l.0).max(0.0));
    for (baseline, _) in &mut placed {
        *baseline += overflow;
    }
    placed
}

/// Places above the plot, each label on a line of its own, centred on its value as far as the picture allows.
fn place_above(labels: &Labels, x: &Projection, left: f64, top: f64) -> Vec<(f64, f64, String)> {
    let inside = labels.iter().filter(|(value, _)| x.contains(*value));
    let place = |(i, (value, label)): (usize, &(f64, String))| {
        let width = TICK.width(label);
        let start = (x.at(*value) - width / 2.0).clamp(left, WIDTH - MARGIN - width);
        (start, top - 5.0 - REFERENCE_LINE * i as f64, label.clone())
    };
    inside.enumerate().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format;

    #[test]
    fn token_ticks_are_powers_of_two() {
        let axis = Axis::new("tokens", Scale::Log2, format::tokens);
        let range = (8192.0, 1_048_576.0);
        let projection = Projection::new(Scale::Log2, range, 0.0, 700.0);
        let labels: Vec<String> =
            ticks(&axis, range, &projection, Along::Width).into_iter().map(|t| t.label).collect();
        assert_eq!(labels, ["8Ki", "16Ki", "32Ki", "64Ki", "128Ki", "256Ki", "512Ki", "1Mi"]);
        let narrow = Projection::new(Scale::Log2, range, 0.0, 120.0);
        let fewer = ticks(&axis, range, &narrow, Along::Width);
        assert!(fewer.len() >= 2 && fewer.len() < 8);
    }

    #[test]
    fn equal_ratios_are_equal_lengths() {
        for scale in [Scale::Log2, Scale::Log10] {
            let p = Projection::new(scale, (1.0, 256.0), 10.0, 90.0);
            for (value, at) in [(1.0, 10.0), (2.0, 20.0), (16.0, 50.0), (256.0, 90.0)] {
                assert!((p.at(value) - at).abs() < 1e-9, "{scale:?} {value}");
            }
        }
        let p = Projection::new(Scale::Linear, (0.0, 4.0), 100.0, 0.0);
        assert_eq!((p.at(0.0), p.at(1.0), p.at(4.0)), (100.0, 75.0, 0.0));
    }

    #[test]
    fn ranges_hold_their_values() {
        for values in
            [vec![1.0, 2.0], vec![5.0], vec![0.0], vec![-3.0, 12.0], vec![1e-6, 3e-6], vec![99.0, 100.0]]
        {
            let axis = Axis::new("y", Scale::Linear, format::number);
            let (from, to) = range(&axis, &values, true).unwrap();
            assert!(from < to && values.iter().all(|v| (from..=to).contains(v)), "{values:?}: {from} {to}");
            if values.iter().all(|v| *v > 0.0) {
                let axis = Axis::new("y", Scale::Log10, format::number);
                let (from, to) = range(&axis, &values, true).unwrap();
                assert!(from > 0.0 && values.iter().all(|v| (from..=to).contains(v)));
            }
        }
    }

    #[test]
    fn a_log_axis_within_an_octave_still_has_ticks() {
        let axis = Axis::new("y", Scale::Log10, format::number);
        let range = (3.1, 3.9);
        let projection = Projection::new(Scale::Log10, range, 0.0, 300.0);
        assert!(ticks(&axis, range, &projection, Along::Height).len() >= 2);
    }
}
