//! Which kernel answers a launch: the path, the compile-time constants and the launch shape of each.

use std::fmt;

use crate::spec::{Dtype, HeadDim};

/// A family of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Path {
    /// TMA, `wgmma` and warp specialisation; compute capability 9.0 only.
    Hopper,
    /// `mma.sync` and `cp.async`; compute capability 8.0 and above.
    Portable,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hopper => "hopper",
            Self::Portable => "portable",
        })
    }
}

/// What a kernel computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Output and log-sum-exp.
    Forward,
    /// Gradients.
    Backward,
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        })
    }
}

/// Compute capability of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability {
    /// 9 of 9.0.
    pub major: u32,
    /// 0 of 9.0.
    pub minor: u32,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The capability has no kernels of the wanted family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Too old for every family.
    #[error("compute capability {0} has no kernels; 8.0 (A100) and above do")]
    TooOld(Capability),
    /// The Hopper kernels use instructions of 9.0a, which no other capability runs.
    #[error(
        "the hopper kernels run on compute capability 9.0 only, this device has {0}; use the portable ones"
    )]
    NotHopper(Capability),
}

impl Path {
    /// The path asked for, or the fastest one that `capability` runs.
    pub fn choose(capability: Capability, wanted: Option<Self>) -> Result<Self, PathError> {
        let hopper = capability == Capability { major: 9, minor: 0 };
        match wanted {
            _ if capability.major < 8 => Err(PathError::TooOld(capability)),
            Some(Self::Hopper) if !hopper => Err(PathError::NotHopper(capability)),
            Some(path) => Ok(path),
            None if hopper => Ok(Self::Hopper),
            None => Ok(Self::Portable),
        }
    }

    /// NVRTC's name of the architecture that this path is compiled for.
    pub fn architecture(self, capability: Capability) -> String {
        let Capability { major, minor } = capability;
        match self {
            Self::Hopper => format!("sm_{major}{minor}a"),
            Self::Portable => format!("sm_{major}{minor}"),
        }
    }
}

/// Rows of the tiles that the copy engine moves in one instruction (64 columns wide, swizzled by 128 bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boxes {
    /// Rows of `q` and `do`.
    pub q: u32,
    /// Rows of `k` and `v`.
    pub kv: u32,
}

/// One compiled kernel and how it is launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// As in `portable-forward-bf16-d128`.
    pub name: String,
    /// Source below `cuda/`.
    pub source: &'static str,
    /// Name of the function.
    pub entry: &'static str,
    /// Preprocessor constants, as in `HEAD_DIM=128`.
    pub defines: Vec<String>,
    /// Queries of a tile.
    pub tile_q: usize,
    /// Keys of a tile.
    pub tile_kv: usize,
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory of a CTA.
    pub shared_bytes: u32,
    /// One CTA a multiprocessor, which fetch their items from a counter; else one CTA an item.
    pub persistent: bool,
    /// Tensor maps, where the kernel loads through the copy engine.
    pub boxes: Option<Boxes>,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} x {} tiles)", self.name, self.tile_q, self.tile_kv)
    }
}

impl Kernel {
    /// The kernel of one pass.
    pub fn attention(pass: Pass, path: Path, dtype: Dtype, head_dim: HeadDim) -> Self {
        let base = Self {
            name: format!("{path}-{pass}-{dtype}-d{}", head_dim.elements()),
            source: "",
            entry: "",
            defines: defines(dtype, head_dim),
            tile_q: 128,
            tile_kv: 128,
            threads: 128,
            shared_bytes: 0,
            persistent: false,
            boxes: None,
        };
        match (path, pass) {
            (Path::Portable, Pass::Forward) => portable_forward(base, head_dim),
            _ => todo!(),
        }
    }
}

fn defines(dtype: Dtype, head_dim: HeadDim) -> Vec<String> {
    let mut defines = vec![format!("HEAD_DIM={}", head_dim.elements())];
    if dtype == Dtype::F16 {
        defines.push("DTYPE_FP16".into());
    }
    defines
}

/// Four warps of 32 queries: each key fragment read from shared memory feeds two products.
fn portable_forward(base: Kernel, head_dim: HeadDim) -> Kernel {
    let tile_kv = match head_dim {
        HeadDim::D64 => 128,
        HeadDim::D128 => 64,
    };
    let rows = base.tile_q + 2 * tile_kv;
    Kernel {
        source: "portable/forward.cu",
        entry: "portable_forward",
        tile_kv,
        threads: 128,
        shared_bytes: (rows * head_dim.elements() * 2) as u32,
        ..base
    }
}
