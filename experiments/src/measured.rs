//! Machines by the names that the command line has for them.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ringlab_runtime::cuda::Options;
use ringlab_runtime::machine::{CpuMachine, GpuMachine, Identity, Machine};
use ringlab_sim::config::cluster::{Cluster, Priority};

use crate::args::MachineArg;
use crate::presets;

/// How long GPUs work before they are measured under lasting load. The clock of an H200 falls within 100 ms of full load, dips
/// for 200 ms when the mean power over a second reaches the limit, not before 800 ms, and has settled then.
const SUSTAIN: Duration = Duration::from_millis(1500);

/// What can be done where GPUs cannot be measured.
const WITHOUT_GPUS: &str = "GPUs cannot be measured here (--backend cpu measures threads, and \
    `ringlab validate --cluster FILE.toml --measured REPORT.json` needs no machine)";

/// The machine behind `--backend`. `is_cold`: a GPU's short runs are measured after a rest, at the highest clock.
pub fn machine(backend: MachineArg, is_cold: bool) -> Result<Box<dyn Machine>> {
    Ok(match backend {
        MachineArg::Cpu => Box::new(CpuMachine::new()),
        MachineArg::Cuda => {
            let options = Options { warmup: 1, sustain: SUSTAIN, ..Options::default() };
            let gpus = GpuMachine::new(options, is_cold);
            Box::new(gpus.context(WITHOUT_GPUS)?)
        }
    })
}

/// Presets that give what a calibration does not measure, by what their devices' names contain.
const BASES: [(&str, &str); 4] =
    [("H200", "hgx-h200"), ("H100", "dgx-h100"), ("B200", "dgx-b200"), ("A100", "dgx-a100-80gb")];

/// The cluster that gives what is not measured.
pub fn base(named: Option<&str>, backend: MachineArg, device: &str) -> Result<Cluster> {
    let by_name = || BASES.iter().find(|(part, _)| device.contains(part)).map(|&(_, base)| base);
    let name = match (named, backend) {
        (Some(name), _) => name,
        (None, MachineArg::Cpu) => "cpu-threads",
        (None, MachineArg::Cuda) => by_name().with_context(|| {
            format!("no preset for a {device}: name a cluster of such GPUs with --base, for memory, peaks and topology")
        })?,
    };
    let mut base = presets::cluster(name)?;
    // That of all transfers whose constants are measured.
    base.set_nccl_priority(Priority::Normal);
    Ok(base)
}

/// Today as an ISO date, UTC.
pub fn today() -> Result<String> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    Ok(date(since.as_secs() / 86_400))
}

/// The date so many days after 1970-01-01 (Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`).
fn date(days: u64) -> String {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", year_of_era + era * 400 + carry)
}

/// Refuses to go on with a cluster that nobody measured, or measured elsewhere.
pub fn check_cluster(cluster: &Cluster, machine: &dyn Machine) -> Result<()> {
    if cluster.calibration.is_none() {
        bail!(
            "{} was not measured on any machine; run `ringlab calibrate -o FILE.toml` and give that file",
            cluster.name
        );
    }
    match machine.identity().mismatch(cluster) {
        Some(mismatch) => bail!("{mismatch}; run `ringlab calibrate` on this machine"),
        None => Ok(()),
    }
}

/// Refuses a cluster of another machine than `machine`, which the points of the report `label` were measured on; what is to be
/// said of one of the same.
pub fn check_recorded(cluster: &Cluster, machine: &str, label: &str) -> Result<Vec<String>> {
    let name = &cluster.name;
    let Some(calibration) = &cluster.calibration else {
        let device = &cluster.device.name;
        let is_same =
            machine.split_once(" x ").is_some_and(|(_, rest)| rest.starts_with(&format!("{device} (")));
        if !is_same {
            bail!("{name} is of another device: {device}, and {label} was measured on {machine}");
        }
        return Ok(vec![format!(
            "{name} was not measured on any machine: its predictions have no intervals"
        )]);
    };
    let measured = Identity::of(calibration);
    let Identity { device, devices, .. } = &measured;
    if !machine.starts_with(&format!("{devices} x {device} (")) {
        bail!("{name} was measured on another machine: {measured}, and {label} on {machine}");
    }
    let are_equal = machine == measured.to_string();
    let note = || format!("versions differ: {name} was measured on {measured}, and {label} on {machine}");
    Ok((!are_equal).then(note).into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_gets_the_priority_that_is_measured() {
        let mut cluster = presets::cluster("hgx-h200").unwrap();
        cluster.set_nccl_priority(Priority::High);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("high.toml");
        std::fs::write(&file, cluster.to_toml()).unwrap();
        let base = base(file.to_str(), MachineArg::Cuda, "NVIDIA H200").unwrap();
        assert_eq!(base, presets::cluster("hgx-h200").unwrap());
    }

    #[test]
    fn dates_by_the_calendar() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(59), "1970-03-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(20_787), "2026-11-30");
        assert_eq!(date(20_818), "2026-12-31");
    }
}
