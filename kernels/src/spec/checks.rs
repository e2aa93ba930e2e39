//! The single checks that specs are made of.

use super::{ALIGNMENT, Dims, Dtype, HeadDim, KeySegment, SpecError, Tensor};
use crate::abi::Strides;
use crate::tiles::Intervals;

pub(super) fn check_common(dims: Dims, scale: f32, mask: Intervals<'_>) -> Result<(), SpecError> {
    let Dims { heads, kv_heads, batch, .. } = dims;
    for (name, value, limit) in [
        ("heads", heads, 1 << 15),
        ("kv_heads", kv_heads, 1 << 15),
        ("batch", batch, 1 << 15),
        ("q_len", mask.lo.len(), 1 << 30),
    ] {
        check_size(name, value, limit)?;
    }
    if !heads.is_multiple_of(kv_heads) {
        return Err(SpecError::Heads { heads, kv_heads });
    }
    if !(scale.is_finite() && scale > 0.0) {
        return Err(SpecError::Scale(scale.to_string()));
    }
    if mask.lo.len() != mask.hi.len() {
        return Err(SpecError::MaskLength { lo: mask.lo.len(), hi: mask.hi.len() });
    }
    mask.first_falling().map_or(Ok(()), |row| Err(SpecError::MaskOrder(row)))
}

pub(super) fn check_segment(index: usize, segment: &KeySegment<'_>, dims: Dims) -> Result<(), SpecError> {
    check_size("segment length", segment.positions.len(), 1 << 30)?;
    for (name, ptr) in [("k", segment.k), ("v", segment.v)] {
        let tensor = Tensor { ptr, strides: segment.strides };
        check_tensor(name, tensor, dims.kv_heads, dims.head_dim, Dtype::BYTES)?;
    }
    if let Some(flag) = segment.ready {
        check_address("ready", flag.ptr, 4)?;
    }
    match segment.positions.windows(2).position(|pair| pair[0] >= pair[1]) {
        Some(slot) => Err(SpecError::PositionOrder { segment: index, slot: slot + 1 }),
        None => Ok(()),
    }
}

pub(super) fn check_disjoint(segments: &[KeySegment<'_>]) -> Result<(), SpecError> {
    if segments.len() < 2 {
        return Ok(());
    }
    let mut positions: Vec<i32> = segments.iter().flat_map(|segment| segment.positions).copied().collect();
    positions.sort_unstable();
    match positions.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(SpecError::PositionTwice(pair[0])),
        None => Ok(()),
    }
}

pub(crate) fn check_size(name: &'static str, value: usize, limit: usize) -> Result<(), SpecError> {
    match value {
        0 => Err(SpecError::Empty(name)),
        _ if value > limit => Err(SpecError::TooLarge { name, value, limit }),
        _ => Ok(()),
    }
}

pub(crate) fn check_address(name: &'static str, ptr: u64, align: u64) -> Result<(), SpecError> {
    match ptr {
        0 => Err(SpecError::Null(name)),
        _ if !ptr.is_multiple_of(align) => Err(SpecError::Misaligned { name, value: i128::from(ptr) }),
        _ => Ok(()),
    }
}

pub(crate) fn check_tensor(
    name: &'static str,
    tensor: Tensor,
    heads: usize,
    head_dim: HeadDim,
    element_bytes: u64,
) -> Result<(), SpecError> {
    check_address(name, tensor.ptr, ALIGNMENT)?;
    let Strides { batch, token, head } = tensor.strides;
    let row = i64::try_from(head_dim.elements()).unwrap_or(i64::MAX);
    // One head only: its stride is never used.
    let head_needed = if heads == 1 { 0 } else { row };
    for (axis, value, needed) in [("token", token, row), ("head", head, head_needed), ("batch", batch, 0)] {
        if value < needed {
            return Err(SpecError::Overlap { name, axis, value, needed });
        }
        let bytes = i128::from(value) * i128::from(element_bytes);
        if bytes % i128::from(ALIGNMENT) != 0 {
            return Err(SpecError::Misaligned { name, value: bytes });
        }
    }
    Ok(())
}
