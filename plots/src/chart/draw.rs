//! Draws a chart into its frame.

use super::frame::{Frame, LABEL, MARGIN, SAMPLE, TICK, TITLE, WIDTH, entry};
use super::style::Style;
use super::{Chart, Reference, Series};
use crate::font::{ASCENT, DESCENT};
use crate::legend;
use crate::svg::{Anchor, FAINT_INK, INK, Rect, Svg, Text};

const GRID: &str = "#d9d9d9";
const REFERENCE: &str = "#777777";

pub(super) fn chart(chart: &Chart, frame: &Frame) -> String {
    let mut svg = Svg::new();
    let title = TITLE.shorten(&chart.title, WIDTH - 2.0 * MARGIN);
    svg.text(Text::new(MARGIN, frame.title_y, TITLE, &title));
    for (series, place) in chart.series.iter().zip(&frame.legend) {
        legend_entry(&mut svg, series, *place, frame);
    }
    grid(&mut svg, frame);
    references(&mut svg, chart, frame);
    let mut outside = 0;
    for series in &chart.series {
        draw_series(&mut svg, series, frame);
        outside += series.points.iter().filter(|p| is_outside(frame, **p)).count();
    }
    let bottom = axes(&mut svg, chart, frame);
    let bottom = if outside > 0 { footer(&mut svg, outside, bottom) } else { bottom };
    let area = clip_path(frame);
    svg.finish(WIDTH, bottom + MARGIN, &chart.title, &area)
}

fn is_finite((x, y): (f64, f64)) -> bool {
    x.is_finite() && y.is_finite()
}

fn is_outside(frame: &Frame, point: (f64, f64)) -> bool {
    is_finite(point) && !(frame.x.contains(point.0) && frame.y.contains(point.1))
}

fn clip_path(f: &Frame) -> String {
    let (w, h) = (f.right - f.left, f.bottom - f.top);
    format!(
        "<clipPath id=\"plot-area\"><rect x=\"{}\" y=\"{}\" width=\"{w}\" height=\"{h}\"/></clipPath>\n",
        f.left, f.top
    )
}

fn legend_entry(svg: &mut Svg, series: &Series, (x, line): (f64, usize), frame: &Frame) {
    let (x, y) = (MARGIN + x, frame.legend_y + line as f64 * legend::LINE + 8.0);
    stroke(svg, &[(x, y), (x + SAMPLE, y)], series.style, "");
    mark(svg, (x + SAMPLE / 2.0, y), series.style);
    svg.text(Text::new(x + SAMPLE + 6.0, y + 3.8, legend::FONT, &entry(&series.name)));
}

fn stroke(svg: &mut Svg, points: &[(f64, f64)], style: Style, attributes: &str) {
    let Some(dashes) = style.line.dashes() else { return };
    let attributes =
        format!("stroke-width=\"1.8\" stroke-dasharray=\"{dashes}\" stroke-linejoin=\"round\"{attributes}");
    svg.polyline(points, style.colour.hex(), &attributes);
}

fn mark(svg: &mut Svg, at: (f64, f64), style: Style) {
    let Some((path, filled)) = style.marker.path() else { return };
    let hex = style.colour.hex();
    let attributes = if filled {
        format!("fill=\"{hex}\" stroke=\"#fff\" stroke-width=\"0.7\"")
    } else {
        format!("fill=\"none\" stroke=\"{hex}\" stroke-width=\"1.8\"")
    };
    svg.path_at(at, path, &attributes);
}

fn grid(svg: &mut Svg, f: &Frame) {
    for tick in &f.x_ticks {
        svg.line((tick.at, f.top), (tick.at, f.bottom), GRID, "stroke-width=\"0.7\"");
    }
    for tick in &f.y_ticks {
        svg.line((f.left, tick.at), (f.right, tick.at), GRID, "stroke-width=\"0.7\"");
    }
}

fn references(svg: &mut Svg, chart: &Chart, f: &Frame) {
    let attributes = "stroke-width=\"1.2\" stroke-dasharray=\"3 2\"";
    for reference in &chart.references {
        match *reference {
            Reference::Horizontal { y, .. } if f.y.contains(y) => {
                svg.line((f.left, f.y.at(y)), (f.right, f.y.at(y)), REFERENCE, attributes);
            }
            Reference::Vertical { x, .. } if f.x.contains(x) => {
                svg.line((f.x.at(x), f.top), (f.x.at(x), f.bottom), REFERENCE, attributes);
            }
            _ => {}
        }
    }
    for (baseline, label) in &f.beside {
        svg.text(Text::new(f.right + 6.0, *baseline, TICK, label).filled(FAINT_INK));
    }
    for (start, baseline, label) in &f.above {
        svg.text(Text::new(*start, *baseline, TICK, label).filled(FAINT_INK));
    }
}

fn draw_series(svg: &mut Svg, series: &Series, f: &Frame) {
    for run in series.points.split(|p| !is_finite(*p)).filter(|run| run.len() > 1) {
        let points: Vec<(f64, f64)> = run.iter().map(|&(x, y)| (f.x.at(x), f.y.at(y))).collect();
        stroke(svg, &points, series.style, " clip-path=\"url(#plot-area)\"");
    }
    for &(x, y) in &series.points {
        if is_finite((x, y)) && !is_outside(f, (x, y)) {
            mark(svg, (f.x.at(x), f.y.at(y)), series.style);
        }
    }
}

/// Frame, ticks and labels; returns the bottom.
fn axes(svg: &mut Svg, chart: &Chart, f: &Frame) -> f64 {
    let area = Rect { x: f.left, y: f.top, width: f.right - f.left, height: f.bottom - f.top };
    svg.rect(area, "none", "stroke=\"#222222\" stroke-width=\"1\"", "");
    for tick in &f.x_ticks {
        svg.line((tick.at, f.bottom), (tick.at, f.bottom + 4.0), INK, "stroke-width=\"1\"");
        let text = Text::new(tick.at, f.bottom + 6.0 + TICK.size * ASCENT, TICK, &tick.label);
        svg.text(text.anchored(Anchor::Middle));
    }
    for tick in &f.y_ticks {
        svg.line((f.left - 4.0, tick.at), (f.left, tick.at), INK, "stroke-width=\"1\"");
        let text = Text::new(f.left - 7.0, tick.at + TICK.size * 0.36, TICK, &tick.label);
        svg.text(text.anchored(Anchor::End));
    }
    let x_label = LABEL.shorten(&chart.x.label, area.width);
    let x_label_y = f.bottom + 12.0 + TICK.size + LABEL.size * ASCENT;
    let x_text = Text::new(f.left + area.width / 2.0, x_label_y, LABEL, &x_label);
    svg.text(x_text.anchored(Anchor::Middle));
    let y_label = LABEL.shorten(&chart.y.label, area.height);
    let y_text = Text::new(MARGIN + LABEL.size * ASCENT, f.top + area.height / 2.0, LABEL, &y_label);
    svg.text(Text { upwards: true, ..y_text.anchored(Anchor::Middle) });
    x_label_y + LABEL.size * DESCENT
}

fn footer(svg: &mut Svg, outside: usize, top: f64) -> f64 {
    let baseline = top + 6.0 + TICK.size * ASCENT;
    let points = if outside == 1 { "point lies" } else { "points lie" };
    let remark = format!("{outside} {points} outside the axes.");
    svg.text(Text::new(MARGIN, baseline, TICK, &remark).filled(FAINT_INK));
    baseline + TICK.size * DESCENT
}
