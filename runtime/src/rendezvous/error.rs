//! Why ranks do not meet.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// What is wrong with the variables or flags that say who a process is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LaunchError {
    /// Some variables of a launcher without the others.
    #[error(
        "{launcher} sets {have}, but {missing} is missing; start with {launcher}, or give --rank, --world-size and \
         --rendezvous and unset {have}"
    )]
    Partial {
        /// The launcher by its name.
        launcher: &'static str,
        /// Variables that are set.
        have: String,
        /// Variables that are not.
        missing: String,
    },
    /// `--rank` and its companions, not all of them.
    #[error("{have} needs {missing}; give --rank, --world-size, --local-rank and --rendezvous together")]
    Flags {
        /// Flags that were given.
        have: String,
        /// Flags that were not.
        missing: String,
    },
    /// A value that is no number, or too large a one.
    #[error("{name}={value:?} is no whole number from 0 to 4294967295")]
    Malformed {
        /// The variable or flag.
        name: String,
        /// Its value.
        value: String,
    },
    /// A rank that does not exist.
    #[error("{rank_name}={rank} is not below {size_name}={size}; ranks count from 0")]
    OutOfRange {
        /// Which variable or flag says the rank.
        rank_name: String,
        /// The rank.
        rank: u32,
        /// Which one says how many there are.
        size_name: String,
        /// How many there are.
        size: u32,
    },
    /// Two sources that disagree.
    #[error("{first} and {second} contradict each other; unset one of them")]
    Contradiction {
        /// The first, with its value.
        first: String,
        /// The second, with its value.
        second: String,
    },
    /// Ranks that cannot be shared out.
    #[error(
        "{ranks} ranks (--cp) cannot be shared out among {processes} processes; --cp must be a multiple of {processes}"
    )]
    Uneven {
        /// Context-parallel ranks.
        ranks: u32,
        /// Processes.
        processes: u32,
    },
    /// `--ranks-per-process` that does not give the ranks that were asked for.
    #[error(
        "--ranks-per-process {each} times {processes} processes are {product} ranks, not the {ranks} of --cp; leave --cp out"
    )]
    Product {
        /// Ranks of a process.
        each: u32,
        /// Processes.
        processes: u32,
        /// Their product.
        product: u64,
        /// Ranks asked for.
        ranks: u32,
    },
    /// A rank of its own without a place to meet.
    #[error(
        "{0} needs --rendezvous FOLDER, a folder that all {1} processes see, such as one in a shared home"
    )]
    NoFolder(String, u32),
    /// A local rank that was not given and cannot be derived.
    #[error(
        "--rank without --local-rank does not say which GPU of its node a process takes; give --local-rank"
    )]
    NoLocalRank,
}

/// Why ranks that know who they are do not meet.
#[derive(Debug, Error)]
pub enum MeetError {
    /// The folder cannot be used.
    #[error("cannot {what} {}: {error}", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// Ranks that did not come.
    #[error(
        "{} of {processes} processes never came within {} s: {}; looked in {}. Are all started, with the same run id, and \
         does each see this folder?",
        .missing.len(), .after.as_secs_f64(), list(.missing), .folder.display()
    )]
    Absent {
        /// Processes that left no presence.
        missing: Vec<u32>,
        /// Processes that were expected.
        processes: u32,
        /// How long they were waited for.
        after: Duration,
        /// Where.
        folder: PathBuf,
    },
    /// Ranks that came and then fell silent.
    #[error("process {} came, but did not {what} within {} s", list(.silent), .after.as_secs_f64())]
    Silent {
        /// Processes that did not go on.
        silent: Vec<u32>,
        /// What they should have done.
        what: String,
        /// How long they were waited for.
        after: Duration,
    },
    /// A rank that said why it gives up.
    #[error("process {process} failed: {message}")]
    Failed {
        /// Which one.
        process: u32,
        /// Its own words.
        message: String,
    },
    /// Another process that claims the same rank.
    #[error(
        "two processes claim to be process {process} of run {run:?}; every process needs its own rank, and every run its own id"
    )]
    Taken {
        /// Which rank.
        process: u32,
        /// The run.
        run: String,
    },
    /// A file that is not what it should be.
    #[error("{} is not a file of this program, or of another version; remove the folder and start again", .0.display())]
    Foreign(PathBuf),
}

fn list(ranks: &[u32]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
