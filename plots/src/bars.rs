//! Bar charts: groups of bars from zero, told apart by colour and hatching.

use crate::axis::{Along, Tick, first_that_fits, multiples, nice_step};
use crate::font::{ASCENT, DESCENT, Font};
use crate::svg::{Anchor, FAINT_INK, INK, Rect, Svg, Text};
use crate::{PlotError, fill, legend, raster};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 300.0;
const MARGIN: f64 = 16.0;
const TITLE: Font = Font::bold(14.0);
const LABEL: Font = Font::regular(11.0);
const TICK: Font = Font::regular(10.0);
const VALUE: Font = Font::regular(9.0);
const SWATCH: f64 = 22.0;
/// Share of a group's width between groups.
const GAP: f64 = 0.2;

/// A bar chart.
#[derive(Debug, Clone)]
pub struct Bars {
    /// Above the chart.
    pub title: String,
    /// What the bars' height is, with its unit if `format` does not say it.
    pub label: String,
    /// Writes a tick's value; see [`crate::format`].
    pub format: fn(f64) -> String,
    /// Names below the groups.
    pub groups: Vec<String>,
    /// The legend: one bar in each group.
    pub series: Vec<String>,
    /// Group by group, a value for each series; `None` where there is none.
    pub values: Vec<Option<f64>>,
}

/// The chart as SVG.
///
/// # Errors
/// [`PlotError::Cells`] if there is not one value for each group and series, [`PlotError::NoPoints`] if none is positive.
pub fn svg(chart: &Bars) -> Result<String, PlotError> {
    let expected = chart.groups.len() * chart.series.len();
    if chart.values.len() != expected {
        let (found, kinds) = (chart.values.len(), chart.series.len());
        return Err(PlotError::Cells { title: chart.title.clone(), expected, found, kinds, known: kinds });
    }
    let highest = chart.values.iter().flatten().copied().filter(|v| v.is_finite()).fold(0.0, f64::max);
    if highest <= 0.0 {
        return Err(PlotError::NoPoints { title: chart.title.clone() });
    }
    let frame = Frame::of(chart, highest);
    let mut svg = Svg::new();
    let title = TITLE.shorten(&chart.title, WIDTH - 2.0 * MARGIN);
    svg.text(Text::new(MARGIN, MARGIN + 11.0, TITLE, &title));
    draw_legend(&mut svg, chart, &frame);
    draw_axis(&mut svg, chart, &frame);
    for (i, group) in chart.groups.iter().enumerate() {
        draw_group(&mut svg, chart, &frame, i, group);
    }
    let bottom = frame.bottom + 6.0 + TICK.size * (ASCENT + DESCENT);
    Ok(svg.finish(WIDTH, bottom + MARGIN, &chart.title, &fill::patterns(chart.series.len())))
}

/// [`svg`] as PNG with `scale` pixels per SVG pixel.
///
/// # Errors
/// As for [`svg`], and [`PlotError::Scale`] or [`PlotError::TooLarge`] if `scale` does not fit.
pub fn png(chart: &Bars, scale: f32) -> Result<Vec<u8>, PlotError> {
    raster::png(&svg(chart)?, scale)
}

struct Frame {
    legend: Vec<(f64, usize)>,
    left: f64,
    top: f64,
    bottom: f64,
    most: f64,
    ticks: Vec<Tick>,
}

