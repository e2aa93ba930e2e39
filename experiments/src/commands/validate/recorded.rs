//! Points that were measured earlier: a report of `ringlab validate --format json`, predicted anew.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ringlab_runtime::machine::Launching;
use ringlab_runtime::validate::{self, Filter, Origin, Point, Recorded, RecordedPoint};
use ringlab_sim::config::cluster::{Cluster, NcclSettings};
use ringlab_sim::config::{ConfigError, Source, json_error};
use ringlab_sim::engine::Load;
use ringlab_sim::plan::Transport;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::table::several;
use super::{Validation, bar, choices, filter};
use crate::args::ValidateArgs;
use crate::output::FORMAT_VERSION;
use crate::{interrupt, measured, presets};

/// Predicts every point of the report in `file` that the options leave, and compares.
pub fn validate(args: &ValidateArgs, file: &Path) -> Result<Validation> {
    let label = file.to_string_lossy();
    let recorded = parse(&label, &presets::read_text(file)?)?;
    let cluster = presets::cluster(&args.cluster)?;
    let links = args.links_of.as_deref().map_or_else(|| Ok(cluster.clone()), presets::cluster)?;
    let differences = measured::check_recorded(&cluster, &recorded.machine, &label)?;
    for note in differences.into_iter().chain(notes(&recorded, &cluster, &label)) {
        say!("{note}");
    }
    let settings = recorded.nccl_settings();
    let nccl = recorded.nccl.map(|_| settings);
    let (measured_with, machine) = (recorded.cluster_of_links().to_owned(), recorded.machine.clone());
    let points = left(recorded.points, &filter(args, args.cp.clone())?, &label)?;
    let is_virtual = |p: &RecordedPoint| p.launching == Launching::Virtual;
    if args.links_of.is_some() && !points.iter().any(is_virtual) {
        say!("--links-of changes nothing: no point that is left has virtual ranks");
    }
    for note in padded(&points, &cluster) {
        say!("{note}");
    }
    let cluster = set_nccl(cluster, settings, points.iter(), &label)?;
    let links = set_nccl(links, settings, points.iter().filter(|p| is_virtual(p)), &label)?;
    let (stop, bar) = (interrupt::flag()?, bar(points.len() as u64));
    let mut progress = |i: usize, point: &Point| {
        bar.set_position(i as u64);
        bar.set_message(point.to_string());
        !stop.is_set()
    };
    let report = validate::predict_anew(&points, (&cluster, &links), &mut progress);
    bar.finish_and_clear();
    Ok(Validation {
        cluster: cluster.name,
        machine,
        measured_in: Some(Origin { file: label.into_owned(), cluster: measured_with, links_of: links.name }),
        nccl,
        report,
        asked: points.len(),
        limit: None,
        is_interrupted: stop.is_set(),
    })
}

/// The cluster with these settings of NCCL if any of `points`, which are predicted on it, went by NCCL.
fn set_nccl<'p>(
    cluster: Cluster,
    settings: NcclSettings,
    mut points: impl Iterator<Item = &'p RecordedPoint>,
    label: &str,
) -> Result<Cluster> {
    if !points.any(|point| point.transport == Transport::Nccl) {
        return Ok(cluster);
    }
    let set = cluster.with_nccl(settings);
    set.with_context(|| format!("{label} was measured with a limit on NCCL's CTAs"))
}

/// What the report and the cluster lack.
fn notes(recorded: &Recorded, cluster: &Cluster, label: &str) -> Vec<String> {
    let mut notes = Vec::new();
    if cluster.device.power.is_none() && recorded.points.iter().any(|p| p.load == Load::Cold) {
        notes.push(format!(
            "{} has no [device.power]: points are predicted at the same rates after a rest and under load",
            cluster.name
        ));
    }
    if !recorded.not_reached.is_empty() {
        notes.push(format!(
            "{label} lacks {} that were not reached when it was made",
            several(recorded.not_reached.len(), "point")
        ));
    }
    notes
}

/// Which points are predicted with the kernel of larger heads or another type.
fn padded(points: &[RecordedPoint], cluster: &Cluster) -> BTreeSet<String> {
    let note =
        |p: &RecordedPoint| cluster.kernel(p.head_dim, p.dtype, p.pass).ok()?.stands_for(p.head_dim, p.dtype);
    points.iter().filter_map(note).collect()
}

/// The points that `filter` leaves.
fn left(mut points: Vec<RecordedPoint>, filter: &Filter, label: &str) -> Result<Vec<RecordedPoint>> {
    let all: Vec<Point> = points.iter().map(RecordedPoint::point).collect();
    for (option, given, is_virtual) in [("--cp", &filter.cp, false), ("--virtual", &filter.virtual_cp, true)]
    {
        let of_kind = all.iter().filter(|p| (p.launching == Launching::Virtual) == is_virtual);
        let known: BTreeSet<u32> = of_kind.map(|p| p.cp).collect();
        if let Some(cp) = given.iter().find(|cp| !known.contains(cp)) {
            let known: Vec<String> = known.iter().map(u32::to_string).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(",") };
            bail!("no point of {label} has {option} {cp}; it has {known}");
        }
    }
    points.retain(|recorded| filter.leaves(&recorded.point()));
    if points.is_empty() {
        bail!("no point of {label} is left; {}", choices(&all));
    }
    Ok(points)
}

#[derive(Deserialize)]
#[serde(expecting = "a report")]
struct Version {
    version: u32,
}

/// The report that `text` is.
fn parse(label: &str, text: &str) -> Result<Recorded, ConfigError> {
    if text.trim().is_empty() {
        return Err(ConfigError::whole(label, "the file is empty"));
    }
    let Version { version } = json(label, text)?;
    if version != FORMAT_VERSION {
        let message =
            format!("the report is of version {version}, and this program reads version {FORMAT_VERSION}");
        return Err(ConfigError::whole(label, message));
    }
    let recorded: Recorded = json(label, text)?;
    if recorded.points.is_empty() {
        return Err(ConfigError::whole(label, "the report has no points: nothing was measured"));
    }
    Ok(recorded)
}

/// Text as a `T`, an error at its place.
fn json<T: DeserializeOwned>(label: &str, text: &str) -> Result<T, ConfigError> {
    serde_json::from_str(text).map_err(|error| {
        let error = json_error(Source { label, text }, &error);
        let hint = match error.message() {
            "missing field `load`" => {
                "it is older than points that say how the devices were loaded, so it cannot be predicted anew"
            }
            _ => "expected a report that `ringlab validate --format json` wrote",
        };
        error.with_hint(hint)
    })
}
