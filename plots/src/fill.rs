//! Fills of areas that are told apart by name: colour and hatching differ together, so that either one does.

use crate::palette;
use crate::svg::INK;

/// How often fills repeat.
pub(crate) const COUNT: usize = 8;

/// Ground, and angle and colour of the hatching on it.
const FILLS: [(&str, Option<(i32, &str)>); COUNT] = [
    (palette::LIGHT_BLUE, Some((45, palette::BLUE))),
    (palette::ORANGE, None),
    (palette::LIGHT_GREEN, Some((-45, "#00664A"))),
    ("#F0F0F0", Some((0, "#B0B0B0"))),
    (palette::PURPLE, Some((90, "#7A3B5E"))),
    (palette::BLUE, None),
    (palette::LIGHT_ORANGE, Some((90, "#8A5F00"))),
    (palette::VERMILLION, Some((45, "#7A3500"))),
];

/// What the `i`-th area is painted with; [`patterns`] must be among the picture's definitions.
pub(crate) fn paint(i: usize) -> String {
    match FILLS[i % COUNT] {
        (colour, None) => colour.to_owned(),
        _ => format!("url(#fill-{})", i % COUNT),
    }
}

/// The fill's ground.
pub(crate) fn ground(i: usize) -> &'static str {
    FILLS[i % COUNT].0
}

/// Colour of text on it.
pub(crate) fn ink(i: usize) -> &'static str {
    if ground(i) == palette::BLUE || ground(i) == palette::VERMILLION { "#ffffff" } else { INK }
}

/// The patterns of the first `count` fills.
pub(crate) fn patterns(count: usize) -> String {
    let pattern = |i: usize| {
        let (ground, hatching) = FILLS[i];
        let (angle, stroke) = hatching?;
        Some(format!(
            "<pattern id=\"fill-{i}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate({angle})\"><rect x=\"-1\" y=\"-1\" width=\"8\" height=\"8\" fill=\"{ground}\"/>\
             <rect x=\"2\" y=\"-1\" width=\"1.2\" height=\"8\" fill=\"{stroke}\"/></pattern>\n"
        ))
    };
    (0..count.min(COUNT)).filter_map(pattern).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::palette::vision::{DEUTERANOPIA, NORMAL, PROTANOPIA, distance, lightness};

    #[test]
    fn fills_differ_for_colour_blind_readers_and_in_black_and_white() {
        for (i, (a, hatch_a)) in FILLS.iter().enumerate() {
            for (b, hatch_b) in &FILLS[i + 1..] {
                for eye in [NORMAL, PROTANOPIA, DEUTERANOPIA] {
                    assert!(distance(a, b, &eye) > 15.0, "{a} and {b}");
                }
                let angles = (hatch_a.map(|h| h.0), hatch_b.map(|h| h.0));
                let difference = (lightness(a) - lightness(b)).abs();
                assert!(angles.0 != angles.1 || difference > 18.0, "{a} and {b} in black and white");
            }
        }
    }

    #[test]
    fn text_on_a_fill_has_contrast() {
        for i in 0..COUNT {
            let difference = (lightness(ground(i)) - lightness(ink(i))).abs();
            assert!(difference > 40.0, "{i}: {difference}");
        }
    }
}
