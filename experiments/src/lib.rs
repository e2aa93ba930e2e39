//! The ringlab command line as a library: presets, set-ups, results, and one module a command.
#![warn(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic where nobody reads; there are `output::print` and `say!`"
)]

/// Writes a line to standard error, as long as somebody reads it.
macro_rules! say {
    ($($text:tt)*) => {
        crate::output::say(format_args!($($text)*))
    };
}

mod args;
mod charts;
mod commands;
pub mod disturbance;
mod documents;
mod explore;
mod figures;
mod files;
mod grid;
mod interrupt;
mod limit;
mod measured;
mod nccl;
mod output;
mod overrides;
pub mod papers;
mod predict;
pub mod presets;
mod progress;
mod report;
mod runfile;
pub mod schema;
mod setup;
pub mod sweep;
pub mod tune;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches};

use args::{Cli, Command};

/// An expectation failed: a plan is refused, an error is above its bound.
const FAILED: u8 = 1;
/// The input is wrong.
const BAD_INPUT: u8 = 2;
/// Ctrl-C, as shells count it.
const INTERRUPTED: u8 = 130;

/// Parses the process's arguments, does what they ask for and says how it ended.
pub fn run() -> ExitCode {
    let outcome = arguments().and_then(|cli| execute(&cli.command));
    match outcome {
        Ok(commands::Outcome::Fine) => ExitCode::SUCCESS,
        Ok(commands::Outcome::Failed) => ExitCode::from(FAILED),
        Ok(commands::Outcome::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say!("error: {}", output::message(&error));
            ExitCode::from(BAD_INPUT)
        }
    }
}

/// The process's arguments, with those of its run file.
fn arguments() -> Result<Cli> {
    let given = args::with_negative_values(std::env::args_os());
    let matches = Cli::command().get_matches_from(&given);
    let matches = match runfile::expand(&matches, given.into_iter())? {
        Some(expanded) => Cli::command().get_matches_from(expanded),
        None => matches,
    };
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (Command::Run(args), Some(("run", given))) = (&mut cli.command, matches.subcommand()) {
        args.note_sources(given);
    }
    Ok(cli)
}

fn execute(command: &Command) -> Result<commands::Outcome> {
    files::check(command)?;
    match command {
        Command::Simulate(args) => commands::simulate::run(args),
        Command::Train(args) => commands::train::run(args),
        Command::Check(args) => commands::check::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Layout(args) => commands::layout::run(args),
        Command::Sweep(args) => commands::sweep::run(args),
        Command::Plot(args) => commands::plot::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Tune(args) => commands::tune::run(args),
        Command::Schema(args) => commands::schema::run(args),
        Command::Completions(args) => commands::completions::completions(args),
        Command::Man(args) => commands::completions::man(args),
        Command::Explore(args) => commands::explore::run(args),
        Command::Paper(args) => commands::paper::run(args),
        Command::Calibrate(args) => commands::calibrate::run(args),
        Command::Validate(args) => commands::validate::run(args),
        Command::Presets(args) => commands::presets::run(args),
    }
}
