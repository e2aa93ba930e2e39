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
}

/// A device's kernels: a family and the capability it is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// The family.
    pub path: Path,
    /// The device's capability.
    pub capability: Capability,
}

impl Target {
    /// NVRTC's name of the architecture, as in `sm_90a`.
    pub fn architecture(self) -> String {
        let Capability { major, minor } = self.capability;
        match self.path {
            Path::Hopper => format!("sm_{major}{minor}a"),
            Path::Portable => format!("sm_{major}{minor}"),
        }
    }

    /// Whether a CTA may have the 160 KiB of shared memory that the larger backward tiles take.
    ///
    /// The data-centre chips (8.0, 8.7, 9.0, 10.x) allow 163 KiB and more, the others 99 KiB.
    fn has_large_shared_memory(self) -> bool {
        matches!((self.capability.major, self.capability.minor), (8, 0 | 7) | (9..=11, _))
    }
}

/// How many keys a tile of the Hopper forward has at D = 128.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyTile {
    /// 176: amortises what a tile costs, where little of the score matrix is masked or the sequence is long.
    Wide,
    /// 128: wastes less along a diagonal and at the end of a short sequence.
    Narrow,
}

impl KeyTile {
    /// Queries and keys of the tiles by whose visits a launch is judged: those of the narrow kernel.
    pub const JUDGED: usize = 128;
    /// Launches over at least so many keys are wide.
    pub const MIN_KEYS: usize = 32 << 10;
    /// Launches with this share of their tiles visited, or more, are wide as well, as numerator and denominator...
    pub const VISITED: (usize, usize) = (9, 10);
    /// ...if they have more keys than this: the last tile of 176 would be mostly padding.
    pub const ABOVE_KEYS: usize = 2 << 10;

    /// For a launch over `keys` keys in all of its segments, which visits `visited` of `all` tiles.
    pub fn choose(keys: usize, visited: usize, all: usize) -> Self {
        let (numerator, denominator) = Self::VISITED;
        let is_dense = keys > Self::ABOVE_KEYS && visited * denominator >= all * numerator;
        if keys >= Self::MIN_KEYS || is_dense { Self::Wide } else { Self::Narrow }
    }
}

/// How many CTAs a launch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grid {
    /// At most one a multiprocessor; they take their items from a counter.
    Persistent,
    /// One for each tile, head and sequence.
    Tiles,
    /// Enough threads for eight elements of every row each.
    Rows,
}

/// Where the amount of dynamic shared memory is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedMemory {
    /// Here, in bytes.
    Bytes(u32),
    /// In an integer of the compiled kernel of this name.
    Symbol(&'static str),
}

/// Order of the two middle axes of a tensor map; the first is the column, the last the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapAxes {
    /// Column, token, head, sequence.
    TokenHead,
    /// Column, head, token, sequence.
    HeadToken,
}

/// What the copy engine moves in one instruction: 128 bytes of so many rows, swizzled by 128 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boxes {
    /// Order of the coordinates.
    pub axes: MapAxes,
    /// Rows of `q` and `do`.
    pub q: u32,
    /// Rows of `k` and `v`.
    pub kv: u32,
    /// Rows of the fp32 `dq`; 0 where the kernel does not reach it so.
    pub dq: u32,
}

/// One kernel, how it is compiled and how it is launched.
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
    /// Queries of a tile; 0 where there are no tiles.
    pub tile_q: usize,
    /// Keys of a tile; 0 where there are no tiles.
    pub tile_kv: usize,
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory of a CTA.
    pub shared: SharedMemory,
    /// Number of CTAs.
    pub grid: Grid,
    /// Tensor maps, where the kernel loads through the copy engine.
    pub boxes: Option<Boxes>,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.tile_q > 0 { write!(f, " ({} x {} tiles)", self.tile_q, self.tile_kv) } else { Ok(()) }
    }
}

/// The memory-bound steps around the attention kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// `delta = rowsum(o * do)`, before a backward.
    Preprocess,
    /// fp32 accumulators to the input dtype, after a backward.
    Convert,
    /// One carried state into another.
    Merge,
    /// A carried state to `o` and `lse`.
    Finalise,
    /// fp32 rows to fp32 rows.
    Add,
    /// Rows of the input dtype to rows of the input dtype.
    AddRounded,
}

impl Step {
    /// Every step.
    pub const ALL: [Self; 6] =
        [Self::Preprocess, Self::Convert, Self::Merge, Self::Finalise, Self::Add, Self::AddRounded];
}

/// The constant of a Hopper backward that can cut the items of its last round.
pub(crate) const SPLIT_LAST: &str = "SPLIT_LAST";

