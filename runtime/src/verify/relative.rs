//! The errors of one tensor, as [`super`] defines them.

use super::VerifyError;

/// The share of its terms below which a row's own size no longer says what rounding may do to it.
const CANCELLED: f64 = 1.0 / 16.0;

/// The relative error of a tensor of rows of `width` elements. `terms` is the size of a row's terms, and is asked only for
/// rows whose error would be the largest so far without it.
pub(super) fn relative_error(
    name: &'static str,
    x: &[f32],
    exact: &[f64],
    width: usize,
    terms: impl Fn(usize) -> f64,
) -> Result<f64, VerifyError> {
    if x.len() != exact.len() {
        return Err(VerifyError::Length { name, expected: exact.len(), actual: x.len() });
    }
    let finite = exact.iter().filter(|r| r.is_finite());
    let (count, squares) = finite.fold((0usize, 0.0), |(n, sum), r| (n + 1, r.mul_add(*r, sum)));
    let rms = if count == 0 { 0.0 } else { (squares / count as f64).sqrt() };
    let rows = x.chunks_exact(width).zip(exact.chunks_exact(width));
    Ok(rows.enumerate().fold(0.0, |worst, (at, (x, exact))| {
        let difference = largest_difference(x, exact);
        let size = exact.iter().fold(rms, |m, r| m.max(r.abs()));
        if difference == 0.0 || difference / size <= worst {
            return worst;
        }
        worst.max(if difference.is_finite() {
            difference / size.max(CANCELLED * terms(at))
        } else {
            difference
        })
    }))
}

/// The largest difference of a row; infinite for what is not a number, and where the exact one is infinite and `x` is not.
fn largest_difference(x: &[f32], exact: &[f64]) -> f64 {
    let element = |(&x, &r): (&f32, &f64)| {
        let difference = (f64::from(x) - r).abs();
        match f64::from(x) == r {
            true => 0.0,
            false if difference.is_nan() || !r.is_finite() => f64::INFINITY,
            false => difference,
        }
    };
    x.iter().zip(exact).map(element).fold(0.0, f64::max)
}

/// The relative error in the L2 norm of tensors of one length; infinite for a NaN.
pub(super) fn l2_error(x: &[f32], exact: &[f64]) -> f64 {
    let sums = x.iter().zip(exact).fold((0.0, 0.0), |(off, all), (&x, &r)| {
        let difference = f64::from(x) - r;
        (difference.mul_add(difference, off), r.mul_add(r, all))
    });
    match sums {
        (0.0, _) => 0.0,
        (off, all) if off.is_finite() && all > 0.0 => (off / all).sqrt(),
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row that is no difference of larger numbers.
    fn plain(_: usize) -> f64 {
        0.0
    }

    #[test]
    fn the_definition_on_numbers_worked_by_hand() {
        let exact = [3.0, 4.0, 0.0, 0.0];
        let error = relative_error("o", &[3.0, 4.2, 0.0, 0.1], &exact, 2, plain).unwrap();
        assert!((error - 0.05).abs() < 1e-6, "0.2 / 4 and 0.1 / rms 2.5: {error}");
    }

    #[test]
    fn a_row_that_cancels_is_held_against_a_sixteenth_of_its_terms() {
        let error = |terms: f64| relative_error("dq", &[0.125], &[0.25], 1, |_| terms).unwrap();
        assert_eq!(error(4.0), 0.5, "a sixteenth of 4 is the row itself");
        assert_eq!(error(16.0), 0.125);
    }

    #[test]
    fn the_l2_norm_on_numbers_worked_by_hand() {
        // Off by 0.3 and 0.4, so by 0.5, of a vector of length 5.
        assert!((l2_error(&[3.3, 4.4], &[3.0, 4.0]) - 0.1).abs() < 1e-7);
        assert_eq!(l2_error(&[0.0, 2.0], &[0.0, 2.0]), 0.0);
        assert_eq!(l2_error(&[f32::NAN, 2.0], &[0.0, 2.0]), f64::INFINITY);
        assert_eq!(l2_error(&[1.0], &[0.0]), f64::INFINITY);
    }

    #[test]
    fn rows_without_keys_are_compared_exactly() {
        let infinite = f64::NEG_INFINITY;
        let error = |x: f32| relative_error("lse", &[x, 1.0], &[infinite, 1.0], 1, plain).unwrap();
        assert_eq!(error(f32::NEG_INFINITY), 0.0);
        assert_eq!(error(-1e30), f64::INFINITY);
        assert_eq!(error(f32::NAN), f64::INFINITY);
        assert_eq!(relative_error("lse", &[f32::NEG_INFINITY], &[1.0], 1, plain).unwrap(), f64::INFINITY);
    }

    #[test]
    fn a_number_that_is_not_one_is_an_infinite_error() {
        assert_eq!(relative_error("o", &[f32::NAN, 1.0], &[1.0, 1.0], 2, plain).unwrap(), f64::INFINITY);
    }
}
