//! What forward and backward launches share.

use std::time::Duration;

use cudarc::driver::{CudaFunction, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg as _};

use super::device::Loaded;
use super::error::Doing as _;
use super::{Buffer, Device, GpuError};
use crate::spec::KeySegment;
use crate::variant::{Grid, Kernel};

/// Words at the start of the tables that every launch zeroes: the work counter and the error, a cache line each.
pub(super) const SCRATCH_WORDS: usize = 64;
/// Byte of the error word.
pub(super) const ERROR: usize = 128;

/// A loaded kernel, its tables, and how many bytes at their start are zeroed before every launch.
#[derive(Debug)]
pub(super) struct Launch {
    pub kernel: Kernel,
    function: CudaFunction,
    config: LaunchConfig,
    tables: Buffer,
    scratch_bytes: usize,
    ready_limit: Duration,
}

impl Launch {
    /// `grid`: tiles, heads that have CTAs of their own, sequences.
    pub fn new(
        device: &Device,
        kernel: Kernel,
        grid: [usize; 3],
        tables: Buffer,
        (scratch_words, ready_limit): (usize, Duration),
    ) -> Result<Self, GpuError> {
        let Loaded { function, shared_bytes } = device.function(&kernel)?;
        let [tiles, heads, batch] = grid.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let grid_dim = if kernel.grid == Grid::Persistent {
            let items = tiles.saturating_mul(heads).saturating_mul(batch);
            (items.min(device.multiprocessors()), 1, 1)
        } else {
            (tiles, heads, batch)
        };
        let config =
            LaunchConfig { grid_dim, block_dim: (kernel.threads, 1, 1), shared_mem_bytes: shared_bytes };
        Ok(Self { kernel, function, config, tables, scratch_bytes: 4 * scratch_words, ready_limit })
    }

    /// Puts the launch on `stream`.
    pub fn run<A: DeviceRepr>(&self, args: &A, stream: &CudaStream) -> Result<(), GpuError> {
        self.tables.fill_range(0, self.scratch_bytes, 0, stream)?;
        let mut builder = stream.launch_builder(&self.function);
        builder.arg(args);
        #[expect(
            unsafe_code,
            reason = "the kernel takes exactly this struct; its spec was validated, its tables live"
        )]
        unsafe { builder.launch(self.config) }.doing("launch a kernel")?;
        Ok(())
    }

    /// Waits for the device; an error where a segment's ready flag did not come in time.
    pub fn check_ready(&self) -> Result<(), GpuError> {
        let words: Vec<i32> = self.tables.read(ERROR / 4 + 1)?;
        match words.last() {
            Some(&error) if error > 0 => {
                Err(GpuError::NotReady { segment: error as usize - 1, limit: self.ready_limit })
            }
            _ => Ok(()),
        }
    }
}

/// The longest time that a kernel waits for one of the segments.
pub(super) fn ready_limit(segments: &[KeySegment<'_>]) -> Duration {
    segments.iter().filter_map(|segment| segment.ready).map(|flag| flag.limit).max().unwrap_or_default()
}

/// A duration as the kernels' clock counts it.
pub(super) fn nanoseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

/// A validated size as the kernels index with.
pub(super) fn int(value: usize) -> i32 {
    i32::try_from(value).expect("sizes are validated to fit i32")
}
