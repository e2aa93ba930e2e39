//! A clock that a power limit sets.

use serde::Serialize;

use crate::config::error::ConfigError;
use crate::config::section::Section;
use crate::units::SimTime;

/// How long all chips keep the same clock: on two H200s calls of 0.13 ms were as fast on both, and those of 6 ms 3 to 4.5%
/// apart.
const AT_ONCE: SimTime = SimTime(1_000_000_000);

/// How fast a device computes that is not busy all the time. Kernel rates are those of sustained load, as if all SMs
/// multiplied matrices without a pause: at `busy` = 1 the mean power is the limit, and what other times save the clock may
/// spend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Power {
    /// Rate after a rest, when the clock is at its highest, over the rate of sustained load: 1 or more.
    pub boost: f64,
    /// Power at rest over the limit: from 0 to less than 1.
    pub idle: f64,
    /// Power while computing goes with the rate to this power: 1 or more.
    pub exponent: f64,
    /// Rate of sustained load of each GPU of a node over that of the kernels' table: chips differ in the power that a clock
    /// takes. Empty where they are not told apart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub speeds: Vec<f64>,
    /// Rate after a rest of each GPU of a node over that of the boosts: chips differ there too, once work lasts longer than a
    /// millisecond. Empty where they are not told apart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cold_speeds: Vec<f64>,
    /// Where these figures come from.
    pub source: String,
}

impl Power {
    /// Rate over that of sustained load at which a device that multiplies matrices for a share `busy` of its SMs' time (0 to
    /// 1) takes its limit in the mean: `min(boost, ((1 - idle (1 - busy)) / busy)^(1/exponent))`.
    pub fn speed(&self, busy: f64) -> f64 {
        libm::pow(Self::headroom(self.idle, busy), 1.0 / self.exponent).min(self.boost)
    }

    /// Power for multiplying at the limit, over that of a device that multiplies all the time.
    pub fn headroom(idle: f64, busy: f64) -> f64 {
        (1.0 - idle * (1.0 - busy)) / busy
    }

    /// [`Power::speed`] of one GPU, counted over all nodes.
    pub fn speed_of(&self, gpu: u32, busy: f64) -> f64 {
        (of_gpu(&self.speeds, gpu) * self.speed(busy)).min(self.boost)
    }

    /// What one GPU, counted over all nodes, reaches of the boosts in work of this length: all of it in the first
    /// millisecond.
    pub fn reach_of(&self, gpu: u32, lasts: SimTime) -> f64 {
        let own = of_gpu(&self.cold_speeds, gpu);
        if lasts <= AT_ONCE { 1.0 } else { own + (1.0 - own) * (AT_ONCE.0 as f64 / lasts.0 as f64) }
    }
}

/// The table of a cluster of so many GPUs a node.
pub(super) fn read(section: &Section<'_, '_>, gpus: u32) -> Result<Power, ConfigError> {
    let idle = section.required("idle")?;
    let at_rest = idle.real(0.0..=1.0)?;
    if at_rest == 1.0 {
        return Err(idle.error(format!("`{}` is 1, which leaves no power to compute with", idle.path)));
    }
    Ok(Power {
        boost: section.required("boost")?.real(1.0..=10.0)?,
        idle: at_rest,
        exponent: section.required("exponent")?.real(1.0..=10.0)?,
        speeds: speeds(section, "speeds", gpus)?,
        cold_speeds: speeds(section, "cold_speeds", gpus)?,
        source: section.required("source")?.text()?,
    })
}

fn speeds(section: &Section<'_, '_>, key: &'static str, gpus: u32) -> Result<Vec<f64>, ConfigError> {
    let Some(field) = section.optional(key) else { return Ok(Vec::new()) };
    let speeds = section.fields(key)?;
    if speeds.len() != gpus as usize {
        let message = format!("`{}` has {} entries for {gpus} GPUs of a node", field.path, speeds.len());
        return Err(field.error(message).with_hint("one for each, or leave it out: then all are alike"));
    }
    speeds.into_iter().map(|speed| speed.real(0.1..=10.0)).collect()
}

