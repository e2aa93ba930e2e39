//! Gantt charts: all ranks of one or more schedules on one time axis.
//!
//! A rank has a row of kernels and, where there is room, a row of sends and a row of receives. Time in which a rank
//! runs no kernel, until the slowest rank has ended, has a ground of its own.

mod bars;
mod class;
mod draw;
mod layout;

use bars::Bars;
pub use class::{CLASSES, Class, Track};
use draw::Drawing;
use layout::{AXIS, FOOTER, Layout, MARGIN, PANEL_GAP, TITLE, WIDTH};

use ringlab_sim::units::SimTime;

use crate::font::{ASCENT, DESCENT};
use crate::svg::Svg;
use crate::{Panel, PlotError, raster};

/// Pictures with more pixels of rows than this have their ticks labelled above them too.
const TALL: f64 = 900.0;

/// The panels below each other as SVG, under `title` if it is not empty.
///
/// Neighbouring spans that are too narrow to see become one bar; a footer says so, and all else that is left out.
pub fn svg(title: &str, panels: &[Panel<'_>]) -> String {
    let layout = Layout::new(panels);
    let bars = Bars::new(panels, layout.pixels(), layout.plot, |rank, track| layout.shows(rank, track));
    let mut drawing = Drawing { svg: Svg::new(), layout: &layout, texts: 0, tooltips: bars.count() <= 4000 };
    let width = WIDTH - 2.0 * MARGIN;
    let mut y = MARGIN;
    if !title.is_empty() {
        y += TITLE.size * ASCENT;
        drawing.title(&TITLE.shorten(title, width), y);
        y += TITLE.size * DESCENT + 8.0;
    }
    y += drawing.legend(&shown_classes(panels, &layout), y) + 4.0;
    let rows: f64 = panels.iter().map(|p| layout.rows_height(p)).sum();
    if rows > TALL {
        drawing.tick_labels(y + AXIS.size);
        y += AXIS.size + 5.0;
    }
    for (panel, bars) in panels.iter().zip(&bars.panels) {
        y = drawing.panel(panel, bars, y) + PANEL_GAP;
    }
    y = match panels {
        [] => drawing.footer("There is no timeline to draw.", y),
        _ => drawing.time_axis(y - PANEL_GAP),
    };
    for remark in remarks(panels, &layout, &bars) {
        for line in FOOTER.wrap(&remark, width) {
            y = drawing.footer(&line, y);
        }
    }
    drawing.svg.finish(WIDTH, y + MARGIN, title, &class::patterns())
}

/// [`svg`] as PNG with `scale` pixels per SVG pixel.
///
/// # Errors
/// [`PlotError::Scale`] or [`PlotError::TooLarge`] if `scale` does not fit.
pub fn png(title: &str, panels: &[Panel<'_>], scale: f32) -> Result<Vec<u8>, PlotError> {
    raster::png(&svg(title, panels), scale)
}

/// Classes that have a span in a row that is drawn.
fn shown_classes(panels: &[Panel<'_>], layout: &Layout) -> Vec<Class> {
    let mut shown = [false; CLASSES.len()];
    for panel in panels {
        for span in &panel.timeline.spans {
            let class = Class::of(panel, span);
            shown[class as usize] |= layout.shows(span.rank, class.track());
        }
    }
    CLASSES.into_iter().filter(|c| shown[*c as usize]).collect()
}

/// What the picture leaves out.
fn remarks(panels: &[Panel<'_>], layout: &Layout, bars: &Bars) -> Vec<String> {
    let mut remarks = Vec::new();
    if bars.count() < bars.spans {
        let apart = bars.tolerance / layout.pixels();
        remarks.push(format!(
            "{} spans are drawn as {} bars: spans shorter than {} and less than {} apart are merged, paler where they \
             leave gaps.",
            bars.spans,
            bars.count(),
            SimTime((2.0 * apart) as u64),
            SimTime(apart as u64),
        ));
    }
    if layout.transfers && !layout.shows(0, Track::Send) {
        remarks
            .push("Sends and receives are left out: so many ranks leave no room for their rows.".to_owned());
    }
    if layout.every > 1 {
        remarks.push(format!("Of the ranks, every {}th is drawn.", layout.every));
    }
    let strangers: usize = panels.iter().map(Panel::strangers).sum();
    if strangers > 0 {
        remarks.push(format!("{strangers} spans are not in the plan and are drawn by their kind alone."));
    }
    remarks
}
