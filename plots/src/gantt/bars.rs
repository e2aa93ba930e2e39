//! Spans to bars: what is too narrow to see is merged, so that a picture stays small whatever the timeline.

use ringlab_sim::plan::Rank;

use super::class::{CLASSES, Class, Track};
use crate::Panel;

/// The most bars of a picture, unless it has more rows than that.
pub(crate) const MAX_BARS: usize = 60_000;
/// Spans that are closer than this are merged at first, in pixels.
const TOLERANCE: f64 = 0.5;

/// A drawn rectangle of one row, `x0..x1` in pixels from the start of the time axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bar {
    pub rank: Rank,
    pub track: Track,
    pub class: Class,
    pub x0: f64,
    pub x1: f64,
    /// Share of `x0..x1` that spans cover.
    pub coverage: f64,
    /// Index of the first span.
    pub span: usize,
    /// Number of spans.
    pub spans: usize,
}

/// A span in pixels.
#[derive(Debug, Clone, Copy)]
struct Piece {
    rank: Rank,
    track: Track,
    class: Class,
    x0: f64,
    x1: f64,
    span: usize,
}

/// Bars of every panel, and what they leave out.
pub(crate) struct Bars {
    pub panels: Vec<Vec<Bar>>,
    /// Spans closer than this many pixels may be merged.
    pub tolerance: f64,
    /// Spans that are drawn.
    pub spans: usize,
}

impl Bars {
    /// Bars of the spans for which `shown` holds, with `pixels` a picosecond.
    pub fn new(panels: &[Panel<'_>], pixels: f64, width: f64, shown: impl Fn(Rank, Track) -> bool) -> Self {
        let pieces: Vec<Vec<Piece>> = panels.iter().map(|p| pieces(p, pixels, &shown)).collect();
        let spans = pieces.iter().map(Vec::len).sum();
        let mut tolerance = TOLERANCE;
        loop {
            let panels: Vec<Vec<Bar>> = pieces.iter().map(|p| merge(p, tolerance)).collect();
            if panels.iter().map(Vec::len).sum::<usize>() <= MAX_BARS || tolerance > width {
                return Self { panels, tolerance, spans };
            }
            tolerance *= 1.5;
        }
    }

    /// Number of bars.
    pub fn count(&self) -> usize {
        self.panels.iter().map(Vec::len).sum()
    }
}

/// Spans in pixels, row by row in order of their start.
fn pieces(panel: &Panel<'_>, pixels: f64, shown: impl Fn(Rank, Track) -> bool) -> Vec<Piece> {
    let piece = |(i, s): (usize, &ringlab_sim::timeline::Span)| {
        let class = Class::of(panel, s);
        let (x0, x1) = (s.start.0 as f64 * pixels, s.end.max(s.start).0 as f64 * pixels);
        Piece { rank: s.rank, track: class.track(), class, x0, x1, span: i }
    };
    let all = panel.timeline.spans.iter().enumerate().map(piece);
    let mut pieces: Vec<Piece> = all.filter(|p| shown(p.rank, p.track)).collect();
    pieces.sort_by(|a, b| {
        let row = (a.rank, a.track).cmp(&(b.rank, b.track));
        row.then(a.x0.total_cmp(&b.x0)).then(a.span.cmp(&b.span))
    });
    pieces
}

fn merge(pieces: &[Piece], tolerance: f64) -> Vec<Bar> {
    let mut bars = Vec::new();
    let mut smear: Option<Smear> = None;
    for piece in pieces {
        if let Some(s) = &mut smear {
            let adjoins = s.adjoins(piece, tolerance);
            if adjoins && s.may_become(piece, tolerance) {
                s.add(piece);
                continue;
            }
            if adjoins {
                s.x1 = s.x1.max(piece.x0);
            }
            bars.push(s.bar());
        }
        smear = Some(Smear::new(piece));
    }
    bars.extend(smear.map(|s| s.bar()));
    bars
}

/// Neighbouring spans that become one bar.
struct Smear {
    first: Piece,
    x1: f64,
    busy: f64,
    weights: [f64; CLASSES.len()],
    spans: usize,
}

impl Smear {
    fn new(piece: &Piece) -> Self {
        let mut smear =
            Self { first: *piece, x1: piece.x0, busy: 0.0, weights: [0.0; CLASSES.len()], spans: 0 };
        smear.add(piece);
        smear
    }

    /// Whether this and `piece` are too narrow and too close to be told apart.
    fn adjoins(&self, piece: &Piece, tolerance: f64) -> bool {
        let same_row = (self.first.rank, self.first.track) == (piece.rank, piece.track);
        let narrow = piece.x1 - piece.x0 < 2.0 * tolerance && self.mean_width() < 2.0 * tolerance;
        same_row && narrow && piece.x0 - self.x1 < tolerance
    }

