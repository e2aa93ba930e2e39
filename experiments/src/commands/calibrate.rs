//! `ringlab calibrate`: this machine, measured, as a cluster.

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use ringlab_runtime::calibrate::{self, CalibrateError, Calibrated};
use ringlab_sim::config::cluster::Cluster;

use super::Outcome;
use crate::args::CalibrateArgs;
use crate::grid::grid;
use crate::{interrupt, measured, output};

/// Measures and writes the cluster.
pub fn run(args: &CalibrateArgs) -> Result<Outcome> {
    let mut machine = measured::machine(args.backend, true)?;
    let base = measured::base(args.base.as_deref(), args.backend, &machine.identity().device)?;
    let stop = interrupt::flag()?;
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::default_spinner());
    let mut progress = |what: &str| {
        bar.set_message(what.to_owned());
        bar.tick();
        !stop.is_set()
    };
    let result = calibrate::calibrate(machine.as_mut(), &base, &measured::today()?, &mut progress);
    bar.finish_and_clear();
    let calibrated = match result {
        Err(CalibrateError::Stopped) => {
            say!("stopped: no file was written");
            return Ok(Outcome::Interrupted);
        }
        other => other?,
    };
    if let Some(path) = &args.samples {
        output::write_file(path, &samples(&calibrated)?)?;
    }
    let text = calibrated.cluster.to_toml();
    Cluster::parse("calibration", &text).context("what was measured makes no cluster; none was written")?;
    match &args.output {
        Some(path) => output::write_file(path, text.as_bytes())?,
        None => output::print(&text)?,
    }
    say!("{}", report(&calibrated).trim_end_matches('\n'));
    Ok(Outcome::Fine)
}

fn report(calibrated: &Calibrated) -> String {
    let percent = |x: f64| format!("{:.1}%", 100.0 * x);
    let rows = calibrated.fits.iter().map(|fit| {
        [
            fit.what.clone(),
            fit.constants.clone(),
            fit.points.len().to_string(),
            percent(fit.residual),
            percent(fit.worst),
            percent(fit.spread),
        ]
    });
    let mut text = format!("{}\n", calibrated.cluster.source);
    text += &grid(["fit", "constants", "points", "rms residual", "largest", "spread"], 2, rows);
    for note in &calibrated.notes {
        text += &format!("  {note}\n");
    }
    text
}

/// Every measured point as a line of CSV.
fn samples(calibrated: &Calibrated) -> Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(["fit", "probe", "measured_s", "fitted_s", "spread"])?;
    for (fit, point) in calibrated.fits.iter().flat_map(|fit| fit.points.iter().map(move |p| (fit, p))) {
        writer.serialize((&fit.what, &point.probe, point.measured_s, point.fitted_s, point.spread))?;
    }
    Ok(writer.into_inner()?)
}
