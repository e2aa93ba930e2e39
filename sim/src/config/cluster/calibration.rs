//! How well the constants of a measured cluster are known, and on which machine they were measured.

use std::fmt;

use serde::{Serialize, Serializer};

use super::{Cluster, Dtype, KernelRow, Pass};
use crate::config::field::Keyword;
use crate::units::{BytesPerSec, FlopsPerSec, SimTime};

/// The machine that a cluster's constants were measured on, and their uncertainty.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// The device as its driver names it, or the processor.
    pub device: String,
    /// Devices (or threads) that were measured together.
    pub devices: u32,
    /// Driver and library versions.
    pub versions: String,
    /// When, as an ISO date.
    pub date: String,
    /// The measured constants; what is not listed is known from elsewhere and counts as exact.
    pub spreads: Vec<Uncertainty>,
}

/// Standard uncertainty of one constant, relative to its value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Uncertainty {
    /// Which constant.
    pub of: Quantity,
    /// Standard deviation of the repeats, over their median.
    pub spread: f64,
    /// Root mean square of the relative residuals of the fit that gave the constant; zero if it was measured directly. Of
    /// [`Quantity::Model`], root mean square about zero of `measured / predicted - 1`.
    pub residual: f64,
    /// Measured points that went into it, at least one.
    pub samples: u32,
}

impl Uncertainty {
    /// Spread and residual together: `sqrt(spread^2 + residual^2)`.
    pub fn relative(&self) -> f64 {
        self.spread.hypot(self.residual)
    }
}

/// A constant that a calibration measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// `device.reached.hbm`.
    Hbm,
    /// `device.power.boost`.
    Boost,
    /// `host.kernel_launch`.
    KernelLaunch,
    /// `host.copy_launch`.
    CopyLaunch,
    /// `host.nccl_launch`.
    NcclLaunch,
    /// `fabric.copy.bandwidth`.
    CopyBandwidth,
    /// `fabric.copy.latency`.
    CopyLatency,
    /// `fabric.nccl.bandwidth`.
    NcclBandwidth,
    /// `fabric.nccl.latency`.
    NcclLatency,
    /// Bandwidth with a limit on NCCL's CTAs: `fabric.nccl.limits.8.bandwidth`.
    NcclLimit(u32),
    /// A figure of one attention kernel: `kernels.forward.bf16.128.rate`.
    Kernel(KernelId, KernelFigure),
    /// Everything at once: `model`. What predictions of plans that are no part of a fit or a validation missed by.
    Model,
}

/// Which row of the kernel table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelId {
    /// Forward or backward.
    pub pass: Pass,
    /// Type of Q, K and V.
    pub dtype: Dtype,
    /// Head dimension of the row.
    pub head_dim: u32,
    /// Whether it is the row with a condition, of two.
    pub conditional: bool,
}

impl From<&KernelRow> for KernelId {
    fn from(row: &KernelRow) -> Self {
        Self { pass: row.pass, dtype: row.dtype, head_dim: row.head_dim, conditional: row.used_for.is_some() }
    }
}

/// Which figure of a kernel's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFigure {
    /// `rate`.
    Rate,
    /// `prologue` and `epilogue` together.
    Fixed,
    /// `partial_tile_cost`.
    Partial,
}

impl Keyword for KernelFigure {
    const NAMES: &'static [(&'static str, Self)] =
        &[("rate", Self::Rate), ("fixed", Self::Fixed), ("partial_tile_cost", Self::Partial)];
}

const NAMES: &[(&str, Quantity)] = &[
    ("device.reached.hbm", Quantity::Hbm),
    ("device.power.boost", Quantity::Boost),
    ("host.kernel_launch", Quantity::KernelLaunch),
    ("host.copy_launch", Quantity::CopyLaunch),
    ("host.nccl_launch", Quantity::NcclLaunch),
    ("fabric.copy.bandwidth", Quantity::CopyBandwidth),
    ("fabric.copy.latency", Quantity::CopyLatency),
    ("fabric.nccl.bandwidth", Quantity::NcclBandwidth),
    ("fabric.nccl.latency", Quantity::NcclLatency),
    ("model", Quantity::Model),
];

