//! placeholder
pub mod config;
pub mod units;
