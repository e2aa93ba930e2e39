//! `ringlab validate`: predicted against measured.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ringlab_runtime::machine::{Launching, Machine};
use ringlab_runtime::validate::{self, Class, Compared, Filter, Point, Report};
use ringlab_sim::config::cluster::{Cluster, NcclSettings};
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::Pass;
use ringlab_sim::units::SimTime;
use serde::Serialize;

use super::Outcome;
use crate::args::{LoadArg, MachineArg, PassArg, TransportArg, ValidateArgs, schedules};
use crate::charts::{self, Kind, Request, Table};
use crate::figures::Picture;
use crate::grid::grid;
use crate::limit::Limit;
use crate::nccl::Nccl;
use crate::output::FORMAT_VERSION;
use crate::{interrupt, measured, output, presets};

#[derive(Serialize)]
struct Json<'a> {
    version: u32,
    cluster: &'a str,
    machine: String,
    /// How NCCL was set up and predicted; `null` where it was not asked for.
    nccl: Option<Nccl>,
    #[serde(flatten)]
    report: &'a Report,
}

/// Predicts, runs and compares every point of the matrix.
pub fn run(args: &ValidateArgs) -> Result<Outcome> {
    args.plot.as_deref().map(Picture::of).transpose()?;
    output::check_targets([&args.out.output, &args.plot])?;
    check_bounds(args)?;
    let settings = nccl_settings(args)?;
    let cluster = presets::cluster(&args.cluster)?.with_nccl(settings)?;
    let mut machine = measured::machine(args.backend, is_cold(args, &cluster)?)?;
    if !machine.set_nccl(settings) {
        bail!("--nccl-ctas and --nccl-priority are for machines with NCCL, and here is none");
    }
    measured::check_cluster(&cluster, machine.as_ref())?;
    let identity = machine.identity();
    let real = real_ranks(args, machine.as_ref())?;
    let filter = filter(args, real)?;
    let points = validate::matrix(machine.as_ref(), &filter);
    if points.is_empty() {
        bail!("no point of this machine's matrix is left; {}", choices(machine.as_ref(), filter));
    }
    let (stop, bar) = (interrupt::flag()?, bar(points.len() as u64));
    let (mut limit, mut is_limited) = (Limit::new(args.limit), false);
    let mut progress = |i: usize, point: &Point| {
        bar.set_position(i as u64);
        bar.set_message(point.to_string());
        is_limited = !limit.allows_next();
        !is_limited && !stop.is_set()
    };
    let report = validate::validate(machine.as_mut(), &cluster, &points, &mut progress)?;
    bar.finish_and_clear();
    let machine = format!("{} x {} ({})", identity.devices, identity.device, identity.versions);
    let nccl = args.nccl.is_given().then(|| settings.into());
    let json = Json { version: FORMAT_VERSION, cluster: &cluster.name, machine, nccl, report: &report };
    let rows: Vec<Row> = report.points.iter().map(Row::from).collect();
    output::emit(&args.out, || table(&json), &json, &rows)?;
    if let Some(path) = args.plot.as_deref().filter(|_| !rows.is_empty()) {
        draw(path, &json)?;
    }
    if !report.not_reached.is_empty() {
        let why = match &report.broke {
            Some(error) => error.clone(),
            None if is_limited => format!("{} was near", limit.text()),
            None => "stopped by Ctrl-C".into(),
        };
        let (left, all) = (report.not_reached.len(), points.len());
        anstream::eprintln!("{why}: {left} of {all} points were NOT run, and no figure is about them");
    }
    let too_far = beyond(args, &report);
    for line in &too_far {
        anstream::eprintln!("{line}");
    }
    Ok(if stop.is_set() {
        Outcome::Interrupted
    } else if too_far.is_empty() && report.broke.is_none() && !report.points.is_empty() {
        Outcome::Fine
    } else {
        Outcome::Failed
    })
}

/// How NCCL is set up, in what is predicted and in what is run.
fn nccl_settings(args: &ValidateArgs) -> Result<NcclSettings> {
    if args.backend == MachineArg::Cpu && args.nccl.is_given() {
        bail!("--nccl-ctas and --nccl-priority are for GPUs only; add --backend cuda");
    }
    args.nccl.check(matches!(args.transport[..], [TransportArg::Nccl]))?;
    Ok(args.nccl.settings())
}

