//! Holds the GPU kernels against the f64 reference, and times them.
//!
//! [`check`] runs every mask, layout and number of ranks (one rank after the other on one GPU) with poisoned outputs;
//! [`bench`](bench()) times points with device events; [`accuracy`] writes one problem with its f64 results to a folder,
//! so that another implementation can be compared on the same inputs; [`sustain`] follows the rate under
//! lasting load.

mod accuracy;
mod bench;
mod check;
mod huge;
mod layout;
mod long;
mod mask;
mod random;
mod ranks;
mod rounds;
mod setup;
mod special;
pub mod sustain;
mod tensors;
mod versions;

pub use accuracy::{ErrorRow, accuracy};
pub use bench::{Point, Scope, Timing, WIDTH, bench, points};
pub use check::{CheckOptions, Outcome, check};
pub use layout::Layout;
pub use mask::Mask;
pub use random::normal;
pub use versions::{Comparison, VERSIONS, Version, compare};

use crate::gpu::GpuError;
use crate::reference::ReferenceError;

/// Why a lab run ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The GPU refused something.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The reference refused the problem.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A result could not be written.
    #[error("failed to write {path}: {source}")]
    Write {
        /// The file.
        path: std::path::PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// Another program could not be started.
    #[error("failed to start {name}: {source}")]
    Program {
        /// The program.
        name: &'static str,
        /// What went wrong.
        source: std::io::Error,
    },
}
