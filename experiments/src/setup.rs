//! From arguments to a problem, a cluster and plans.

use anyhow::{Context, Result, anyhow, bail};
use ringlab_sim::config::cluster::{Cluster, NcclSettings};
use ringlab_sim::config::model::Model;
use ringlab_sim::config::nearest;
use ringlab_sim::engine::{Load, SimOptions};
use ringlab_sim::layout::LayoutError;
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::problem::{Pass, Problem, Shape};
use ringlab_sim::schedule::{self, BuildError, Options, Route, Schedule};
use ringlab_sim::units::Tokens;

use crate::args::{NcclArgs, PassArg, RouteArg, SetupArgs, schedules};
use crate::disturbance::Repeats;
use crate::documents::MaskArg;
use crate::overrides;
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
    /// What goes wrong, and how often it is tried; `None` if nothing does.
    pub repeats: Option<Repeats>,
    /// How long the devices have been loaded.
    pub load: Load,
    /// The most CTAs of an NCCL transfer, where the cluster was limited to it.
    nccl_ctas: Option<u32>,
    options: Options,
}

/// Whether clusters, models and documents may be read from files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// A name that is no preset is a path.
    Read,
    /// Whoever gave the arguments may not name files of this machine.
    Refused,
}

impl Setup {
    /// Resolves the arguments; `default_seq` is the length if none is given.
    pub fn new(args: &SetupArgs, default_seq: u64) -> Result<Self> {
        Self::resolve(args, default_seq, Files::Read)
    }

    /// As [`Setup::new`], with a say on files.
    pub fn resolve(args: &SetupArgs, default_seq: u64, files: Files) -> Result<Self> {
        let mut cluster = cluster(args, files)?;
        overrides::apply(args, &mut cluster)?;
        let model = model(args, files)?;
        let passes = match args.pass {
            PassArg::Forward => vec![Pass::Forward],
            PassArg::Backward => vec![Pass::Backward],
            PassArg::Both => vec![Pass::Forward, Pass::Backward],
        };
        let options = Options {
            transport: args.transport.into(),
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
            problem: problem(args, &model, default_seq, files)?,
            cluster,
            model,
            schedules: schedules(&args.schedule)?,
            cp: args.cp,
            passes,
            repeats: None,
            load: Load::default(),
            nccl_ctas: None,
            options,
        })
    }

    /// The same, and this goes wrong.
    pub fn disturbed(self, repeats: Option<Repeats>) -> Self {
        Self { repeats, ..self }
    }

    /// The same under `load`, which may be given only where the cluster says what it does.
    pub fn loaded(self, load: Option<Load>) -> Result<Self> {
        if load.is_some() && self.cluster.device.power.is_none() {
            bail!("{} has no [device.power], so --load changes nothing; leave it out", self.cluster.name);
        }
        Ok(Self { load: load.unwrap_or_default(), ..self })
    }

    /// The same with these settings of NCCL, which must be those of all messages.
    pub fn with_nccl(mut self, args: &NcclArgs) -> Result<Self> {
        args.check(self.options.transport == Transport::Nccl)?;
        self.cluster = args.asked().apply(&self.cluster)?;
        Ok(Self { nccl_ctas: args.ctas, ..self })
    }

    /// How NCCL is set up, if messages go by it.
    pub fn nccl(&self) -> Option<NcclSettings> {
        let settings = NcclSettings { ctas: self.nccl_ctas, priority: self.cluster.fabric.nccl.priority };
        (self.options.transport == Transport::Nccl).then_some(settings)
    }

    /// How its plans are simulated.
    pub fn sim_options(&self) -> SimOptions {
        SimOptions { load: self.load, ..SimOptions::default() }
    }

    /// The plan of one schedule and pass.
    pub fn plan(&self, schedule: Schedule, pass: Pass) -> Result<Plan> {
        self.plan_on(schedule, pass, self.cp)
    }

    /// The plan on another number of ranks.
    pub fn plan_on(&self, schedule: Schedule, pass: Pass, ranks: u32) -> Result<Plan> {
        let options = Options { pass, ..self.options };
        schedule::build(schedule, &self.problem, ranks, &options).map_err(|error| {
            let pads =
                matches!(error, BuildError::Layout(LayoutError::NotDivisible { .. })) && !self.options.pad;
            let hint = if pads { " (--pad pads lengths that do not fit)" } else { "" };
            anyhow::Error::new(error).context(format!("cannot plan {schedule} on {ranks} ranks{hint}"))
        })
    }

    /// What a user must know of how the problem was priced.
    pub fn notes(&self) -> Vec<String> {
        let (shape, model) = (&self.problem.shape, &self.model);
        let mut notes = Vec::new();
        for &pass in &self.passes {
            let kernel = self.cluster.kernel(shape.head_dim, shape.dtype, pass);
            notes.extend(kernel.ok().and_then(|kernel| kernel.stands_for(shape.head_dim, shape.dtype)));
        }
        notes.extend(model.layer_note());
        if let Some(stored) = model.stored_dtype.filter(|&d| d != shape.dtype) {
            notes.push(format!("the model is stored in {stored}, this is for {} (--dtype)", shape.dtype));
        }
        if u64::from(shape.kv_heads) > model.kv_heads && u64::from(shape.heads) == model.heads {
            let times = f64::from(shape.kv_heads) / model.kv_heads as f64;
            notes
                .push(format!("kv heads expanded to {}: transfers are {times}x the model's", shape.kv_heads));
        }
        notes
    }

    /// Does `f` for every schedule. One that cannot take the problem is left out with a remark if `tolerant`, and an
    /// error otherwise; that none can is always an error, with one reason if they share it.
    pub fn each_schedule<T>(
        &self,
        tolerant: bool,
        mut f: impl FnMut(Schedule) -> Result<T>,
    ) -> Result<(Vec<T>, Vec<String>)> {
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for &schedule in &self.schedules {
            match f(schedule) {
                Ok(result) => done.push(result),
                Err(error) if tolerant => failed.push((schedule, error)),
                Err(error) => return Err(error),
            }
        }
        let reasons: Vec<String> = failed.iter().map(|(_, e)| e.root_cause().to_string()).collect();
        if done.is_empty() && reasons.windows(2).all(|w| w[0] == w[1]) {
            bail!("no schedule can take this problem: {}", reasons[0]);
        }
        let left_out: Vec<String> = failed.iter().map(|(s, e)| format!("{s}: {e:#}")).collect();
        if done.is_empty() {
            bail!("no schedule can take this problem:\n  {}", left_out.join("\n  "));
        }
        Ok((done, left_out))
    }

    /// Messages that a transfer is cut into.
    pub fn chunks(&self) -> u32 {
        self.options.chunks
    }

    /// Whether schedules that cannot take the problem are left out with a remark: only if none was named.
    pub fn tolerates(args: &SetupArgs) -> bool {
        args.schedule.iter().any(|s| s == "all")
    }
}