impl Frame {
    fn of(chart: &Bars, highest: f64) -> Self {
        let widths: Vec<f64> = chart.series.iter().map(|k| SWATCH + 6.0 + legend::FONT.width(k)).collect();
        let (legend, lines) = legend::flow(&widths, WIDTH - 2.0 * MARGIN);
        let top = MARGIN + 11.0 + 10.0 + lines as f64 * legend::LINE + 8.0;
        let bottom = top + HEIGHT;
        let step = nice_step(highest / 6.0);
        // Room for a value above the highest bar.
        let most = ((highest * 1.04) / step).ceil() * step;
        let tick = |value: f64| Tick { at: bottom - value / most * HEIGHT, label: (chart.format)(value) };
        let candidates = (2..=10)
            .rev()
            .map(|n| multiples(0.0, most, nice_step(most / f64::from(n))).into_iter().map(tick).collect());
        let ticks = first_that_fits(candidates, TICK, Along::Height);
        let widest = ticks.iter().map(|t| TICK.width(&t.label)).fold(0.0, f64::max);
        let left = (MARGIN + LABEL.size + 10.0 + widest + 8.0).ceil();
        Self { legend, left, top, bottom, most, ticks }
    }
}

fn draw_legend(svg: &mut Svg, chart: &Bars, frame: &Frame) {
    for (i, (name, (x, line))) in chart.series.iter().zip(&frame.legend).enumerate() {
        let (x, y) = (MARGIN + x, MARGIN + 21.0 + *line as f64 * legend::LINE);
        let swatch = Rect { x, y: y + 2.0, width: SWATCH, height: 11.0 };
        svg.rect(swatch, &fill::paint(i), "stroke=\"#000\" stroke-opacity=\"0.33\" stroke-width=\"0.5\"", "");
        svg.text(Text::new(x + SWATCH + 6.0, y + 11.5, legend::FONT, name));
    }
}

fn draw_axis(svg: &mut Svg, chart: &Bars, frame: &Frame) {
    let right = WIDTH - MARGIN;
    for tick in &frame.ticks {
        svg.line((frame.left, tick.at), (right, tick.at), "#d9d9d9", "stroke-width=\"0.7\"");
        let text = Text::new(frame.left - 7.0, tick.at + TICK.size * 0.36, TICK, &tick.label);
        svg.text(text.anchored(Anchor::End));
    }
    svg.line((frame.left, frame.bottom), (right, frame.bottom), INK, "stroke-width=\"1\"");
    let label = LABEL.shorten(&chart.label, HEIGHT);
    let middle = f64::midpoint(frame.top, frame.bottom);
    let text = Text::new(MARGIN + LABEL.size * ASCENT, middle, LABEL, &label);
    svg.text(Text { upwards: true, ..text.anchored(Anchor::Middle) });
}

fn draw_group(svg: &mut Svg, chart: &Bars, frame: &Frame, index: usize, name: &str) {
    let width = (WIDTH - MARGIN - frame.left) / chart.groups.len() as f64;
    let start = frame.left + index as f64 * width;
    let bar = width * (1.0 - GAP) / chart.series.len() as f64;
    let values = &chart.values[index * chart.series.len()..(index + 1) * chart.series.len()];
    for (i, value) in values.iter().enumerate() {
        let x = start + width * GAP / 2.0 + i as f64 * bar;
        let middle = x + bar / 2.0;
        let Some(value) = value.filter(|v| v.is_finite() && *v >= 0.0) else {
            let text = Text::new(middle, frame.bottom - 4.0, VALUE, "–").filled(FAINT_INK);
            svg.text(text.anchored(Anchor::Middle));
            continue;
        };
        let height = value / frame.most * (frame.bottom - frame.top);
        let area = Rect { x, y: frame.bottom - height, width: bar, height };
        svg.rect(area, &fill::paint(i), "stroke=\"#222222\" stroke-width=\"0.5\"", "");
        let decimals = if value < 100.0 { 10.0 } else { 1.0 };
        let text = crate::format::number((value * decimals).round() / decimals);
        if VALUE.width(&text) <= bar {
            let text = Text::new(middle, area.y - 3.0, VALUE, &text);
            svg.text(text.anchored(Anchor::Middle));
        }
    }
    let name = TICK.shorten(name, width - 6.0);
    let text = Text::new(start + width / 2.0, frame.bottom + 6.0 + TICK.size * ASCENT, TICK, &name);
    svg.text(text.anchored(Anchor::Middle));
}
