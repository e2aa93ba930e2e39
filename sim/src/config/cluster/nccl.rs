//! Settings of NCCL transfers inside a node, and what a cluster knows of what they do.

use serde::Serialize;
use thiserror::Error;

use super::{Cluster, Priority, Quantity, Transport, is_nothing};
use crate::units::BytesPerSec;

/// How NCCL transfers are set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NcclSettings {
    /// The most CTAs of a transfer; `None` for NCCL's choice.
    pub ctas: Option<u32>,
    /// Of their streams.
    pub priority: Priority,
}

/// What transfers reach and take with a limit on their CTAs. Latency and ramp are those without one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NcclLimit {
    /// The most CTAs of a transfer.
    pub ctas: u32,
    /// The most that one transfer reaches on an idle path.
    pub bandwidth: BytesPerSec,
    /// SMs that a transfer holds on each of its two GPUs while it moves.
    pub sms: u32,
    /// Share of its bandwidth that a transfer loses while an attention call runs on one of its GPUs.
    #[serde(skip_serializing_if = "is_nothing")]
    pub slowed_by_calls: f64,
    /// Where these figures come from.
    pub source: String,
}

impl NcclLimit {
    /// The most CTAs that NCCL has: its channels (`MAXCHANNELS`, NCCL 2.28).
    pub const MOST_CTAS: u32 = 64;
}

/// What transfers on streams of high priority take and lose, where that is not what others do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HighPriority {
    /// SMs that a transfer holds on each of its two GPUs while it moves.
    pub sms: u32,
    /// Share of its bandwidth that a transfer loses while an attention call runs on one of its GPUs.
    #[serde(skip_serializing_if = "is_nothing")]
    pub slowed_by_calls: f64,
    /// Where these figures come from.
    pub source: String,
}

/// A limit of which a cluster says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{cluster} does not say what NCCL does with at most {ctas} CTAs; {}", known(.limits))]
pub struct UnknownLimit {
    /// Name of the cluster.
    pub cluster: String,
    /// The limit that was asked for.
    pub ctas: u32,
    /// The limits that it has.
    pub limits: Vec<u32>,
}

fn known(limits: &[u32]) -> String {
    if limits.is_empty() {
        return "it has no [[fabric.nccl.limits]], which a calibration of two GPUs with NCCL writes".into();
    }
    format!("it has limits of {}", limits.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))
}

impl Transport {
    /// The most of its speed that anything loses to what runs beside it.
    pub const MOST_LOST: f64 = 0.99;

    /// SMs that a transfer holds, and the share of its bandwidth that it loses beside a call, at its priority.
    pub(crate) fn beside_calls(&self) -> (u32, f64) {
        match &self.high_priority {
            Some(high) if self.priority == Priority::High => (high.sms, high.slowed_by_calls),
            Some(_) | None => (self.sms, self.slowed_by_calls),
        }
    }
}

impl Cluster {
    /// The cluster whose NCCL transfers have these settings: at its limit a transfer has the figures of that limit at any
    /// priority. Of transfers between nodes only the priority changes.
    ///
    /// # Errors
    /// [`UnknownLimit`] if the cluster has no such limit.
    pub fn with_nccl(&self, settings: NcclSettings) -> Result<Self, UnknownLimit> {
        let mut cluster = match settings.ctas {
            Some(ctas) => self.with_nccl_limit(ctas)?,
            None => self.clone(),
        };
        cluster.set_nccl_priority(settings.priority);
        Ok(cluster)
    }

