//! Executes plans: [`cpu`] exactly, on threads and channels; [`cuda`] on GPUs. Inputs, results and their comparison with the
//! f64 reference are shared by both. [`mod@bench`] times the kernels, [`calibrate`] measures a machine, [`validate`] holds
//! predictions against runs.

pub mod bench;
pub mod calibrate;
pub mod cpu;
pub mod cuda;
pub mod environment;
pub mod inputs;
pub mod machine;
pub mod metrics;
pub mod outcome;
mod parallel;
mod region;
pub mod rendezvous;
pub mod validate;
pub mod verify;
