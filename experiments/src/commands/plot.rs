//! `ringlab plot`: charts of a sweep's rows, and the gallery.

use std::path::Path;

use anyhow::{Result, bail};

use super::Outcome;
use crate::args::{ChartArgs, PlotArgs, PlotCommand};
use crate::charts::{Request, Table, draw, gallery};
use crate::figures::Picture;
use crate::output::write_file;
use crate::presets::refuse_folder;

/// Largest file that is drawn.
const LARGEST: u64 = 1 << 30;

/// Draws one chart, or the gallery.
pub fn run(args: &PlotArgs) -> Result<Outcome> {
    match (&args.command, &args.chart) {
        (Some(PlotCommand::Gallery { output }), _) => gallery(output)?,
        (None, Some(chart)) => one(chart)?,
        (None, None) => bail!(
            "say what to draw: `ringlab plot KIND FILE.csv -o OUT.svg`, or `ringlab plot gallery -o FOLDER`"
        ),
    }
    Ok(Outcome::Fine)
}

fn one(args: &ChartArgs) -> Result<()> {
    let picture = Picture::of(&args.output)?;
    let mut table = Table::parse(&args.file.to_string_lossy(), &read(&args.file)?)?;
    for (column, value) in &args.only {
        table = table.only(column, value)?;
    }
    let request = Request {
        kind: args.kind,
        x: args.x.clone(),
        y: args.y.clone(),
        by: args.by.clone(),
        title: args.title.clone(),
    };
    let drawn = draw(&table, &request)?;
    let bytes = drawn.bytes(picture)?;
    write_file(&args.output, &bytes)?;
    write_file(&args.data(), drawn.data()?.as_bytes())
}

fn read(path: &Path) -> Result<String> {
    refuse_folder(path)?;
    let cannot = |what: &str| format!("cannot read {}: {what}", path.display());
    let size = std::fs::metadata(path).map_err(|e| anyhow::anyhow!(cannot(&e.to_string())))?.len();
    if size > LARGEST {
        bail!("{} is larger than {} MiB; draw a part of it", path.display(), LARGEST >> 20);
    }
    std::fs::read_to_string(path).map_err(|e| anyhow::anyhow!(cannot(&e.to_string())))
}
