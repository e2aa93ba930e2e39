//! `ringlab simulate`: the prediction.

mod report;
mod table;

use anyhow::Result;
use ringlab_sim::engine::Load;

use super::Outcome;
use crate::args::SimulateArgs;
use crate::figures::{self, Picture, Run};
use crate::predict::{DEFAULT_SEQ, Prediction};
use crate::setup::Setup;
use crate::{output, progress};

pub use table::{title, tokens};

/// JSON Schema of the result.
pub fn schema(generator: schemars::SchemaGenerator) -> schemars::Schema {
    generator.into_root_schema_for::<crate::predict::Report<'static>>()
}

/// Simulates every schedule that was asked for and prints the figures.
pub fn run(args: &SimulateArgs) -> Result<Outcome> {
    args.plot.as_deref().map(Picture::of).transpose()?;
    let setup = Setup::new(&args.setup, DEFAULT_SEQ)?.disturbed(args.disturb.repeats()?);
    let setup = setup.loaded(args.load.map(Load::from))?.with_nccl(&args.nccl)?;
    let bar = progress::bar("repeats", Prediction::repeats(&setup), 0);
    let prediction = Prediction::watched(&setup, Setup::tolerates(&args.setup), &|| bar.inc(1));
    bar.finish_and_clear();
    let prediction = prediction?;
    write_files(args, &setup, &prediction)?;
    let table = || table::render(&setup, &prediction, args.explain);
    output::emit(&args.out, table, &prediction.report(&setup), &prediction.rows)?;
    Ok(Outcome::Fine)
}

fn write_files(args: &SimulateArgs, setup: &Setup, prediction: &Prediction) -> Result<()> {
    let runs: Vec<Run<'_>> = prediction
        .passes()
        .map(|s| Run { plan: &s.plan, timeline: &s.timeline, metrics: &s.metrics })
        .collect();
    if let Some(path) = &args.trace {
        figures::trace(path, &runs)?;
    }
    if let Some(path) = &args.plot {
        figures::gantt(path, &title(setup), &runs)?;
    }
    if let Some(path) = &args.spans {
        figures::spans(path, &runs)?;
    }
    if let Some(path) = &args.report {
        let arguments = std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned());
        let command: Vec<String> = std::iter::once("ringlab".to_owned()).chain(arguments).collect();
        output::write_file(path, report::render(setup, prediction, &command).as_bytes())?;
    }
    Ok(())
}