    /// The cluster whose NCCL transfers inside nodes have at most so many CTAs.
    ///
    /// # Errors
    /// [`UnknownLimit`] if the cluster has no such limit.
    pub fn with_nccl_limit(&self, ctas: u32) -> Result<Self, UnknownLimit> {
        let mut cluster = self.clone();
        let nccl = &mut cluster.fabric.nccl;
        let limits = std::mem::take(&mut nccl.limits);
        let Some(limit) = limits.iter().find(|limit| limit.ctas == ctas) else {
            let limits = limits.iter().map(|limit| limit.ctas).collect();
            return Err(UnknownLimit { cluster: self.name.clone(), ctas, limits });
        };
        (nccl.bandwidth, nccl.sms, nccl.slowed_by_calls) =
            (limit.bandwidth, limit.sms, limit.slowed_by_calls);
        nccl.high_priority = None;
        nccl.source = format!("at most {ctas} CTAs: {}; latency: {}", limit.source, nccl.source);
        if let Some(calibration) = &mut cluster.calibration {
            let spreads = std::mem::take(&mut calibration.spreads).into_iter();
            let kept = spreads.filter_map(|mut spread| match spread.of {
                Quantity::NcclLimit(of) => {
                    spread.of = Quantity::NcclBandwidth;
                    (of == ctas).then_some(spread)
                }
                Quantity::NcclBandwidth => None,
                _ => Some(spread),
            });
            calibration.spreads = kept.collect();
        }
        Ok(cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cluster::priority::tests::NETWORK;
    use crate::config::cluster::{Calibration, Uncertainty, test_text};
    use crate::config::error::ConfigError;

    const LIMITS: &str = r#"
        [[fabric.nccl.limits]]
        ctas = 4
        bandwidth = "75 GB/s"
        sms = 4
        source = "test"

        [[fabric.nccl.limits]]
        ctas = 8
        bandwidth = "140 GB/s"
        sms = 9
        slowed_by_calls = 0.25
        source = "by hand"

        [fabric.nccl.high_priority]
        sms = 20
        slowed_by_calls = 0.1
        source = "test"
    "#;

    /// An H200 node that knows two limits and high priority, one line of it replaced.
    fn edited(from: &str, to: &str) -> Result<Cluster, ConfigError> {
        let text = test_text(LIMITS);
        assert!(from.is_empty() || text.contains(from), "{from}");
        Cluster::parse("c.toml", &text.replacen(from, to, 1))
    }

    fn spread(of: Quantity, spread: f64) -> Uncertainty {
        Uncertainty { of, spread, residual: 0.0, samples: 2 }
    }

    #[test]
    fn limits_and_high_priority_read_back() {
        let cluster = edited("", "").unwrap();
        let limit = &cluster.fabric.nccl.limits[1];
        assert_eq!((limit.ctas, limit.bandwidth.0, limit.sms, limit.slowed_by_calls), (8, 140e9, 9, 0.25));
        let high = cluster.fabric.nccl.high_priority.as_ref().unwrap();
        assert_eq!((high.sms, high.slowed_by_calls, high.source.as_str()), (20, 0.1, "test"));
        let written = cluster.to_toml();
        assert_eq!(Cluster::parse("again", &written).unwrap(), cluster);
        assert_eq!(written.matches("[[fabric.nccl.limits]]").count(), 2);
        let assumptions = cluster.assumptions();
        let found = |path| assumptions.iter().find(|a| a.path == path).map(|a| (&*a.value, &*a.source));
        assert_eq!(found("fabric.nccl.limits[1].bandwidth"), Some(("140 GB/s", "by hand")));
    }

    #[test]
    fn what_is_wrong_is_refused_where_it_stands() {
        let text = test_text(LIMITS);
        let cases = [
            ("ctas = 8", "ctas = 4", "`fabric.nccl.limits[1].ctas` is 4, expected more than the 4 before it"),
            ("ctas = 4", "ctas = 9", "`fabric.nccl.limits[1].ctas` is 8, expected more than the 9 before it"),
            (
                "ctas = 4",
                "ctas = 0",
                "`fabric.nccl.limits[0].ctas` is 0, expected a whole number from 1 to 64",
            ),
            (
                "ctas = 8",
                "ctas = 65",
                "`fabric.nccl.limits[1].ctas` is 65, expected a whole number from 1 to 64",
            ),
            (
                "sms = 9",
                "sms = 133",
                "`fabric.nccl.limits[1].sms` is 133, expected a whole number from 0 to 132",
            ),
            (
                "\"140 GB/s\"",
                "\"900 GB/s\"",
                "`fabric.nccl.limits[1].bandwidth` is 900 GB/s, more than the 478 GB/s of its link",
            ),
            (
                "\"140 GB/s\"",
                "140",
                "`fabric.nccl.limits[1].bandwidth`: `140` has no unit, expected a bandwidth",
            ),
            (
                "slowed_by_calls = 0.25",
                "slowed_by_calls = 1.5",
                "`fabric.nccl.limits[1].slowed_by_calls` is 1.5, expected a number from 0 to 0.99",
            ),
            (
                "sms = 20",
                "sms = \"20\"",
                "`fabric.nccl.high_priority.sms` is the text \"20\", expected a whole number from 0 to 132",
            ),
            ("sms = 9", "smss = 9", "unknown key `fabric.nccl.limits[1].smss`"),
        ];
        for (from, to, message) in cases {
            let error = edited(from, to).expect_err(message);
            assert_eq!(error.message(), message);
            // Of a list out of order the second entry is wrong, whichever was changed.
            let at = if from == "ctas = 4" && to == "ctas = 9" { "ctas = 8" } else { to };
            let changed = text.replacen(from, to, 1);
            let lines = (1..).zip(changed.lines()).filter(|(_, line)| line.contains(at));
            assert_eq!(error.position().map(|(line, _)| line), lines.last().map(|(i, _)| i), "{error}");
        }
        let error = edited("bandwidth = \"140 GB/s\"", "").unwrap_err();
        assert_eq!(error.message(), "missing `fabric.nccl.limits[1].bandwidth`");
        assert_eq!(error.hint(), Some("add a line like: bandwidth = \"450 GB/s\""));
        let error = edited("[fabric.nccl]", "[fabric.nccl]\nlimits = []").unwrap_err();
        assert_eq!(error.message(), "duplicate key");
    }

    #[test]
    fn other_transports_have_neither() {
        for key in ["limits", "high_priority"] {
            let text = test_text("").replacen("[fabric.copy]", &format!("[fabric.copy]\n{key} = 1"), 1);
            let error = Cluster::parse("c.toml", &text).unwrap_err();
            assert_eq!(error.message(), format!("`fabric.copy.{key}` has no use: copy engines hold no SM"));
            let error =
                Cluster::parse("c.toml", &test_text(&format!("{NETWORK}\n{key} = true"))).unwrap_err();
            let message = format!("`network.transport.{key}` has no use: it is of transfers inside a node");
            assert_eq!(
                (error.message(), error.hint()),
                (message.as_str(), Some("put it into [fabric.nccl]"))
            );
        }
    }

    #[test]
    fn a_limit_takes_the_place_of_what_nccl_does_without_one() {
        let mut cluster = edited("", "").unwrap();
        let of =
            [Quantity::NcclBandwidth, Quantity::NcclLimit(4), Quantity::NcclLimit(8), Quantity::CopyLatency];
        let spreads: Vec<_> = of.into_iter().zip([0.1, 0.2, 0.3, 0.4]).map(|(of, s)| spread(of, s)).collect();
        let (device, versions, date) = ("d".into(), "v".into(), "2026-11-30".into());
        cluster.calibration = Some(Calibration { device, devices: 2, versions, date, spreads });
        assert_eq!(Cluster::parse("again", &cluster.to_toml()).unwrap(), cluster);
        let limited = cluster.with_nccl(NcclSettings { ctas: Some(8), priority: Priority::High }).unwrap();
        let (nccl, before) = (&limited.fabric.nccl, &cluster.fabric.nccl);
        assert_eq!((nccl.bandwidth.0, nccl.latency, nccl.ramp), (140e9, before.latency, before.ramp));
        assert_eq!((nccl.priority, nccl.beside_calls()), (Priority::High, (9, 0.25)));
        assert!(nccl.source.starts_with("at most 8 CTAs: by hand; latency: "), "{}", nccl.source);
        let left = &limited.calibration.as_ref().unwrap().spreads;
        assert_eq!(*left, [spread(Quantity::NcclBandwidth, 0.3), spread(Quantity::CopyLatency, 0.4)]);
        assert_eq!(limited.fabric.copy, cluster.fabric.copy);
        assert_eq!(Cluster::parse("limited", &limited.to_toml()).unwrap(), limited);
        assert_eq!(cluster.with_nccl(NcclSettings::default()).unwrap(), cluster);
    }

    #[test]
    fn high_priority_has_figures_of_its_own_where_they_are_known() {
        let mut cluster = edited("", "").unwrap();
        assert_eq!(cluster.fabric.nccl.beside_calls(), (cluster.fabric.nccl.sms, 0.0));
        cluster.set_nccl_priority(Priority::High);
        assert_eq!(cluster.fabric.nccl.beside_calls(), (20, 0.1));
        cluster.fabric.nccl.high_priority = None;
        assert_eq!(cluster.fabric.nccl.beside_calls(), (cluster.fabric.nccl.sms, 0.0));
    }

    #[test]
    fn a_limit_that_is_not_known_is_named_with_those_that_are() {
        let six = NcclSettings { ctas: Some(6), ..NcclSettings::default() };
        let mut cluster = edited("", "").unwrap();
        let error = cluster.with_nccl(six).unwrap_err();
        assert_eq!(error.limits, [4, 8]);
        assert_eq!(
            error.to_string(),
            "hgx-h200 does not say what NCCL does with at most 6 CTAs; it has limits of 4, 8"
        );
        cluster.fabric.nccl.limits.clear();
        let text = cluster.with_nccl(six).unwrap_err().to_string();
        assert!(text.contains("it has no [[fabric.nccl.limits]]"), "{text}");
    }

    #[test]
    fn a_spread_of_a_limit_scales_it_and_needs_it() {
        let cluster = edited("", "").unwrap();
        let scaled = cluster.scaled(Quantity::NcclLimit(8), 1.5);
        let rates = |c: &Cluster| c.fabric.nccl.limits.iter().map(|l| l.bandwidth.0).collect::<Vec<_>>();
        assert_eq!(
            (rates(&scaled), scaled.fabric.nccl.bandwidth),
            (vec![75e9, 210e9], cluster.fabric.nccl.bandwidth)
        );
        let calibration =
            "[calibration]\ndevice = \"d\"\ndevices = 2\nversions = \"v\"\ndate = \"2026-11-30\"\n";
        let with = |ctas| {
            let of = format!("fabric.nccl.limits.{ctas}.bandwidth");
            let spreads =
                format!("spreads = [{{ of = \"{of}\", spread = 0.1, residual = 0.1, samples = 2 }}]");
            Cluster::parse("c.toml", &test_text(&format!("{LIMITS}\n{calibration}{spreads}")))
        };
        assert!(with(8).is_ok());
        let error = with(6).unwrap_err();
        assert_eq!(error.message(), "`calibration.spreads[0].of` is of a limit that is not in the fabric");
    }
}
