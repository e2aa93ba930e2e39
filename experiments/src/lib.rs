//! The ringlab command line as a library: presets, and what the binary is made of.

pub mod papers;
pub mod presets;
