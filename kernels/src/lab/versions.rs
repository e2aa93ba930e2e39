//! Versions of kernels that are compared before one of them stays.

use crate::gpu::Device;
use crate::variant::{Boxes, Capability, Kernel, Path, SharedMemory, Target};

use super::bench::{Launches, time};
use super::setup::Setup;
use super::{LabError, Point};

/// One version: a name and what it changes in the kernels as they are.
#[derive(Debug, Clone, Copy)]
pub struct Version {
    /// As the lab prints it.
    pub name: &'static str,
    /// Whether its results are compared with the reference too.
    pub checked: bool,
    /// Changes a kernel before it is compiled; kernels it does not concern stay as they are.
    pub change: fn(&mut Kernel),
}

fn define(kernel: &mut Kernel, entry: &str, name: &str, defines: &[&str]) {
    if kernel.entry == entry {
        kernel.defines.extend(defines.iter().map(|&define| define.to_owned()));
        kernel.name = format!("{}-{name}", kernel.name);
    }
}

fn keys(kernel: &mut Kernel, name: &str, tile_kv: usize) {
    if kernel.entry == "portable_forward" && kernel.name.contains("d64") {
        kernel.defines.retain(|define| !define.starts_with("TILE_KV"));
        kernel.defines.push(format!("TILE_KV={tile_kv}"));
        kernel.tile_kv = tile_kv;
        kernel.shared = SharedMemory::Bytes(2 * (128 + 2 * 2 * tile_kv as u32) * 64);
        kernel.name = format!("{}-{name}", kernel.name);
    }
}

fn budget(kernel: &mut Kernel, name: &str, mib: usize) {
    if kernel.entry == FORWARD {
        kernel.l2_budget = mib << 20;
        kernel.name = format!("{}-{name}", kernel.name);
    }
}

const FORWARD: &str = "attention_forward";
const BACKWARD: &str = "attention_backward";

/// The versions under comparison.
pub const VERSIONS: &[Version] = &[
    Version {
        checked: true, name: "chip99",
        change: |k| {
            let target = Target { path: Path::Portable, capability: Capability { major: 8, minor: 9 } };
            let small = Kernel::all(target).into_iter().find(|small| small.entry == k.entry && small.defines[0] == k.defines[0] && small.defines.contains(&"DTYPE_FP16".to_owned()) == k.defines.contains(&"DTYPE_FP16".to_owned()));
            if let Some(small) = small.filter(|_| k.name.starts_with("portable")) {
                *k = Kernel { name: format!("{}-chip99", small.name), ..small };
            }
        },
    },
    Version { checked: false, name: "l2-64", change: |k| budget(k, "l2-64", 64) },
    Version { checked: false, name: "l2-48", change: |k| budget(k, "l2-48", 48) },
    Version { checked: false, name: "l2-16", change: |k| budget(k, "l2-16", 16) },
    Version {
        checked: false,
        name: "narrow",
        change: |k| {
            if let Some(boxes) = k.boxes.filter(|_| k.name.ends_with("128x176")) {
                k.defines.retain(|define| !define.starts_with("TILE_KV"));
                k.defines.push("TILE_KV=128".into());
                k.tile_kv = 128;
                k.boxes = Some(Boxes { kv: 128, ..boxes });
                k.name = format!("{}-narrow", k.name);
            }
        },
    },
    Version {
        checked: true, name: "q128",
        change: |k| {
            if let Some(boxes) = k.boxes.filter(|_| k.name.ends_with("192x128")) {
                k.defines.retain(|define| !define.starts_with("TILE_Q"));
                k.defines.push("TILE_Q=128".into());
                (k.tile_q, k.threads) = (128, 384);
                k.boxes = Some(Boxes { q: 128, ..boxes });
                k.name = format!("{}-q128", k.name);
            }
        },
    },
    Version { checked: true, name: "bwd-poly2", change: |k| define(k, BACKWARD, "bwd-poly2", &["POLYNOMIAL_EXP=2"]) },
    Version { checked: false, name: "bwd-poly3", change: |k| define(k, BACKWARD, "bwd-poly3", &["POLYNOMIAL_EXP=3"]) },
    Version { checked: false, name: "kv64", change: |k| keys(k, "kv64", 64) },
    Version { checked: false, name: "kv128", change: |k| keys(k, "kv128", 128) },
    Version { checked: false, name: "no-dq", change: |k| define(k, "portable_backward", "no-dq", &["NO_DQ"]) },
    Version {
        checked: true, name: "half",
        change: |k| {
            if k.entry == "portable_backward" && k.name.contains("64x128") {
                k.defines.retain(|define| !define.starts_with("TILE_KV") && !define.starts_with("THREADS"));
                k.defines.extend(["TILE_KV=64".into(), "THREADS=128".into()]);
                (k.tile_kv, k.threads) = (64, 128);
                k.shared = SharedMemory::Bytes(2 * 2 * ((64 + 2 * 64) * 128 + 64 * 64) + 2 * 4 * 2 * 64);
                k.name = format!("{}-half", k.name);
            }
        },
    },
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
    const LAUNCHES: usize = 2;
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
                times.push(time(device, (1, LAUNCHES), launch)?[LAUNCHES / 2]);
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
