//! Where everything of a Gantt chart is.

use ringlab_sim::plan::Rank;
use ringlab_sim::units::SimTime;

use super::class::Track;
use crate::Panel;
use crate::font::Font;

/// Width of the picture.
pub(crate) const WIDTH: f64 = 1120.0;
/// Left, right, top and bottom of the picture stay empty.
pub(crate) const MARGIN: f64 = 18.0;
/// Font of the picture's title.
pub(crate) const TITLE: Font = Font::bold(15.0);
/// Font of a panel's title.
pub(crate) const HEADING: Font = Font::bold(12.0);
/// Font of a panel's facts.
pub(crate) const FACTS: Font = Font::regular(11.0);
/// Font of ticks, ranks and the axis' label.
pub(crate) const AXIS: Font = Font::regular(10.0);
/// Font of the footer.
pub(crate) const FOOTER: Font = Font::regular(9.5);
/// Above a panel's rows, for its title.
pub(crate) const HEADING_HEIGHT: f64 = 22.0;
/// Between panels.
pub(crate) const PANEL_GAP: f64 = 12.0;

const MAX_ROWS: u32 = 1024;

/// Heights within the strip of one rank, in whole pixels so that rows are crisp.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Strip {
    /// From one rank to the next.
    pub pitch: f64,
    /// Of the compute row.
    pub compute: f64,
    /// Of the row of sends and of the row of receives, 0 if they are left out.
    pub transfer: f64,
    /// Before each row of transfers.
    pub gap: f64,
}

impl Strip {
    /// Strips for `ranks` in the panel that has most, `total` in all panels.
    fn new(ranks: u32, total: u32, transfers: bool) -> Self {
        let (ranks, total) = (f64::from(ranks.max(1)), f64::from(total.max(1)));
        let pitch = (700.0 / ranks).min((2600.0 / total).max(8.0)).clamp(1.0, 28.0).floor();
        let (pad, transfer, gap) = match pitch {
            p if p >= 24.0 => (4.0, 4.0, 1.0),
            p if p >= 16.0 => (3.0, 3.0, 0.0),
            p if p >= 12.0 => (2.0, 2.0, 0.0),
            p if p >= 8.0 => (1.0, 1.0, 0.0),
            p if p >= 4.0 => (1.0, 0.0, 0.0),
            _ => (0.0, 0.0, 0.0),
        };
        let (transfer, gap) = if transfers { (transfer, gap) } else { (0.0, 0.0) };
        Self { pitch, compute: pitch - pad - 2.0 * (transfer + gap), transfer, gap }
    }

    /// Top and height of a row within the strip.
    pub fn row(&self, track: Track) -> (f64, f64) {
        match track {
            Track::Compute => (0.0, self.compute),
            Track::Send => (self.compute + self.gap, self.transfer),
            Track::Receive => (self.compute + 2.0 * self.gap + self.transfer, self.transfer),
        }
    }
}

/// The picture's geometry that all panels share.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layout {
    /// Left end of the time axis.
    pub left: f64,
    /// Length of the time axis in pixels.
    pub plot: f64,
    /// Right end of the time axis, never zero.
    pub end: SimTime,
    /// Each rank's rows.
    pub strip: Strip,
    /// Only ranks that are multiples of this are drawn.
    pub every: u32,
    /// Whether there are transfers, drawn or not.
    pub transfers: bool,
}

impl Layout {
    pub fn new(panels: &[Panel<'_>]) -> Self {
        let most = panels.iter().map(Panel::ranks).max().unwrap_or(0);
        let every = most.div_ceil(MAX_ROWS).max(1);
        let rows = |p: &Panel<'_>| p.ranks().div_ceil(every);
        let total = panels.iter().map(rows).sum();
        let transfers = panels.iter().any(|p| p.timeline.spans.iter().any(|s| s.kind.is_transfer()));
        let gutter = AXIS.width(&most.saturating_sub(1).to_string()).max(AXIS.width("rank"));
        let left = (MARGIN + gutter + 8.0).ceil();
        Self {
            left,
            plot: WIDTH - left - MARGIN - 16.0,
            end: panels.iter().map(Panel::end).max().unwrap_or(SimTime::ZERO).max(SimTime(1)),
            strip: Strip::new(most.div_ceil(every), total, transfers),
            every,
            transfers,
        }
    }

    /// Pixels a picosecond.
    pub fn pixels(&self) -> f64 {
        self.plot / self.end.0 as f64
    }

    /// Whether a row is drawn.
    pub fn shows(&self, rank: Rank, track: Track) -> bool {
        rank.is_multiple_of(self.every) && (track == Track::Compute || self.strip.transfer > 0.0)
    }

    /// Top of a rank's strip below its panel's first strip.
    pub fn strip_top(&self, rank: Rank) -> f64 {
        f64::from(rank / self.every) * self.strip.pitch
    }

    /// Height of a panel's rows.
    pub fn rows_height(&self, panel: &Panel<'_>) -> f64 {
        f64::from(panel.ranks().div_ceil(self.every)) * self.strip.pitch
    }

    /// Ranks that get a label, so that labels do not overlap.
    pub fn labelled_ranks(&self, panel: &Panel<'_>) -> impl Iterator<Item = Rank> + use<> {
        let mut step = 1;
        while f64::from(step) * self.strip.pitch < AXIS.size + 1.0 {
            step *= 2;
        }
        (0..panel.ranks()).step_by((step * self.every) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fill_a_strip_without_overlap() {
        for ranks in [1, 2, 4, 8, 16, 31, 64, 100, 128, 1024] {
            for panels in [1, 4] {
                for transfers in [false, true] {
                    let strip = Strip::new(ranks, ranks * panels, transfers);
                    let [compute, send, receive] =
                        [Track::Compute, Track::Send, Track::Receive].map(|t| strip.row(t));
                    assert!(compute.1 >= 1.0, "{ranks}: {strip:?}");
                    assert!(compute.0 + compute.1 <= send.0 && send.0 + send.1 <= receive.0);
                    assert!(receive.0 + receive.1 <= strip.pitch);
                    assert!(compute.1 > 2.0 * strip.transfer);
                    assert_eq!(strip.pitch.fract() + strip.compute.fract(), 0.0);
                }
            }
        }
        assert!(Strip::new(64, 256, true).transfer > 0.0, "transfers of 64 ranks are shown");
    }
}
