//! Which process this is, which ranks and GPUs it has, and what the processes tell each other.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ringlab_runtime::cuda::{self, CudaError, Devices, NcclWorld};
use ringlab_runtime::rendezvous::{Flags, Launch, MeetError, Meeting, Variables};
use ringlab_sim::plan::{Plan, Rank};
use ringlab_sim::problem::Pass;

use super::executed::Executed;
use super::share;
use crate::args::{Backend, PassArg, RunArgs, TransportArg};
use crate::output;

/// One process of a run, alone or among others.
pub struct World {
    launch: Launch,
    /// Ranks of each process.
    each: u32,
    devices: Devices,
    meeting: RefCell<Option<Meeting>>,
    /// Passes so far: all processes run the same ones in the same order.
    passes: Cell<u32>,
    /// Whether every process gets a forward's rows of all: a backward may be given rows that another one computed.
    shares_forwards: bool,
}

impl World {
    /// Who this process is by `variables` and flags. Processes have met when this returns.
    ///
    /// # Errors
    /// A launcher that contradicts itself; GPUs that are not there; processes that do not come.
    pub fn find(args: &RunArgs, variables: &Variables) -> Result<Self> {
        if args.backend == Backend::Cpu {
            return Ok(Self::alone(args, args.setup.cp));
        }
        let launch = Launch::resolve(variables, &flags(args))?;
        let several = launch.processes > 1;
        let on_one_gpu = args.gpu.is_virtual || !args.errors_over_cp.is_empty();
        if several && !on_one_gpu && args.setup.transport != TransportArg::Nccl {
            bail!("{} processes exchange messages by NCCL only; add --transport nccl", launch.processes);
        }
        // After the launcher: what it says can be wrong on a machine without GPUs, too.
        let gpus = cuda::gpu_count()?;
        if on_one_gpu {
            return one_gpu(args, &launch);
        }
        let cp = args.cp_given.then_some(args.setup.cp);
        let listed = if args.gpu.gpus.is_empty() { gpus } else { args.gpu.gpus.len() };
        let each = launch.ranks_each(cp, listed as u32)?;
        let devices = devices(args, &launch, each as usize, gpus)?;
        let meeting = several.then(|| meet(args, &launch)).transpose()?;
        Ok(Self {
            launch,
            each,
            devices,
            meeting: RefCell::new(meeting),
            passes: Cell::new(0),
            shares_forwards: args.setup.pass != PassArg::Forward,
        })
    }

    fn alone(args: &RunArgs, ranks: u32) -> Self {
        let launch = Launch::single(&flags(args));
        Self {
            launch,
            each: ranks,
            devices: Devices::First,
            meeting: RefCell::new(None),
            passes: Cell::new(0),
            shares_forwards: false,
        }
    }

    /// How it was started and who it is.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// Context-parallel ranks of all processes.
    pub fn ranks(&self) -> u32 {
        self.each * self.launch.processes
    }

    /// Ranks that run here.
    pub fn ranks_here(&self) -> u32 {
        self.each
    }

    /// Nodes, as far as the launcher says.
    pub fn nodes(&self) -> u32 {
        self.launch
            .local_processes
            .map_or(self.launch.processes, |local| self.launch.processes.div_ceil(local.max(1)))
    }

    /// Whether this process prints the results.
    pub fn is_first(&self) -> bool {
        self.launch.process == 0
    }

    /// GPUs of the ranks that run here.
    pub fn devices(&self) -> Devices {
        self.devices.clone()
    }

    /// The ids by which the communicators of the next pass find each other; `None` in a single process.
    pub fn next_communicator(&self) -> Result<Option<NcclWorld>> {
        let meeting = self.meeting.borrow();
        let Some(meeting) = meeting.as_ref() else { return Ok(None) };
        let pass = self.passes.get();
        self.passes.set(pass + 1);
        let key = format!("nccl-id-{pass}");
        if self.is_first() {
            meeting.publish(&key, &cuda::unique_id()?)?;
        }
        let id = meeting.fetch(&key, 0)?;
        // Process 0 makes the next id when it has everybody's last pass.
        meeting.withdraw(&format!("pass-{pass}"));
        let unique_id = id.try_into().ok().context("process 0 sent an NCCL id of another length")?;
        let first = self.launch.process * self.each;
        let ranks: Vec<Rank> = (first..first + self.each).collect();
        Ok(Some(NcclWorld { unique_id, ranks }))
    }

