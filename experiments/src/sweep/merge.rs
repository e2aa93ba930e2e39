//! Shards joined to the file that one run would have written.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::file::row_number;
use super::grid::Grid;
use super::row::HEADER;
use super::worker::Worker;
use crate::presets::refuse_folder;

/// A shard's file and its first row.
struct Opened<'a> {
    path: &'a Path,
    first: Option<(u64, String)>,
    rest: Lines<BufReader<File>>,
}

/// Writes the rows of `files`, given in any order, to `out`. The first row of each file is computed again: it must be the
/// grid's.
///
/// # Errors
/// Rows that are missing, twice, or of another sweep; files that cannot be read or written.
pub fn merge(grid: &Grid, files: &[PathBuf], out: &mut impl Write) -> Result<()> {
    let mut opened = files.iter().map(|path| open(path)).collect::<Result<Vec<_>>>()?;
    opened.sort_by_key(|o| o.first.as_ref().map(|(row, _)| *row));
    let mut worker = Worker::new(grid);
    let mut next = 0;
    writeln!(out, "{HEADER}")?;
    for Opened { path, first, rest } in opened {
        let Some((row, line)) = first else { continue };
        check_first(&mut worker, grid, path, row, &line)?;
        for line in std::iter::once(Ok(line)).chain(rest) {
            let line = line.with_context(|| format!("cannot read {}", path.display()))?;
            match row_number(&line) {
                Some(row) if row == next => writeln!(out, "{line}")?,
                Some(row) if row < next => {
                    bail!("{} has row {row}, which another file has too", path.display())
                }
                Some(row) => bail!("rows {next} to {} are in no file", row - 1),
                None => {
                    bail!("{}: after row {}: not a row of a sweep", path.display(), next.saturating_sub(1))
                }
            }
            next += 1;
        }
    }
    if next < grid.len {
        bail!("rows {next} to {} are in no file", grid.len - 1);
    }
    Ok(())
}

fn open(path: &Path) -> Result<Opened<'_>> {
    refuse_folder(path)?;
    let cannot = || format!("cannot read {}", path.display());
    let mut rest = BufReader::new(File::open(path).with_context(cannot)?).lines();
    match rest.next().transpose().with_context(cannot)? {
        Some(header) if header == HEADER => {}
        _ => bail!("{} is no file of a sweep of this version", path.display()),
    }
    let first = match rest.next().transpose().with_context(cannot)? {
        Some(line) => {
            let row = row_number(&line);
            Some((row.with_context(|| format!("{}: line 2 is not a row of a sweep", path.display()))?, line))
        }
        None => None,
    };
    Ok(Opened { path, first, rest })
}

fn check_first(worker: &mut Worker<'_>, grid: &Grid, path: &Path, row: u64, line: &str) -> Result<()> {
    let mut expected = String::new();
    if row < grid.len {
        worker.append_row(row, &mut expected);
    }
    if expected.trim_end_matches('\n') != line {
        bail!(
            "{} holds rows of another sweep or version: its first row is not the grid's row {row}",
            path.display()
        );
    }
    Ok(())
}
