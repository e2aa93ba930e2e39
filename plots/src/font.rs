//! The embedded fonts and the widths of text set in them, so that a picture is laid out without asking a system.

mod advances;

use advances::ADVANCES;

/// Upright DejaVu Sans, Latin subset.
pub(crate) const REGULAR: &[u8] = include_bytes!("../assets/DejaVuSans-latin.ttf");
/// Bold DejaVu Sans, Latin subset.
pub(crate) const BOLD: &[u8] = include_bytes!("../assets/DejaVuSans-Bold-latin.ttf");
/// What an SVG asks a viewer for: the embedded family, then those with similar widths.
pub(crate) const FAMILY: &str = "DejaVu Sans, Verdana, sans-serif";
/// Height of the tallest letters above the baseline, in em.
pub(crate) const ASCENT: f64 = 0.76;
/// Depth below the baseline, in em.
pub(crate) const DESCENT: f64 = 0.24;

const UNITS_PER_EM: f64 = 2048.0;

/// A size in pixels and a weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Font {
    pub size: f64,
    pub bold: bool,
}

impl Font {
    pub const fn regular(size: f64) -> Self {
        Self { size, bold: false }
    }

    pub const fn bold(size: f64) -> Self {
        Self { size, bold: true }
    }

    /// Width of `text` in pixels. A character that the font lacks counts one em.
    pub fn width(self, text: &str) -> f64 {
        let advance = |c: char| match ADVANCES.binary_search_by_key(&c, |entry| entry.0) {
            Ok(i) if self.bold => f64::from(ADVANCES[i].2),
            Ok(i) => f64::from(ADVANCES[i].1),
            Err(_) => UNITS_PER_EM,
        };
        text.chars().map(advance).sum::<f64>() * self.size / UNITS_PER_EM
    }

    /// `text`, or as much of its start as fits into `width` with an ellipsis.
    pub fn shorten(self, text: &str, width: f64) -> String {
        if self.width(text) <= width {
            return text.to_owned();
        }
        let mut kept = text.to_owned();
        while kept.pop().is_some() {
            let shortened = format!("{}…", kept.trim_end());
            if self.width(&shortened) <= width {
                return shortened;
            }
        }
        String::new()
    }

    /// `text` in lines of at most `width`, broken at spaces; a longer word is shortened.
    pub fn wrap(self, text: &str, width: f64) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            let word = self.shorten(word, width);
            match lines.last_mut() {
                Some(line) if self.width(&format!("{line} {word}")) <= width => {
                    line.push(' ');
                    line.push_str(&word);
                }
                _ => lines.push(word),
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skrifa::instance::{LocationRef, Size};
    use skrifa::{FontRef, MetadataProvider};

    #[test]
    fn advances_are_those_of_the_embedded_fonts() {
        let (regular, bold) = (FontRef::new(REGULAR).unwrap(), FontRef::new(BOLD).unwrap());
        let advance = |font: &FontRef, c: char| {
            let glyph = font.charmap().map(c).unwrap();
            font.glyph_metrics(Size::unscaled(), LocationRef::default()).advance_width(glyph).unwrap()
        };
        for (c, r, b) in ADVANCES {
            assert_eq!(advance(&regular, c), f32::from(r), "{c:?}");
            assert_eq!(advance(&bold, c), f32::from(b), "{c:?}");
        }
        assert_eq!(regular.charmap().mappings().count(), ADVANCES.len());
        assert!(ADVANCES.is_sorted_by_key(|entry| entry.0));
    }

    #[test]
    fn text_is_shortened_to_fit() {
        let font = Font::regular(10.0);
        let text = "a title that goes on and on";
        for width in [0.0, 5.0, 40.0, 90.0, 1000.0] {
            let short = font.shorten(text, width);
            assert!(font.width(&short) <= width, "{short:?} in {width}");
            assert!(short.is_empty() || short == text || short.ends_with('…'));
        }
        assert_eq!(font.shorten(text, 1000.0), text);
    }

    #[test]
    fn wrapped_lines_hold_all_words() {
        let font = Font::regular(10.0);
        let text = "spans closer than half a pixel are merged into one bar";
        let lines = font.wrap(text, 120.0);
        assert!(lines.len() > 1 && lines.iter().all(|l| font.width(l) <= 120.0));
        assert_eq!(lines.join(" "), text);
    }
}
