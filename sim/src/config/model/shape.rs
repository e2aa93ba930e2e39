//! Checks that both forms of a model share. Fields carry the names under which a reader knows them.

use std::ops::RangeInclusive;

use crate::config::error::ConfigError;
use crate::config::field::Field;
use crate::units::Tokens;

// Bounds keep every weight count within 64 bits: 3 * 2^20 * 2^20 * 2^11 * 2^10 < 2^63.
pub(super) const LAYERS: RangeInclusive<u64> = 1..=1 << 10;
pub(super) const WIDTH: RangeInclusive<u64> = 1..=1 << 20;
pub(super) const HEADS: RangeInclusive<u64> = 1..=1 << 14;
pub(super) const HEAD_DIM: RangeInclusive<u64> = 1..=1 << 12;
pub(super) const EXPERTS: RangeInclusive<u64> = 1..=1 << 11;
pub(super) const VOCAB: RangeInclusive<u64> = 1..=1 << 26;

/// Heads of an attention layer.
pub(super) struct HeadShape {
    pub hidden: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
}

/// Heads from the fields that describe them: as many key as query heads unless told otherwise, and the hidden
/// width split evenly over the query heads unless their width is given.
pub(super) fn head_shape(
    hidden: &Field<'_>,
    heads: &Field<'_>,
    kv_heads: Option<&Field<'_>>,
    head_dim: Option<&Field<'_>>,
) -> Result<HeadShape, ConfigError> {
    let width = hidden.count(WIDTH)?;
    let count = heads.count(HEADS)?;
    let kv = kv_heads.map_or(Ok(count), |field| field.count(HEADS))?;
    if !count.is_multiple_of(kv) {
        let field = kv_heads.unwrap_or(heads);
        let message = format!("`{}` is {kv}, which does not divide `{}`, {count}", field.path, heads.path);
        return Err(field.error(message).with_hint("each key head serves equally many query heads"));
    }
    let dim = match head_dim {
        Some(field) => field.count(HEAD_DIM)?,
        None if width.is_multiple_of(count) => width / count,
        None => {
            let message =
                format!("`{}` is {width}, not a multiple of `{}`, {count}", hidden.path, heads.path);
            return Err(hidden.error(message).with_hint("give `head_dim` when heads do not split it evenly"));
        }
    };
    Ok(HeadShape { hidden: width, heads: count, kv_heads: kv, head_dim: dim })
}

/// What the layers attend to: one window for all, or some with and some without.
pub(super) struct LayerAttention {
    pub sliding_window: Option<Tokens>,
    pub mix: Option<super::LayerMix>,
}

impl LayerAttention {
    /// `windowed` of `layers` layers have `window`, where there is one.
    pub fn new(layers: u64, windowed: u64, window: Option<Tokens>) -> Self {
        let causal = layers - windowed.min(layers);
        match window {
            Some(_) if causal == 0 => Self { sliding_window: window, mix: None },
            Some(window) if windowed > 0 => {
                let mix = super::LayerMix { causal, windowed, window };
                Self { sliding_window: None, mix: Some(mix) }
            }
            _ => Self { sliding_window: None, mix: None },
        }
    }
}

/// Holds that no token goes through more experts than there are.
pub(super) fn experts(count: &Field<'_>, active: &Field<'_>) -> Result<super::Moe, ConfigError> {
    let (all, used) = (count.count(EXPERTS)?, active.count(EXPERTS)?);
    if used > all {
        let message = format!("`{}` is {used}, more than `{}`, {all}", active.path, count.path);
        return Err(active.error(message));
    }
    Ok(super::Moe { count: all, active: used })
}