/// Whether short runs are measured after a rest.
fn is_cold(args: &ValidateArgs, cluster: &Cluster) -> Result<bool> {
    let is_known = cluster.device.power.is_some();
    match args.load {
        Some(_) if args.backend == MachineArg::Cpu => {
            bail!("--load is for GPUs (--backend cuda): nothing is known of a power limit of this processor")
        }
        Some(LoadArg::Cold) if !is_known => {
            bail!("{} has no [device.power], so how fast it computes after a rest is not known", cluster.name)
        }
        load => {
            if args.backend == MachineArg::Cuda && !is_known {
                anstream::eprintln!(
                    "{} has no [device.power]: long runs are predicted at the rates of short ones, which are measured after a rest",
                    cluster.name
                );
            }
            Ok(load != Some(LoadArg::Sustained))
        }
    }
}

fn check_bounds(args: &ValidateArgs) -> Result<()> {
    for (name, bound) in [("--max-mape", args.max_mape), ("--max-error", args.max_error)] {
        if let Some(bound) = bound.filter(|b| !b.is_finite() || *b < 0.0) {
            bail!("{name} must be a finite number of percent that is not negative, not {bound}");
        }
    }
    Ok(())
}

/// Which bounds do not hold.
fn beyond(args: &ValidateArgs, report: &Report) -> Vec<String> {
    let bounds = [
        ("mean", "--max-mape", args.max_mape, report.mape),
        ("largest", "--max-error", args.max_error, report.max_error),
    ];
    let beyond = |(which, option, bound, error): (&str, &str, Option<f64>, f64)| {
        let bound = bound.filter(|bound| 100.0 * error > *bound)?;
        Some(format!("failed: the {which} error is {:.2}%, above the {bound}% of {option}", 100.0 * error))
    };
    bounds.into_iter().filter_map(beyond).collect()
}

/// Ranks on devices of their own; none where there is one device and virtual ranks were asked for.
fn real_ranks(args: &ValidateArgs, machine: &dyn Machine) -> Result<Vec<u32>> {
    let devices = machine.identity().devices;
    if !args.virtual_cp.is_empty() && !machine.has_virtual() {
        bail!(
            "virtual ranks are for GPUs (--backend cuda); threads run any number of ranks with `ringlab run`"
        );
    }
    if args.cp.is_empty() {
        return Ok(match (machine.has_virtual(), devices) {
            (true, 0..2) => Vec::new(),
            (true, _) => validate::ranks(devices),
            (false, _) => vec![checked(devices, devices)?],
        });
    }
    args.cp.iter().map(|&cp| checked(cp, devices)).collect()
}

