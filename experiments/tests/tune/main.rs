//! `ringlab tune`: against trying everything, by hand, and when nothing fits.

#[path = "../sweep/support.rs"]
#[allow(dead_code, reason = "each test target uses a part")]
mod support;

mod brute_force;
mod command;
