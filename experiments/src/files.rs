//! The files of a command: what it reads and what it writes, checked before it does anything.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::args::{Command, PlotCommand, RunArgs, SetupArgs, SweepArgs};
use crate::commands::run::Target;
use crate::{documents, output, presets, sweep};

/// What a command reads and writes, as far as its arguments say.
#[derive(Default)]
struct Files {
    read: Vec<PathBuf>,
    written: Vec<PathBuf>,
}

/// Refuses results that cannot be written, that are one file, or that would take the place of what `command` reads.
pub fn check(command: &Command) -> Result<()> {
    let Files { read, written } = Files::of(command)?;
    output::check_targets(&written)?;
    output::check_kept(&written, &read)
}

impl Files {
    fn of(command: &Command) -> Result<Self> {
        let none = Self::default();
        Ok(match command {
            Command::Simulate(args) => none.read_by(&args.setup).written([
                &args.out.output,
                &args.trace,
                &args.plot,
                &args.spans,
                &args.report,
            ]),
            Command::Check(args) => none.read_by(&args.setup).written([&args.out.output]),
            Command::Layout(args) => none.read_by(&args.setup).written([&args.out.output]),
            Command::Run(args) => none.of_run(args)?,
            Command::Train(args) => {
                none.named(Some(&args.cluster), Some(&args.model)).written([&args.out.output])
            }
            Command::Tune(args) => {
                none.named(Some(&args.cluster), Some(&args.model)).written([&args.out.output])
            }
            Command::Paper(args) => none
                .named(args.cluster.as_ref(), args.model.as_ref())
                .written([&args.out.output, &args.report]),
            Command::Sweep(args) => {
                let read = args.merge.iter().chain([&args.file]).cloned().collect();
                Self { read, written: of_sweep(args) }
            }
            Command::Calibrate(args) => {
                none.named(args.base.as_ref(), None).written([&args.output, &args.samples])
            }
            Command::Validate(args) => none
                .named(Some(&args.cluster), None)
                .named(args.links_of.as_ref(), None)
                .and_read(args.measured.iter())
                .written([&args.out.output, &args.plot]),
            Command::Bench(args) => none.and_read(&args.peers).written([&args.out.output]),
            Command::Plot(args) => match (&args.command, &args.chart) {
                (None, Some(chart)) => {
                    Self { read: vec![chart.file.clone()], written: vec![chart.output.clone(), chart.data()] }
                }
                (Some(PlotCommand::Gallery { .. }), _) | (None, None) => none,
            },
            Command::Presets(args) => none.written([&args.out.output]),
            Command::Completions(args) => none.written([&args.output]),
            Command::Schema(args) if args.name.as_deref() != Some("all") => none.written([&args.output]),
            // These write folders, if anything.
            Command::Schema(_) | Command::Man(_) | Command::Explore(_) => none,
        })
    }

    fn of_run(self, args: &RunArgs) -> Result<Self> {
        let metrics = match Target::of(&args.metrics)? {
            Some(Target::File(path)) => Some(path),
            Some(Target::Address(_)) | None => None,
        };
        let results = [&args.out.output, &args.trace, &args.plot, &args.timeline_csv, &metrics];
        Ok(self.read_by(&args.setup).written(results))
    }

    /// And what a set-up names.
    fn read_by(self, args: &SetupArgs) -> Self {
        let documents = args.mask.as_deref().and_then(documents::file);
        self.named(Some(&args.cluster), Some(&args.model)).and_read(&args.run).and_read(&documents)
    }

    /// And the files of a cluster and a model, where they are not built in.
    fn named(self, cluster: Option<&String>, model: Option<&String>) -> Self {
        let cluster = cluster.and_then(|name| presets::cluster_file(name));
        let model = model.and_then(|name| presets::model_file(name));
        self.and_read(cluster.iter().chain(&model))
    }

    fn and_read<'a>(mut self, paths: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        self.read.extend(paths.into_iter().cloned());
        self
    }

    fn written<'a>(self, results: impl IntoIterator<Item = &'a Option<PathBuf>>) -> Self {
        Self { written: results.into_iter().flatten().cloned().collect(), ..self }
    }
}

/// What a sweep writes: its result, and beside it what the result grows in.
pub fn of_sweep(args: &SweepArgs) -> Vec<PathBuf> {
    let growing =
        |path: &Path| if args.merge.is_empty() { sweep::growing(path).to_vec() } else { Vec::new() };
    let paths = args.output.iter().flat_map(|path| [vec![path.clone()], growing(path)].concat());
    paths.collect()
}
