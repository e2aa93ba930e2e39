//! What only NCCL inside a node has: limits on its CTAs, and figures of high priority.

use super::{BANDWIDTH, SOURCE, bandwidth, loss};
use crate::config::cluster::{HighPriority, NcclLimit};
use crate::config::error::ConfigError;
use crate::config::section::{Keys, Section};
use crate::units::BytesPerSec;

const LIMIT: Keys =
    &[("ctas", "8"), ("bandwidth", BANDWIDTH), ("sms", "8"), ("slowed_by_calls", "0.05"), SOURCE];
const HIGH: Keys = &[("sms", "32"), ("slowed_by_calls", "0.05"), SOURCE];

/// Refuses `keys` in a transport for which they mean nothing.
pub(super) fn refuse(section: &Section<'_, '_>, keys: &[&str], why: &str) -> Result<(), ConfigError> {
    let Some(field) = keys.iter().find_map(|key| section.optional(key)) else { return Ok(()) };
    let error = field.error(format!("`{}` has no use: {why}", field.path));
    Err(error.with_hint("put it into [fabric.nccl]"))
}

/// The limits, by ascending CTAs; none if absent.
pub(super) fn limits(
    section: &Section<'_, '_>,
    raw: BytesPerSec,
    sms: u32,
) -> Result<Vec<NcclLimit>, ConfigError> {
    let mut limits: Vec<NcclLimit> = Vec::new();
    if section.optional("limits").is_none() {
        return Ok(limits);
    }
    for entry in section.sections("limits", LIMIT)? {
        let field = entry.required("ctas")?;
        let ctas = field.small_count(1..=sms.min(NcclLimit::MOST_CTAS))?;
        if let Some(before) = limits.last().filter(|before| before.ctas >= ctas) {
            let message =
                format!("`{}` is {ctas}, expected more than the {} before it", field.path, before.ctas);
            return Err(field.error(message));
        }
        limits.push(NcclLimit {
            ctas,
            bandwidth: bandwidth(&entry, raw)?,
            sms: entry.required("sms")?.small_count(0..=sms)?,
            slowed_by_calls: loss(&entry, "slowed_by_calls")?,
            source: entry.required("source")?.text()?,
        });
    }
    Ok(limits)
}

pub(super) fn high_priority(
    section: &Section<'_, '_>,
    sms: u32,
) -> Result<Option<HighPriority>, ConfigError> {
    let Some(section) = section.optional_section("high_priority", HIGH)? else { return Ok(None) };
    Ok(Some(HighPriority {
        sms: section.required("sms")?.small_count(0..=sms)?,
        slowed_by_calls: loss(&section, "slowed_by_calls")?,
        source: section.required("source")?.text()?,
    }))
}
