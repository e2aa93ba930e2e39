//! A row of the CSV.

use std::fmt::Write;

use ringlab_sim::config::Keyword;
use ringlab_sim::config::cluster::Priority;
use ringlab_sim::disturb::Percentiles;
use ringlab_sim::metrics::Metrics;
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::problem::Shape;
use ringlab_sim::schedule::Route;
use ringlab_sim::units::{Bytes, SimTime};

use super::grid::Grid;
use super::point::Point;

/// Names of the columns. `row` counts the grid from 0; settings of NCCL are empty where they are the cluster's; what could not be planned has empty figures and a `reason`.
pub const HEADER: &str = "row,cluster,link_bandwidth_bytes_per_s,nic_bandwidth_bytes_per_s,model,heads,kv_heads,head_dim,\
dtype,batch,mask,seq_len,cp,schedule,pass,transport,nccl_ctas,nccl_priority,route,chunks,prefetch,needed_only,pad,straggler,jitter,slow_link,failed_link,repeats,seed,padding,makespan_s,\
makespan_p5_s,makespan_p50_s,makespan_p95_s,makespan_p99_s,bubble_ratio,\
exposed_comm_s,imbalance,tflops_per_gpu,mfu,peak_memory_bytes,device_memory_bytes,fits,bytes_moved,reason";

/// Columns of figures between the configuration and the reason.
const FIGURES: usize = 15;

/// What all passes of a configuration come to; passes that follow each other are added up.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// Tokens that were added to fit the layout.
    pub padding: u64,
    /// Time of one attention layer.
    pub makespan: SimTime,
    /// Over the repeats of a disturbed run, of which all other figures are the median's.
    pub percentiles: Option<Percentiles>,
    /// Share of the GPUs' time in which they do not compute.
    pub bubble_ratio: f64,
    /// On the rank that has most of it.
    pub exposed_comm: SimTime,
    /// Largest over mean busy time of a rank, of the first pass.
    pub imbalance: f64,
    /// By the mask's area.
    pub tflops_per_gpu: f64,
    /// The largest rank's attention buffers.
    pub peak_memory: Bytes,
    /// Over all ranks.
    pub bytes_moved: Bytes,
}

impl Figures {
    /// The figures of plans with `flops` mask-area FLOPs each, run one after the other.
    pub fn of<'a>(passes: impl Iterator<Item = (&'a Plan, f64, Metrics)>) -> Self {
        let mut all = Self {
            padding: 0,
            makespan: SimTime::ZERO,
            percentiles: None,
            bubble_ratio: 0.0,
            exposed_comm: SimTime::ZERO,
            imbalance: 0.0,
            tflops_per_gpu: 0.0,
            peak_memory: Bytes(0),
            bytes_moved: Bytes(0),
        };
        let (mut busy, mut work, mut ranks) = (0.0, 0.0, 0.0);
        for (i, (plan, flops, metrics)) in passes.enumerate() {
            if i == 0 {
                all.imbalance = metrics.imbalance;
                all.padding = plan.layout.documents().padding();
                ranks = f64::from(plan.ranks());
            }
            all.makespan += metrics.makespan;
            all.exposed_comm += metrics.exposed_comm;
            all.peak_memory = all.peak_memory.max(metrics.peak_memory);
            all.bytes_moved += metrics.bytes_moved;
            busy += metrics.ranks.iter().map(|r| r.busy.as_secs_f64()).sum::<f64>();
            work += flops;
        }
        let gpu_seconds = ranks * all.makespan.as_secs_f64();
        if gpu_seconds > 0.0 {
            all.bubble_ratio = 1.0 - busy / gpu_seconds;
            all.tflops_per_gpu = work / gpu_seconds / 1e12;
        }
        all
    }
}

/// Appends the line of the configuration at `index`.
pub fn write(out: &mut String, grid: &Grid, index: u64, point: &Point, result: &Result<Figures, String>) {
    let model = grid.model(point);
    let shape = point.shape(model);
    let _ = write!(out, "{index},");
    write_configuration(out, grid, point, &shape);
    match result {
        Ok(figures) => write_figures(out, grid, point, figures),
        Err(reason) => {
            out.extend(std::iter::repeat_n(',', FIGURES));
            quoted(out, &reason.replace('\n', "; "));
        }
    }
    out.push('\n');
}

