//! Run files: the options of a set-up as TOML, by the names that the command line has, with `_` for `-`.
//!
//! A run file becomes arguments, so that both are read by the same code: a new option is a new key.

mod read;
mod write;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use ringlab_sim::config::nearest;

use crate::args::{DisturbArgs, NcclArgs, SetupArgs};
use crate::presets;
use crate::setup::Files;

pub use write::{command_line, quoted, to_toml};

/// The option that names the run file, which a run file cannot.
const OWN: &str = "run";

/// A value as a run file or a request has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Text, or a number as it is written.
    Text(String),
    /// On or off.
    Flag(bool),
    /// Several of them.
    List(Vec<String>),
}

/// One option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name, with `_`.
    pub key: String,
    /// What it is set to.
    pub value: Value,
}

/// What a run file can say.
#[derive(Args)]
pub struct RunArgs {
    /// What is computed, how, and on what.
    #[command(flatten)]
    pub setup: SetupArgs,
    /// What goes wrong.
    #[command(flatten)]
    pub disturb: DisturbArgs,
    /// How NCCL transfers are set up.
    #[command(flatten)]
    pub nccl: NcclArgs,
}

/// The options of a run file as clap knows them.
fn options() -> Command {
    RunArgs::augment_args(Command::new("ringlab").no_binary_name(true))
}

fn option<'c>(options: &'c Command, key: &str) -> Option<&'c Arg> {
    options.get_arguments().find(|a| a.get_id() == key && key != OWN)
}

/// Why `key` is none, and which was meant.
fn unknown(options: &Command, key: &str) -> (String, String) {
    let keys: Vec<&str> =
        options.get_arguments().map(|a| a.get_id().as_str()).filter(|id| *id != OWN).collect();
    let hint = match nearest(key, keys.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known keys here: {}", keys.join(", ")),
    };
    (format!("unknown key `{key}`"), hint)
}

impl Entry {
    /// The entry as an argument, which has been tried.
    fn argument(&self, options: &Command) -> Result<String> {
        let Some(option) = option(options, &self.key) else {
            let (message, hint) = unknown(options, &self.key);
            bail!("{message}; {hint}");
        };
        let long = option.get_long().unwrap_or_default();
        let argument = match &self.value {
            Value::Text(text) => format!("--{long}={text}"),
            Value::Flag(flag) => format!("--{long}={flag}"),
            Value::List(items) if items.iter().any(|i| i.contains(',')) => {
                bail!("an item of `{}` has a comma in it", self.key)
            }
            Value::List(items) => format!("--{long}={}", items.join(",")),
        };
        match options.clone().try_get_matches_from([&argument]) {
            Ok(_) => Ok(argument),
            Err(error) => bail!("{}", first_line(&error)),
        }
    }
}

/// An option as a run file knows it.
#[derive(Debug, Clone)]
pub struct Described {
    /// Its key.
    pub key: String,
    /// What its help says.
    pub help: String,
    /// The values it has, where they are named.
    pub choices: Vec<String>,
    /// Whether it takes a list.
    pub many: bool,
}

/// All options of a run file.
pub fn describe() -> Vec<Described> {
    let options = options();
    let described =
        options.get_arguments().filter(|a| a.get_id() != OWN && a.get_id() != "help").map(|a| Described {
            key: a.get_id().to_string(),
            help: a.get_help().map(ToString::to_string).unwrap_or_default(),
            choices: a.get_possible_values().iter().map(|v| v.get_name().to_owned()).collect(),
            many: a.get_value_delimiter().is_some(),
        });
    described.collect()
}

/// Whether the option takes the value.
pub fn accepts(entry: &Entry) -> bool {
    entry.argument(&options()).is_ok()
}

/// What clap says, without its own advice on usage.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let lines = text.lines().map(str::trim).take_while(|l| !l.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// Sorts `entries` as the help lists the options.
pub fn in_order(entries: &mut [Entry]) {
    let options = options();
    let place = |e: &Entry| options.get_arguments().position(|a| a.get_id() == e.key.as_str());
    entries.sort_by_key(place);
}

/// The run that `entries` describe.
pub fn run_args(entries: &[Entry]) -> Result<RunArgs> {
    let options = options();
    let arguments = entries.iter().map(|e| e.argument(&options)).collect::<Result<Vec<_>>>()?;
    let matches = options.try_get_matches_from(arguments)?;
    Ok(RunArgs::from_arg_matches(&matches)?)
}

/// The process's arguments with those of the run file put in front of the others; `None` where there is no run file.
pub fn expand(
    matches: &ArgMatches,
    process: impl Iterator<Item = OsString>,
) -> Result<Option<Vec<OsString>>> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(None) };
    let Ok(Some(path)) = matches.try_get_one::<PathBuf>(OWN) else { return Ok(None) };
    let label = path.to_string_lossy();
    let text = presets::read_text(path)?;
    let options = options();
    let mut arguments = Vec::new();
    for (entry, span) in read::entries(&label, &text)? {
        let taken = match matches.try_contains_id(&entry.key) {
            Ok(_) => entry.argument(&options),
            Err(_) => Err(anyhow!("`ringlab {name}` does not take `{}`", entry.key)),
        };
        let argument = read::located(&label, &text, span, taken)?;
        if matches.value_source(&entry.key) != Some(ValueSource::CommandLine) {
            arguments.push(OsString::from(argument));
        }
    }
    let mut all: Vec<OsString> = process.collect();
    let after = all.iter().position(|a| a == name).context("the command's name is missing")? + 1;
    all.splice(after..after, arguments);
    Ok(Some(all))
}

/// Whether a value that clap takes as it is means something.
fn means_something(entry: &Entry, files: Files) -> Result<()> {
    match (entry.key.as_str(), &entry.value) {
        ("mask", Value::Text(text)) => crate::documents::MaskArg::parse(text, files).map(|_| ()),
        ("schedule", Value::Text(text)) => crate::args::schedules(&split(text)).map(|_| ()),
        ("schedule", Value::List(items)) => crate::args::schedules(items).map(|_| ()),
        _ => Ok(()),
    }
}

fn split(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