/// A number of ranks that so many devices can have.
fn checked(cp: u32, devices: u32) -> Result<u32> {
    if cp < 2 || cp > devices {
        bail!(
            "{cp} ranks cannot be validated on {devices} devices: a schedule needs two, each its own device; \
             virtual ranks on one GPU (--virtual 4,8) show the computations, `ringlab run` and `ringlab simulate` \
             take any number"
        );
    }
    Ok(cp)
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

/// What the options that leave a part of the matrix can be here.
fn choices(machine: &dyn Machine, filter: Filter) -> String {
    let of_all = Filter { cp: filter.cp, virtual_cp: filter.virtual_cp, ..Filter::default() };
    let points = validate::matrix(machine, &of_all);
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

/// One line of the CSV.
#[derive(Serialize)]
struct Row {
    schedule: String,
    pass: String,
    cp: u32,
    seq_len: u64,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    dtype: String,
    transport: Transport,
    launching: Launching,
    chunks: u32,
    predicted_s: f64,
    predicted_low_s: Option<f64>,
    predicted_high_s: Option<f64>,
    measured_s: f64,
    spread_s: f64,
    error: f64,
    inside: Option<bool>,
    predicted_bubble_ratio: f64,
    measured_bubble_ratio: f64,
    predicted_exposed_s: f64,
    measured_exposed_s: f64,
    median_step_error: f64,
    worst_step_error: f64,
    loaded_s: f64,
    duty: f64,
}

impl From<&Compared> for Row {
    fn from(p: &Compared) -> Self {
        let (point, shape) = (&p.point, &p.point.shape);
        Self {
            schedule: point.schedule.to_string(),
            pass: point.pass.to_string(),
            cp: point.cp,
            seq_len: point.seq_len,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            dtype: shape.dtype.to_string(),
            transport: point.transport,
            launching: point.launching,
            chunks: point.chunks,
            predicted_s: p.predicted_s,
            predicted_low_s: p.predicted_low_s,
            predicted_high_s: p.predicted_high_s,
            measured_s: p.measured_s,
            spread_s: p.spread_s,
            error: p.error,
            inside: p.inside,
            predicted_bubble_ratio: p.predicted_bubble_ratio,
            measured_bubble_ratio: p.measured_bubble_ratio,
            predicted_exposed_s: p.predicted_exposed_s,
            measured_exposed_s: p.measured_exposed_s,
            median_step_error: p.median_step_error,
            worst_step_error: p.worst_step_error,
            loaded_s: p.loaded_s,
            duty: p.duty,
        }
    }
}

/// Draws predicted over measured, as `ringlab plot validate` does from the file.
fn draw(path: &Path, json: &Json<'_>) -> Result<()> {
    let table = Table::parse("the validation", &serde_json::to_string(json)?)?;
    let title = Some(format!("{}: predicted over measured", json.machine));
    let drawn = charts::draw(&table, &Request { title, ..Request::of(Kind::Validate) })?;
    output::write_file(path, &drawn.bytes(Picture::of(path)?)?)
}

/// How much load was before and between the measured repeats.
fn loads(report: &Report) -> String {
    let loaded = report.points.iter().filter(|p| p.loaded_s > 0.0);
    let least = |of: fn(&Compared) -> f64| loaded.clone().map(of).reduce(f64::min);
    least(|p| p.loaded_s).zip(least(|p| p.duty)).map_or(String::new(), |(loaded, duty)| {
        let loaded = SimTime::from_secs_f64(loaded);
        format!("  each point was measured after {loaded} of load or more; devices worked {:.0}% of the time or more\n", 100.0 * duty)
    })
}

/// Errors by what points have in common.
fn classes(classes: &[Class]) -> String {
    if classes.is_empty() {
        return String::new();
    }
    let percent = |x: f64| format!("{:.1}%", 100.0 * x);
    let cells = classes.iter().map(|c| {
        [
            c.by.to_owned(),
            c.value.clone(),
            c.points.to_string(),
            percent(c.mape),
            format!("{:+.1}%", 100.0 * c.bias),
            percent(c.max_error),
        ]
    });
    format!("\n{}\n", grid(["by", "value", "points", "MAPE", "bias", "worst"], 2, cells))
}

fn table(json: &Json<'_>) -> String {
    let report = json.report;
    let settings = json.nccl.as_ref().map_or(String::new(), Nccl::text);
    let mut text = format!("{} against {}{settings}\n\n", json.cluster, json.machine);
    if report.points.is_empty() {
        text += "  no point was run\n";
    } else {
        text += &points(report);
        text += &figures(report);
    }
    for line in &report.left_out {
        text += &format!("  left out: {line}\n");
    }
    if !report.not_reached.is_empty() {
        let broke =
            report.broke.as_ref().map_or(String::new(), |error| format!("; the runs broke at {error}"));
        text += &format!("  NOT RUN, {} points{broke}:\n", report.not_reached.len());
        report.not_reached.iter().for_each(|point| text += &format!("    {point}\n"));
    }
    if report.points.is_empty() {
        return text;
    }
    text += &loads(report);
    text + &classes(&report.classes)
        + "  steps: median error of single attention calls; p/m: predicted / measured\n"
}

/// Every point that was run.
fn points(report: &Report) -> String {
    let time = |s: f64| SimTime::from_secs_f64(s).to_string();
    let percent = |x: f64| format!("{:.1}%", 100.0 * x);
    let cells = report.points.iter().map(|p| {
        let bars = p.predicted_low_s.zip(p.predicted_high_s);
        let half = bars.map(|(low, high)| (high - low) / 2.0 / p.predicted_s);
        [
            p.point.to_string(),
            time(p.predicted_s),
            half.map_or("-".into(), |h| format!("±{:.1}%", 100.0 * h)),
            time(p.measured_s),
            percent(p.spread),
            format!("{:+.1}%", 100.0 * p.error),
            format!("{} / {}", percent(p.predicted_bubble_ratio), percent(p.measured_bubble_ratio)),
            format!("{} / {}", time(p.predicted_exposed_s), time(p.measured_exposed_s)),
            percent(p.median_step_error),
        ]
    });
    let header =
        ["point", "predicted", "90%", "measured", "spread", "error", "bubble p/m", "exposed p/m", "steps"];
    format!("{}\n", grid(header, 1, cells))
}

/// What the points come to.
fn figures(report: &Report) -> String {
    let percent = |x: f64| format!("{:.1}%", 100.0 * x);
    let mut text = format!(
        "  {} points: MAPE {}, worst {}, bias {:+.1}%\n",
        report.points.len(),
        percent(report.mape),
        percent(report.max_error),
        100.0 * report.bias
    );
    if let Some(coverage) = report.coverage {
        text += &format!("  inside their 90% interval: {}\n", percent(coverage));
    }
    if let Some((mean, worst)) = report.speedup_mape.zip(report.speedup_max_error) {
        text += &format!("  speed-ups over ring: mean error {}, worst {}\n", percent(mean), percent(worst));
    }
    text
}
