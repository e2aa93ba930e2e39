//! `ringlab sweep`: a grid of configurations as CSV.

use std::io::Write;
use std::num::NonZero;
use std::path::Path;

use anyhow::{Result, bail};

use super::Outcome;
use crate::args::SweepArgs;
use crate::output::{self, FORMAT_VERSION};
use crate::presets::read_text;
use crate::sweep::{Ended, Grid, HEADER, Identity, Part, Rows, Shard, Worker, merge};
use crate::{files, interrupt, progress};

/// Computes the rows of a grid, or joins those of its shards.
pub fn run(args: &SweepArgs) -> Result<Outcome> {
    let grid = Grid::parse(&args.file.to_string_lossy(), &read_text(&args.file)?)?;
    output::check_kept(&files::of_sweep(args), &grid.files)?;
    if !args.merge.is_empty() {
        return join(args, &grid);
    }
    let rows = args.shard.unwrap_or(Shard::WHOLE).rows(grid.len);
    let threads = match args.threads {
        Some(threads) => usize::from(threads),
        None => std::thread::available_parallelism().map_or(1, NonZero::get),
    };
    let stop = interrupt::flag()?;
    let rows = Rows { grid: &grid, rows, threads, stop: stop.flag() };
    match &args.output {
        Some(path) => into_file(rows, path),
        None => onto_stdout(&rows),
    }
}

fn onto_stdout(rows: &Rows<'_>) -> Result<Outcome> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{HEADER}")?;
    let ended = rows.run(|lines, _| Ok(out.write_all(lines.as_bytes())?))?;
    Ok(outcome(ended, rows, None))
}

fn into_file(mut rows: Rows<'_>, path: &Path) -> Result<Outcome> {
    let all = rows.rows.clone();
    let identity = Identity {
        version: FORMAT_VERSION,
        fingerprint: format!("{:016x}", rows.grid.fingerprint()),
        first: all.start,
        end: all.end,
    };
    let mut part = Part::open(path, &identity)?;
    if let Some(last) = &part.last {
        check_last(rows.grid, all.start + part.done - 1, last, path)?;
        say!("resuming after {} of {} rows", part.done, all.end - all.start);
    }
    rows.rows.start += part.done;
    let bar = progress::bar("rows", all.end - all.start, part.done);
    let ended = rows.run(|lines, count| {
        part.append(lines)?;
        bar.inc(count);
        Ok(())
    })?;
    bar.finish_and_clear();
    if ended == Ended::Complete {
        part.finish()?;
    }
    Ok(outcome(ended, &rows, Some(path)))
}

/// A row that comes out differently was written by another version of the program.
fn check_last(grid: &Grid, row: u64, line: &str, path: &Path) -> Result<()> {
    let mut expected = String::new();
    Worker::new(grid).append_row(row, &mut expected);
    if expected.trim_end_matches('\n') != line {
        bail!(
            "{}.part was written by another version: row {row} differs; delete it to start over",
            path.display()
        );
    }
    Ok(())
}

fn outcome(ended: Ended, rows: &Rows<'_>, path: Option<&Path>) -> Outcome {
    let Ended::Stopped { at } = ended else { return Outcome::Fine };
    let left = rows.rows.end - at;
    match path {
        Some(path) => say!(
            "stopped with {left} rows left; {}.part has the rows so far, and the same command resumes",
            path.display()
        ),
        None => say!("stopped with {left} rows left; with -o FILE a sweep can be resumed"),
    }
    Outcome::Interrupted
}

fn join(args: &SweepArgs, grid: &Grid) -> Result<Outcome> {
    match &args.output {
        Some(path) => output::write_file_with(path, |out| merge(grid, &args.merge, out))?,
        None => merge(grid, &args.merge, &mut std::io::BufWriter::new(std::io::stdout().lock()))?,
    }
    Ok(Outcome::Fine)
}
