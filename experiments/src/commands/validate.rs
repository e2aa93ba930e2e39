//! `ringlab validate`: predicted against measured, now or earlier.

mod live;
mod recorded;
mod row;
mod table;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ringlab_runtime::validate::{Filter, Origin, Point, Report};
use ringlab_sim::config::cluster::NcclSettings;
use ringlab_sim::problem::Pass;
use serde::Serialize;

use super::Outcome;
use crate::args::{PassArg, ValidateArgs, schedules};
use crate::charts::{self, Kind, Request, Table};
use crate::figures::Picture;
use crate::nccl::Nccl;
use crate::output;
use crate::output::FORMAT_VERSION;
use row::Row;

#[derive(Serialize)]
struct Json<'a> {
    version: u32,
    cluster: &'a str,
    machine: &'a str,
    measured_in: Option<&'a Origin>,
    /// How NCCL was set up and predicted; `null` where it was not asked for.
    nccl: Option<Nccl>,
    #[serde(flatten)]
    report: &'a Report,
}

/// What a validation came to.
struct Validation {
    cluster: String,
    /// What was measured, as [`ringlab_runtime::machine::Identity`] is shown.
    machine: String,
    /// Where the measurements are from; `None` if they were made now.
    measured_in: Option<Origin>,
    /// How NCCL was set up and predicted, where that was asked for.
    nccl: Option<NcclSettings>,
    report: Report,
    /// Points that were to be compared.
    asked: usize,
    /// The limit that ended it.
    limit: Option<String>,
    is_interrupted: bool,
}

/// Predicts points, which are run or were measured earlier, and compares.
pub fn run(args: &ValidateArgs) -> Result<Outcome> {
    args.plot.as_deref().map(Picture::of).transpose()?;
    check_bounds(args)?;
    let validation = match &args.measured {
        Some(file) => recorded::validate(args, file)?,
        None => live::validate(args)?,
    };
    let Validation { cluster, machine, report, .. } = &validation;
    let measured_in = validation.measured_in.as_ref();
    let nccl = validation.nccl.map(Nccl::from);
    let json = Json { version: FORMAT_VERSION, cluster, machine, measured_in, nccl, report };
    let rows: Vec<Row> = report.points.iter().map(Row::from).collect();
    output::emit(&args.out, || table::table(&json), &json, &rows)?;
    if let Some(path) = args.plot.as_deref().filter(|_| !rows.is_empty()) {
        draw(path, &json)?;
    }
    validation.say_what_is_missing();
    let too_far = beyond(args, report);
    for line in &too_far {
        say!("{line}");
    }
    Ok(if validation.is_interrupted {
        Outcome::Interrupted
    } else if too_far.is_empty() && report.broke.is_none() && !report.points.is_empty() {
        Outcome::Fine
    } else {
        Outcome::Failed
    })
}

impl Validation {
    fn say_what_is_missing(&self) {
        let (left, all) = (self.report.not_reached.len(), self.asked);
        if left == 0 {
            return;
        }
        let why = match (&self.report.broke, &self.limit) {
            (Some(error), _) => error.clone(),
            (None, Some(limit)) => format!("{limit} was near"),
            (None, None) => "stopped by Ctrl-C".into(),
        };
        let done = if self.measured_in.is_some() { "predicted" } else { "run" };
        let of_all = table::several(all, "point");
        let were = if left == 1 { "was" } else { "were" };
        say!("{why}: {left} of {of_all} {were} NOT {done}, and no figure is about them");
    }
}

fn check_bounds(args: &ValidateArgs) -> Result<()> {
    for (name, bound) in bounds(args) {
        if let Some(bound) = bound.filter(|b| !b.is_finite() || *b < 0.0) {
            bail!("{name} must be a finite number of percent that is not negative, not {bound}");
        }
    }
    Ok(())
}

/// The options that bound errors, with their values.
fn bounds(args: &ValidateArgs) -> [(&'static str, Option<f64>); 3] {
    [("--max-mape", args.max_mape), ("--max-error", args.max_error), ("--max-bias", args.max_bias)]
}

/// Which bounds do not hold.
fn beyond(args: &ValidateArgs, report: &Report) -> Vec<String> {
    let errors = [
        format!("mean error is {:.2}%", 100.0 * report.mape),
        format!("largest error is {:.2}%", 100.0 * report.max_error),
        format!("bias is {:+.2}%", 100.0 * report.bias),
    ];
    let sizes = [report.mape, report.max_error, report.bias.abs()];
    let all = bounds(args).into_iter().zip(sizes).zip(errors);
    let beyond = all.filter_map(|(((option, bound), size), error)| {
        let bound = bound.filter(|bound| 100.0 * size > *bound)?;
        Some(format!("failed: the {error}, beyond the {bound}% of {option}"))
    });
    beyond.collect()
}

fn filter(args: &ValidateArgs, cp: Vec<u32>) -> Result<Filter> {
    let passes = match args.pass {
        PassArg::Forward => vec![Pass::Forward],
        PassArg::Backward => vec![Pass::Backward],
        PassArg::Both => Vec::new(),
    };
    let sequences = args.seq.iter().map(|n| n.0).collect();
    Ok(Filter {
        schedules: schedules(&args.schedule)?,
        sequences,
        passes,
        cp,
        virtual_cp: args.virtual_cp.clone(),
        kv_heads: args.kv_heads.clone(),
        head_dims: args.head_dim.clone(),
        transports: args.transport.iter().map(|&t| t.into()).collect(),
        launchings: args.launching.iter().map(|&l| l.into()).collect(),
    })
}

/// What the options that leave a part can be where there are these points.
fn choices(points: &[Point]) -> String {
    let numbers = |of: fn(&Point) -> u64| {
        let values: BTreeSet<u64> = points.iter().map(of).collect();
        values.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
    };
    let names = |of: fn(&Point) -> &'static str| {
        let values: BTreeSet<&str> = points.iter().map(of).collect();
        values.into_iter().collect::<Vec<_>>().join(",")
    };
    format!(
        "it has --seq {}, --kv-heads {}, --head-dim {}, --transport {}, --launching {}",
        numbers(|p| p.seq_len),
        numbers(|p| p.shape.kv_heads.into()),
        numbers(|p| p.shape.head_dim.into()),
        names(Point::transport_name),
        names(|p| p.launching.name())
    )
}

fn bar(points: u64) -> ProgressBar {
    let bar = ProgressBar::new(points);
    bar.enable_steady_tick(Duration::from_millis(200));
    let style = ProgressStyle::with_template("{pos}/{len} {msg} ({eta} left)");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Draws predicted over measured, as `ringlab plot validate` does from the file.
fn draw(path: &Path, json: &Json<'_>) -> Result<()> {
    let table = Table::parse("the validation", &serde_json::to_string(json)?)?;
    let title = Some(format!("{}: predicted over measured", json.machine));
    let drawn = charts::draw(&table, &Request { title, ..Request::of(Kind::Validate) })?;
    output::write_file(path, &drawn.bytes(Picture::of(path)?)?)
}
