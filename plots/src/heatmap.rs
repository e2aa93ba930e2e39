//! Maps of who wins where: a cell for every pair of categories, filled by kind, with a text inside.

use crate::font::{ASCENT, DESCENT, Font};
use crate::svg::{Anchor, Rect, Svg, Text};
use crate::{PlotError, fill, legend, raster};

const WIDTH: f64 = 760.0;
const MARGIN: f64 = 16.0;
const TITLE: Font = Font::bold(14.0);
const LABEL: Font = Font::regular(11.0);
const TICK: Font = Font::regular(10.0);
const CELL_HEIGHT: f64 = 34.0;
const SWATCH: f64 = 22.0;
/// Ground of cells without a kind.
const EMPTY: &str = "#ffffff";

/// An axis of named places.
#[derive(Debug, Clone, PartialEq)]
pub struct Categories {
    /// What the axis shows.
    pub label: String,
    /// Its places, from left or from the bottom.
    pub names: Vec<String>,
}

/// One cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Index among the map's kinds; `None` where there is no result.
    pub kind: Option<usize>,
    /// Texts for its inside, the longest first; the first that fits is written.
    pub texts: Vec<String>,
}

/// A map of cells.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatMap {
    /// Above the map.
    pub title: String,
    /// Columns.
    pub x: Categories,
    /// Rows, from the bottom.
    pub y: Categories,
    /// The legend: what a cell can be.
    pub kinds: Vec<String>,
    /// Row by row, each from the left.
    pub cells: Vec<Cell>,
}

/// The map as SVG.
///
/// # Errors
/// [`PlotError::Cells`] if there is not one cell for each pair of categories, or one of a kind that does not exist.
pub fn svg(map: &HeatMap) -> Result<String, PlotError> {
    let expected = map.x.names.len() * map.y.names.len();
    let kinds = map.cells.iter().filter_map(|c| c.kind).max().map_or(0, |k| k + 1);
    if map.cells.len() != expected || expected == 0 || kinds > map.kinds.len() {
        let (found, known) = (map.cells.len(), map.kinds.len());
        return Err(PlotError::Cells { title: map.title.clone(), expected, found, kinds, known });
    }
    let frame = Frame::of(map);
    let mut svg = Svg::new();
    let title = TITLE.shorten(&map.title, WIDTH - 2.0 * MARGIN);
    svg.text(Text::new(MARGIN, MARGIN + 11.0, TITLE, &title));
    draw_legend(&mut svg, map, &frame);
    draw_cells(&mut svg, map, &frame);
    let bottom = draw_axes(&mut svg, map, &frame);
    Ok(svg.finish(WIDTH, bottom + MARGIN, &map.title, &fill::patterns(map.kinds.len())))
}

/// [`svg`] as PNG with `scale` pixels per SVG pixel.
///
/// # Errors
/// As for [`svg`], and [`PlotError::Scale`] or [`PlotError::TooLarge`] if `scale` does not fit.
pub fn png(map: &HeatMap, scale: f32) -> Result<Vec<u8>, PlotError> {
    raster::png(&svg(map)?, scale)
}

struct Frame {
    legend: Vec<(f64, usize)>,
    left: f64,
    top: f64,
    cell: (f64, f64),
    rows: usize,
}

impl Frame {
    fn of(map: &HeatMap) -> Self {
        let widths: Vec<f64> = map.kinds.iter().map(|k| SWATCH + 6.0 + legend::FONT.width(k)).collect();
        let (legend, lines) = legend::flow(&widths, WIDTH - 2.0 * MARGIN);
        let top = MARGIN + 11.0 + 10.0 + lines as f64 * legend::LINE + 8.0;
        let widest = map.y.names.iter().map(|n| TICK.width(n)).fold(0.0, f64::max);
        let left = (MARGIN + LABEL.size + 10.0 + widest + 8.0).ceil();
        let width = (WIDTH - MARGIN - left) / map.x.names.len() as f64;
        Self { legend, left, top, cell: (width, CELL_HEIGHT), rows: map.y.names.len() }
    }