fn of_gpu(list: &[f64], gpu: u32) -> f64 {
    list.get(gpu as usize % list.len().max(1)).copied().unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::super::{Cluster, Quantity, test_text};
    use super::*;

    fn h200() -> Power {
        Power {
            boost: 1.127,
            idle: 120.0 / 700.0,
            exponent: 2.5,
            speeds: Vec::new(),
            cold_speeds: Vec::new(),
            source: "measured".into(),
        }
    }

    #[test]
    fn speeds_are_those_of_the_closed_form() {
        // (0.98286 / 0.9)^0.4 and (0.94857 / 0.7)^0.4 = 1.1293, above the boost.
        assert!((h200().speed(0.9) - 1.0359).abs() < 5e-5, "{}", h200().speed(0.9));
        assert_eq!(h200().speed(0.7), 1.127);
        assert_eq!(h200().speed(0.0), 1.127);
        // 0.8 of the time at a fourth more power, nothing at rest: the root of 5/4.
        let square = Power { boost: 2.0, idle: 0.0, exponent: 2.0, ..h200() };
        assert!((square.speed(0.8) - 1.25_f64.sqrt()).abs() < 1e-15);
    }

    #[test]
    fn a_device_that_never_rests_is_as_fast_as_calibrated() {
        assert_eq!(h200().speed(1.0), 1.0);
        assert_eq!(Power { boost: 1.0, ..h200() }.speed(0.3), 1.0);
    }

    #[test]
    fn mean_power_is_the_limit_below_the_boost() {
        let power = Power { boost: 10.0, ..h200() };
        for busy in [0.05, 0.3, 0.77, 0.99] {
            let computing = power.speed(busy).powf(power.exponent);
            assert!((busy * computing + (1.0 - busy) * power.idle - 1.0).abs() < 1e-12, "{busy}");
        }
    }

    #[test]
    fn chips_that_take_less_power_are_faster_until_the_clock_is_at_its_highest() {
        let power = Power { speeds: vec![1.02, 0.98], ..h200() };
        let at = |gpu, busy| power.speed_of(gpu, busy);
        assert_eq!((at(0, 1.0), at(1, 1.0), at(2, 1.0)), (1.02, 0.98, 1.02));
        assert_eq!((at(0, 0.5), at(1, 0.0)), (1.127, 0.98 * 1.127));
        assert_eq!(h200().speed_of(1, 1.0), 1.0);
    }

    #[test]
    fn chips_differ_after_a_rest_in_all_but_the_first_millisecond() {
        let power = Power { cold_speeds: vec![0.98, 1.02], ..h200() };
        let ms = |ms: u64| SimTime(ms * 1_000_000_000);
        assert_eq!((power.reach_of(0, ms(1)), power.reach_of(1, SimTime::ZERO)), (1.0, 1.0));
        // A quarter of 4 ms at full speed, and the rest at 0.98.
        assert!((power.reach_of(0, ms(4)) - 0.985).abs() < 1e-12);
        assert!((power.reach_of(3, ms(4)) - 1.015).abs() < 1e-12);
        assert_eq!(h200().reach_of(1, ms(4)), 1.0);
    }

    /// A cluster with this table, and what follows it.
    fn text(power: &str, more: &str) -> String {
        test_text(&format!("[device.power]\n{power}\nsource = \"measured\"\n{more}"))
    }

    const H200: &str = "boost = 1.127\nidle = 0.17\nexponent = 2.5";

    #[test]
    fn a_power_limit_reads_back_as_it_was_written() {
        let cluster = Cluster::parse("test", &text(H200, "")).unwrap();
        assert_eq!(cluster.device.power, Some(Power { idle: 0.17, ..h200() }));
        assert_eq!(Cluster::parse("again", &cluster.to_toml()).unwrap(), cluster);
        let paths: Vec<String> = cluster.assumptions().into_iter().map(|a| a.path).collect();
        assert!(paths.contains(&"device.power.boost".to_owned()), "{paths:?}");
    }

    #[test]
    fn speeds_are_those_of_a_nodes_gpus() {
        for key in ["speeds", "cold_speeds"] {
            let with = |speeds: &str| Cluster::parse("test", &text(&format!("{H200}\n{key} = {speeds}"), ""));
            let eight = with("[1, 1, 1, 1, 1, 1, 1.02, 0.98]").unwrap();
            let power = eight.device.power.clone().unwrap();
            let list = if key == "speeds" { power.speeds } else { power.cold_speeds };
            assert_eq!(list[7], 0.98);
            assert_eq!(Cluster::parse("again", &eight.to_toml()).unwrap(), eight);
            let error = with("[1.02, 0.98]").unwrap_err().to_string();
            assert!(error.contains("has 2 entries for 8 GPUs of a node"), "{error}");
        }
    }

    #[test]
    fn a_limit_that_cannot_be_is_refused_where_it_stands() {
        for (from, to, place) in [
            ("boost = 1.127", "boost = 0.99", "a number from 1 to 10"),
            ("idle = 0.17", "idle = 1.0", "no power to compute with"),
            ("idle = 0.17", "idle = -0.1", "a number from 0 to 1"),
            ("exponent = 2.5", "exponent = 0.5", "a number from 1 to 10"),
            ("exponent = 2.5", "exponent = \"2.5\"", "a number from 1 to 10"),
            ("idle = 0.17\n", "", "missing `device.power.idle`"),
            ("idle", "idel", "unknown key"),
        ] {
            let text = text(&H200.replacen(from, to, 1), "");
            let error = Cluster::parse("c.toml", &text).unwrap_err().to_string();
            assert!(error.contains(place), "{error}");
            let written = if to.is_empty() { "[device.power]" } else { to };
            let line = text.lines().position(|line| line.starts_with(written)).unwrap() + 1;
            assert!(error.contains(&format!("c.toml:{line}:")), "{error} is not in line {line}");
        }
    }

    #[test]
    fn a_boost_is_as_uncertain_as_its_calibration_says() {
        let calibration = "[calibration]\ndevice = \"H200\"\ndevices = 1\nversions = \"1\"\ndate = \"2026-11-30\"\n\
                           spreads = [{ of = \"device.power.boost\", spread = 0.1, residual = 0.0, samples = 2 }]";
        let cluster = Cluster::parse("test", &text(H200, calibration)).unwrap();
        let boost = |factor| cluster.scaled(Quantity::Boost, factor).device.power.unwrap().boost;
        assert!((boost(1.1) - 1.2397).abs() < 1e-12);
        assert_eq!(boost(0.5), 1.0, "never slower than under sustained load");
        let error = Cluster::parse("test", &test_text(calibration)).unwrap_err().to_string();
        assert!(error.contains("add the section [device.power]"), "{error}");
    }
}
