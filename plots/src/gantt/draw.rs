//! Draws the parts of a Gantt chart.

use super::bars::Bar;
use super::class::{Class, Track, inscriptions};
use super::layout::{AXIS, FACTS, FOOTER, HEADING, HEADING_HEIGHT, Layout, MARGIN, TITLE, WIDTH};
use crate::font::{ASCENT, DESCENT, Font};
use crate::palette::IDLE;
use crate::svg::{Anchor, FAINT_INK, INK, Rect, Svg, Text};
use crate::{Panel, axis, format, legend};

/// The most texts inside bars.
const MAX_TEXTS: usize = 3000;
/// Bars of at least this width are set apart by a hairline.
const SEPARATED: f64 = 3.0;

/// Opacity of a bar that covers next to nothing.
const FAINTEST: f64 = 0.3;

const SWATCH: f64 = 22.0;

pub(crate) struct Drawing<'a> {
    pub svg: Svg,
    pub layout: &'a Layout,
    /// Texts inside bars so far.
    pub texts: usize,
    /// Whether bars have tooltips.
    pub tooltips: bool,
}

impl Drawing<'_> {
    /// The picture's title with its baseline at `y`.
    pub fn title(&mut self, title: &str, y: f64) {
        self.svg.text(Text::new(MARGIN, y, TITLE, title));
    }

    /// The legend from `top` on; returns its height.
    pub fn legend(&mut self, classes: &[Class], top: f64) -> f64 {
        let mut entries: Vec<(&str, &str)> = classes.iter().map(|c| (c.name(), c.paint())).collect();
        if !entries.is_empty() {
            entries.push(("idle", IDLE));
        }
        let widths: Vec<f64> = entries.iter().map(|e| SWATCH + 6.0 + legend::FONT.width(e.0)).collect();
        let (places, lines) = legend::flow(&widths, WIDTH - 2.0 * MARGIN);
        for ((name, paint), (x, line)) in entries.iter().zip(places) {
            let (x, y) = (MARGIN + x, top + line as f64 * legend::LINE);
            let swatch = Rect { x, y: y + 2.0, width: SWATCH, height: 11.0 };
            self.svg.rect(swatch, paint, "stroke=\"#000\" stroke-opacity=\"0.33\" stroke-width=\"0.5\"", "");
            self.svg.text(Text::new(x + SWATCH + 6.0, y + 11.5, legend::FONT, name));
        }
        lines as f64 * legend::LINE
    }

    /// A panel from `top` on; returns its bottom.
    pub fn panel(&mut self, panel: &Panel<'_>, bars: &[Bar], top: f64) -> f64 {
        self.heading(panel, top + 14.0);
        let rows = top + HEADING_HEIGHT;
        let bottom = rows + self.layout.rows_height(panel);
        self.ground(panel, rows);
        for bar in bars {
            self.bar(panel, bar, rows);
        }
        for bar in bars {
            self.inscribe(panel, bar, rows);
        }
        self.grid(rows, bottom);
        for rank in self.layout.labelled_ranks(panel) {
            let middle = rows + self.layout.strip_top(rank) + self.layout.strip.compute / 2.0;
            let baseline = (middle + AXIS.size * 0.36).max(rows + AXIS.size * 0.4);
            let name = rank.to_string();
            let text = Text::new(self.layout.left - 6.0, baseline, AXIS, &name);
            self.svg.text(text.anchored(Anchor::End).filled(FAINT_INK));
        }
        let end = self.layout.left + panel.end().0 as f64 * self.layout.pixels();
        self.svg.line((end, rows - 3.0), (end, bottom), INK, "stroke-width=\"1.2\"");
        bottom
    }

    /// Title and facts of a panel, the title shortened if both do not fit.
    fn heading(&mut self, panel: &Panel<'_>, baseline: f64) {
        let mut facts = vec![format!("makespan {}", panel.end())];
        facts.extend(
            panel.bubble.map(|b| format!("bubble {}", format::percent((b * 1000.0).round() / 1000.0))),
        );
        if !panel.note.is_empty() {
            facts.push(panel.note.clone());
        }
        let room = self.layout.plot;
        let title = HEADING.shorten(&panel.title, room * 0.5);
        let x = self.layout.left + HEADING.width(&title) + 10.0;
        let facts = FACTS.shorten(&facts.join(" · "), self.layout.left + room - x);
        self.svg.text(Text::new(self.layout.left, baseline, HEADING, &title));
        self.svg.text(Text::new(x, baseline, FACTS, &facts).filled(FAINT_INK));
        let rank = Text::new(self.layout.left - 6.0, baseline, AXIS, "rank");
        self.svg.text(rank.anchored(Anchor::End).filled(FAINT_INK));
    }

    /// The ground of all compute rows until the makespan.
    fn ground(&mut self, panel: &Panel<'_>, rows: f64) {
        let width = panel.end().0 as f64 * self.layout.pixels();
        let strip = self.layout.strip;
        if strip.pitch == strip.compute {
            let height = self.layout.rows_height(panel);
            let all = Rect { x: self.layout.left, y: rows, width, height };
            return self.svg.rect(all, IDLE, "", "");
        }
        for rank in (0..panel.ranks()).step_by(self.layout.every as usize) {
            let y = rows + self.layout.strip_top(rank);
            self.svg.rect(Rect { x: self.layout.left, y, width, height: strip.compute }, IDLE, "", "");
        }
    }

    fn bar_rect(&self, bar: &Bar, rows: f64) -> Rect {
        let (top, height) = self.layout.strip.row(bar.track);
        let y = rows + self.layout.strip_top(bar.rank) + top;
        Rect { x: self.layout.left + bar.x0, y, width: bar.x1 - bar.x0, height }
    }

    fn bar(&mut self, panel: &Panel<'_>, bar: &Bar, rows: f64) {
        let mut rect = self.bar_rect(bar, rows);
        rect.width = rect.width.max(0.4);
        let mut attributes = String::new();
        if rect.width >= SEPARATED && bar.spans == 1 {
            attributes.push_str("stroke=\"#fff\" stroke-width=\"0.5\"");
        }
        if bar.coverage < 0.98 {
            attributes = format!("fill-opacity=\"{:.2}\"", FAINTEST + (1.0 - FAINTEST) * bar.coverage);
        }
        let tooltip = if self.tooltips { tooltip(panel, bar) } else { String::new() };
        self.svg.rect(rect, bar.class.paint(), &attributes, &tooltip);
    }

    /// Writes into a bar what fits.
    fn inscribe(&mut self, panel: &Panel<'_>, bar: &Bar, rows: f64) {
        let rect = self.bar_rect(bar, rows);
        let font = Font::regular((rect.height * 0.66).min(10.0));
        let fits = bar.track == Track::Compute && bar.spans == 1 && font.size >= 7.0 && rect.width >= 10.0;
        if !fits || self.texts >= MAX_TEXTS {
            return;
        }
        let texts = inscriptions(panel, &panel.timeline.spans[bar.span]);
        let Some(text) = texts.iter().find(|t| font.width(t) + 6.0 <= rect.width) else { return };
        self.texts += 1;
        let (x, y) = (rect.x + rect.width / 2.0, rect.y + rect.height / 2.0 + font.size * 0.36);
        if bar.class.hatching().is_some() {
            let width = font.width(text) + 4.0;
            let plate = Rect { x: x - width / 2.0, y: rect.y, width, height: rect.height };
            self.svg.rect(plate, bar.class.colour(), "", "");
        }
        self.svg.text(Text::new(x, y, font, text).anchored(Anchor::Middle).filled(bar.class.ink()));
    }

    /// Grid lines over a panel's rows.
    fn grid(&mut self, top: f64, bottom: f64) {
        for tick in axis::time_ticks(self.layout.end, self.layout.plot, AXIS) {
            let x = self.layout.left + tick.at;
            self.svg.line((x, top), (x, bottom), "#000", "stroke-opacity=\"0.14\" stroke-width=\"0.6\"");
        }
    }

    /// The labels of the ticks with their baseline at `y`.
    pub fn tick_labels(&mut self, y: f64) {
        for tick in axis::time_ticks(self.layout.end, self.layout.plot, AXIS) {
            let text = Text::new(self.layout.left + tick.at, y, AXIS, &tick.label);
            self.svg.text(text.anchored(Anchor::Middle));
        }
    }

    /// The time axis below the panels, which end at `bottom`; returns its bottom.
    pub fn time_axis(&mut self, bottom: f64) -> f64 {
        let layout = self.layout;
        let y = bottom + 4.0;
        self.svg.line((layout.left, y), (layout.left + layout.plot, y), INK, "stroke-width=\"1\"");
        for tick in axis::time_ticks(layout.end, layout.plot, AXIS) {
            let x = layout.left + tick.at;
            self.svg.line((x, y), (x, y + 4.0), INK, "stroke-width=\"1\"");
        }
        self.tick_labels(y + 6.0 + AXIS.size * ASCENT);
        let label = format!("time since the start ({})", axis::time_unit(layout.end).name);
        let label_y = y + 11.0 + AXIS.size * (1.0 + ASCENT);
        let text = Text::new(layout.left + layout.plot / 2.0, label_y, AXIS, &label);
        self.svg.text(text.anchored(Anchor::Middle));
        label_y + AXIS.size * DESCENT
    }

    /// A line of the footer from `top` on; returns its bottom.
    pub fn footer(&mut self, line: &str, top: f64) -> f64 {
        let baseline = top + 5.0 + FOOTER.size * ASCENT;
        self.svg.text(Text::new(MARGIN, baseline, FOOTER, line).filled(FAINT_INK));
        baseline + FOOTER.size * DESCENT
    }
}

fn tooltip(panel: &Panel<'_>, bar: &Bar) -> String {
    let span = &panel.timeline.spans[bar.span];
    if bar.spans > 1 {
        return format!("{} spans from {} on, rank {}", bar.spans, span.start, span.rank);
    }
    let bytes = if span.kind.is_transfer() { format!(", {}", span.bytes) } else { String::new() };
    format!(
        "{}: step {}, rank {}, {} to {}{bytes}",
        panel.label(span),
        span.step,
        span.rank,
        span.start,
        span.end
    )
}