/// Marks the row with a condition in a name: `kernels.forward.bf16.128.conditional.rate`.
const CONDITIONAL: &str = "conditional";

/// What stands around the CTAs in the name of a limit's bandwidth.
const LIMITS: &str = "fabric.nccl.limits.";
const BANDWIDTH: &str = ".bandwidth";

impl Quantity {
    /// The quantity called `name`, as [`Quantity`]'s variants list them.
    pub fn from_name(name: &str) -> Option<Self> {
        if let Some((_, quantity)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Some(*quantity);
        }
        if let Some(limit) = name.strip_prefix(LIMITS) {
            let ctas = limit.strip_suffix(BANDWIDTH)?.parse().ok()?;
            return Some(Self::NcclLimit(ctas)).filter(|quantity| quantity.to_string() == name);
        }
        let mut parts = name.strip_prefix("kernels.")?.split('.').peekable();
        let id = KernelId {
            pass: Pass::from_name(parts.next()?)?,
            dtype: Dtype::from_name(parts.next()?)?,
            head_dim: parts.next()?.parse().ok()?,
            conditional: parts.next_if_eq(&CONDITIONAL).is_some(),
        };
        let figure = KernelFigure::from_name(parts.next()?)?;
        parts.next().is_none().then_some(Self::Kernel(id, figure))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(KernelId { pass, dtype, head_dim, conditional }, figure) => {
                write!(f, "kernels.{}.{}.{head_dim}.", pass.name(), dtype.name())?;
                if *conditional {
                    write!(f, "{CONDITIONAL}.")?;
                }
                f.write_str(figure.name())
            }
            Self::NcclLimit(ctas) => write!(f, "{LIMITS}{ctas}{BANDWIDTH}"),
            plain => f.write_str(NAMES.iter().find(|(_, q)| q == plain).map_or("", |(name, _)| name)),
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Cluster {
    /// This cluster with one constant `factor` times as large; [`Quantity::Model`] has no constant and changes nothing.
    pub fn scaled(&self, quantity: Quantity, factor: f64) -> Self {
        let mut cluster = self.clone();
        let bytes = |rate: &mut BytesPerSec| *rate = *rate * factor;
        let time = |t: &mut SimTime| *t = SimTime::from_secs_f64(t.as_secs_f64() * factor);
        match quantity {
            Quantity::Hbm => bytes(&mut cluster.device.reached.hbm),
            Quantity::Boost => {
                if let Some(power) = &mut cluster.device.power {
                    power.boost = (power.boost * factor).max(1.0);
                }
                cluster.kernels.iter_mut().for_each(|row| scale_boost(row, factor));
            }
            Quantity::KernelLaunch => time(&mut cluster.host.kernel_launch),
            Quantity::CopyLaunch => time(&mut cluster.host.copy_launch),
            Quantity::NcclLaunch => time(&mut cluster.host.nccl_launch),
            Quantity::CopyBandwidth => bytes(&mut cluster.fabric.copy.bandwidth),
            Quantity::CopyLatency => time(&mut cluster.fabric.copy.latency),
            Quantity::NcclBandwidth => bytes(&mut cluster.fabric.nccl.bandwidth),
            Quantity::NcclLatency => time(&mut cluster.fabric.nccl.latency),
            Quantity::NcclLimit(ctas) => {
                let limits = cluster.fabric.nccl.limits.iter_mut();
                limits.filter(|limit| limit.ctas == ctas).for_each(|limit| bytes(&mut limit.bandwidth));
            }
            Quantity::Kernel(id, figure) => {
                for row in cluster.kernels.iter_mut().filter(|row| KernelId::from(&**row) == id) {
                    match figure {
                        KernelFigure::Rate => row.rate = FlopsPerSec(row.rate.0 * factor),
                        KernelFigure::Fixed => {
                            time(&mut row.prologue);
                            time(&mut row.epilogue);
                        }
                        KernelFigure::Partial => row.partial_tile_cost *= factor,
                    }
                }
            }
            Quantity::Model => {}
        }
        cluster
    }
}

/// Lets a kernel of a boost have `factor` times as much of it, never less than 1: what was measured is its rate after a rest, from
/// which the one of lasting load follows.
fn scale_boost(row: &mut KernelRow, factor: f64) {
    let Some(boost) = row.boost else { return };
    let factor = (boost * factor).max(1.0) / boost;
    row.boost = Some(boost * factor);
    row.slow_down(factor);
}

#[cfg(test)]
mod tests {
    use super::super::{KernelUse, test_text};
    use super::*;

    /// The preset with these uncertainties as TOML.
    fn text(spreads: &str) -> String {
        let calibration =
            "[calibration]\ndevice = \"NVIDIA H200\"\ndevices = 2\nversions = \"driver 580.159\"\n";
        test_text(&format!("{calibration}date = \"2026-11-30\"\nspreads = [{spreads}]\n"))
    }

    #[test]
    fn a_calibration_reads_back_as_it_was_written() {
        let written = text(
            r#"{ of = "kernels.forward.bf16.128.rate", spread = 0.004, residual = 0.003, samples = 12 },
               { of = "fabric.copy.latency", spread = 0.1, residual = 0.0, samples = 5 }"#,
        );
        let cluster = Cluster::parse("test", &written).unwrap();
        let spreads = &cluster.calibration.as_ref().unwrap().spreads;
        assert_eq!(spreads[1].of, Quantity::CopyLatency);
        assert!((spreads[0].relative() - 0.005).abs() < 1e-12);
        assert_eq!(Cluster::parse("again", &cluster.to_toml()).unwrap(), cluster);
    }

    #[test]
    fn a_constant_has_one_spread() {
        let one = r#"{ of = "fabric.copy.latency", spread = 0.1, residual = 0.0, samples = 5 }"#;
        assert!(Cluster::parse("c.toml", &text(one)).is_ok());
        let twice = Cluster::parse("c.toml", &text(&format!("{one}, {one}"))).unwrap_err().to_string();
        assert!(twice.contains("has a spread already"), "{twice}");
    }

    #[test]
    fn unknown_constants_and_kernels_are_refused_where_they_stand() {
        let spread =
            |of: &str| text(&format!("{{ of = \"{of}\", spread = 0.1, residual = 0.1, samples = 1 }}"));
        let error = |of| Cluster::parse("c.toml", &spread(of)).unwrap_err().to_string();
        assert!(
            error("fabric.copy.speed").contains("no calibration measures"),
            "{}",
            error("fabric.copy.speed")
        );
        let missing = "kernels.forward.bf16.32.rate";
        assert!(error(missing).contains("not in the table"), "{}", error(missing));
        for (wrong, expected) in [
            ("spread = 1.5, residual = 0.1, samples = 1", "spread` is 1.5, expected a number from 0 to 1"),
            ("spread = 0.1, residual = 1.5, samples = 1", "residual` is 1.5, expected a number from 0 to 1"),
            ("spread = 0.1, residual = 0.1, samples = 0", "samples` is 0, expected a whole number from 1"),
        ] {
            let text = text(&format!("{{ of = \"fabric.copy.latency\", {wrong} }}"));
            let error = Cluster::parse("c.toml", &text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn every_name_names_one_quantity() {
        let id =
            |conditional| KernelId { pass: Pass::Backward, dtype: Dtype::Fp16, head_dim: 64, conditional };
        let figures = KernelFigure::NAMES.iter().flat_map(|&(_, figure)| {
            [false, true].map(|conditional| Quantity::Kernel(id(conditional), figure))
        });
        let limits = [Quantity::NcclLimit(4), Quantity::NcclLimit(16)];
        for quantity in NAMES.iter().map(|&(_, q)| q).chain(figures).chain(limits) {
            assert_eq!(Quantity::from_name(&quantity.to_string()), Some(quantity));
        }
        for wrong in [
            "kernels.forward.bf16.128",
            "kernels.forward.bf16.128.rate.x",
            "kernels.up.bf16.1.rate",
            "",
            "fabric.nccl.limits.8",
            "fabric.nccl.limits.+8.bandwidth",
            "fabric.nccl.limits.x.bandwidth",
        ] {
            assert_eq!(Quantity::from_name(wrong), None, "{wrong}");
        }
    }

    /// A quantity, and what is done by hand to twice as much of it.
    type Doubled = (Quantity, fn(&mut Cluster));

    #[test]
    fn doubling_touches_what_it_names_and_nothing_else() {
        let mut cluster = Cluster::parse("test", &test_text("")).unwrap();
        cluster.kernels[0].prologue = SimTime(300);
        cluster.kernels[0].epilogue = SimTime(500);
        let used_for = KernelUse { min_keys: 32, or_visited: 0.9, above_keys: 2 };
        let conditional = KernelRow { used_for: Some(used_for), ..cluster.kernels[0].clone() };
        cluster.kernels.insert(1, conditional);
        let [general, conditional] = [0, 1].map(|i| KernelId::from(&cluster.kernels[i]));
        let twice: [Doubled; 14] = [
            (Quantity::Hbm, |c| c.device.reached.hbm.0 *= 2.0),
            (Quantity::KernelLaunch, |c| c.host.kernel_launch.0 *= 2),
            (Quantity::CopyLaunch, |c| c.host.copy_launch.0 *= 2),
            (Quantity::NcclLaunch, |c| c.host.nccl_launch.0 *= 2),
            (Quantity::CopyBandwidth, |c| c.fabric.copy.bandwidth.0 *= 2.0),
            (Quantity::CopyLatency, |c| c.fabric.copy.latency.0 *= 2),
            (Quantity::NcclBandwidth, |c| c.fabric.nccl.bandwidth.0 *= 2.0),
            (Quantity::NcclLatency, |c| c.fabric.nccl.latency.0 *= 2),
            (Quantity::Kernel(general, KernelFigure::Rate), |c| c.kernels[0].rate.0 *= 2.0),
            (Quantity::Kernel(general, KernelFigure::Partial), |c| c.kernels[0].partial_tile_cost *= 2.0),
            (Quantity::Kernel(general, KernelFigure::Fixed), |c| {
                (c.kernels[0].prologue, c.kernels[0].epilogue) = (SimTime(600), SimTime(1000));
            }),
            (Quantity::Kernel(conditional, KernelFigure::Rate), |c| c.kernels[1].rate.0 *= 2.0),
            // Without a power limit or a kernel's boost there is none to double.
            (Quantity::Boost, |_| {}),
            (Quantity::Model, |_| {}),
        ];
        for (quantity, by_hand) in twice {
            let mut expected = cluster.clone();
            by_hand(&mut expected);
            assert_eq!(cluster.scaled(quantity, 2.0), expected, "{quantity}");
        }
    }

    #[test]
    fn a_kernels_boost_is_what_its_rate_of_lasting_load_follows_from() {
        let mut cluster = Cluster::parse("test", &test_text("")).unwrap();
        (cluster.kernels[0].boost, cluster.kernels[0].rate) = (Some(1.25), FlopsPerSec(600e12));
        let of = |factor| {
            let row = cluster.scaled(Quantity::Boost, factor).kernels.swap_remove(0);
            (row.boost, row.rate.0)
        };
        assert_eq!(of(2.0), (Some(2.5), 300e12));
        // The rate after a rest, 750, is the most.
        assert_eq!(of(0.5), (Some(1.0), 750e12));
    }

    #[test]
    fn scaling_touches_what_it_names_and_nothing_else() {
        let cluster = Cluster::parse("test", &test_text("")).unwrap();
        let id = KernelId { pass: Pass::Forward, dtype: Dtype::Bf16, head_dim: 128, conditional: false };
        let scaled = cluster.scaled(Quantity::Kernel(id, KernelFigure::Rate), 2.0);
        let rate = |c: &Cluster, d: u32| c.kernel(d, Dtype::Bf16, Pass::Forward).unwrap().rate;
        assert_eq!(rate(&scaled, 128).0, 2.0 * rate(&cluster, 128).0);
        assert_eq!(rate(&scaled, 64), rate(&cluster, 64));
        let latency = cluster.scaled(Quantity::CopyLatency, 0.5);
        assert_eq!(latency.fabric.copy.latency.0 * 2, cluster.fabric.copy.latency.0);
        assert_eq!(latency.fabric.nccl, cluster.fabric.nccl);
        assert_eq!(cluster.scaled(Quantity::Model, 3.0), cluster);
    }
}
