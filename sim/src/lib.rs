//! placeholder
pub mod units;
