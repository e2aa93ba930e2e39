//! The CPU executor against the f64 reference, its promises about failures, and what it measures.

mod collectives;
mod exact;
mod faults;
mod leaks;
mod measured;
mod mutations;
mod numbers;
mod random;
mod rows;
mod support;
