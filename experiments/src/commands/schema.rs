//! `ringlab schema`: what files and results look like.

use std::path::Path;

use anyhow::{Result, bail};

use super::Outcome;
use crate::args::SchemaArgs;
use crate::grid::grid;
use crate::{output, schema};

/// Lists the schemas, or prints one, or writes all.
pub fn run(args: &SchemaArgs) -> Result<Outcome> {
    let text = match args.name.as_deref() {
        None => grid(["name", "schema of"], 2, schema::list().map(|(name, of)| [name.into(), of.into()])),
        Some("all") => {
            let Some(folder) = &args.output else { bail!("`ringlab schema all` needs -o FOLDER") };
            return write_all(folder);
        }
        Some(name) => pretty(name)?,
    };
    match &args.output {
        Some(path) => output::write_file(path, text.as_bytes())?,
        None => output::print(&text)?,
    }
    Ok(Outcome::Fine)
}

fn write_all(folder: &Path) -> Result<Outcome> {
    output::make_folder(folder)?;
    for (name, _) in schema::list() {
        output::write_file(&folder.join(format!("{name}.schema.json")), pretty(name)?.as_bytes())?;
    }
    Ok(Outcome::Fine)
}

fn pretty(name: &str) -> Result<String> {
    Ok(serde_json::to_string_pretty(&schema::schema(name)?)? + "\n")
}
