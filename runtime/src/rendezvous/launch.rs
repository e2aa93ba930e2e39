//! Who a process is, from what its launcher says: a pure function of variables and flags.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::error::LaunchError;

/// Environment variables by name.
pub type Variables = BTreeMap<String, String>;

/// What started the processes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// Nothing: this process is alone.
    Single,
    /// `--rank` and its companions.
    Flags,
    /// PyTorch's torchrun.
    Torchrun,
    /// Slurm's srun.
    Slurm,
    /// Open MPI's mpirun.
    OpenMpi,
}

impl Launcher {
    /// Name in messages and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single process",
            Self::Flags => "flags",
            Self::Torchrun => "torchrun",
            Self::Slurm => "srun",
            Self::OpenMpi => "mpirun",
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The flags that say who a process is; they win over variables, and contradict none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flags {
    /// `--rank`: this process among all.
    pub rank: Option<u32>,
    /// `--world-size`: processes of the run.
    pub world_size: Option<u32>,
    /// `--local-rank`: this process among those of its node.
    pub local_rank: Option<u32>,
    /// `--ranks-per-process`: context-parallel ranks, and GPUs, of each process.
    pub ranks_per_process: Option<u32>,
    /// `--rendezvous`: folder that all processes see.
    pub folder: Option<PathBuf>,
    /// `--run-id`: tells runs in one folder apart.
    pub run_id: Option<String>,
}

/// One process of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// What started it.
    pub launcher: Launcher,
    /// This process, `0..processes`.
    pub process: u32,
    /// Processes of the run.
    pub processes: u32,
    /// This process among those of its node.
    pub local_process: u32,
    /// Processes on its node, where the launcher says so.
    pub local_processes: Option<u32>,
    /// Ranks of each process, where a flag says so.
    pub ranks_per_process: Option<u32>,
    /// Where processes meet, where a flag says so.
    pub folder: Option<PathBuf>,
    /// Tells this run from others in the same folder.
    pub run_id: String,
}

/// Which variables of a launcher say what.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    size: &'static str,
    local: &'static str,
    local_size: &'static str,
    /// Joined to the run id; the first must be there.
    run: &'static [&'static str],
}

const LAUNCHERS: [Names; 3] = [
    Names {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        size: "WORLD_SIZE",
        local: "LOCAL_RANK",
        local_size: "LOCAL_WORLD_SIZE",
        // The id is `none` for every run that was not given one; its master's port and the restart tell them apart.
        run: &["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"],
    },
    Names {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        run: &["PMIX_NAMESPACE"],
    },
    Names {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local: "SLURM_LOCALID",
        local_size: "SLURM_STEP_TASKS_PER_NODE",
        run: &["SLURM_STEP_ID", "SLURM_JOB_ID"],
    },
];

impl Launch {
    /// A process that is alone.
    pub fn single(flags: &Flags) -> Self {
        Self {
            launcher: Launcher::Single,
            process: 0,
            processes: 1,
            local_process: 0,
            local_processes: Some(1),
            ranks_per_process: flags.ranks_per_process,
            folder: flags.folder.clone(),
            run_id: flags.run_id.clone().unwrap_or_else(|| "single".into()),
        }
    }

    /// Who this process is.
    ///
    /// Flags come first, then torchrun, Open MPI and Slurm: mpirun inside a Slurm job leaves Slurm's variables of the one
    /// task that started it, and torchrun inside an srun those of its node's task. Sources that may both be meant must
    /// agree.
    ///
    /// # Errors
    /// Variables or flags that are malformed, incomplete, or contradict each other, by name.
    pub fn resolve(variables: &Variables, flags: &Flags) -> Result<Self, LaunchError> {
        if let Some(launch) = from_flags(variables, flags)? {
            return Ok(launch);
        }
        for names in &LAUNCHERS {
            if let Some(launch) = from_variables(variables, flags, names)? {
                return Ok(launch);
            }
        }
        Ok(Self::single(flags))
    }

