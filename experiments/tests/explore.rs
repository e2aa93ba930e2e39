//! The explorer's server over real sockets, and run files on the command line: the same figures everywhere, and nothing
//! served but itself.

#[path = "explore/limits.rs"]
mod limits;
#[path = "explore/same_figures.rs"]
mod same_figures;
#[path = "explore/server.rs"]
mod server;
#[path = "explore/serving.rs"]
mod serving;

use std::path::Path;
use std::process::{Command, Output};

/// Runs the command line in `folder`.
fn ringlab(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringlab")).current_dir(folder).args(args).output().unwrap()
}

/// Its standard output, which must be JSON.
fn json_of(folder: &Path, args: &[&str]) -> serde_json::Value {
    let output = ringlab(folder, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
