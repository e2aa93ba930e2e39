//! Error bars: what the uncertainty of a calibrated cluster's constants makes of a predicted time.

use serde::Serialize;

use crate::config::cluster::{Cluster, Quantity};
use crate::units::SimTime;

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
/// Constants count as independent. Each is moved up by its standard uncertainty, the changes of the time are added in
/// quadrature, and `+- 1.645` times the root is the interval: first-order propagation (JCGM 100:2008, section 5.1.2).
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
    let mut variance = 0.0;
    for uncertainty in &calibration.spreads {
        let relative = uncertainty.relative();
        let change = match uncertainty.of {
            Quantity::Model => time * relative,
            of => predict(&cluster.scaled(of, 1.0 + relative))?.as_secs_f64() - time,
        };
        variance += change * change;
    }
    let half = HALF_WIDTH * variance.sqrt();
    Ok(Some(Interval {
        low: SimTime::from_secs_f64((time - half).max(0.0)),
        high: SimTime::from_secs_f64(time + half),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cluster::{Calibration, Dtype, Pass, Uncertainty};

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

    #[test]
    fn what_whole_plans_missed_by_counts_for_the_whole() {
        let cluster = cluster(&[("model", 0.02, 0.0)]);
        let found = interval(&cluster, serial(&cluster).unwrap(), serial).unwrap().unwrap();
        let time = 1e15 / 714.1e12 + 0.1;
        assert!((found.high.as_secs_f64() / time - 1.0329).abs() < 1e-4, "{found:?}");
    }

    #[test]
    fn without_a_calibration_there_is_none() {
        let mut plain = cluster(&[]);
        plain.calibration = None;
        assert_eq!(interval(&plain, serial(&plain).unwrap(), serial), Ok(None));
    }
}
