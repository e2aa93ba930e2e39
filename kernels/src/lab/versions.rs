//! Versions of kernels that are compared before one of them stays.

use crate::gpu::Device;
use crate::variant::{Kernel, SharedMemory};

use super::bench::{Launches, time};
use super::setup::Setup;
use super::{LabError, Point};

/// One version: a name and what it changes in the kernels as they are.
#[derive(Debug, Clone, Copy)]
pub struct Version {
    /// As the lab prints it.
    pub name: &'static str,
    /// Changes a kernel before it is compiled; kernels it does not concern stay as they are.
    pub change: fn(&mut Kernel),
}

fn define(kernel: &mut Kernel, entry: &str, name: &str, defines: &[&str]) {
    if kernel.entry == entry {
        kernel.defines.extend(defines.iter().map(|&define| define.to_owned()));
        kernel.name = format!("{}-{name}", kernel.name);
    }
}

fn tall(kernel: &mut Kernel, name: &str, stages: u32) {
    if kernel.entry == "portable_forward" && kernel.name.contains("d64") {
        kernel.defines.retain(|define| !define.starts_with("TILE_KV") && !define.starts_with("STAGES"));
        kernel.defines.extend(["TILE_KV=128".into(), format!("STAGES={stages}")]);
        kernel.tile_kv = 128;
        kernel.shared = SharedMemory::Bytes(2 * (128 + 2 * stages * 128) * 64);
        kernel.name = format!("{}-{name}", kernel.name);
    }
}

const FORWARD: &str = "attention_forward";
const BACKWARD: &str = "attention_backward";

/// The versions under comparison.
pub const VERSIONS: &[Version] = &[
    Version { name: "poly4", change: |k| define(k, FORWARD, "poly4", &["POLYNOMIAL_EXP=4"]) },
    Version { name: "poly8", change: |k| define(k, FORWARD, "poly8", &["POLYNOMIAL_EXP=8"]) },
    Version { name: "early-dk", change: |k| define(k, BACKWARD, "early-dk", &["ISSUE_ORDER=2"]) },
    Version { name: "bwd-poly2", change: |k| define(k, BACKWARD, "bwd-poly2", &["POLYNOMIAL_EXP=2"]) },
    Version { name: "bwd-poly4", change: |k| define(k, BACKWARD, "bwd-poly4", &["POLYNOMIAL_EXP=4"]) },
    Version {
        name: "early-dk-poly4",
        change: |k| define(k, BACKWARD, "early-dk-poly4", &["ISSUE_ORDER=2", "POLYNOMIAL_EXP=4"]),
    },
    Version {
        name: "prefetch",
        change: |k| {
            define(k, "portable_forward", "prefetch", &["PREFETCH=1"]);
            define(k, "portable_backward", "prefetch", &["PREFETCH=1"]);
        },
    },
    Version { name: "red4", change: |k| define(k, "portable_backward", "red4", &["RED4"]) },
    Version {
        name: "prefetch-red4",
        change: |k| define(k, "portable_backward", "prefetch-red4", &["PREFETCH=1", "RED4"]),
    },
    Version { name: "kv128", change: |k| tall(k, "kv128", 2) },
    Version { name: "kv128-1", change: |k| tall(k, "kv128-1", 1) },
];

/// A version against the kernels as they are, at one point.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Name of the version; `base` is the kernels as they are.
    pub version: &'static str,
    /// `forward` or `backward`.
    pub pass: &'static str,
    /// TFLOP/s of the median.
    pub tflops: f64,
    /// Rate over the base's, median of the rounds' ratios.
    pub ratio: f64,
}

/// Times every version at `point` in turn, `rounds` times over, so that all see the same clocks and heat. Versions that
/// leave a pass as it is are left out of it.
pub fn compare(
    base: &Device,
    versions: &[(&'static str, Device)],
    point: Point,
    rounds: usize,
) -> Result<Vec<Comparison>, LabError> {
    const LAUNCHES: usize = 3;
    let setup = Setup::new(base, point)?;
    let all: Vec<(&'static str, &Device, Launches<'_>)> = std::iter::once(("base", base))
        .chain(versions.iter().map(|(name, device)| (*name, device)))
        .map(|(name, device)| Ok((name, device, Launches::prepare(device, &setup)?)))
        .collect::<Result<_, LabError>>()?;
    let mut comparisons = Vec::new();
    for pass in ["forward", "backward"] {
        let kernel = |launches: &Launches<'_>| match pass {
            "forward" => launches.forward.kernel().to_string(),
            _ => launches.backward_kernel(),
        };
        let concerned: Vec<_> =
            all.iter().enumerate().filter(|(i, one)| *i == 0 || kernel(&one.2) != kernel(&all[0].2)).collect();
        if concerned.len() < 2 {
            continue;
        }
        let mut medians = vec![Vec::new(); concerned.len()];
        for _ in 0..rounds {
            for (times, (_, (_, device, launches))) in medians.iter_mut().zip(&concerned) {
                let launch = || if pass == "forward" { launches.forward(device) } else { launches.backward(device) };
                times.push(time(device, LAUNCHES, launch)?[LAUNCHES / 2]);
            }
        }
        for (times, (_, (version, ..))) in medians.iter().zip(&concerned) {
            let mut ratios: Vec<f32> = medians[0].iter().zip(times).map(|(base, own)| base / own).collect();
            ratios.sort_by(f32::total_cmp);
            let mut sorted = times.clone();
            sorted.sort_by(f32::total_cmp);
            comparisons.push(Comparison {
                version,
                pass,
                tflops: setup.timing(point, pass, String::new(), sorted).tflops(),
                ratio: f64::from(ratios[ratios.len() / 2]),
            });
        }
    }
    Ok(comparisons)
}
