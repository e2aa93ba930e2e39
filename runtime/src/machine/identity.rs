//! Which machine it is.

use std::fmt;

use ringlab_sim::config::cluster::{Calibration, Cluster};

/// What a machine says it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The device as its driver names it, or the processor.
    pub device: String,
    /// Devices, or threads that really run at once.
    pub devices: u32,
    /// Driver and library versions.
    pub versions: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} ({})", self.devices, self.device, self.versions)
    }
}

impl Identity {
    /// The machine that a cluster's constants were measured on.
    pub fn of(calibration: &Calibration) -> Self {
        let Calibration { device, devices, versions, .. } = calibration;
        Self { device: device.clone(), devices: *devices, versions: versions.clone() }
    }

    /// Why figures of `cluster` are not this machine's; `None` if they are, or if the cluster was never measured.
    pub fn mismatch(&self, cluster: &Cluster) -> Option<String> {
        let calibration = cluster.calibration.as_ref()?;
        let differs = |what: &str, there: &dyn ToString, here: &dyn ToString| {
            let (there, here) = (there.to_string(), here.to_string());
            (there != here).then(|| format!("{what} {there}, this machine has {here}"))
        };
        let differences: Vec<String> = [
            differs("device", &calibration.device, &self.device),
            differs("devices", &calibration.devices, &self.devices),
            differs("versions", &calibration.versions, &self.versions),
        ]
        .into_iter()
        .flatten()
        .collect();
        (!differences.is_empty())
            .then(|| format!("{} was measured on another machine: {}", cluster.name, differences.join("; ")))
    }
}
