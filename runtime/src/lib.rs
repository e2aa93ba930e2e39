//! Executes plans: [`cpu`] exactly, on threads and channels. Inputs, results and their comparison with the f64 reference
//! are shared by every executor.

pub mod cpu;
pub mod environment;
pub mod inputs;
pub mod metrics;
pub mod outcome;
pub mod rendezvous;
pub mod verify;
