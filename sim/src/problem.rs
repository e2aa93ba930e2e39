//! What is to be computed: one attention layer's shape, mask and sequence.

use std::fmt;

use serde::Serialize;
use thiserror::Error;

pub use crate::config::cluster::{Dtype, Pass};
use crate::mask::Pattern;

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp8 => "fp8",
            Self::Tf32 => "tf32",
            Self::Fp32 => "fp32",
        })
    }
}

/// Heads and sizes of one attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Shape {
    /// Query heads H.
    pub heads: u32,
    /// Key/value heads K; H for MHA, 1 for MQA.
    pub kv_heads: u32,
    /// Head dimension D.
    pub head_dim: u32,
    /// Element type.
    pub dtype: Dtype,
    /// Sequences in a batch.
    pub batch: u32,
}

/// Why a shape is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// A size of zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// Query heads that cannot share the kv heads evenly.
    #[error("{kv_heads} kv heads do not divide {heads} query heads")]
    Heads {
        /// Query heads.
        heads: u32,
        /// Key/value heads.
        kv_heads: u32,
    },
}

impl Shape {
    /// Checks that the sizes fit each other.
    ///
    /// # Errors
    /// A zero size, or kv heads that do not divide the query heads.
    pub fn validate(&self) -> Result<(), ShapeError> {
        let sizes = [
            (self.heads, "query heads"),
            (self.kv_heads, "kv heads"),
            (self.head_dim, "head dimension"),
            (self.batch, "batch"),
        ];
        if let Some((_, what)) = sizes.iter().find(|(size, _)| *size == 0) {
            return Err(ShapeError::Zero(what));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(ShapeError::Heads { heads: self.heads, kv_heads: self.kv_heads });
        }
        Ok(())
    }

    /// Query heads that share one kv head, H/K.
    pub fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        })
    }
}

impl Pass {
    /// FLOPs of one unmasked pair of one query head: two products of 2 D forward, five backward (FlashAttention-2,
    /// arXiv 2307.08691, section 4.1). Masked pairs count nothing.
    pub fn flops_per_pair(self, head_dim: u32) -> u64 {
        match self {
            Self::Forward => 4 * u64::from(head_dim),
            Self::Backward => 10 * u64::from(head_dim),
        }
    }
}

/// One attention layer over one sequence, or a batch of equal ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Heads and sizes.
    pub shape: Shape,
    /// The mask inside a document.
    pub pattern: Pattern,
    /// Lengths of the packed documents; one for an unpacked sequence.
    pub documents: Vec<u64>,
}

impl Problem {
    /// Real tokens, without padding.
    pub fn tokens(&self) -> u64 {
        self.documents.iter().sum()
    }
}
