//! From arguments to a problem, a cluster and plans.

use anyhow::{Context, Result, bail};
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::config::model::Model;
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::problem::{Pass, Problem, Shape};
use ringlab_sim::schedule::{self, Options, Route, Schedule};
use ringlab_sim::units::Tokens;

use crate::args::{PassArg, RouteArg, SetupArgs, TransportArg, schedules};
use crate::documents::MaskArg;
use crate::presets;

/// Everything that a command works on.
pub struct Setup {
    /// The machine.
    pub cluster: Cluster,
    /// The model whose attention layer it is.
    pub model: Model,
    /// The layer's heads, mask and sequence.
    pub problem: Problem,
    /// The schedules asked for.
    pub schedules: Vec<Schedule>,
    /// Context-parallel degree.
    pub cp: u32,
    /// The passes asked for.
    pub passes: Vec<Pass>,
    options: Options,
}

impl Setup {
    /// Resolves the arguments; `default_seq` is the length if none is given.
    pub fn new(args: &SetupArgs, default_seq: u64) -> Result<Self> {
        let cluster = presets::cluster(&args.cluster)?;
        let model = presets::model(&args.model)?;
        let passes = match args.pass {
            PassArg::Forward => vec![Pass::Forward],
            PassArg::Backward => vec![Pass::Backward],
            PassArg::Both => vec![Pass::Forward, Pass::Backward],
        };
        let options = Options {
            transport: match args.transport {
                TransportArg::CopyEngine => Transport::CopyEngine,
                TransportArg::Nccl => Transport::Nccl,
            },
            route: match args.route {
                RouteArg::Neighbour => Route::Neighbour,
                RouteArg::Direct => Route::Direct,
            },
            chunks: args.chunks,
            prefetch: args.prefetch,
            needed_only: args.needed_only,
            gpus_per_node: cluster.gpus_per_node,
            pad: args.pad,
            ..Options::new(Pass::Forward)
        };
        Ok(Self {
            problem: problem(args, &model, default_seq)?,
            cluster,
            model,
            schedules: schedules(&args.schedule)?,
            cp: args.cp,
            passes,
            options,
        })
    }

    /// The plan of one schedule and pass.
    pub fn plan(&self, schedule: Schedule, pass: Pass) -> Result<Plan> {
        self.plan_on(schedule, pass, self.cp)
    }

    /// The plan on another number of ranks.
    pub fn plan_on(&self, schedule: Schedule, pass: Pass, ranks: u32) -> Result<Plan> {
        let options = Options { pass, ..self.options };
        schedule::build(schedule, &self.problem, ranks, &options).with_context(|| {
            let hint = if self.options.pad { "" } else { " (--pad pads lengths that do not fit)" };
            format!("cannot plan {schedule} on {ranks} ranks{hint}")
        })
    }

    /// Whether schedules that cannot take the problem are left out with a remark: only if none was named.
    pub fn tolerates(args: &SetupArgs) -> bool {
        args.schedule.iter().any(|s| s == "all")
    }
}

fn problem(args: &SetupArgs, model: &Model, default_seq: u64) -> Result<Problem> {
    let size = |given: Option<u32>, of_model: u64, what: &str| match given {
        Some(n) => Ok(n),
        None => u32::try_from(of_model).with_context(|| format!("{}: {what} is too large", model.name)),
    };
    let heads = size(args.heads, model.heads, "the number of heads")?;
    let kv_heads = size(args.kv_heads, model.kv_heads, "the number of kv heads")?;
    let head_dim = size(args.head_dim, model.head_dim, "the head dimension")?;
    let shape = Shape { heads, kv_heads, head_dim, dtype: args.dtype, batch: args.batch };
    shape.validate().context("these heads cannot be shared out; give --heads and --kv-heads together")?;
    let mask = match (&args.mask, model.sliding_window) {
        (Some(text), _) => MaskArg::parse(text)?,
        (None, Some(window)) => MaskArg { pattern: Pattern::Window(window.0), documents: None },
        (None, None) => MaskArg { pattern: Pattern::Causal, documents: None },
    };
    let documents = documents(args.seq, mask.documents, default_seq)?;
    Ok(Problem { shape, pattern: mask.pattern, documents })
}

/// The documents' lengths; their sum must be what `--seq` says, if it says anything.
fn documents(seq: Option<Tokens>, documents: Option<Vec<u64>>, default_seq: u64) -> Result<Vec<u64>> {
    let Some(documents) = documents else { return Ok(vec![seq.map_or(default_seq, |s| s.0)]) };
    let sum: u64 = documents.iter().sum();
    match seq {
        Some(seq) if seq.0 != sum => {
            bail!("--seq says {} tokens, but the documents of --mask have {sum}; leave --seq out", seq.0)
        }
        _ if sum > 1 << 31 => bail!("the documents have {sum} tokens; at most 2048Mi can be planned"),
        _ => Ok(documents),
    }
}
