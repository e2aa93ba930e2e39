//! Timelines as files: Gantt charts, Chrome traces, spans.

use std::path::Path;

use anyhow::{Result, bail};
use ringlab_plots::{Panel, chrome, csv, gantt};
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::Plan;
use ringlab_sim::timeline::Timeline;

use crate::output::write_file;

/// Pixels of a PNG for each unit of the SVG.
pub const PNG_SCALE: f32 = 2.0;

/// A plan with its timeline, predicted or measured.
pub struct Run<'a> {
    pub plan: &'a Plan,
    pub timeline: &'a Timeline,
    pub metrics: &'a Metrics,
}

impl<'a> Run<'a> {
    /// The timeline with its plan and its figures.
    pub fn panel(&self) -> Panel<'a> {
        let m = self.metrics;
        let panel = Panel::new(format!("{} {}", self.plan.name, self.plan.pass), self.timeline)
            .with_plan(self.plan)
            .with_bubble(m.bubble_ratio);
        match m.tflops_per_gpu {
            rate if rate >= 1.0 => panel.with_note(format!("{rate:.0} TFLOP/s/GPU")),
            _ => panel,
        }
    }
}

/// What a picture's ending asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Picture {
    /// Vector graphics.
    Svg,
    /// Pixels.
    Png,
}

impl Picture {
    /// By the file's ending.
    pub fn of(path: &Path) -> Result<Self> {
        let ending = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        match ending.as_deref() {
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            _ => bail!("cannot tell what picture {} should be; end its name in .svg or .png", path.display()),
        }
    }
}

/// Draws the timelines below each other on one time axis.
pub fn gantt(path: &Path, title: &str, runs: &[Run<'_>]) -> Result<()> {
    let panels: Vec<Panel<'_>> = runs.iter().map(Run::panel).collect();
    let bytes = match Picture::of(path)? {
        Picture::Svg => gantt::svg(title, &panels).into_bytes(),
        Picture::Png => gantt::png(title, &panels, PNG_SCALE)?,
    };
    write_file(path, &bytes)
}

/// Writes a Chrome trace.
pub fn trace(path: &Path, runs: &[Run<'_>]) -> Result<()> {
    let panels: Vec<Panel<'_>> = runs.iter().map(Run::panel).collect();
    write_file(path, &chrome::trace(&panels))
}

/// Writes every span as CSV.
pub fn spans(path: &Path, runs: &[Run<'_>]) -> Result<()> {
    let panels: Vec<Panel<'_>> = runs.iter().map(Run::panel).collect();
    write_file(path, csv::timeline(&panels).as_bytes())
}
