//! Versions of kernels that are compared before one of them stays.

use crate::gpu::Device;
use crate::spec::{Dtype, HeadDim};
use crate::variant::{Capability, ForwardTiles, Kernel, Path, SPLIT_LAST, Target};

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

/// The versions under comparison. `chip99`: the portable kernels of chips with 99 KiB of shared memory, on this one.
/// `general64`: the Hopper forward at D = 64 with the tiles of longer sequences also in short ones. `whole-items`: the Hopper
/// backward without parts of its last items. `early-scores`: the Hopper backward at D = 128 in another order of issue.
pub const VERSIONS: &[Version] = &[
    Version { name: "chip99", checked: true, change: small_shared_memory },
    Version { name: "general64", checked: true, change: general_at_64 },
    Version { name: "whole-items", checked: true, change: whole_items },
    Version { name: "early-scores", checked: true, change: early_scores },
];

fn general_at_64(kernel: &mut Kernel) {
    if kernel.source == "hopper/fwd_kernel.cu" && kernel.defines[0] == "HEAD_DIM=64" {
        let target = Target { path: Path::Hopper, capability: Capability { major: 9, minor: 0 } };
        let dtype = if is_fp16(kernel) { Dtype::F16 } else { Dtype::Bf16 };
        *kernel = Kernel::forward(target, dtype, HeadDim::D64, ForwardTiles::General);
    }
}

fn whole_items(kernel: &mut Kernel) {
    if kernel.cuts_last_items() {
        kernel.defines.retain(|define| define != SPLIT_LAST);
        kernel.name += "-whole-items";
    }
}

fn early_scores(kernel: &mut Kernel) {
    if kernel.source == "hopper/bwd_kernel.cu" && kernel.defines[0] == "HEAD_DIM=128" {
        kernel.defines.push("EARLY_SCORES".into());
        kernel.name += "-early-scores";
    }
}

fn is_fp16(kernel: &Kernel) -> bool {
    kernel.defines.iter().any(|define| define == "DTYPE_FP16")
}

fn small_shared_memory(kernel: &mut Kernel) {
    let target = Target { path: Path::Portable, capability: Capability { major: 8, minor: 9 } };
    let same = |other: &Kernel| {
        other.entry == kernel.entry
            && other.defines[0] == kernel.defines[0]
            && is_fp16(other) == is_fp16(kernel)
    };
    if let Some(small) = Kernel::all(target).into_iter().find(same).filter(|small| small.tile_q > 0) {
        *kernel = Kernel { name: format!("{}-chip99", small.name), ..small };
    }
}

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
    // A backward reads the log-sum-exp of a forward.
    all[0].2.forward(base)?;
    let mut comparisons = Vec::new();
    for pass in ["forward", "backward"] {
        let kernel = |launches: &Launches<'_>| match pass {
            "forward" => launches.forward.kernel().to_string(),
            _ => launches.backward_kernel(),
        };
        let concerned: Vec<_> = all
            .iter()
            .enumerate()
            .filter(|(i, one)| *i == 0 || kernel(&one.2) != kernel(&all[0].2))
            .collect();
        if concerned.len() < 2 {
            continue;
        }
        let mut medians = vec![Vec::new(); concerned.len()];
        for _ in 0..rounds {
            for (times, (_, (_, device, launches))) in medians.iter_mut().zip(&concerned) {
                let launch =
                    || if pass == "forward" { launches.forward(device) } else { launches.backward(device) };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of the kernels of compute capability 9.0 that a version changes, in bf16.
    fn changed(path: Path, name: &str) -> Vec<(String, String)> {
        let target = Target { path, capability: Capability { major: 9, minor: 0 } };
        let version = VERSIONS.iter().find(|version| version.name == name).unwrap();
        let change = |kernel: Kernel| {
            let mut other = kernel.clone();
            (version.change)(&mut other);
            (other != kernel).then_some((kernel.name, other.name))
        };
        let all = Kernel::all(target).into_iter().filter(|kernel| kernel.name.contains("bf16"));
        all.filter_map(change).collect()
    }

    #[test]
    fn versions_change_what_they_say() {
        let pairs = |list: &[(&str, &str)]| {
            list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<_>>()
        };
        let hopper: [(&str, &[(&str, &str)]); 3] = [
            ("early-scores", &[("hopper-backward-bf16-d128", "hopper-backward-bf16-d128-early-scores")]),
            (
                "general64",
                &[
                    ("hopper-forward-bf16-d64-256x64", "hopper-forward-bf16-d64-192x128"),
                    ("hopper-forward-bf16-d64-128x128", "hopper-forward-bf16-d64-192x128"),
                ],
            ),
            (
                "whole-items",
                &[
                    ("hopper-backward-bf16-d64", "hopper-backward-bf16-d64-whole-items"),
                    ("hopper-backward-bf16-d128", "hopper-backward-bf16-d128-whole-items"),
                ],
            ),
        ];
        for (name, expected) in hopper {
            assert_eq!(changed(Path::Hopper, name), pairs(expected));
            assert_eq!(changed(Path::Portable, name), []);
        }
        assert_eq!(changed(Path::Hopper, "chip99"), []);
    }
}
