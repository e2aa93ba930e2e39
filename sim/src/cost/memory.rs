//! Operations that only stream device memory: their bytes, read and written.

use crate::plan::Tensor;
use crate::problem::Shape;
use crate::units::Bytes;

/// Merging a state of `state` bytes into another: both are read, one is written.
pub fn merge_bytes(state: Bytes) -> Bytes {
    state * 3
}

/// Adding gradients of `gradient` bytes to others: both are read, one is written.
pub fn accumulate_bytes(gradient: Bytes) -> Bytes {
    gradient * 3
}

/// rowsum(o * do) into `delta` bytes: o and do are read, delta is written.
pub fn preprocess_bytes(shape: &Shape, delta: Bytes) -> Bytes {
    let rows = delta.0 / Tensor::Delta.bytes(&Shape { batch: 1, ..*shape }, 1, 1).0;
    let inputs = 2 * u64::from(shape.head_dim) * shape.dtype.size().0;
    Bytes(rows * inputs) + delta
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Dtype;

    #[test]
    fn preprocessing_reads_two_outputs_and_writes_a_float_a_row() {
        let shape = Shape { heads: 8, kv_heads: 8, head_dim: 128, dtype: Dtype::Bf16, batch: 2 };
        let rows = 1024 * 8 * 2;
        let delta = Tensor::Delta.bytes(&shape, 1024, 8);
        assert_eq!(delta, Bytes(rows * 4));
        assert_eq!(preprocess_bytes(&shape, delta), Bytes(rows * (2 * 128 * 2 + 4)));
    }

    #[test]
    fn a_merge_touches_three_states() {
        assert_eq!(merge_bytes(Bytes(1000)), Bytes(3000));
        assert_eq!(accumulate_bytes(Bytes(1000)), Bytes(3000));
    }
}