fn write_configuration(out: &mut String, grid: &Grid, point: &Point, shape: &Shape) {
    let (cluster, model) = (grid.cluster(point), grid.model(point));
    let link = point.rates.link.unwrap_or_else(|| match point.options.transport {
        Transport::CopyEngine => cluster.fabric.copy.bandwidth,
        Transport::Nccl => {
            let nccl = &cluster.fabric.nccl;
            let limit = nccl.limits.iter().find(|limit| Some(limit.ctas) == point.nccl.ctas);
            limit.map_or(nccl.bandwidth, |limit| limit.bandwidth)
        }
    });
    let nic = point.rates.nic.or(cluster.network.as_ref().map(|n| n.transport.bandwidth));
    let (mask, seq) = match (grid.mask(point), point.problem(model, grid.mask(point))) {
        (Some(mask), problem) => (mask.text.clone(), problem.map_or(point.seq, |p| Some(p.tokens()))),
        (None, Ok(problem)) => (problem.pattern.to_string(), Some(problem.tokens())),
        (None, Err(_)) => (String::new(), point.seq),
    };
    quoted(out, &cluster.name);
    let _ = write!(out, ",{},", link.0);
    if let Some(nic) = nic {
        let _ = write!(out, "{}", nic.0);
    }
    out.push(',');
    quoted(out, &model.name);
    let Shape { heads, kv_heads, head_dim, dtype, batch } = shape;
    let _ = write!(out, ",{heads},{kv_heads},{head_dim},{dtype},{batch},");
    quoted(out, &mask);
    out.push(',');
    if let Some(seq) = seq {
        let _ = write!(out, "{seq}");
    }
    write_options(out, point);
    write_trouble(out, grid, point);
}

fn write_options(out: &mut String, point: &Point) {
    let options = &point.options;
    let schedule = point.schedule();
    let _ = write!(out, ",{},{schedule},", point.cp);
    for (i, pass) in point.passes.iter().enumerate() {
        let plus = if i > 0 { "+" } else { "" };
        let _ = write!(out, "{plus}{pass}");
    }
    let transport = match options.transport {
        Transport::CopyEngine => "copy-engine",
        Transport::Nccl => "nccl",
    };
    let ctas = point.nccl.ctas.map_or(String::new(), |ctas| ctas.to_string());
    let priority = point.nccl.priority.map_or("", Priority::name);
    let route = match options.route {
        Route::Neighbour => "neighbour",
        Route::Direct => "direct",
    };
    let (chunks, prefetch) = (options.chunks, options.prefetch);
    let (needed_only, pad) = (options.needed_only, options.pad);
    let _ = write!(out, ",{transport},{ctas},{priority},{route},{chunks},{prefetch},{needed_only},{pad},");
}

fn write_trouble(out: &mut String, grid: &Grid, point: &Point) {
    fn list<T: ToString>(out: &mut String, items: &[T]) {
        quoted(out, &items.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
        out.push(',');
    }
    list(out, grid.stragglers(point));
    let trouble = &point.trouble;
    let _ = write!(out, "{},", trouble.jitter);
    list(out, grid.slow_links(point));
    list(out, grid.failed_links(point));
    let _ = write!(out, "{},{},", trouble.repeats, trouble.seed);
}

fn write_figures(out: &mut String, grid: &Grid, point: &Point, f: &Figures) {
    let device = &grid.cluster(point).device;
    let (makespan, exposed) = (f.makespan.as_secs_f64(), f.exposed_comm.as_secs_f64());
    let _ = write!(out, "{},{makespan},", f.padding);
    match f.percentiles.map(|p| [p.p5, p.p50, p.p95, p.p99].map(SimTime::as_secs_f64)) {
        Some([p5, p50, p95, p99]) => {
            let _ = write!(out, "{p5},{p50},{p95},{p99},");
        }
        None => out.push_str(",,,,"),
    }
    let _ = write!(out, "{},{exposed},{},", f.bubble_ratio, f.imbalance);
    let _ = write!(out, "{},", f.tflops_per_gpu);
    if let Some(peak) = device.peak.of(point.dtype) {
        let _ = write!(out, "{}", f.tflops_per_gpu * 1e12 / peak.0);
    }
    let (memory, fits) = (device.memory.0, f.peak_memory <= device.memory);
    let _ = write!(out, ",{},{memory},{fits},{},", f.peak_memory.0, f.bytes_moved.0);
}

/// Text as a field of CSV.
fn quoted(out: &mut String, text: &str) {
    if text.contains([',', '"', '\n', '\r']) {
        out.push('"');
        out.push_str(&text.replace('"', "\"\"").replace(['\n', '\r'], " "));
        out.push('"');
    } else {
        out.push_str(text);
    }
}
