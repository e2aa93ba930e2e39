//! Executes plans: [`cpu`] exactly, on threads and channels; [`cuda`] on GPUs. Inputs, results and their comparison with the
//! f64 reference are shared by both.

pub mod cpu;
pub mod cuda;
pub mod environment;
pub mod inputs;
pub mod metrics;
pub mod outcome;
mod region;
pub mod rendezvous;
pub mod verify;
