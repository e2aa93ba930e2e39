//! `ringlab tune`: the fastest way to train.

mod report;
mod table;

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::RUNTIME_RESERVE;
use ringlab_sim::units::Bytes;

use super::Outcome;
use crate::args::{TuneArgs, schedules};
use crate::interrupt;
use crate::output;
use crate::presets;
use crate::sweep::Rates;
use crate::tune::{
    Crossover, Degrees, Found, Job, Price, Search, Shift, Space, crossover, refusal, rings, sensitivity,
};

/// Tokens of an iteration if none are asked for: Llama 3's batch (arXiv 2407.21783, table 4).
const BATCH: u64 = 16 << 20;

/// All that is printed.
struct Answer<'a> {
    job: &'a Job,
    found: Found,
    shifts: Vec<Shift>,
    crossover: Option<Crossover>,
    price: Option<Price>,
    notes: Vec<String>,
    complete: bool,
}

/// JSON Schema of the result.
pub fn schema(generator: schemars::SchemaGenerator) -> schemars::Schema {
    generator.into_root_schema_for::<report::Report<'static>>()
}

/// Searches, and prints the best with what it beats.
pub fn run(args: &TuneArgs) -> Result<Outcome> {
    let job = job(args)?;
    let stop = interrupt::flag()?;
    let bar = progress();
    let show = |done: usize, total: usize| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    };
    let search =
        Search { keep: usize::from(args.top) + 1, thorough: true, stop: stop.flag(), progress: &show };
    let found = search.run(&job);
    if found.counts.total == 0 {
        bail!(
            "no grid of {} GPUs is left to choose from; the degrees must multiply to {}, divide {} layers and {} heads, and \
             replicas must divide {} sequences",
            job.gpus(),
            job.gpus(),
            job.model.layers,
            job.model.heads,
            job.sequences
        );
    }
    let Some(best) = found.best.first().copied() else {
        bar.finish_and_clear();
        return nothing(&job, &found, stop.is_set());
    };
    let (mut shifts, mut lengths) = (Vec::new(), None);
    if !args.no_outlook {
        bar.set_message("other links and lengths");
        shifts = sensitivity(&job, &best, &search);
        lengths = Some(crossover(&job, &search)).filter(|_| job.gpus() > 1);
    }
    bar.finish_and_clear();
    let complete = !stop.is_set();
    let price = args
        .price_per_gpu_hour
        .map(|price| Price::of(price, job.gpus(), job.tokens(), best.time.total, args.tokens));
    let answer =
        Answer { job: &job, found, shifts, crossover: lengths, price, notes: notes(&job, args), complete };
    let rows = report::rows(&answer);
    output::emit(&args.out, || table::render(&answer), &report::report(&answer, &rows), &rows)?;
    if complete {
        return Ok(Outcome::Fine);
    }
    say!("stopped: this is the best so far, {} candidates are left", answer.found.counts.left);
    Ok(Outcome::Interrupted)
}

fn job(args: &TuneArgs) -> Result<Job> {
    let mut cluster = presets::cluster(&args.cluster)?;
    cluster.nodes = args.nodes.unwrap_or(cluster.nodes);
    if cluster.network.is_none() && (cluster.nodes > 1 || args.nic_bandwidth.is_some()) {
        bail!("the cluster {} has no network, so it is one node", cluster.name);
    }
    cluster = Rates { link: args.link_bandwidth, nic: args.nic_bandwidth }.apply(&cluster);
    cluster.device.memory = args.memory.unwrap_or(cluster.device.memory);
    if args.seq.0 < 2 || args.seq.0 > 1 << 30 {
        bail!("--seq must be from 2 tokens to 1024Mi, not {}", args.seq.0);
    }
    if args.memory == Some(Bytes(0)) {
        bail!("--memory must be more than 0 B");
    }
    if let Some(price) = args.price_per_gpu_hour.filter(|p| !p.is_finite() || *p < 0.0) {
        bail!("--price-per-gpu-hour must be a finite number that is not negative, not {price}");
    }
    Ok(Job {
        model: presets::model(&args.model)?,
        cluster,
        seq: args.seq.0,
        sequences: args.sequences.unwrap_or((BATCH / args.seq.0).max(1)),
        space: space(args)?,
    })
}

