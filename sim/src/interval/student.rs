//! Student's t distribution: how far off a next error is, by the root mean square of a few earlier ones.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};

/// Degrees of freedom beyond which the distribution counts as that of so many: 1.6464 instead of at least 1.6449.
const MANY: u32 = 1000;
/// Halvings of the angle: the last ones change nothing.
const HALVINGS: u32 = 60;

/// `t` with `P(|T| <= t) = share` for `freedom` degrees of freedom, at least one; `share` is below one.
pub(super) fn two_sided(share: f64, freedom: u32) -> f64 {
    let freedom = freedom.clamp(1, MANY);
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        *(if within(middle, freedom) < share { &mut low } else { &mut high }) = middle;
    }
    f64::from(freedom).sqrt() * libm::tan(low)
}

/// `P(|T| <= sqrt(freedom) tan(angle))`, by the finite series for whole degrees of freedom (Abramowitz and Stegun, Handbook of
/// Mathematical Functions, 26.7.3 and 26.7.4).
fn within(angle: f64, freedom: u32) -> f64 {
    let (sine, cosine) = (libm::sin(angle), libm::cos(angle));
    let is_odd = freedom % 2 == 1;
    let (mut term, mut sum) = (if is_odd { cosine } else { 1.0 }, 0.0);
    let first = if is_odd { 2 } else { 1 };
    for j in (first..freedom).step_by(2) {
        sum += term;
        term *= cosine * cosine * f64::from(j) / f64::from(j + 1);
    }
    if is_odd { FRAC_2_PI * (angle + sine * sum) } else { sine * sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_published_tables() {
        let of = |freedom| two_sided(0.9, freedom);
        let table = [
            (1, 6.314),
            (2, 2.920),
            (3, 2.353),
            (4, 2.132),
            (5, 2.015),
            (8, 1.860),
            (10, 1.812),
            (13, 1.771),
            (20, 1.725),
            (24, 1.711),
            (30, 1.697),
            (60, 1.671),
            (120, 1.658),
        ];
        for (freedom, t) in table {
            assert!((of(freedom) - t).abs() < 6e-4, "{freedom}: {} for {t}", of(freedom));
        }
        assert!((two_sided(0.95, 9) - 2.262).abs() < 6e-4 && (two_sided(0.99, 6) - 3.707).abs() < 6e-4);
        // That of a normal distribution is 1.6449.
        assert!((of(u32::MAX) - 1.6464).abs() < 1e-4);
        assert_eq!(of(0), of(1));
    }
}