fn cluster(args: &SetupArgs, files: Files) -> Result<Cluster> {
    let name = &args.cluster;
    if name.contains('\n') {
        return Ok(Cluster::parse(&inline_label(args, "--cluster"), name)?);
    }
    match presets::built_in_cluster(name) {
        Some(cluster) => Ok(cluster?),
        None if files == Files::Read => Ok(presets::cluster(name)?),
        None => Err(no_preset("cluster", name, presets::cluster_names())),
    }
}

fn model(args: &SetupArgs, files: Files) -> Result<Model> {
    let name = &args.model;
    if name.contains('\n') || name.trim_start().starts_with('{') {
        return Ok(Model::parse(&inline_label(args, "--model"), name)?);
    }
    match presets::built_in_model(name) {
        Some(model) => Ok(model?),
        None if files == Files::Read => Ok(presets::model(name)?),
        None => Err(no_preset("model", name, presets::model_names())),
    }
}

/// What messages call a cluster or a model that was given as text.
fn inline_label(args: &SetupArgs, flag: &str) -> String {
    args.run.as_ref().map_or_else(|| flag.to_owned(), |path| path.display().to_string())
}

fn no_preset(what: &str, name: &str, names: Vec<&str>) -> anyhow::Error {
    match nearest(name, names) {
        Some(near) => anyhow!("there is no {what} preset {name:?}; did you mean {near}?"),
        None => anyhow!("there is no {what} preset {name:?}; choose one, or give its text"),
    }
}

fn problem(args: &SetupArgs, model: &Model, default_seq: u64, files: Files) -> Result<Problem> {
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
        (Some(text), _) => MaskArg::parse(text, files)?,
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
