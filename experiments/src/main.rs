//! The ringlab command line: plans, proofs, predictions and runs of context-parallel attention.

use std::process::ExitCode;

fn main() -> ExitCode {
    ringlab_experiments::run()
}