    /// Gives a pass of this process to the first one, which gets those of all.
    pub fn share(&self, plan: &Plan, run: cuda::Run) -> Result<Executed> {
        let meeting = self.meeting.borrow();
        let ranks = run.measured.ranks.clone();
        let own = Executed::from(run);
        let Some(meeting) = meeting.as_ref() else { return Ok(own) };
        let to_all = self.shares_forwards && plan.pass == Pass::Forward;
        exchange(
            meeting,
            &format!("pass-{}", self.passes.get()),
            plan,
            (own, &ranks),
            self.is_first(),
            to_all,
        )
    }

    /// What broke first: the failure of another process, if there is one, else `error`.
    pub fn root_cause(&self, error: CudaError) -> anyhow::Error {
        let meeting = self.meeting.borrow();
        match meeting.as_ref().map(Meeting::failure) {
            Some(Err(failure @ MeetError::Failed { .. })) => anyhow::Error::new(failure),
            _ => anyhow::Error::new(error),
        }
    }

    /// Ends the meeting: well, or with the reason for which this process gives up.
    pub fn end(&self, failure: Option<&anyhow::Error>) {
        let Some(meeting) = self.meeting.borrow_mut().take() else { return };
        let Some(error) = failure else {
            if let Err(error) = meeting.leave() {
                say!("warning: {error}");
            }
            return;
        };
        match error.chain().find_map(|cause| cause.downcast_ref::<MeetError>()) {
            Some(failure) => meeting.fail_with(failure),
            None => meeting.fail(&output::message(error)),
        }
    }
}

/// Publishes what a process has of a pass under `key`. The first process gets the rows of all, or all of them do; else it is
/// its own.
pub(super) fn exchange(
    meeting: &Meeting,
    key: &str,
    plan: &Plan,
    (own, ranks): (Executed, &[Rank]),
    is_first: bool,
    to_all: bool,
) -> Result<Executed> {
    meeting.publish(key, &share::encode(&own, ranks)?)?;
    if !is_first && !to_all {
        return Ok(own);
    }
    let parts = meeting.gather(key)?;
    if to_all {
        // Nobody withdraws a part that another one still reads.
        meeting.barrier(&format!("{key}-read"))?;
    }
    share::merge(plan, &parts)
}

fn flags(args: &RunArgs) -> Flags {
    let place = &args.place;
    Flags {
        rank: place.rank,
        world_size: place.world_size,
        local_rank: place.local_rank,
        ranks_per_process: place.ranks_per_process,
        folder: place.rendezvous.clone(),
        run_id: place.run_id.clone(),
    }
}

/// All ranks on one GPU of one process.
fn one_gpu(args: &RunArgs, launch: &Launch) -> Result<World> {
    if launch.processes > 1 {
        bail!("virtual ranks share one GPU of one process; start without {}", launch.launcher);
    }
    let gpu = match args.gpu.gpus[..] {
        [] => 0,
        [gpu] => gpu,
        _ => bail!("virtual ranks share one GPU; name one with --gpus, not {}", args.gpu.gpus.len()),
    };
    Ok(World { devices: Devices::Virtual(gpu), ..World::alone(args, args.setup.cp) })
}

/// The GPUs that were named, or the process's share of those of its node. A launcher may also show each process its own
/// GPUs only.
fn devices(args: &RunArgs, launch: &Launch, each: usize, gpus: usize) -> Result<Devices> {
    if !args.gpu.gpus.is_empty() {
        return Ok(Devices::List(args.gpu.gpus.clone()));
    }
    if launch.processes == 1 {
        return Ok(Devices::First);
    }
    let first = launch.local_process as usize * each;
    let range = if gpus == each { 0..each } else { first..first + each };
    if range.end > gpus {
        bail!(
            "process {} has local rank {} and needs GPUs {} to {}, but sees {gpus}; start fewer processes a node, name its \
             GPUs with --gpus, or run --virtual in one process",
            launch.process,
            launch.local_process,
            range.start,
            range.end - 1
        );
    }
    Ok(Devices::List(range.collect()))
}

fn meet(args: &RunArgs, launch: &Launch) -> Result<Meeting> {
    let timeout = Duration::from_secs_f64(args.timeout.as_secs_f64());
    let folder = launch.meeting_place()?;
    Ok(Meeting::join(&folder, &launch.run_id, launch.process, launch.processes, timeout)?)
}
