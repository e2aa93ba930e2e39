//! The ringlab command line.
fn main() {}
