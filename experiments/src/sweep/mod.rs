//! Sweeps: a grid of configurations, simulated on all cores and streamed as CSV.
//!
//! A sweep file is TOML. Every key is a field of a configuration; its value is one value, a list, or a range
//! `{ from = .., to = .., times = .. }` or `{ from = .., to = .., step = .. }`, and lists may hold ranges. The grid is the
//! product of all fields: the first key of the file varies slowest, the last one fastest, and that is the order of the
//! rows whatever the number of threads. A configuration that cannot be planned or simulated is a row with the reason.

mod expand;
mod file;
mod grid;
mod merge;
mod point;
mod read;
mod row;
mod stream;
mod worker;

pub use file::{Identity, Part, growing};
pub use grid::{Axis, Grid};
pub use merge::merge;
pub use point::{Mask, Point, Rates, Setting};
pub use read::FIELDS;
pub use row::HEADER;
pub use stream::{Ended, Rows, Shard};
pub use worker::Worker;