    fn bottom(&self) -> f64 {
        self.top + self.rows as f64 * self.cell.1
    }

    fn at(&self, column: usize, row: usize) -> Rect {
        let (width, height) = self.cell;
        let y = self.bottom() - (row + 1) as f64 * height;
        Rect { x: self.left + column as f64 * width, y, width, height }
    }
}

fn draw_legend(svg: &mut Svg, map: &HeatMap, frame: &Frame) {
    for (i, (name, (x, line))) in map.kinds.iter().zip(&frame.legend).enumerate() {
        let (x, y) = (MARGIN + x, MARGIN + 21.0 + *line as f64 * legend::LINE);
        let swatch = Rect { x, y: y + 2.0, width: SWATCH, height: 11.0 };
        svg.rect(swatch, &fill::paint(i), "stroke=\"#000\" stroke-opacity=\"0.33\" stroke-width=\"0.5\"", "");
        svg.text(Text::new(x + SWATCH + 6.0, y + 11.5, legend::FONT, name));
    }
}

fn draw_cells(svg: &mut Svg, map: &HeatMap, frame: &Frame) {
    let columns = map.x.names.len();
    for (i, cell) in map.cells.iter().enumerate() {
        let area = frame.at(i % columns, i / columns);
        let paint = cell.kind.map_or(EMPTY.to_owned(), fill::paint);
        svg.rect(area, &paint, "stroke=\"#ffffff\" stroke-width=\"1\"", "");
        let fits = |t: &&String| TICK.width(t) <= area.width - 8.0;
        let Some(text) = cell.texts.iter().find(fits).filter(|t| !t.is_empty()) else { continue };
        let (width, middle) = (TICK.width(text) + 6.0, area.x + area.width / 2.0);
        // Text stands on plain ground, not on hatching.
        let plate = Rect { x: middle - width / 2.0, y: area.y + 10.0, width, height: 14.0 };
        svg.rect(plate, cell.kind.map_or(EMPTY, fill::ground), "", "");
        let ink = cell.kind.map_or(crate::svg::FAINT_INK, fill::ink);
        let baseline = area.y + area.height / 2.0 + TICK.size * 0.36;
        svg.text(Text::new(middle, baseline, TICK, text).anchored(Anchor::Middle).filled(ink));
    }
}

/// Ticks and labels; returns the bottom.
fn draw_axes(svg: &mut Svg, map: &HeatMap, frame: &Frame) -> f64 {
    let bottom = frame.bottom();
    let every = step(&map.x.names, frame.cell.0);
    for (i, name) in map.x.names.iter().enumerate().step_by(every) {
        let area = frame.at(i, 0);
        let text = Text::new(area.x + area.width / 2.0, bottom + 4.0 + TICK.size * ASCENT, TICK, name);
        svg.text(text.anchored(Anchor::Middle));
    }
    for (i, name) in map.y.names.iter().enumerate() {
        let area = frame.at(0, i);
        let text = Text::new(frame.left - 7.0, area.y + area.height / 2.0 + TICK.size * 0.36, TICK, name);
        svg.text(text.anchored(Anchor::End));
    }
    let (width, height) = (WIDTH - MARGIN - frame.left, bottom - frame.top);
    let x_label = LABEL.shorten(&map.x.label, width);
    let x_label_y = bottom + 10.0 + TICK.size + LABEL.size * ASCENT;
    svg.text(Text::new(frame.left + width / 2.0, x_label_y, LABEL, &x_label).anchored(Anchor::Middle));
    let y_label = LABEL.shorten(&map.y.label, height);
    let y_text = Text::new(MARGIN + LABEL.size * ASCENT, frame.top + height / 2.0, LABEL, &y_label);
    svg.text(Text { upwards: true, ..y_text.anchored(Anchor::Middle) });
    x_label_y + LABEL.size * DESCENT
}

/// Every how many names one can be written without touching the next.
fn step(names: &[String], width: f64) -> usize {
    let widest = names.iter().map(|n| TICK.width(n)).fold(0.0, f64::max) + 8.0;
    (widest / width).ceil().max(1.0) as usize
}
