//! What is checked and set before a run: arguments that contradict each other, variables that CUDA reads when it starts,
//! Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ringlab_runtime::cpu;
use ringlab_runtime::environment::Variables;
use ringlab_sim::config::cluster::UnknownLimit;
use ringlab_sim::problem::Dtype;

use crate::args::{Backend, RunArgs, TransportArg};
use crate::figures::Picture;
use crate::interrupt::on_stop;
use crate::setup::Setup;

/// Variables that CUDA and NCCL read once, when they start, and what this program needs of them where nobody has set
/// them.
const NEEDED: [(&str, &str); 2] = [("CUDA_DEVICE_MAX_CONNECTIONS", "32"), ("NCCL_NVLS_ENABLE", "0")];
/// Set when the program has started itself again: to the names of the variables that it set.
const AGAIN: &str = "RINGLAB_STARTED_AGAIN";

/// A size that two cores do in seconds with the default model's heads.
const CPU_SEQ: u64 = 1 << 10;
/// A size at which kernels, not launches, take the time.
const GPU_SEQ: u64 = 64 << 10;

/// What is run, and the cluster that predicts it: its NCCL transfers have the settings that those of the run have. And why it
/// predicts nothing, if it does not know these settings.
pub fn setup(args: &RunArgs) -> Result<(Setup, Option<UnknownLimit>)> {
    let default_seq = match args.backend {
        Backend::Cpu => CPU_SEQ,
        Backend::Cuda => GPU_SEQ,
    };
    let mut setup = Setup::new(&args.setup, default_seq)?;
    if args.backend == Backend::Cpu {
        setup.problem.shape.dtype = Dtype::Fp32;
    }
    let unknown = match setup.cluster.with_nccl(args.gpu.nccl.settings()) {
        Ok(cluster) => {
            setup.cluster = cluster;
            None
        }
        Err(unknown) => Some(unknown),
    };
    Ok((setup, unknown))
}

/// Refuses arguments that contradict each other, before anything is computed.
pub fn check(args: &RunArgs) -> Result<()> {
    args.plot.as_deref().map(Picture::of).transpose()?;
    if let Some(bound) = args.max_error.filter(|bound| !bound.is_finite() || *bound < 0.0) {
        bail!("--max-error must be a finite number that is not negative, not {bound}");
    }
    let foreign = args.only_for_gpus();
    if args.backend == Backend::Cpu && !foreign.is_empty() {
        bail!("{} for GPUs only; add --backend cuda", are(&foreign));
    }
    check_ranks(args)?;
    let nccl = args.setup.transport == TransportArg::Nccl;
    let gpu = &args.gpu;
    if gpu.copy.is_some() && nccl {
        bail!("--copy says which end of a copy-engine message copies it; leave it out with --transport nccl");
    }
    gpu.nccl.check(nccl)
}

fn check_ranks(args: &RunArgs) -> Result<()> {
    let listed = &args.errors_over_cp;
    if !listed.is_empty() && args.cp_given {
        bail!("--errors-over-cp lists the numbers of ranks; leave --cp out");
    }
    if let Some(twice) = listed.iter().enumerate().find_map(|(i, p)| listed[..i].contains(p).then_some(p)) {
        bail!("--errors-over-cp names {twice} twice; leave one out");
    }
    if args.backend == Backend::Cpu {
        cpu::check_ranks(listed.iter().copied().max().unwrap_or(args.setup.cp))?;
    }
    Ok(())
}

fn are(names: &[&str]) -> String {
    match names {
        [one] => format!("{one} is"),
        many => format!("{} are", many.join(", ")),
    }
}

/// Sees to it that the needed variables are set when CUDA starts: a process cannot safely set its own once threads may
/// read them, so it starts itself again, in its own place, with those set that nobody has set.
#[cfg(unix)]
pub fn environment(variables: &Variables) -> Result<()> {
    use std::os::unix::process::CommandExt;
    let missing: Vec<_> = NEEDED.into_iter().filter(|(name, _)| !variables.contains_key(*name)).collect();
    if missing.is_empty() || variables.contains_key(AGAIN) {
        return Ok(());
    }
    let program = std::env::current_exe().context("cannot find this program to start it again")?;
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    let error = std::process::Command::new(program)
        .args(std::env::args_os().skip(1))
        .envs(missing)
        .env(AGAIN, names.join(","))
        .exec();
    Err(error).context("cannot start this program again with the variables that CUDA needs")
}

/// Elsewhere whoever starts the program sets them.
#[cfg(not(unix))]
pub fn environment(_: &Variables) -> Result<()> {
    Ok(())
}

/// The variables that this program set for itself.
pub fn set_here(variables: &Variables) -> Vec<String> {
    let names = variables.get(AGAIN).map_or("", String::as_str);
    names.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect()
}

/// Whether Ctrl-C was pressed. What it does besides depends on what is being done: see [`Interrupt::enter`].
#[derive(Clone, Default)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
    during: Arc<AtomicU8>,
}

/// What a run does when Ctrl-C comes.
#[derive(Clone, Copy)]
pub enum During {
    /// A pass that will end; the second Ctrl-C ends the process.
    Passes,
    /// Inputs and reference of a process that no other waits for: it ends at once, since there is nothing to show.
    Preparation,
    /// Serving what is done: it just ends.
    Holding,
}