    /// The context-parallel ranks of each process, for `ranks` in all or, without that, as many as `gpus` the process
    /// sees if it is alone on its node, else one.
    ///
    /// # Errors
    /// Ranks that cannot be shared out evenly.
    pub fn ranks_each(&self, ranks: Option<u32>, gpus: u32) -> Result<u32, LaunchError> {
        let processes = self.processes;
        match (self.ranks_per_process, ranks) {
            (Some(each), Some(ranks)) if u64::from(each) * u64::from(processes) != u64::from(ranks) => {
                let product = u64::from(each) * u64::from(processes);
                Err(LaunchError::Product { each, processes, product, ranks })
            }
            (Some(each), _) => Ok(each),
            (None, Some(ranks)) if !ranks.is_multiple_of(processes) => {
                Err(LaunchError::Uneven { ranks, processes })
            }
            (None, Some(ranks)) => Ok(ranks / processes),
            (None, None) if self.local_processes == Some(1) => Ok(gpus.max(1)),
            (None, None) => Ok(1),
        }
    }

    /// Where the processes meet: the folder that was given, or the system's temporary one where all of them are on one
    /// node.
    ///
    /// # Errors
    /// Several nodes, or an unknown number of them, without a folder.
    pub fn meeting_place(&self) -> Result<PathBuf, LaunchError> {
        match &self.folder {
            Some(folder) => Ok(folder.clone()),
            None if self.local_processes == Some(self.processes) => Ok(std::env::temp_dir()),
            None => Err(LaunchError::NoFolder(self.launcher.name().into(), self.processes)),
        }
    }
}

fn from_flags(variables: &Variables, flags: &Flags) -> Result<Option<Launch>, LaunchError> {
    let named =
        [("--rank", flags.rank), ("--world-size", flags.world_size), ("--local-rank", flags.local_rank)];
    if named.iter().all(|(_, given)| given.is_none()) {
        return Ok(None);
    }
    let (Some(rank), Some(size)) = (flags.rank, flags.world_size) else {
        let names = |named: &[(&str, Option<u32>)], given: bool| {
            let names = named.iter().filter(|(_, g)| g.is_some() == given).map(|(n, _)| *n);
            names.collect::<Vec<_>>().join(" and ")
        };
        return Err(LaunchError::Flags { have: names(&named, true), missing: names(&named[..2], false) });
    };
    in_range("--rank", rank, "--world-size", size)?;
    for names in &LAUNCHERS[..2] {
        for (name, flag, value) in [(names.rank, "--rank", rank), (names.size, "--world-size", size)] {
            if let Some(other) = number(variables, name)?.filter(|&other| other != value) {
                return Err(LaunchError::Contradiction {
                    first: format!("{flag} {value}"),
                    second: format!("{name}={other}"),
                });
            }
        }
    }
    if size > 1 && flags.folder.is_none() {
        return Err(LaunchError::NoFolder(format!("--world-size {size}"), size));
    }
    Ok(Some(Launch {
        launcher: Launcher::Flags,
        process: rank,
        processes: size,
        local_process: match flags.local_rank {
            Some(local) => in_range("--local-rank", local, "--world-size", size).map(|()| local)?,
            None if size == 1 => 0,
            None => return Err(LaunchError::NoLocalRank),
        },
        local_processes: (size == 1).then_some(1),
        ranks_per_process: flags.ranks_per_process,
        folder: flags.folder.clone(),
        run_id: flags.run_id.clone().unwrap_or_else(|| "flags".into()),
    }))
}

