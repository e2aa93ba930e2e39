//! The fastest way to train: every grid, schedule, chunking, checkpointing and sharding of a cluster, compared by the
//! iteration that `sim::training` predicts.
//!
//! The space is searched best first. Everything of an iteration but attention is a closed form, and attention cannot be
//! faster than its busiest rank's unmasked pairs at the kernel's rate, so each candidate has a lower bound of its time and
//! one of its memory. What is above the memory, or slower by its bound than what has been found, is never simulated; the
//! result is that of trying everything.

mod attention;
mod board;
mod lengths;
mod outlook;
mod price;
mod refusal;
mod search;
mod space;

pub use board::Costed;
pub use lengths::{Crossover, Length, crossover};
pub use outlook::{Shift, sensitivity};
pub use price::Price;
pub use refusal::{Refusal, refusal};
pub use search::{Counts, Found, Search};
pub use space::{Degrees, Job, Space, rings};
