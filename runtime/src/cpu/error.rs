//! How a run fails: always with a rank, a step and an operation.

use std::fmt;
use std::time::Duration;

use ringlab_sim::plan::{MessageId, OpId, Part, Plan, Rank, Tensor};
use ringlab_sim::timeline::SpanKind;
use thiserror::Error;

use crate::inputs::InputError;

/// An operation of a rank, or the end of its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which rank.
    pub rank: Rank,
    /// The schedule's step.
    pub step: u32,
    /// Index of the operation in the rank's program; one past the last at its end.
    pub op: OpId,
    /// What the operation does; `None` at the end of the program.
    pub kind: Option<SpanKind>,
}

impl Place {
    pub(crate) fn new(plan: &Plan, rank: Rank, op: usize) -> Self {
        let ops = &plan.programs[rank as usize].ops;
        let step = ops.get(op).or(ops.last()).map_or(0, |op| op.step);
        Self { rank, step, op: op as OpId, kind: ops.get(op).map(|op| SpanKind::of(&op.kind)) }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => {
                write!(f, "rank {} at step {}, operation {} ({})", self.rank, self.step, self.op, kind.name())
            }
            None => write!(f, "rank {} at the end of its program", self.rank),
        }
    }
}

/// Why a rank did not finish.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Cause {
    /// The rank's thread could not be started.
    #[error("its thread could not be started: {0}")]
    Thread(String),
    /// The operation panicked.
    #[error("panicked: {0}")]
    Panicked(String),
    /// The rank left before this operation.
    #[error("the rank exited before this operation")]
    Exited,
    /// The rank stood still before this operation until the others gave up.
    #[error("the rank stopped responding before this operation")]
    Stalled,
    /// The operation reads tokens or heads that its buffers do not hold, or hold twice.
    #[error("buffer {buffer} does not hold all that the operation reads; `ringlab check` proves plans")]
    NotHeld {
        /// The first buffer it reads for them.
        buffer: u16,
    },
    /// A buffer of another kind of tensor.
    #[error("buffer {buffer} holds {actual:?}, not {expected:?}")]
    WrongTensor {
        /// The buffer.
        buffer: u16,
        /// What the operation needs.
        expected: Tensor,
        /// What the plan declares.
        actual: Tensor,
    },
    /// A buffer that has nothing of what an operation reads.
    #[error("buffer {buffer} holds {actual:?}, which has none of {parts:?}")]
    NoPart {
        /// The buffer.
        buffer: u16,
        /// What the operation needs.
        parts: Vec<Part>,
        /// What the plan declares.
        actual: Tensor,
    },
    /// A buffer smaller than what is written to it.
    #[error("buffer {buffer} is too small for the block that is written to it")]
    TooSmall {
        /// The buffer.
        buffer: u16,
    },
    /// A message that did not come in time.
    #[error(
        "message {message} from rank {from} did not arrive within {} s; the rank that everybody waits for is {culprit}. \
         A slow machine may need a longer time-out",
        .after.as_secs_f64()
    )]
    TimedOut {
        /// The message.
        message: MessageId,
        /// Its sender.
        from: Rank,
        /// The rank that keeps the sender from sending, maybe itself, and where it is.
        culprit: Place,
        /// How long the rank waited.
        after: Duration,
    },
    /// A message whose sender ended without sending it.
    #[error("message {message} was never sent: {sender}")]
    NeverSent {
        /// The message.
        message: MessageId,
        /// Its sender, which has ended.
        sender: Place,
    },
    /// Another rank failed.
    #[error("gave up because of {culprit}")]
    PeerFailed {
        /// The rank that is to blame, and where.
        culprit: Place,
    },
}

impl Cause {
    /// How close to the root of the trouble: causes of the rank itself, then missing messages, then consequences.
    pub(super) fn distance(&self) -> u8 {
        match self {
            Self::TimedOut { .. } | Self::NeverSent { .. } => 1,
            Self::Stalled => 2,
            Self::PeerFailed { .. } => 3,
            _ => 0,
        }
    }
}

/// A rank that did not finish.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{place}: {cause}")]
pub struct RankFailure {
    /// Which rank, and where.
    pub place: Place,
    /// Why.
    pub cause: Cause,
}

impl RankFailure {
    /// The rank to blame, and where: who kept a message from coming, or the rank itself.
    pub fn culprit(&self) -> Place {
        match self.cause {
            Cause::NeverSent { sender, .. } => sender,
            Cause::TimedOut { culprit, .. } | Cause::PeerFailed { culprit } => culprit,
            _ => self.place,
        }
    }
}

/// Why a run has no result.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RunError {
    /// The inputs do not fit the plan.
    #[error(transparent)]
    Inputs(#[from] InputError),
    /// More ranks than [`MAX_RANKS`](super::MAX_RANKS).
    #[error(
        "{ranks} ranks are {ranks} threads, one a rank, and CPUs run at most {}; use fewer, or `ringlab check` and \
         `ringlab simulate`, which start none",
        super::MAX_RANKS
    )]
    TooManyRanks {
        /// How many were asked for.
        ranks: u32,
    },
    /// A rank failed, and the others with it.
    #[error("{root}{}", count(.others))]
    Ranks {
        /// The failure closest to the cause.
        root: RankFailure,
        /// What became of the other ranks that did not finish, by rank.
        others: Vec<RankFailure>,
    },
    /// A rank finished without writing one of its results.
    #[error("rank {rank} never wrote all of its result in buffer {buffer}; `ringlab check` proves plans")]
    Unwritten {
        /// The rank.
        rank: Rank,
        /// The output buffer.
        buffer: u16,
    },
}

fn count(others: &[RankFailure]) -> String {
    match others.len() {
        0 => String::new(),
        1 => " (1 other rank ended with it)".into(),
        n => format!(" ({n} other ranks ended with it)"),
    }
}
