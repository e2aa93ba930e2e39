use std::path::PathBuf;
use std::time::Duration;

use cudarc::driver::DriverError;

use crate::spec::SpecError;
use crate::variant::PathError;

/// Why the GPU did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// libcuda is not on this machine.
    #[error("no CUDA driver (libcuda) on this machine; install the NVIDIA driver, 580 or newer")]
    NoDriver,
    /// NVRTC is not on this machine.
    #[error(
        "no NVRTC (libnvrtc) on this machine; install the CUDA 13 toolkit, or the Python wheel \
         nvidia-cuda-nvrtc and put its lib folder on LD_LIBRARY_PATH"
    )]
    NoNvrtc,
    /// There is no such device.
    #[error("no GPU {ordinal}; this machine has {count}")]
    NoDevice {
        /// The device asked for.
        ordinal: usize,
        /// Devices there are.
        count: usize,
    },
    /// The driver refused a call.
    #[error("failed to {doing}: {source}")]
    Driver {
        /// What was attempted.
        doing: &'static str,
        /// The driver's answer.
        source: DriverError,
    },
    /// NVRTC itself failed.
    #[error("NVRTC failed to {doing}: {code}")]
    Nvrtc {
        /// What was attempted.
        doing: &'static str,
        /// NVRTC's answer.
        code: String,
    },
    /// A kernel's source did not compile.
    #[error("{name} does not compile for {architecture}:\n{log}")]
    Compile {
        /// The kernel.
        name: String,
        /// Architecture compiled for.
        architecture: String,
        /// The compiler's messages.
        log: String,
    },
    /// An embedded source names a file that is not embedded.
    #[error("kernel source {0} is not embedded")]
    Source(String),
    /// The cache of compiled kernels cannot be used.
    #[error("cannot use the kernel cache {path}: {source}; set RINGLAB_CACHE_DIR to a writable folder")]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The launch makes no sense.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The device has no such kernels.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Another thread panicked while it compiled a kernel.
    #[error("an earlier launch panicked while it loaded a kernel")]
    Poisoned,
    /// Keys and values of a segment never arrived.
    #[error("segment {segment} was not ready within {limit:?}; the rank that sends it is late or gone")]
    NotReady {
        /// Index of the segment.
        segment: usize,
        /// How long the kernel waited.
        limit: Duration,
    },
    /// A buffer is used beyond its end.
    #[error("{bytes} bytes at {offset} do not fit a device buffer of {capacity} bytes")]
    OutOfRange {
        /// First byte.
        offset: usize,
        /// Bytes moved.
        bytes: usize,
        /// Bytes there are.
        capacity: usize,
    },
}

/// Names what was being done where the driver refuses.
pub(super) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, GpuError>;
}

impl<T> Doing<T> for Result<T, DriverError> {
    fn doing(self, doing: &'static str) -> Result<T, GpuError> {
        self.map_err(|source| GpuError::Driver { doing, source })
    }
}