impl Interrupt {
    /// Catches Ctrl-C from now on.
    pub fn catch() -> Result<Self> {
        let interrupt = Self::default();
        let on_signal = interrupt.clone();
        on_stop(move || on_signal.pressed())?;
        Ok(interrupt)
    }

    /// Says what is being done from now on.
    pub fn enter(&self, during: During) {
        self.during.store(during as u8, Ordering::Relaxed);
    }

    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    fn pressed(&self) {
        const INTERRUPTED: i32 = 130;
        let during = self.during.load(Ordering::Relaxed);
        if during == During::Preparation as u8 {
            say!("stopped before the first pass");
            std::process::exit(INTERRUPTED);
        }
        if self.asked.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED);
        }
        if during == During::Passes as u8 {
            say!("stopping after this pass; Ctrl-C again stops at once");
        }
    }
}

/// What is being done, on a terminal's standard error only.
pub struct Progress(indicatif::ProgressBar);

impl Progress {
    pub fn new() -> Self {
        let bar = indicatif::ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    pub fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ringlab_sim::engine::{SimOptions, simulate};
    use ringlab_sim::problem::Pass;
    use ringlab_sim::units::SimTime;

    use super::*;
    use crate::args::{Cli, Command};

    fn args(more: &[&str]) -> RunArgs {
        let line = "ringlab run --backend cuda --transport nccl --cluster";
        let line = line.split(' ').chain(more.iter().copied());
        let Command::Run(args) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command")
        };
        args
    }

    /// Time of a ring over two ranks, whose exchanges are posted with its calls.
    fn predicted(more: &[&str]) -> SimTime {
        let (setup, unknown) = setup(&args(more)).unwrap();
        assert_eq!(unknown, None);
        let schedule = setup.schedules[0];
        let plan = setup.plan(schedule, Pass::Forward).unwrap();
        simulate(&plan, &setup.cluster, &SimOptions::default()).unwrap().makespan
    }

    /// A ring's exchange of high priority moves beside its first call; at normal priority it waits for that call's end, and
    /// nothing is left to hide it. So the prediction is shorter by most of an exchange: 64Ki tokens over two ranks are 134 MB
    /// of keys and values (8 heads of 128) a rank, 0.4 ms at 316 GB/s.
    #[test]
    fn predictions_have_the_priority_of_the_run() {
        let ring =
            ["h200-nvl2-validated", "--schedule", "ring", "--cp", "2", "--seq", "64Ki", "--nccl-priority"];
        let with = |priority| predicted(&[&ring[..], &[priority]].concat());
        assert_eq!(predicted(&ring[..7]), with("normal"));
        let gain = with("normal").as_secs_f64() - with("high").as_secs_f64();
        assert!((0.2e-3..0.5e-3).contains(&gain), "{gain}");
    }

    /// What a file says of its priority is not what is run.
    #[test]
    fn a_run_without_the_option_is_predicted_at_normal_priority() {
        let mut cluster = crate::presets::cluster("h200-nvl2-validated").unwrap();
        cluster.set_nccl_priority(ringlab_sim::config::cluster::Priority::High);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("high.toml");
        std::fs::write(&file, cluster.to_toml()).unwrap();
        let (setup, _) = setup(&args(&[file.to_str().unwrap()])).unwrap();
        assert_eq!(setup.cluster, crate::presets::cluster("h200-nvl2-validated").unwrap());
    }

    /// At 75 instead of 316 GB/s an exchange of 134 MB takes 1.37 ms longer, which nothing hides with --prefetch 0. A limit that
    /// the cluster does not know is none that can be predicted.
    #[test]
    fn predictions_have_the_limit_of_the_run_or_there_are_none() {
        let mut cluster = crate::presets::cluster("h200-nvl2-validated").unwrap();
        // Ranks that wait would be faster between waits.
        (cluster.device.power, cluster.calibration) = (None, None);
        let (bandwidth, source) = (ringlab_sim::units::BytesPerSec(75e9), "test".into());
        let limit = ringlab_sim::config::cluster::NcclLimit {
            ctas: 4,
            bandwidth,
            sms: 4,
            slowed_by_calls: 0.0,
            source,
        };
        cluster.fabric.nccl.limits = vec![limit];
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.toml");
        std::fs::write(&file, cluster.to_toml()).unwrap();
        let ring =
            [file.to_str().unwrap(), "--schedule", "ring", "--cp", "2", "--seq", "64Ki", "--prefetch", "0"];
        let with = |more: &[&'static str]| [&ring[..], more].concat();
        let longer = predicted(&with(&["--nccl-ctas", "4"])).as_secs_f64() - predicted(&ring).as_secs_f64();
        let expected = f64::from(128 << 20) * (1.0 / 75e9 - 1.0 / cluster.fabric.nccl.bandwidth.0);
        assert!((longer / expected - 1.0).abs() < 1e-6, "{longer} {expected}");
        let (_, unknown) = setup(&args(&with(&["--nccl-ctas", "8"]))).unwrap();
        assert_eq!(unknown.unwrap().limits, [4]);
    }
}
