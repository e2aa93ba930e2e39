//! `ringlab layout`: which rank holds which token.

use anyhow::{Result, bail};
use ringlab_sim::layout::{Layout, LayoutError};
use ringlab_sim::mask::Documents;
use ringlab_sim::schedule::Schedule;
use serde::Serialize;

use super::Outcome;
use crate::args::LayoutArgs;
use crate::grid::grid;
use crate::output::{self, FORMAT_VERSION};
use crate::setup::Setup;

const DEFAULT_SEQ: u64 = 16;
/// Tokens that a table shows; CSV and JSON have all.
const TABLE_ROWS: usize = 1000;
/// Tokens, over all schedules, whose rows and text stay within about two gigabytes.
const MAX_ROWS: u64 = 8 << 20;

#[derive(Serialize, schemars::JsonSchema)]
struct Row {
    schedule: String,
    rank: u32,
    slot: u64,
    /// Index in the whole sequence, padding included.
    position: u64,
    document: usize,
    padding: bool,
    /// Index in the document.
    rope_position: u64,
    /// Position of the token to predict; empty at a document's end and on padding.
    label_position: Option<u64>,
}

#[derive(Serialize, schemars::JsonSchema)]
struct Report<'a> {
    version: u32,
    tokens: &'a [Row],
    left_out: &'a [String],
}

/// JSON Schema of the result.
pub fn schema(generator: schemars::SchemaGenerator) -> schemars::Schema {
    generator.into_root_schema_for::<Report<'static>>()
}

/// Prints every token of every rank.
pub fn run(args: &LayoutArgs) -> Result<Outcome> {
    let setup = Setup::new(&args.setup, DEFAULT_SEQ)?;
    check_size(&setup)?;
    let (rows, left_out) = setup.each_schedule(Setup::tolerates(&args.setup), |schedule| {
        let kind = schedule.layout();
        let lens = &setup.problem.documents;
        let documents = if args.setup.pad { kind.pad(lens, setup.cp) } else { Documents::padded(lens, 1) };
        let layout = Layout::new(kind, setup.cp, documents).map_err(|error| {
            let pads = matches!(error, LayoutError::NotDivisible { .. }) && !args.setup.pad;
            let error = anyhow::Error::new(error);
            if pads { error.context("--pad pads lengths that do not fit") } else { error }
        })?;
        Ok(tokens(schedule, &layout))
    })?;
    let rows = rows.into_iter().flatten().collect::<Vec<_>>();
    let report = Report { version: FORMAT_VERSION, tokens: &rows, left_out: &left_out };
    output::emit(&args.out, || table(&rows, &left_out), &report, &rows)?;
    Ok(Outcome::Fine)
}

/// Every token is a row in memory before the first is written.
fn check_size(setup: &Setup) -> Result<()> {
    let (tokens, schedules) = (setup.problem.tokens(), setup.schedules.len());
    let rows = tokens.saturating_mul(schedules as u64);
    if rows > MAX_ROWS {
        bail!(
            "{tokens} tokens in {schedules} schedules are {rows} rows, more than the {MAX_ROWS} that are listed; use \
             fewer tokens (--seq) or schedules (--schedule)"
        );
    }
    Ok(())
}

fn tokens(schedule: Schedule, layout: &Layout) -> Vec<Row> {
    let of_rank = |rank: u32| {
        layout.shard(rank).iter().enumerate().filter_map(move |(slot, position)| {
            let (document, d) = layout.documents().at(position)?;
            Some(Row {
                schedule: schedule.to_string(),
                rank,
                slot: slot as u64,
                position,
                document,
                padding: position >= d.start + d.len,
                rope_position: layout.rope_position(position)?,
                label_position: layout.label(position),
            })
        })
    };
    (0..layout.ranks()).flat_map(of_rank).collect()
}

fn table(rows: &[Row], left_out: &[String]) -> String {
    let cells = rows.iter().take(TABLE_ROWS).map(|r| {
        [
            r.schedule.clone(),
            r.rank.to_string(),
            r.slot.to_string(),
            r.position.to_string(),
            r.document.to_string(),
            if r.padding { "padding".into() } else { r.rope_position.to_string() },
            r.label_position.map_or("-".into(), |l| l.to_string()),
        ]
    });
    let table = grid(["schedule", "rank", "slot", "position", "document", "RoPE", "label"], 1, cells);
    let more = rows.len().saturating_sub(TABLE_ROWS);
    let cut =
        if more > 0 { format!("  {more} more tokens: --format csv lists all\n") } else { String::new() };
    let left_out = left_out.iter().map(|line| format!("  left out: {line}\n"));
    table + &cut + &left_out.collect::<Vec<_>>().concat()
}
