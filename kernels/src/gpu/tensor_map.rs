use std::mem::MaybeUninit;
use std::ptr;

use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle, cuTensorMapEncodeTiled,
};

use super::GpuError;
use super::error::Doing as _;
use crate::spec::{Dims, Dtype, Tensor};
use crate::variant::MapAxes;

/// Bytes of a box's row: what a 128-byte swizzle takes.
const ROW_BYTES: usize = 128;

/// A tensor as a map describes it, and the box that one instruction moves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mapped {
    pub tensor: Tensor,
    pub heads: usize,
    pub tokens: usize,
    pub rows: u32,
    pub axes: MapAxes,
    pub element: Element,
}

/// Element type of a mapped tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    Input(Dtype),
    F32,
}

impl Element {
    fn bytes(self) -> usize {
        match self {
            Self::Input(_) => 2,
            Self::F32 => 4,
        }
    }

    fn kind(self) -> CUtensorMapDataType {
        match self {
            Self::Input(Dtype::Bf16) => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            Self::Input(Dtype::F16) => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Self::F32 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        }
    }
}

/// Describes a tensor to the copy engine: boxes of 128 bytes by so many rows of one head, zeros beyond the ends.
pub(super) fn encode(mapped: Mapped, dims: Dims) -> Result<[u64; 16], GpuError> {
    let Mapped { tensor, heads, tokens, rows, axes, element } = mapped;
    let (columns, batch) = (dims.head_dim.elements() as u64, dims.batch as u64);
    // An axis of one element may have any stride, 0 too; the encoder refuses 0.
    let stride = |elements: i64| (elements.unsigned_abs() * element.bytes() as u64).max(16);
    let batch_stride = stride(tensor.strides.batch);
    let (token, head) =
        ((tokens as u64, stride(tensor.strides.token)), (heads as u64, stride(tensor.strides.head)));
    let box_columns = (ROW_BYTES / element.bytes()) as u32;
    let (inner, outer, boxed) = match axes {
        MapAxes::TokenHead => (token, head, [box_columns, rows, 1, 1]),
        MapAxes::HeadToken => (head, token, [box_columns, 1, rows, 1]),
    };
    let sizes = [columns, inner.0, outer.0, batch];
    let strides = [inner.1, outer.1, batch_stride];
    let steps = [1u32; 4];
    let mut map = MaybeUninit::<CUtensorMap>::uninit();
    #[expect(
        unsafe_code,
        reason = "every array has the rank's length and outlives the call, which only encodes"
    )]
    let map = unsafe {
        cuTensorMapEncodeTiled(
            map.as_mut_ptr(),
            element.kind(),
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
