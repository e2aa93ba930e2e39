//! `ringlab completions` and `ringlab man`: what shells and manuals know, from the definition of the command line.

use std::path::Path;

use anyhow::{Result, bail};
use clap::{Command, CommandFactory};
use ringlab_sim::config::nearest;

use super::Outcome;
use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::output;

const NAME: &str = "ringlab";

/// Prints a shell's completions.
pub fn completions(args: &CompletionsArgs) -> Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), NAME, &mut script);
    match &args.output {
        Some(path) => output::write_file(path, &script)?,
        None => output::print(&String::from_utf8(script)?)?,
    }
    Ok(Outcome::Fine)
}

/// Prints a manual page, or writes all of them.
pub fn man(args: &ManArgs) -> Result<Outcome> {
    let mut ringlab = Cli::command();
    ringlab.build();
    if let Some(folder) = &args.output {
        return write_all(&ringlab, folder);
    }
    let page = match args.command.as_deref() {
        None | Some(NAME) => page(&ringlab, NAME)?,
        Some(name) => {
            let Some(command) = ringlab.find_subcommand(name) else {
                let names = ringlab.get_subcommands().map(Command::get_name);
                let near =
                    nearest(name, names).map_or(String::new(), |near| format!("; did you mean {near}?"));
                bail!("there is no command {name:?}{near}");
            };
            page(command, &format!("{NAME}-{name}"))?
        }
    };
    output::print(&String::from_utf8(page)?)?;
    Ok(Outcome::Fine)
}

fn write_all(ringlab: &Command, folder: &Path) -> Result<Outcome> {
    output::make_folder(folder)?;
    output::write_file(&folder.join(format!("{NAME}.1")), &page(ringlab, NAME)?)?;
    for command in ringlab.get_subcommands().filter(|c| c.get_name() != "help") {
        let name = format!("{NAME}-{}", command.get_name());
        output::write_file(&folder.join(format!("{name}.1")), &page(command, &name)?)?;
    }
    Ok(Outcome::Fine)
}

fn page(command: &Command, name: &str) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone().name(name.to_owned())).render(&mut page)?;
    Ok(page)
}
