//! Where an axis has its ticks, and how they are labelled without overlapping.

use ringlab_sim::units::SimTime;

use crate::font::Font;

/// Clear space between two labels of an axis.
const BETWEEN_LABELS: f64 = 8.0;

/// A tick: position in pixels, and label.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tick {
    pub at: f64,
    pub label: String,
}

/// Which extent of a label runs along its axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Along {
    Width,
    Height,
}

/// The first candidate whose labels do not overlap, each centred on its tick; the last one if all do.
pub(crate) fn first_that_fits(
    candidates: impl Iterator<Item = Vec<Tick>>,
    font: Font,
    along: Along,
) -> Vec<Tick> {
    let extent = |t: &Tick| match along {
        Along::Width => font.width(&t.label),
        Along::Height => font.size,
    };
    let fits = |pair: &[Tick]| {
        let between = (pair[1].at - pair[0].at).abs();
        between >= f64::midpoint(extent(&pair[0]), extent(&pair[1])) + BETWEEN_LABELS
    };
    let mut last = Vec::new();
    for ticks in candidates {
        if ticks.windows(2).all(fits) {
            return ticks;
        }
        last = ticks;
    }
    last.truncate(1);
    last
}

/// The least of 1, 2 and 5 times a power of ten that is at least `raw`.
pub(crate) fn nice_step(raw: f64) -> f64 {
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0]
        .map(|m| m * power)
        .into_iter()
        .find(|step| *step >= raw * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

/// Multiples of `step` in `from..=to`.
pub(crate) fn multiples(from: f64, to: f64, step: f64) -> Vec<f64> {
    let (first, last) = ((from / step - 1e-6).ceil(), (to / step + 1e-6).floor());
    let count = (last - first).max(-1.0) as i64 + 1;
    (0..count).map(|i| (first + i as f64) * step).collect()
}

/// A time axis from zero: its unit, and how long that is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TimeUnit {
    pub name: &'static str,
    pub picoseconds: f64,
}

/// The largest unit of which `end` has at least one.
pub(crate) fn time_unit(end: SimTime) -> TimeUnit {
    const UNITS: [(&str, u64); 5] =
        [("s", 1_000_000_000_000), ("ms", 1_000_000_000), ("us", 1_000_000), ("ns", 1000), ("ps", 1)];
    let fitting = UNITS.into_iter().find(|(_, ps)| end.0 >= *ps).unwrap_or(UNITS[4]);
    TimeUnit { name: fitting.0, picoseconds: fitting.1 as f64 }
}

/// Ticks of a time axis from zero to `end`, which `width` pixels show.
pub(crate) fn time_ticks(end: SimTime, width: f64, font: Font) -> Vec<Tick> {
    let unit = time_unit(end);
    let last = end.0 as f64 / unit.picoseconds;
    let candidates = (1..=12).rev().map(|count| {
        let step = nice_step(last / f64::from(count));
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        let tick = |v: f64| Tick { at: v / last * width, label: format!("{v:.decimals$}") };
        multiples(0.0, last, step).into_iter().map(tick).collect()
    });
    first_that_fits(candidates, font, Along::Width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_one_two_five() {
        let cases = [(0.011, 0.02), (0.1, 0.1), (0.9, 1.0), (2.1, 5.0), (5.1, 10.0), (300.0, 500.0)];
        for (raw, step) in cases {
            assert!((nice_step(raw) / step - 1.0f64).abs() < 1e-12, "{raw}");
        }
    }

    #[test]
    fn units_fit_the_end() {
        let cases = [(0, "ps"), (999, "ps"), (1000, "ns"), (2_500_000, "us"), (7_000_000_000, "ms")];
        for (ps, unit) in cases {
            assert_eq!(time_unit(SimTime(ps)).name, unit);
        }
        assert_eq!(time_unit(SimTime::NEVER).name, "s");
    }

    #[test]
    fn time_ticks_are_apart_and_inside() {
        let font = Font::regular(10.0);
        for end in [1, 999, 1_234_567, 999_999_999, 10_500_000_000, u64::MAX] {
            for width in [40.0, 300.0, 1000.0] {
                let ticks = time_ticks(SimTime(end), width, font);
                assert_eq!((ticks[0].at, ticks[0].label.parse::<f64>()), (0.0, Ok(0.0)));
                assert!(ticks.iter().all(|t| t.at <= width + 1e-3));
                for pair in ticks.windows(2) {
                    let between = pair[1].at - pair[0].at;
                    let widths = font.width(&pair[0].label) + font.width(&pair[1].label);
                    assert!(between > widths / 2.0, "{end} in {width}: {pair:?}");
                }
            }
        }
        let labels: Vec<String> =
            time_ticks(SimTime(2_000_000), 1000.0, font).into_iter().map(|t| t.label).collect();
        assert_eq!(labels, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0", "1.2", "1.4", "1.6", "1.8", "2.0"]);
    }
}
