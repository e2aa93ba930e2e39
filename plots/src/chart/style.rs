//! How a series is drawn: colour, line and marker differ together, so that any one of them tells series apart.

use crate::palette;

/// Colours of series: Okabe and Ito's set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Colour {
    /// #0072B2.
    Blue,
    /// #D55E00.
    Vermillion,
    /// #009E73.
    Green,
    /// #E69F00.
    Orange,
    /// #CC79A7.
    Purple,
    /// #56B4E9.
    SkyBlue,
    /// #000000.
    Black,
}

impl Colour {
    const ALL: [Self; 7] =
        [Self::Blue, Self::Vermillion, Self::Green, Self::Orange, Self::Purple, Self::SkyBlue, Self::Black];

    pub(crate) fn hex(self) -> &'static str {
        match self {
            Self::Blue => palette::BLUE,
            Self::Vermillion => palette::VERMILLION,
            Self::Green => palette::GREEN,
            Self::Orange => palette::ORANGE,
            Self::Purple => palette::PURPLE,
            Self::SkyBlue => palette::SKY_BLUE,
            Self::Black => palette::BLACK,
        }
    }
}

/// The line between a series' points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Line {
    /// Points only, such as measurements.
    None,
    /// Without breaks.
    Solid,
    /// Long dashes.
    Dashed,
    /// Dots.
    Dotted,
    /// Dashes and dots.
    DashDot,
}

impl Line {
    const DRAWN: [Self; 4] = [Self::Solid, Self::Dashed, Self::DashDot, Self::Dotted];

    /// Lengths of dashes and gaps; `None` if there is no line.
    pub(crate) fn dashes(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Solid => Some("none"),
            Self::Dashed => Some("8 4"),
            Self::Dotted => Some("2 3"),
            Self::DashDot => Some("9 3 2 3"),
        }
    }
}

/// The sign at a series' points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Marker {
    /// Nothing.
    None,
    /// A filled circle.
    Circle,
    /// A filled square.
    Square,
    /// A filled triangle.
    Triangle,
    /// A filled diamond.
    Diamond,
    /// An x.
    Cross,
    /// A +.
    Plus,
}

impl Marker {
    const DRAWN: [Self; 6] =
        [Self::Circle, Self::Square, Self::Triangle, Self::Diamond, Self::Cross, Self::Plus];

    /// Its path around the point, and whether that is filled.
    pub(crate) fn path(self) -> Option<(&'static str, bool)> {
        match self {
            Self::None => None,
            Self::Circle => Some(("M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z", true)),
            Self::Square => Some(("M-3.2 -3.2H3.2V3.2H-3.2z", true)),
            Self::Triangle => Some(("M0 -4.2L4 3.2H-4z", true)),
            Self::Diamond => Some(("M0 -4.6L4.2 0L0 4.6L-4.2 0z", true)),
            Self::Cross => Some(("M-3.4 -3.4L3.4 3.4M-3.4 3.4L3.4 -3.4", false)),
            Self::Plus => Some(("M0 -4.2V4.2M-4.2 0H4.2", false)),
        }
    }
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Style {
    /// Of line and markers.
    pub colour: Colour,
    /// Between the points.
    pub line: Line,
    /// At the points.
    pub marker: Marker,
}

impl Style {
    /// The `i`-th of a row of styles; 84 are different.
    pub fn nth(i: usize) -> Self {
        Self { colour: Colour::ALL[i % 7], line: Line::DRAWN[i % 4], marker: Marker::DRAWN[i % 6] }
    }

    /// The same colour and marker with this line.
    pub fn with_line(self, line: Line) -> Self {
        Self { line, ..self }
    }

    /// The same colour and line with this marker.
    pub fn with_marker(self, marker: Marker) -> Self {
        Self { marker, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::palette::vision::{DEUTERANOPIA, NORMAL, PROTANOPIA, distance, lightness};

    #[test]
    fn neighbouring_styles_differ_in_everything() {
        let styles: Vec<Style> = (0..84).map(Style::nth).collect();
        for (i, a) in styles.iter().enumerate() {
            for b in &styles[i + 1..] {
                assert_ne!(a, b);
            }
            for b in &styles[i + 1..84.min(i + 4)] {
                assert!(a.colour != b.colour && a.line != b.line && a.marker != b.marker, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn colours_differ_for_colour_blind_readers_and_from_paper() {
        for (i, a) in Colour::ALL.into_iter().enumerate() {
            for b in &Colour::ALL[i + 1..] {
                for eye in [NORMAL, PROTANOPIA, DEUTERANOPIA] {
                    assert!(distance(a.hex(), b.hex(), &eye) > 15.0, "{a:?} {b:?}");
                }
            }
            assert!(lightness(a.hex()) < 75.0, "{a:?}");
        }
    }
}
