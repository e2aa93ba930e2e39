//! Executes plans: [`cpu`] exactly, on threads and channels. Inputs, results and their comparison with the f64 reference
//! are shared by every executor.

pub mod calibrate;
pub mod cpu;
pub mod inputs;
pub mod machine;
pub mod outcome;
pub mod validate;
pub mod verify;