fn from_variables(
    variables: &Variables,
    flags: &Flags,
    names: &Names,
) -> Result<Option<Launch>, LaunchError> {
    if names.launcher == Launcher::Slurm && !is_slurm_step(variables) {
        return Ok(None);
    }
    let needed = [names.rank, names.size, names.local, names.run[0]];
    let (have, missing): (Vec<&str>, Vec<&str>) = needed.iter().partition(|n| variables.contains_key(**n));
    // A run id alone is no launch: other PMIx launchers set PMIX_NAMESPACE as well.
    if have.is_empty() || have == [names.run[0]] {
        return Ok(None);
    }
    if !missing.is_empty() {
        let (have, missing) = (have.join(", "), missing.join(", "));
        return Err(LaunchError::Partial { launcher: names.launcher.name(), have, missing });
    }
    let get = |name: &str| number(variables, name).map(Option::unwrap_or_default);
    let (rank, size, local) = (get(names.rank)?, get(names.size)?, get(names.local)?);
    in_range(names.rank, rank, names.size, size)?;
    let local_size = match names.launcher {
        Launcher::Slurm => tasks_here(variables, size),
        _ => number(variables, names.local_size)?,
    };
    match local_size {
        Some(local_size) => in_range(names.local, local, names.local_size, local_size)?,
        None => in_range(names.local, local, names.size, size)?,
    }
    if names.launcher == Launcher::Torchrun {
        check_outer(variables, size)?;
    }
    let parts = names.run.iter().filter_map(|name| variables.get(*name).map(String::as_str));
    Ok(Some(Launch {
        launcher: names.launcher,
        process: rank,
        processes: size,
        local_process: local,
        local_processes: local_size,
        ranks_per_process: flags.ranks_per_process,
        folder: flags.folder.clone(),
        run_id: flags.run_id.clone().unwrap_or_else(|| parts.collect::<Vec<_>>().join(".")),
    }))
}

/// Whether srun started this process. A batch script and an interactive shell have Slurm's variables too, those of their
/// one process with the size of the whole job; the first has no step, the second one above all that srun numbers.
fn is_slurm_step(variables: &Variables) -> bool {
    const RESERVED: u32 = 0xffff_fff0;
    match variables.get("SLURM_STEP_ID").map(|id| id.parse::<u32>()) {
        Some(Ok(step)) => step < RESERVED,
        Some(Err(_)) => true,
        None => variables.get("SLURM_PROCID").is_some_and(|rank| rank != "0"),
    }
}

/// torchrun may run inside mpirun, once a node: then it has a multiple of mpirun's processes.
fn check_outer(variables: &Variables, size: u32) -> Result<(), LaunchError> {
    match number(variables, "OMPI_COMM_WORLD_SIZE")? {
        Some(outer) if outer == 0 || !size.is_multiple_of(outer) => Err(LaunchError::Contradiction {
            first: format!("WORLD_SIZE={size}"),
            second: format!("OMPI_COMM_WORLD_SIZE={outer}"),
        }),
        _ => Ok(()),
    }
}

/// Tasks on this node, where Slurm's text for all nodes says the same of each: `8` or `8(x2)`.
fn tasks_here(variables: &Variables, tasks: u32) -> Option<u32> {
    if tasks == 1 {
        return Some(1);
    }
    let text =
        variables.get("SLURM_STEP_TASKS_PER_NODE").or_else(|| variables.get("SLURM_TASKS_PER_NODE"))?;
    let each = match text.split_once("(x") {
        Some((each, nodes)) if nodes.strip_suffix(')').is_some_and(|n| n.parse::<u32>().is_ok()) => each,
        Some(_) => return None,
        None => text,
    };
    each.parse().ok()
}

fn number(variables: &Variables, name: &str) -> Result<Option<u32>, LaunchError> {
    let parse = |value: &String| {
        let malformed = || LaunchError::Malformed { name: name.into(), value: value.clone() };
        value.parse().map_err(|_| malformed())
    };
    variables.get(name).map(parse).transpose()
}

fn in_range(rank_name: &str, rank: u32, size_name: &str, size: u32) -> Result<(), LaunchError> {
    if rank < size {
        return Ok(());
    }
    Err(LaunchError::OutOfRange { rank_name: rank_name.into(), rank, size_name: size_name.into(), size })
}
