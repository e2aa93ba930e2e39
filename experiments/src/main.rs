//! The ringlab command line: plans, proofs, predictions and runs of context-parallel attention.

mod args;
mod commands;
mod documents;
mod figures;
mod grid;
mod output;
mod setup;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use ringlab_experiments::presets;

/// An expectation failed: a plan is refused, an error is above its bound.
const FAILED: u8 = 1;
/// The input is wrong.
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Simulate(args) => commands::simulate::run(args),
        Command::Check(args) => commands::check::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Layout(args) => commands::layout::run(args),
        Command::Presets(args) => commands::presets::run(args),
    };
    match result {
        Ok(commands::Outcome::Fine) => ExitCode::SUCCESS,
        Ok(commands::Outcome::Failed) => ExitCode::from(FAILED),
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            anstream::eprintln!("error: {error:#}");
            ExitCode::from(BAD_INPUT)
        }
    }
}
