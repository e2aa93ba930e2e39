//! Flows the entries of a legend into lines.

use crate::font::Font;

/// Font of legend entries.
pub(crate) const FONT: Font = Font::regular(10.5);
/// From one line of entries to the next.
pub(crate) const LINE: f64 = 18.0;

const BETWEEN: f64 = 20.0;

/// Positions `(x, line)` of entries of the given widths in lines of `width`, and the number of lines.
pub(crate) fn flow(widths: &[f64], width: f64) -> (Vec<(f64, usize)>, usize) {
    let (mut x, mut line) = (0.0, 0);
    let place = |&entry: &f64| {
        if x > 0.0 && x + entry > width {
            (x, line) = (0.0, line + 1);
        }
        let at = (x, line);
        x += entry + BETWEEN;
        at
    };
    let places: Vec<(f64, usize)> = widths.iter().map(place).collect();
    let lines = places.last().map_or(0, |last| last.1 + 1);
    (places, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_wrap_and_stay_inside() {
        let widths = [100.0, 150.0, 30.0, 400.0, 10.0];
        let (places, lines) = flow(&widths, 300.0);
        assert_eq!(places.iter().map(|p| p.1).collect::<Vec<_>>(), [0, 0, 1, 2, 3]);
        assert_eq!(lines, 4);
        assert_eq!(flow(&[], 300.0), (vec![], 0));
    }
}