fn space(args: &TuneArgs) -> Result<Space> {
    let mut chosen = schedules(&args.schedule)?;
    let named = !args.schedule.iter().any(|s| s == "all");
    if let Some(divides) = chosen.iter().find(|s| named && !rings(**s)) {
        if *divides == Schedule::RingSelfAttention {
            bail!(
                "ring-self-attention keeps whole score rows, which tuned grids, with tiled kernels, never do; \
                 use `ringlab train --schedule ring-self-attention`"
            );
        }
        bail!(
            "{divides} divides heads, which a grid does by its ulysses and tp degrees; use --ring 1 for that alone"
        );
    }
    chosen.retain(|s| rings(*s));
    let degrees = |given: &[u64]| if given.is_empty() { Degrees::Any } else { Degrees::Only(given.to_vec()) };
    Ok(Space {
        schedules: chosen,
        tp: degrees(&args.tp),
        cp: degrees(&args.cp),
        ulysses: degrees(&args.ulysses),
        ring: degrees(&args.ring),
        pp: degrees(&args.pp),
        dp: degrees(&args.dp),
        chunks: args.chunks.clone(),
        checkpointing: args.checkpointing.iter().map(|c| (*c).into()).collect(),
        sharding: args.sharding.iter().map(|s| (*s).into()).collect(),
        transport: args.transport.into(),
    })
}

/// What the model of an iteration leaves out or takes as given.
fn notes(job: &Job, args: &TuneArgs) -> Vec<String> {
    let mut notes = vec![
        "taken as given: micro-batches of one sequence, plain 1F1B pipelines, sequence parallelism beside tensor \
         parallelism, bf16 with Adam in fp32, fused element-wise kernels, and a runtime that keeps "
            .to_owned()
            + &RUNTIME_RESERVE.to_string(),
        "checkpointing of attention alone is not apart: tiled kernels keep no scores; nor is sharding of gradients alone: \
         one reduction an iteration is modelled"
            .to_owned(),
    ];
    if job.model.sliding_window.is_some() || job.model.layer_mix.is_some() {
        notes.push(
            "the model limits the keys of some layers; here all layers are causal over the whole sequence"
                .into(),
        );
    }
    if args.tokens.is_some() && args.price_per_gpu_hour.is_none() {
        notes.push("--tokens gives a run's cost only with --price-per-gpu-hour".into());
    }
    notes
}

/// Nothing fits: what is missing, and what would do.
fn nothing(job: &Job, found: &Found, stopped: bool) -> Result<Outcome> {
    if stopped {
        say!("stopped before anything that fits was found");
        return Ok(Outcome::Interrupted);
    }
    let Some(refusal) = refusal(job) else {
        bail!("no schedule takes this sequence:\n  {}", found.reasons.join("\n  "));
    };
    let memory = &refusal.memory;
    let Some(over) = memory.over else {
        bail!("no schedule takes what fits:\n  {}", found.reasons.join("\n  "));
    };
    say!(
        "nothing fits: none of {} candidates, {} by a lower bound of their memory\n  least: {} of {}, {over} too much a GPU: {}",
        found.counts.total,
        found.counts.pruned_by_memory,
        memory.total,
        memory.capacity,
        table::way(&refusal.training),
    );
    let mut changes = vec![format!("GPUs with {} (--memory)", Bytes(memory.total.0))];
    changes.extend(refusal.seq.map(|seq| format!("sequences of {} (--seq)", super::simulate::tokens(seq))));
    changes.extend(refusal.nodes.map(|nodes| format!("{nodes} nodes (--nodes)")));
    say!("  what fits, each alone: {}", changes.join("; "));
    Ok(Outcome::Failed)
}

/// Drawn on a terminal only.
fn progress() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{bar:30} {human_pos} of {human_len} candidates {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
