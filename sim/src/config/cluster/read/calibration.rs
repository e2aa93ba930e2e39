//! What was measured of a cluster, and how well.

use super::GPUS;
use crate::config::cluster::{Calibration, KernelId, KernelRow, Quantity, Transport, Uncertainty};
use crate::config::error::ConfigError;
use crate::config::section::{Keys, Section};

const CALIBRATION: Keys = &[
    ("device", "\"NVIDIA H200\""),
    ("devices", "2"),
    ("versions", "\"driver 580.159, CUDA 13.0\""),
    ("date", "\"2026-11-30\""),
    ("spreads", "[[calibration.spreads]]"),
];
const UNCERTAINTY: Keys =
    &[("of", "\"fabric.copy.bandwidth\""), ("spread", "0.01"), ("residual", "0.02"), ("samples", "9")];

/// What there can be spreads of.
pub(super) struct Measured<'a> {
    pub kernels: &'a [KernelRow],
    pub has_power: bool,
    pub nccl: &'a Transport,
}

/// The calibration, if the file has one.
pub(super) fn calibration(
    root: &Section<'_, '_>,
    measured: &Measured<'_>,
) -> Result<Option<Calibration>, ConfigError> {
    let Some(section) = root.optional_section("calibration", CALIBRATION)? else { return Ok(None) };
    let mut spreads: Vec<Uncertainty> = Vec::new();
    for entry in section.sections("spreads", UNCERTAINTY)? {
        let spread = uncertainty(&entry, measured)?;
        if spreads.iter().any(|earlier| earlier.of == spread.of) {
            let field = entry.required("of")?;
            return Err(field.error(format!("`{}` is of a constant that has a spread already", field.path)));
        }
        spreads.push(spread);
    }
    Ok(Some(Calibration {
        device: section.required("device")?.text()?,
        devices: section.required("devices")?.small_count(1..=GPUS)?,
        versions: section.required("versions")?.text()?,
        date: section.required("date")?.text()?,
        spreads,
    }))
}

fn uncertainty(section: &Section<'_, '_>, measured: &Measured<'_>) -> Result<Uncertainty, ConfigError> {
    let field = section.required("of")?;
    let name = field.text()?;
    let Some(of) = Quantity::from_name(&name) else {
        let error = field.error(format!("`{}` is \"{}\", which no calibration measures", field.path, name));
        return Err(error.with_hint("such as \"fabric.copy.bandwidth\" or \"kernels.forward.bf16.128.rate\""));
    };
    if let Quantity::Kernel(id, _) = of
        && !measured.kernels.iter().any(|row| KernelId::from(row) == id)
    {
        return Err(field.error(format!("`{}` is of a kernel that is not in the table", field.path)));
    }
    if of == Quantity::Boost && !measured.has_power {
        return Err(field
            .error(format!("`{}` is of a clock that is not in the device", field.path))
            .with_hint("add the section [device.power]"));
    }
    if let Quantity::NcclLimit(ctas) = of
        && !measured.nccl.limits.iter().any(|limit| limit.ctas == ctas)
    {
        return Err(field.error(format!("`{}` is of a limit that is not in the fabric", field.path)));
    }
    Ok(Uncertainty {
        of,
        spread: section.required("spread")?.real(0.0..=1.0)?,
        residual: section.required("residual")?.real(0.0..=1.0)?,
        samples: section.required("samples")?.small_count(1..=u32::MAX)?,
    })
}