impl Kernel {
    /// Whether it can cut items beyond whole rounds of the multiprocessors into parts.
    pub(crate) fn cuts_last_items(&self) -> bool {
        self.defines.iter().any(|define| define == SPLIT_LAST)
    }

    /// The forward kernel of a target.
    pub fn forward(target: Target, dtype: Dtype, head_dim: HeadDim, key_tile: KeyTile) -> Self {
        match target.path {
            Path::Hopper => hopper_forward(dtype, head_dim, key_tile),
            Path::Portable => portable_forward(dtype, head_dim, target.has_large_shared_memory()),
        }
    }

    /// The backward kernel of a target.
    pub fn backward(target: Target, dtype: Dtype, head_dim: HeadDim) -> Self {
        match target.path {
            Path::Hopper => hopper_backward(dtype, head_dim),
            Path::Portable => portable_backward(dtype, head_dim, target.has_large_shared_memory()),
        }
    }

    /// A step around them, the same for every target.
    pub fn step(step: Step, dtype: Dtype, head_dim: HeadDim) -> Self {
        let (name, source, entry) = match step {
            Step::Preprocess => ("preprocess", "common/preprocess.cu", "attention_preprocess"),
            Step::Convert => ("convert", "common/convert.cu", "attention_convert"),
            Step::Merge => ("merge", "common/merge.cu", "attention_merge"),
            Step::Finalise => ("finalise", "common/merge.cu", "attention_finalise"),
            Step::Add => ("add", "common/add.cu", "attention_add"),
            Step::AddRounded => ("add-rounded", "common/add.cu", "attention_add_rounded"),
        };
        Self { source, entry, threads: 256, grid: Grid::Rows, ..Self::base(name, dtype, head_dim) }
    }

    /// Every kernel of a target.
    pub fn all(target: Target) -> Vec<Self> {
        let mut kernels: Vec<Self> = Vec::new();
        for dtype in Dtype::ALL {
            for head_dim in HeadDim::ALL {
                kernels.push(Self::forward(target, dtype, head_dim, KeyTile::Narrow));
                kernels.push(Self::forward(target, dtype, head_dim, KeyTile::Wide));
                kernels.push(Self::backward(target, dtype, head_dim));
                kernels.extend(Step::ALL.map(|step| Self::step(step, dtype, head_dim)));
            }
        }
        let mut names = std::collections::HashSet::new();
        kernels.retain(|kernel| names.insert(kernel.name.clone()));
        kernels
    }

    /// What a kernel has unless it says otherwise; `name` is the start of its name.
    fn base(name: &str, dtype: Dtype, head_dim: HeadDim) -> Self {
        let mut defines = vec![format!("HEAD_DIM={}", head_dim.elements())];
        if dtype == Dtype::F16 {
            defines.push("DTYPE_FP16".into());
        }
        Self {
            name: format!("{name}-{dtype}-d{}", head_dim.elements()),
            source: "",
            entry: "",
            defines,
            tile_q: 0,
            tile_kv: 0,
            threads: 0,
            shared: SharedMemory::Bytes(0),
            grid: Grid::Tiles,
            boxes: None,
        }
    }
}

/// 64 queries a warpgroup.
fn hopper_forward(dtype: Dtype, head_dim: HeadDim, key_tile: KeyTile) -> Kernel {
    let (tile_q, tile_kv) = match (head_dim, key_tile) {
        (HeadDim::D64, _) => (192, 128),
        (HeadDim::D128, KeyTile::Narrow) => (128, 128),
        (HeadDim::D128, KeyTile::Wide) => (128, 176),
    };
    let mut kernel = Kernel::base("hopper-forward", dtype, head_dim);
    kernel.name = format!("{}-{tile_q}x{tile_kv}", kernel.name);
    kernel.defines.extend([format!("TILE_Q={tile_q}"), format!("TILE_KV={tile_kv}")]);
    Kernel {
        source: "hopper/fwd_kernel.cu",
        entry: "attention_forward",
        tile_q,
        tile_kv,
        threads: 128 * (tile_q as u32 / 64 + 1),
        shared: SharedMemory::Symbol("forward_shared_bytes"),
        grid: Grid::Persistent,
        boxes: Some(Boxes { axes: MapAxes::TokenHead, q: tile_q as u32, kv: tile_kv as u32, dq: 0 }),
        ..kernel
    }
}

/// 128 keys a CTA, 64 a warpgroup; the accumulators of `dk` and `dv` leave registers for 64 queries at D = 128.
fn hopper_backward(dtype: Dtype, head_dim: HeadDim) -> Kernel {
    let tile_q = match head_dim {
        HeadDim::D64 => 128,
        HeadDim::D128 => 64,
    };
    let mut kernel = Kernel::base("hopper-backward", dtype, head_dim);
    if head_dim == HeadDim::D128 {
        kernel.defines.push(SPLIT_LAST.into());
    }
    Kernel {
        source: "hopper/bwd_kernel.cu",
        entry: "attention_backward",
        tile_q: tile_q as usize,
        tile_kv: 128,
        threads: 384,
        shared: SharedMemory::Symbol("backward_shared_bytes"),
        grid: Grid::Persistent,
        boxes: Some(Boxes { axes: MapAxes::HeadToken, q: tile_q, kv: 128, dq: 64 }),
        ..kernel
    }
}