    /// Whether the bar stays short enough with `piece`: one colour without gaps may become long, with gaps a few
    /// pixels, several colours no more than they need to be seen.
    fn may_become(&self, piece: &Piece, tolerance: f64) -> bool {
        let length = piece.x1.max(self.x1) - self.first.x0;
        let one_class = self.weights[piece.class as usize] >= self.total();
        let dense = self.busy + (piece.x1 - piece.x0.max(self.x1)).max(0.0) > 0.98 * length;
        match (one_class, dense) {
            (true, true) => true,
            (true, false) => length <= 16.0 * tolerance,
            _ => length <= 4.0 * tolerance,
        }
    }

    fn mean_width(&self) -> f64 {
        self.total() / self.spans as f64
    }

    fn total(&self) -> f64 {
        self.weights.iter().sum()
    }

    fn add(&mut self, piece: &Piece) {
        self.busy += (piece.x1 - piece.x0.max(self.x1)).max(0.0);
        self.weights[piece.class as usize] += piece.x1 - piece.x0;
        self.x1 = self.x1.max(piece.x1);
        self.spans += 1;
    }

    fn bar(&self) -> Bar {
        let heaviest = CLASSES.into_iter().max_by(|a, b| {
            let weight = |c: &Class| self.weights[*c as usize];
            weight(a).total_cmp(&weight(b)).then(b.cmp(a))
        });
        let class = if self.total() > 0.0 { heaviest.unwrap_or(self.first.class) } else { self.first.class };
        let (x0, length) = (self.first.x0, self.x1 - self.first.x0);
        let coverage = if length > 0.0 { (self.busy / length).min(1.0) } else { 1.0 };
        let Piece { rank, track, span, .. } = self.first;
        Bar { rank, track, class, x0, x1: self.x1, coverage, span, spans: self.spans }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(x0: f64, x1: f64, class: Class) -> Piece {
        Piece { rank: 0, track: class.track(), class, x0, x1, span: 0 }
    }

    #[test]
    fn wide_spans_stay_as_they_are() {
        let pieces = [piece(0.0, 3.0, Class::Own), piece(3.0, 5.0, Class::Own), piece(5.1, 9.0, Class::Help)];
        let bars = merge(&pieces, TOLERANCE);
        let expected: Vec<_> = pieces.iter().map(|p| (p.x0, p.x1, p.class, 1)).collect();
        assert_eq!(bars.iter().map(|b| (b.x0, b.x1, b.class, b.spans)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn narrow_spans_merge_and_keep_their_area() {
        // 1000 spans that each cover 3/4 of their tenth of a pixel.
        let pieces: Vec<Piece> =
            (0..1000).map(|i| piece(f64::from(i) * 0.1, f64::from(i) * 0.1 + 0.075, Class::Own)).collect();
        let bars = merge(&pieces, TOLERANCE);
        assert!((13..20).contains(&bars.len()), "{} bars of at most 8 pixels", bars.len());
        let area: f64 = bars.iter().map(|b| (b.x1 - b.x0) * b.coverage).sum();
        assert!((area - 75.0).abs() < 1e-6, "{area}");
        assert_eq!(bars.iter().map(|b| b.spans).sum::<usize>(), 1000);
    }

    #[test]
    fn one_dense_class_is_one_bar_and_several_stay_apart() {
        let pieces = |classes: [Class; 2]| -> Vec<Piece> {
            let at = |i: usize| i as f64 * 0.25;
            (0..400).map(|i| piece(at(i), at(i + 1), classes[i % 2])).collect()
        };
        assert_eq!(merge(&pieces([Class::Own, Class::Own]), TOLERANCE).len(), 1);
        let mixed = merge(&pieces([Class::Own, Class::Help]), TOLERANCE);
        assert!(mixed.iter().all(|b| b.x1 - b.x0 <= 2.0 + 1e-9), "no colour hides more than two pixels");
    }

    #[test]
    fn a_gap_and_a_row_end_a_bar() {
        let mut pieces = vec![piece(0.0, 0.1, Class::Own), piece(0.1, 0.2, Class::Own)];
        pieces.push(piece(2.0, 2.1, Class::Own));
        pieces.push(Piece { rank: 1, ..piece(2.1, 2.2, Class::Own) });
        let bars = merge(&pieces, TOLERANCE);
        assert_eq!(bars.iter().map(|b| (b.rank, b.spans)).collect::<Vec<_>>(), [(0, 2), (0, 1), (1, 1)]);
    }

    #[test]
    fn the_longer_class_gives_the_colour() {
        let pieces =
            [piece(0.0, 0.1, Class::Help), piece(0.1, 0.4, Class::Own), piece(0.4, 0.5, Class::Help)];
        let bars = merge(&pieces, TOLERANCE);
        assert_eq!((bars.len(), bars[0].class, bars[0].coverage), (1, Class::Own, 1.0));
    }

    #[test]
    fn overlapping_spans_cover_no_more_than_there_is() {
        let pieces =
            [piece(0.0, 0.4, Class::Send), piece(0.2, 0.6, Class::Send), piece(0.3, 0.5, Class::Send)];
        let bars = merge(&pieces, TOLERANCE);
        assert_eq!((bars.len(), bars[0].coverage), (1, 1.0));
        assert!((bars[0].x1 - 0.6).abs() < 1e-12);
    }
}
