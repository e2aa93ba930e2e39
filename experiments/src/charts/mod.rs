//! Charts of the rows that sweeps and benchmarks write, and the gallery that makes all of them itself.

mod curves;
mod gallery;
mod kernels;
mod picture;
mod reference;
mod scatter;
mod table;
mod winner;

pub use gallery::gallery;
pub use picture::{Request, draw};
pub use table::Table;

use clap::ValueEnum;

/// What is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Time of one attention layer.
    Time,
    /// Speed-up over the contiguous ring, with what balance alone allows.
    Speedup,
    /// Share of the GPUs' time in which they do not compute.
    Bubble,
    /// Share of the time in which the worst rank stands still for a transfer, with the minimum block.
    Exposed,
    /// Attention buffers of the largest rank, with the card's memory.
    Memory,
    /// Mask-area TFLOP/s a GPU.
    Rate,
    /// Map of the fastest schedule.
    Winner,
    /// Rates of attention kernels, from a benchmark's rows: bars at one length, or lines with --x len.
    Kernels,
    /// Predictions over measurements, from what `ringlab validate` writes.
    Validate,
    /// Predictions over printed numbers, from `ringlab paper NAME --format csv`.
    Paper,
}
