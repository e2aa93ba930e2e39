//! Timings of the attention kernels on this machine's GPU, as they are taken: what to time, and the times.

pub use ringlab_kernels::gpu::{Cache, Device, GpuError};
pub use ringlab_kernels::lab::{LabError, Point, Timing, WIDTH, bench, points};
pub use ringlab_kernels::variant::Path;
