//! Sweeps: what the grid is, what its rows are, and that they are the same bytes however they come about.

mod bytes;
mod grids;
mod resume;
mod rows;
mod support;
