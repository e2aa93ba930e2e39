//! The result for people.

use super::Report;
use super::judge::Bounds;
use super::row::{RankRow, Row, bytes, seconds};
use crate::args::{Backend, RunArgs};
use crate::grid::grid;
use crate::nccl::Nccl;

/// All that a run has to say.
pub fn table(args: &RunArgs, report: &Report<'_>) -> String {
    let mut text = format!("{}\n\n", heading(args, report));
    match args.backend {
        Backend::Cpu => text += &on_threads(args, report.rows),
        Backend::Cuda => {
            text += &times(args, report.rows);
            text += "\n";
            text += &numbers(args, report.rows);
        }
    }
    if !args.errors_over_cp.is_empty() {
        text += "\n";
        text += &growth(args, report.rows);
    }
    if args.per_rank || args.backend == Backend::Cuda {
        text += "\n";
        text += &ranks(args, report);
    }
    text + &notes(args, report)
}

fn heading(args: &RunArgs, report: &Report<'_>) -> String {
    let row = &report.rows[0];
    let inputs = format!("random inputs of seed {}", args.seed);
    if args.backend == Backend::Cpu {
        let ranks = match args.errors_over_cp[..] {
            [] => row.cp.to_string(),
            ref all => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let tokens = row.seq_len;
        return format!(
            "{ranks} threads, one a rank, {tokens} tokens, fp32 whatever the model stores, {inputs}"
        );
    }
    let device = report.ranks[0].first().and_then(|r| r.device.clone()).unwrap_or_default();
    let driver = report.driver.map(|d| format!(", CUDA {d}")).unwrap_or_default();
    let place = match (row.is_virtual, report.processes) {
        (true, _) => format!("{} virtual ranks on one {device}", row.cp),
        (false, 1) => format!("{} x {device}", row.cp),
        (false, n) => format!("{} x {device} in {n} processes by {}", row.cp, report.launcher),
    };
    format!("{place}{driver}, {} tokens, {}, {inputs}", row.seq_len, row.dtype)
}

/// The schedule, with its ranks where there are several numbers of them.
fn name(args: &RunArgs, row: &Row) -> String {
    if args.errors_over_cp.is_empty() {
        row.schedule.clone()
    } else {
        format!("{} on {}", row.schedule, row.cp)
    }
}

fn error(e: Option<f64>) -> String {
    e.map_or("-".into(), |e| format!("{e:.1e}"))
}

fn percent(x: Option<f64>) -> String {
    x.map_or("-".into(), |x| format!("{:.1}%", 100.0 * x))
}

fn time(s: Option<f64>) -> String {
    s.map_or("-".into(), seconds)
}

fn verdict(row: &Row, good: &str) -> String {
    match (row.within_bound, row.sampled_rows) {
        (false, _) => "WRONG".into(),
        (true, Some(0)) => "not compared".into(),
        (true, _) => good.into(),
    }
}

fn on_threads(args: &RunArgs, rows: &[Row]) -> String {
    let cells = rows.iter().map(|r| {
        [
            name(args, r),
            r.pass.clone(),
            seconds(r.time_s),
            bytes(r.bytes_moved),
            bytes(r.peak_memory_bytes),
            error(r.o_max_rel_error),
            error(r.lse_max_rel_error),
            error(r.dq_max_rel_error),
            error(r.dk_max_rel_error),
            error(r.dv_max_rel_error),
            verdict(r, "exact"),
        ]
    });
    let header = ["schedule", "pass", "time", "moved", "memory", "o", "lse", "dq", "dk", "dv", "verdict"];
    grid(header, 2, cells)
}

fn times(args: &RunArgs, rows: &[Row]) -> String {
    let cells = rows.iter().map(|r| {
        [
            name(args, r),
            r.pass.clone(),
            r.mode.clone().unwrap_or_default(),
            seconds(r.time_s),
            percent(Some(r.spread)),
            seconds(r.compute_s),
            seconds(r.comm_s),
            time(r.exposed_comm_s),
            percent(r.bubble_ratio),
            r.tflops_per_gpu.map_or("-".into(), |t| format!("{t:.0}")),
            time(r.predicted_s),
            r.prediction_error.map_or("-".into(), |e| format!("{:+.1}%", 100.0 * e)),
        ]
    });
    let header = [
        "schedule",
        "pass",
        "mode",
        "time",
        "spread",
        "compute",
        "comm.",
        "exposed",
        "bubble",
        "TFLOP/s/GPU",
        "predicted",
        "off by",
    ];
    grid(header, 3, cells)
}

fn numbers(args: &RunArgs, rows: &[Row]) -> String {
    let cells = rows.iter().map(|r| {
        [
            name(args, r),
            r.pass.clone(),
            bytes(r.bytes_moved),
            bytes(r.peak_memory_bytes),
            bytes(r.planned_memory_bytes),
            error(r.worst_error(true)),
            error(r.o_max_rel_error),
            error(r.lse_max_rel_error),
            error(r.dq_max_rel_error),
            error(r.dk_max_rel_error),
            error(r.dv_max_rel_error),
            verdict(r, "good"),
        ]
    });
    let header =
        ["schedule", "pass", "moved", "memory", "planned", "L2", "o", "lse", "dq", "dk", "dv", "verdict"];
    grid(header, 2, cells)
}

/// The worst error of every schedule and pass, by ranks.
fn growth(args: &RunArgs, rows: &[Row]) -> String {
    let mut keys: Vec<(&str, &str)> = rows.iter().map(|r| (r.schedule.as_str(), r.pass.as_str())).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.sort_by_key(|key| rows.iter().position(|r| (r.schedule.as_str(), r.pass.as_str()) == *key));
    let by_l2_norm = Bounds::of(args).by_l2_norm;
    let mut cells = Vec::new();
    for (schedule, pass) in keys {
        let of = |cp: u32| rows.iter().find(|r| r.cp == cp && r.schedule == schedule && r.pass == pass);
        let errors: Vec<(u32, f64)> = args
            .errors_over_cp
            .iter()
            .filter_map(|&cp| Some((cp, of(cp)?.worst_error(by_l2_norm)?)))
            .collect();
        let listed = errors.iter().map(|(cp, e)| format!("P={cp} {e:.1e}")).collect::<Vec<_>>().join("  ");
        let least = errors.iter().min_by_key(|(cp, _)| *cp);
        let most = errors.iter().max_by_key(|(cp, _)| *cp);
        let grown = match (least, most) {
            (Some((a, first)), Some((b, last))) if a != b && *first > 0.0 => format!("{:.2}x", last / first),
            _ => "-".into(),
        };
        cells.push([schedule.to_owned(), pass.to_owned(), listed, grown]);
    }
    grid(["schedule", "pass", "largest error on P ranks", "most over fewest"], 3, cells)
}

fn ranks(args: &RunArgs, report: &Report<'_>) -> String {
    let (unit, scale) = match args.backend {
        Backend::Cpu => ("kernel GFLOP/s", 1e3),
        Backend::Cuda => ("kernel TFLOP/s", 1.0),
    };
    let line = |(row, rank): (&Row, &RankRow)| {
        [
            name(args, row),
            row.pass.clone(),
            rank.rank.to_string(),
            seconds(rank.compute_s),
            seconds(rank.comm_s),
            seconds(rank.exposed_comm_s),
            seconds(rank.wait_s),
            percent(Some(rank.idle_ratio)),
            rank.kernel_tflops.map_or("-".into(), |t| format!("{:.1}", t * scale)),
            bytes(rank.peak_memory_bytes),
        ]
    };
    let pairs =
        report.rows.iter().zip(report.ranks).flat_map(|(row, ranks)| ranks.iter().map(move |r| (row, r)));
    let header = ["schedule", "pass", "rank", "compute", "comm.", "exposed", "wait", "idle", unit, "memory"];
    grid(header, 2, pairs.map(line))
}

fn notes(args: &RunArgs, report: &Report<'_>) -> String {
    let mut text = String::new();
    for r in report.rows.iter().filter(|r| !r.notes.is_empty()) {
        text += &format!("  {} {}: {}\n", name(args, r), r.pass, r.notes);
    }
    for line in report.left_out {
        text += &format!("  left out: {line}\n");
    }
    let compared = match report.rows[0].sampled_rows {
        Some(0) => "  no row was compared with the reference (--sample-rows 0)\n".to_owned(),
        Some(n) => format!(
            "  {n} rows of each tensor were compared with the reference, drawn by the seed (--sample-rows)\n"
        ),
        None => String::new(),
    };
    text += &compared;
    text += &judged(Bounds::of(args));
    if args.backend == Backend::Cuda {
        text += &on_gpus(args, report);
    }
    text + &report.environment.lines(report.rows.len())
}

/// What the errors are and which are good.
fn judged(bounds: Bounds) -> String {
    let Bounds { by_l2_norm, o, lse, gradients } = bounds;
    let rows = "o, lse, dq, dk, dv: largest relative error against plain softmax in f64";
    if by_l2_norm {
        return format!(
            "  {rows}, by rows\n  L2: relative error in the L2 norm, the worst of the pass's tensors; good: o at most {o:e}, \
             gradients {gradients:e}, lse's rows {lse:e}\n"
        );
    }
    format!("  {rows}; exact: all at most {o:e}\n")
}

/// How the times of a run on GPUs are to be read.
fn on_gpus(args: &RunArgs, report: &Report<'_>) -> String {
    let row = &report.rows[0];
    let mut text = format!(
        "  time: {} of {} repeats after {} warm-up runs, on the slowest rank; spread: longest less shortest over it\n  \
         compute, comm., exposed, bubble: of the repeats that time every operation, likewise; the largest rank's\n",
        row.time_is, row.repeats, row.warmup
    );
    if row.is_virtual {
        text += "  virtual ranks: one GPU did all ranks' work in turn; no time here says anything about several GPUs\n";
    }
    let most = |of: fn(&Row) -> Option<f64>| report.rows.iter().filter_map(of).reduce(f64::max);
    if let Some(cost) = most(|r| r.recording_cost) {
        text += &format!("  timing every operation adds at most {:.1}% to a run\n", 100.0 * cost);
    }
    if let Some(error) = most(|r| r.alignment_error_s) {
        text += &format!("  clocks of two ranks differ by at most {}\n", seconds(error));
    }
    let least = |of: fn(&Row) -> Option<f64>| report.rows.iter().filter_map(of).reduce(f64::min);
    if let Some((loaded, duty)) = least(|r| r.loaded_s).zip(least(|r| r.duty)) {
        text += &format!(
            "  runs had followed each other for {} or more before the measured ones (--sustain), during which GPUs worked for \
             {:.0}% of the time or more\n",
            seconds(loaded),
            100.0 * duty
        );
    }
    if let Some(posting) = most(|r| r.posting_s) {
        text += &format!("  a host posts a run within {}\n", seconds(posting));
    }
    if let Some(context) = report.rows.iter().filter_map(|r| r.context_memory_bytes).max() {
        text += &format!(
            "  memory: the largest rank's tensors as allocated, beside the plan's; contexts, kernels and communicators take \
             {} more\n",
            bytes(context)
        );
    }
    match &row.predicted_cluster {
        Some(cluster) => {
            let settings = Nccl::from(args.gpu.nccl.settings()).text();
            text += &format!("  predicted: the same plan simulated on {cluster} (--cluster){settings}\n");
        }
        None if !row.is_virtual => {
            let why = report.unpredicted.unwrap_or("the cluster has no such kernel");
            text += &format!("  no prediction: {why}\n");
        }
        None => {}
    }
    text
}