/// Four warps of 32 queries, so that each key fragment read from shared memory feeds two products; two CTAs share a
/// multiprocessor. At D = 64 its shared memory holds two stages of keys and values, and registers suffice for 96 keys.
fn portable_forward(dtype: Dtype, head_dim: HeadDim, large_shared_memory: bool) -> Kernel {
    let tile_q = 128;
    let (tile_kv, stages) = match head_dim {
        HeadDim::D64 if large_shared_memory => (96, 2),
        HeadDim::D64 => (64, 2),
        HeadDim::D128 => (64, 1),
    };
    let mut kernel = Kernel::base("portable-forward", dtype, head_dim);
    kernel.defines.extend([format!("TILE_KV={tile_kv}"), format!("STAGES={stages}")]);
    Kernel {
        source: "portable/forward.cu",
        entry: "portable_forward",
        tile_q,
        tile_kv,
        threads: 128,
        shared: SharedMemory::Bytes(2 * ((tile_q + 2 * stages * tile_kv) * head_dim.elements()) as u32),
        ..kernel
    }
}

/// Eight warps; two stages of `q` and `do` beside 128 keys where shared memory allows it.
fn portable_backward(dtype: Dtype, head_dim: HeadDim, large_shared_memory: bool) -> Kernel {
    let (tile_kv, stages) = if large_shared_memory { (128, 2) } else { (64, 1) };
    let tile_q = match head_dim {
        HeadDim::D64 => 128,
        HeadDim::D128 => 64,
    };
    // Two tensors of each kind in 16 bits, and two fp32 numbers a query.
    let elements = (tile_kv + stages * tile_q) * head_dim.elements() + tile_q * tile_kv;
    let bytes = 2 * 2 * elements + 2 * 4 * stages * tile_q;
    let mut kernel = Kernel::base("portable-backward", dtype, head_dim);
    kernel.name = format!("{}-{tile_q}x{tile_kv}", kernel.name);
    kernel.defines.extend([format!("TILE_KV={tile_kv}"), format!("STAGES={stages}")]);
    Kernel {
        source: "portable/backward.cu",
        entry: "portable_backward",
        tile_q,
        tile_kv,
        threads: 256,
        shared: SharedMemory::Bytes(bytes as u32),
        ..kernel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A100: Capability = Capability { major: 8, minor: 0 };
    const RTX4090: Capability = Capability { major: 8, minor: 9 };
    const H200: Capability = Capability { major: 9, minor: 0 };

    #[test]
    fn path_follows_the_capability_unless_told_otherwise() {
        assert_eq!(Path::choose(H200, None), Ok(Path::Hopper));
        assert_eq!(Path::choose(H200, Some(Path::Portable)), Ok(Path::Portable));
        assert_eq!(Path::choose(A100, None), Ok(Path::Portable));
        assert_eq!(Path::choose(A100, Some(Path::Hopper)), Err(PathError::NotHopper(A100)));
        let turing = Capability { major: 7, minor: 5 };
        assert_eq!(Path::choose(turing, Some(Path::Portable)), Err(PathError::TooOld(turing)));
    }

    #[test]
    fn kernels_fit_the_shared_memory_of_their_target() {
        // Bytes a CTA may have, by the CUDA programming guide: 163 KiB (8.0), 99 KiB (8.9), 227 KiB (9.0).
        for (capability, limit) in [(A100, 163 << 10), (RTX4090, 99 << 10), (H200, 227 << 10)] {
            for kernel in Kernel::all(Target { path: Path::Portable, capability }) {
                let SharedMemory::Bytes(bytes) = kernel.shared else { panic!("{kernel} does not say") };
                assert!(bytes <= limit, "{kernel}: {bytes} of {limit}");
            }
        }
    }

    #[test]
    fn names_tell_kernels_apart() {
        let target = Target { path: Path::Hopper, capability: H200 };
        assert_eq!(target.architecture(), "sm_90a");
        let kernels = Kernel::all(target);
        // Per dtype: two forwards at D = 128, one at 64, two backwards, six steps each.
        assert_eq!(kernels.len(), 2 * (3 + 2 + 12));
        assert_eq!(kernels[0].to_string(), "hopper-forward-bf16-d64-192x128 (192 x 128 tiles)");
    }
}
