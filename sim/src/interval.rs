//! Error bars: what the uncertainty of a calibrated cluster's constants makes of a predicted time, and how far off predictions
//! of other plans were.

mod student;

use serde::Serialize;

use crate::config::cluster::{Cluster, Quantity, Uncertainty};
use crate::units::SimTime;

/// Share of the measured times that an interval is meant to hold.
const SHARE: f64 = 0.9;
/// Half-width of a 90% interval of a normal distribution, in standard deviations.
const HALF_WIDTH: f64 = 1.644_853_626_951_472_2;

/// Where 90% of the measured times are expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Interval {
    /// Lower end.
    pub low: SimTime,
    /// Upper end.
    pub high: SimTime,
}

impl Interval {
    /// Whether `time` lies inside, ends included.
    pub fn contains(&self, time: SimTime) -> bool {
        (self.low..=self.high).contains(&time)
    }
}

/// The interval of `time`, which is what `predict` gives on `cluster`; `None` if the cluster carries no calibration.
///
/// Constants count as independent. Each is moved up by its standard uncertainty, and the changes of the time are added in
/// quadrature: first-order propagation (JCGM 100:2008, section 5.1.2). A change counts by its constant's two parts: to the
/// variance S^2 of what repeats differ by, and to the variance R^2 of what fits miss.
///
/// [`Quantity::Model`] is what n plans that no fit used were off by: its residual r is the root mean square about zero of
/// `measured / predicted - 1`, so a bias is in it. Those errors hold what the fits miss already, so the larger of the two counts:
///
/// ```text
/// half-width = sqrt((1.645 S)^2 + max(1.645 R, t_n r time)^2)
/// ```
///
/// If errors are normal about zero, `n r^2 / sigma^2` has a chi-square distribution of n degrees of freedom, and the next
/// error over r is Student's t with as many; `t_n` holds 90% of it. It is 1.645 for many plans, 1.81 for ten and 2.92 for two.
///
/// [`Quantity::NcclLimit`] moves nothing: a limit that is used has become NCCL's bandwidth ([`Cluster::with_nccl`]).
///
/// # Errors
/// What `predict` fails with.
pub fn interval<E>(
    cluster: &Cluster,
    time: SimTime,
    mut predict: impl FnMut(&Cluster) -> Result<SimTime, E>,
) -> Result<Option<Interval>, E> {
    let Some(calibration) = &cluster.calibration else { return Ok(None) };
    let time = time.as_secs_f64();
    let (mut repeats, mut fits, mut checked) = (0.0, 0.0, 0.0_f64);
    for uncertainty in &calibration.spreads {
        let Uncertainty { of, spread, residual, samples } = *uncertainty;
        let relative = uncertainty.relative();
        if of == Quantity::Model {
            repeats += (time * spread).powi(2);
            checked += (time * residual * student::two_sided(SHARE, samples)).powi(2);
        } else if relative > 0.0 && !matches!(of, Quantity::NcclLimit(_)) {
            let change = predict(&cluster.scaled(of, 1.0 + relative))?.as_secs_f64() - time;
            repeats += (change * spread / relative).powi(2);
            fits += (change * residual / relative).powi(2);
        }
    }
    let half = (HALF_WIDTH * HALF_WIDTH * repeats + checked.max(HALF_WIDTH * HALF_WIDTH * fits)).sqrt();
    Ok(Some(Interval {
        low: SimTime::from_secs_f64((time - half).max(0.0)),
        high: SimTime::from_secs_f64(time + half),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cluster::{Calibration, Dtype, Pass};

    fn cluster(spreads: &[(&str, f64, f64)]) -> Cluster {
        let mut cluster = Cluster::parse("test", &crate::config::cluster::test_text("")).unwrap();
        let known = |&(name, spread, residual): &(&str, f64, f64)| Uncertainty {
            of: Quantity::from_name(name).unwrap(),
            spread,
            residual,
            samples: 3,
        };
        cluster.calibration = Some(Calibration {
            device: "test".into(),
            devices: 2,
            versions: "none".into(),
            date: "2026-11-30".into(),
            spreads: spreads.iter().map(known).collect(),
        });
        cluster
    }

    /// Time of a call of 10^15 FLOPs and a copy of 39.17 GB after it.
    fn serial(cluster: &Cluster) -> Result<SimTime, String> {
        let row = cluster.kernel(128, Dtype::Bf16, Pass::Forward).map_err(|e| e.to_string())?;
        let copy = 39.17e9 / cluster.fabric.copy.bandwidth.0;
        Ok(SimTime::from_secs_f64(1e15 / row.rate.0 + copy))
    }

    #[test]
    fn independent_errors_add_in_quadrature() {
        // 1.4004 s of computing known to 3% and 0.1 s of copying known to 4% of spread and 3% of residual, so to 5%.
        let cluster = cluster(&[
            ("kernels.forward.bf16.128.rate", 0.03, 0.0),
            ("fabric.copy.bandwidth", 0.04, 0.03),
            ("fabric.nccl.bandwidth", 0.5, 0.0),
        ]);
        let found = interval(&cluster, serial(&cluster).unwrap(), serial).unwrap().unwrap();
        let (compute, copy) = (1e15 / 714.1e12, 0.1);
        let sigma = f64::hypot(compute - compute / 1.03, copy - copy / 1.05);
        assert!((found.high.as_secs_f64() - (compute + copy + 1.645 * sigma)).abs() < 1e-4, "{found:?}");
        assert!((found.low.as_secs_f64() - (compute + copy - 1.645 * sigma)).abs() < 1e-4, "{found:?}");
        assert!(found.contains(SimTime::from_secs_f64(compute + copy)));
        assert!(!found.contains(SimTime::from_secs_f64(1.07 * (compute + copy))));
    }

    /// Half-width over the time, upwards, of a call alone.
    fn relative_half(spreads: &[(&str, f64, f64)]) -> f64 {
        let cluster = cluster(spreads);
        let call = |cluster: &Cluster| {
            let row = cluster.kernel(128, Dtype::Bf16, Pass::Forward).map_err(|e| e.to_string())?;
            Ok::<_, String>(SimTime::from_secs_f64(1e15 / row.rate.0))
        };
        let time = call(&cluster).unwrap();
        let found = interval(&cluster, time, call).unwrap().unwrap();
        assert!(found.low <= time && time <= found.high, "{found:?}");
        found.high.as_secs_f64() / time.as_secs_f64() - 1.0
    }

    const RATE: &str = "kernels.forward.bf16.128.rate";

    #[test]
    fn what_other_plans_missed_by_counts_for_the_whole() {
        assert!((relative_half(&[("model", 0.02, 0.0)]) - 0.0329).abs() < 1e-4);
        // Three plans: t is 2.353.
        assert!((relative_half(&[("model", 0.0, 0.02)]) - 0.04706).abs() < 1e-4);
    }

    #[test]
    fn what_fits_and_other_plans_miss_counts_once_and_repeats_always() {
        // A rate that is 4% higher makes a time 1 - 1/1.04 shorter.
        let of_fit = 1.644_85 * (1.0 - 1.0 / 1.04);
        let with = |model| relative_half(&[(RATE, 0.0, 0.04), ("model", 0.0, model)]);
        assert!((with(0.01) - of_fit).abs() < 1e-4, "the fits' residual is the larger");
        assert!((with(0.05) - 2.3534 * 0.05).abs() < 1e-4, "the other plans' errors are");
        let spread = relative_half(&[(RATE, 0.04, 0.0), ("model", 0.0, 0.05)]);
        assert!((spread - f64::hypot(of_fit, 2.3534 * 0.05)).abs() < 1e-4, "{spread}");
        // Both parts of one constant, 3% and 4%, move it by 5%.
        let both = relative_half(&[(RATE, 0.03, 0.04), ("model", 0.0, 0.001)]);
        assert!((both - 1.644_85 * (1.0 - 1.0 / 1.05)).abs() < 1e-4, "{both}");
    }

    #[test]
    fn nothing_known_is_no_width_and_no_time_has_an_interval() {
        assert_eq!(relative_half(&[(RATE, 0.0, 0.0), ("model", 0.0, 0.0)]), 0.0);
        assert_eq!(relative_half(&[]), 0.0);
        let cluster = cluster(&[(RATE, 0.0, 0.0), ("fabric.copy.latency", 1.0, 1.0), ("model", 1.0, 1.0)]);
        for time in [SimTime::ZERO, SimTime(1), SimTime::NEVER] {
            let found = interval(&cluster, time, |_| Ok::<_, String>(time)).unwrap().unwrap();
            assert!(found.contains(time), "{time}: {found:?}");
        }
    }

    #[test]
    fn without_a_calibration_there_is_none() {
        let mut plain = cluster(&[]);
        plain.calibration = None;
        assert_eq!(interval(&plain, serial(&plain).unwrap(), serial), Ok(None));
    }
}
