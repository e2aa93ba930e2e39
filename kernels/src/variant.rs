//! Which kernel answers a launch: the path, the compile-time constants and the launch shape of each.

mod choice;
mod hopper;
mod portable;
mod target;

use std::fmt;

use crate::spec::{Dtype, HeadDim};

pub use choice::{ForwardTiles, Visits};
pub use target::{Capability, Path, PathError, Target};

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
    pub fn forward(target: Target, dtype: Dtype, head_dim: HeadDim, tiles: ForwardTiles) -> Self {
        match target.path {
            Path::Hopper => hopper::forward(dtype, head_dim, tiles),
            Path::Portable => portable::forward(dtype, head_dim, target.has_large_shared_memory()),
        }
    }

    /// The backward kernel of a target.
    pub fn backward(target: Target, dtype: Dtype, head_dim: HeadDim) -> Self {
        match target.path {
            Path::Hopper => hopper::backward(dtype, head_dim),
            Path::Portable => portable::backward(dtype, head_dim, target.has_large_shared_memory()),
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
                kernels.extend(ForwardTiles::ALL.map(|tiles| Self::forward(target, dtype, head_dim, tiles)));
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

#[cfg(test)]
mod tests {
    use super::*;

    const A100: Capability = Capability { major: 8, minor: 0 };
    const RTX4090: Capability = Capability { major: 8, minor: 9 };
    const H200: Capability = Capability { major: 9, minor: 0 };

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
        // Per dtype: two forwards at D = 128, three at 64, two backwards, six steps each.
        assert_eq!(kernels.len(), 2 * (5 + 2 + 12));
        for dtype in Dtype::ALL {
            for (head_dim, tiles) in HeadDim::ALL.into_iter().flat_map(|d| ForwardTiles::ALL.map(|t| (d, t)))
            {
                let forward = Kernel::forward(target, dtype, head_dim, tiles);
                assert!(kernels.contains(&forward), "{forward} shares its name with another kernel");
            }
        }
        assert_eq!(kernels[0].to_string(), "hopper-forward-bf16-d64-192x128 (192 x 128 tiles)");
    }
}
