//! Arguments of the commands that describe the program: schema, completions, man.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

#[derive(Args)]
#[command(after_help = "Examples:
  ringlab schema
  ringlab schema cluster
  ringlab schema tune -o tune.schema.json
  ringlab schema all -o schemas")]
pub struct SchemaArgs {
    /// The schema to print; `all` writes all of them to a folder; without it, they are listed.
    pub name: Option<String>,
    /// Write to this file, or with `all` to NAME.schema.json in this folder.
    #[arg(short, long, value_name = "FILE|FOLDER")]
    pub output: Option<PathBuf>,
}

#[derive(Args)]
#[command(after_help = "Examples:
  ringlab completions bash > ~/.local/share/bash-completion/completions/ringlab
  ringlab completions zsh -o _ringlab")]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Args)]
#[command(after_help = "Examples:
  ringlab man simulate | man -l -
  ringlab man -o man1")]
pub struct ManArgs {
    /// The command whose page is printed; without it, that of ringlab.
    pub command: Option<String>,
    /// Write the page of ringlab and of every command to this folder.
    #[arg(short, long, value_name = "FOLDER", conflicts_with = "command")]
    pub output: Option<PathBuf>,
}
