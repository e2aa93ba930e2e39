//! Linear fits of times, by relative error.

use nalgebra::{DMatrix, DVector};
use statrs::statistics::{Data, OrderStatistics};
use thiserror::Error;

/// One measured time and what it is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// What was measured.
    pub probe: String,
    /// Factors of the constants that are sought.
    pub factors: Vec<f64>,
    /// Median of the repeats, in seconds.
    pub seconds: f64,
    /// Standard deviation of the repeats over their median.
    pub spread: f64,
}

/// Constants `c` with `seconds = sum_j c_j factors_j`.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The constants, none below zero.
    pub constants: Vec<f64>,
    /// Root mean square of the relative residuals, over the points less the constants.
    pub residual: f64,
    /// The largest relative residual.
    pub worst: f64,
    /// Median of the samples' spreads.
    pub spread: f64,
    /// Constants that came out negative and were set to zero.
    pub clamped: Vec<usize>,
    /// What the constants give for each sample, in seconds.
    pub fitted: Vec<f64>,
}

/// Why there is no fit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FitError {
    /// Fewer points than constants.
    #[error("{points} points cannot tell {constants} constants apart; measure more sizes")]
    TooFew {
        /// Points measured.
        points: usize,
        /// Constants sought.
        constants: usize,
    },
    /// A time that is not positive and finite.
    #[error("point {0} took no time, or for ever")]
    Time(usize),
    /// The points do not determine the constants.
    #[error("the points do not tell the constants apart")]
    Singular,
}

/// Least squares of the relative residuals; a constant below zero is set to zero and the others are fitted again.
///
/// # Errors
/// [`FitError`] if the samples do not determine the constants.
pub fn relative(samples: &[Sample]) -> Result<Fit, FitError> {
    let constants = samples.first().map_or(0, |s| s.factors.len());
    if constants == 0 || samples.len() < constants {
        return Err(FitError::TooFew { points: samples.len(), constants });
    }
    if let Some(bad) = samples.iter().position(|s| !(s.seconds > 0.0 && s.seconds.is_finite())) {
        return Err(FitError::Time(bad));
    }
    let mut free: Vec<usize> = (0..constants).collect();
    let mut solution = vec![0.0; constants];
    loop {
        let found = solve(samples, &free)?;
        solution.fill(0.0);
        free.iter().zip(&found).for_each(|(&j, &c)| solution[j] = c);
        match free
            .iter()
            .copied()
            .filter(|&j| solution[j] < 0.0)
            .min_by(|&a, &b| solution[a].total_cmp(&solution[b]))
        {
            Some(worst) => free.retain(|&j| j != worst),
            None => break,
        }
    }
    let give = |s: &Sample| s.factors.iter().zip(&solution).map(|(x, c)| x * c).sum();
    let fitted: Vec<f64> = samples.iter().map(give).collect();
    let residuals: Vec<f64> = fitted.iter().zip(samples).map(|(f, s)| f / s.seconds - 1.0).collect();
    let freedom = (samples.len() - free.len()).max(1) as f64;
    Ok(Fit {
        residual: (residuals.iter().map(|r| r * r).sum::<f64>() / freedom).sqrt(),
        worst: residuals.iter().fold(0.0, |worst, r| r.abs().max(worst)),
        spread: Data::new(samples.iter().map(|s| s.spread).collect::<Vec<_>>()).median(),
        clamped: (0..constants).filter(|j| !free.contains(j)).collect(),
        constants: solution,
        fitted,
    })
}

