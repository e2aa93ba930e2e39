use std::mem::MaybeUninit;
use std::ptr;

use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle, cuTensorMapEncodeTiled,
};

use super::GpuError;
use super::error::Doing as _;
use crate::spec::{Dims, Dtype, Tensor};

/// Columns of a box: 128 bytes, the widest that a 128-byte swizzle takes.
const BOX_COLUMNS: u32 = 64;

/// Sizes of a tensor beside its head dimension.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub heads: usize,
    pub tokens: usize,
}

/// Describes `tensor` to the copy engine: coordinates (column, head, token, sequence), boxes of 64 columns by `rows`
/// tokens of one head, zeros beyond the ends.
pub(super) fn encode(tensor: Tensor, extent: Extent, dims: Dims, rows: u32) -> Result<[u64; 16], GpuError> {
    let kind = match dims.dtype {
        Dtype::Bf16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        Dtype::F16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    };
    let sizes = [dims.head_dim.elements(), extent.heads, extent.tokens, dims.batch].map(|n| n as u64);
    // Axes of one element may have any stride, 0 too; the encoder refuses 0.
    let bytes = |stride: i64| stride.unsigned_abs().max(8) * Dtype::BYTES;
    let strides = [tensor.strides.head, tensor.strides.token, tensor.strides.batch].map(bytes);
    let (boxed, steps) = ([BOX_COLUMNS, 1, rows, 1], [1u32; 4]);
    let mut map = MaybeUninit::<CUtensorMap>::uninit();
    #[expect(
        unsafe_code,
        reason = "every array has the rank's length and outlives the call, which only encodes"
    )]
    let map = unsafe {
        cuTensorMapEncodeTiled(
            map.as_mut_ptr(),
            kind,
            4,
            ptr::with_exposed_provenance_mut(tensor.ptr as usize),
            sizes.as_ptr(),
            strides.as_ptr(),
            boxed.as_ptr(),
            steps.as_ptr(),
            CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        .result()
        .doing("describe a tensor to the copy engine")?;
        map.assume_init()
    };
    Ok(map.opaque)
}
