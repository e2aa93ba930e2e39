//! What the executor needs of a GPU.

use ringlab_kernels::gpu::GpuError;
use ringlab_sim::units::SimTime;

use super::command::{Address, Command, Event, Kernel, Launch};

/// A raised flag. A flag released after a failure holds the largest value that is not less, see [`Gpu::release`].
pub(super) const RAISED: u32 = 1;
/// What releases everything that waits: waits compare signed.
pub(super) const RELEASED: u32 = i32::MAX as u32;

/// Why a command was refused.
#[derive(Debug)]
pub(super) enum Fault {
    Gpu(GpuError),
    Nccl(&'static str, String),
}

impl From<GpuError> for Fault {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error)
    }
}

/// One GPU: memory, streams in order, events, flags in memory, prepared kernels. Streams are numbered from 0 up to the
/// number that the GPU was opened with; they run beside each other and only wait for what they are told to.
pub(super) trait Gpu: Send + Sync {
    /// Memory that lives as long as this GPU.
    fn allocate(&self, bytes: usize) -> Result<Address, GpuError>;

    /// Bytes that are free, and all.
    fn memory(&self) -> Result<(u64, u64), GpuError>;

    /// Copies to the GPU, before anything that is posted afterwards.
    fn upload(&self, to: Address, data: &[u8]) -> Result<(), GpuError>;

    /// Copies from the GPU, whose streams must have ended.
    fn download(&self, from: Address, data: &mut [u8]) -> Result<(), GpuError>;

    fn prepare(&self, kernel: &Kernel<'_>) -> Result<Launch, GpuError>;

    fn event(&self) -> Result<Event, GpuError>;

    /// Appends a command to a stream.
    fn post(&self, stream: usize, command: &Command) -> Result<(), Fault>;

    /// Whether the event's last recording has been reached.
    fn is_done(&self, event: Event) -> Result<bool, GpuError>;

    /// From one event to a later one; both have been reached.
    fn elapsed(&self, from: Event, to: Event) -> Result<SimTime, GpuError>;

    /// Sets so many flags to [`RELEASED`] past all streams, and aborts NCCL's transfers, so that nothing waits any more.
    fn release(&self, flags: Address, count: usize) -> Result<(), GpuError>;

    /// An error that a kernel left behind: a segment that did not become ready.
    fn check(&self) -> Result<(), GpuError>;

    /// Its number on this machine.
    fn ordinal(&self) -> usize;

    fn name(&self) -> Result<String, GpuError>;

    /// Version of the driver's CUDA.
    fn driver(&self) -> Result<String, GpuError>;
}
