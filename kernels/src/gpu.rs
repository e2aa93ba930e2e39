//! The GPU side: compiles the kernels, loads them and launches them from validated specs.
//!
//! The driver and NVRTC are loaded at run time and probed before the first call, so every machine builds this and a
//! machine without them gets a [`GpuError`] that says what to install.

mod backward;
mod buffer;
mod cache;
mod compile;
mod device;
mod error;
mod forward;
mod launch;
mod maps;
mod pack;
mod steps;
mod tensor_map;

pub use backward::Backward;
pub use buffer::{Buffer, Plain};
pub use cache::Cache;
pub use compile::{Binary, Compiler, Resources};
pub use cudarc;
pub use device::Device;
pub use error::GpuError;
pub use forward::Forward;
pub use steps::Strip;
