//! The executor on made-up GPUs, held against the f64 reference.

mod checks;
mod exact;
mod exchange;
mod faults;
mod kernels;
mod load;
mod many;
mod mutations;
mod processes;
mod support;
mod world;