/// The constants `free`, all others zero. Columns are scaled to one, so that seconds and picoseconds weigh alike.
fn solve(samples: &[Sample], free: &[usize]) -> Result<Vec<f64>, FitError> {
    let mut matrix =
        DMatrix::from_fn(samples.len(), free.len(), |i, j| samples[i].factors[free[j]] / samples[i].seconds);
    let scales: Vec<f64> = (0..free.len()).map(|j| matrix.column(j).norm()).collect();
    if scales.contains(&0.0) {
        return Err(FitError::Singular);
    }
    for (j, scale) in scales.iter().enumerate() {
        matrix.column_mut(j).scale_mut(scale.recip());
    }
    let ones = DVector::from_element(samples.len(), 1.0);
    let svd = matrix.svd(true, true);
    if svd.rank(1e-9) < free.len() {
        return Err(FitError::Singular);
    }
    let found = svd.solve(&ones, 1e-12).map_err(|_| FitError::Singular)?;
    Ok(found.iter().zip(scales).map(|(c, scale)| c / scale).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(factors: &[f64], seconds: f64) -> Sample {
        Sample { probe: String::new(), factors: factors.to_vec(), seconds, spread: 0.01 }
    }

    #[test]
    fn a_line_is_found_again() {
        // 2 us and 400 GB/s.
        let points = [1e5, 1e6, 1e7, 1e9].map(|bytes| sample(&[1.0, bytes], 2e-6 + bytes / 4e11));
        let fit = relative(&points).unwrap();
        assert!((fit.constants[0] - 2e-6).abs() < 1e-12, "{fit:?}");
        assert!((1.0 / fit.constants[1] / 4e11 - 1.0).abs() < 1e-9, "{fit:?}");
        assert!(fit.residual < 1e-9 && fit.clamped.is_empty());
        assert_eq!(fit.spread, 0.01);
    }

    #[test]
    fn residuals_are_relative_and_count_the_freedom_left() {
        // One constant, 1 s by the first point and 1.1 by the second: c minimises (c - 1)^2 + (c/1.1 - 1)^2.
        let fit = relative(&[sample(&[1.0], 1.0), sample(&[1.0], 1.1)]).unwrap();
        let c = (1.0 + 1.0 / 1.1) / (1.0 + 1.0 / 1.21);
        assert!((fit.constants[0] - c).abs() < 1e-12);
        let (a, b) = (c - 1.0, c / 1.1 - 1.0);
        assert!((fit.residual - a.hypot(b)).abs() < 1e-12, "two points, one constant: one degree of freedom");
        assert!((fit.worst - a.abs().max(b.abs())).abs() < 1e-12);
    }

    #[test]
    fn a_negative_constant_is_zero_and_is_said() {
        // A latency below zero fits best.
        let points = [1.0, 2.0, 4.0].map(|x| sample(&[1.0, x], x - 0.1));
        let fit = relative(&points).unwrap();
        assert_eq!((fit.constants[0], fit.clamped.as_slice()), (0.0, &[0][..]));
        assert!(fit.constants[1] > 0.9 && fit.constants[1] < 1.0);
        // One constant is left: c minimises the squares of c w - 1 for w = x / (x - 0.1), with two degrees of freedom.
        let w = [1.0, 2.0, 4.0].map(|x: f64| x / (x - 0.1));
        let c = w.iter().sum::<f64>() / w.iter().map(|w| w * w).sum::<f64>();
        let squares: f64 = w.iter().map(|w| (c * w - 1.0).powi(2)).sum();
        assert!(
            (fit.constants[1] - c).abs() < 1e-12 && (fit.residual - (squares / 2.0).sqrt()).abs() < 1e-12
        );
    }

    #[test]
    fn of_two_below_zero_the_lower_one_goes_first() {
        // Least squares are (2/3, -1/3, -1/9). Without the second it is (3/10, 0, 1/10), with residuals 0, -3/5, 1/5, 0: more of
        // the second would make them larger, by 1/5.
        let factors = [[2.0, 0.0, 4.0], [1.0, 0.0, 1.0], [3.0, 1.0, 3.0], [3.0, 3.0, 1.0]];
        let fit = relative(&factors.map(|f| sample(&f, 1.0))).unwrap();
        assert_eq!(fit.clamped, [1]);
        let near = fit.constants.iter().zip([0.3, 0.0, 0.1]).all(|(c, e)| (c - e).abs() < 1e-12);
        assert!(near, "{fit:?}");
    }

    #[test]
    fn the_spread_is_the_median_of_the_samples() {
        let samples = [0.05, 0.01, 0.03].map(|spread| Sample { spread, ..sample(&[1.0], 1.0) });
        assert_eq!(relative(&samples).unwrap().spread, 0.03);
    }

    #[test]
    fn points_that_say_nothing_are_refused() {
        assert_eq!(relative(&[]), Err(FitError::TooFew { points: 0, constants: 0 }));
        let one = sample(&[1.0, 2.0], 1.0);
        assert_eq!(relative(std::slice::from_ref(&one)), Err(FitError::TooFew { points: 1, constants: 2 }));
        assert_eq!(relative(&[one.clone(), one.clone()]), Err(FitError::Singular));
        assert_eq!(relative(&[sample(&[1.0], 0.0)]), Err(FitError::Time(0)));
    }
}
