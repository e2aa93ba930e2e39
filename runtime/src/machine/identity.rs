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
            differs("versions", &calibration.versions, &self.versions)
                .filter(|_| !are_alike(&calibration.versions, &self.versions)),
        ]
        .into_iter()
        .flatten()
        .collect();
        (!differences.is_empty())
            .then(|| format!("{} was measured on another machine: {}", cluster.name, differences.join("; ")))
    }
}

/// Whether versions are the same as far as both say: a driver may be named with its release or without.
fn are_alike(a: &str, b: &str) -> bool {
    let goes_on = |short: &str, long: &str| {
        long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let (a, b): (Vec<&str>, Vec<&str>) = (a.split(", ").collect(), b.split(", ").collect());
    a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| goes_on(a, b) || goes_on(b, a))
}

#[cfg(test)]
mod tests {
    use super::are_alike;

    #[test]
    fn a_driver_without_its_release_is_any_of_its_cuda() {
        let of = |driver: &str| format!("CUDA 13.0 driver{driver}, ringlab 0.1.0");
        let (bare, one, other) = (of(""), of(" 580.159.04"), of(" 580.95.05"));
        assert!(are_alike(&bare, &one) && are_alike(&one, &bare) && are_alike(&one, &one));
        assert!(!are_alike(&one, &other));
        assert!(!are_alike(&one, "CUDA 13.0 driver 580.159.04, ringlab 0.2.0"));
        assert!(!are_alike("CUDA 13.0", "CUDA 13.01") && !are_alike("1", "1, 2"));
    }
}
