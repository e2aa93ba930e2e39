//! Executes plans: [`cpu`] exactly, on threads and channels. Inputs, results and their comparison with the f64 reference
//! are shared by every executor. [`mod@bench`] times the kernels of this machine's GPU.

pub mod bench;
pub mod cpu;
pub mod inputs;
pub mod outcome;
pub mod verify;
