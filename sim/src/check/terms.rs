//! The terms in which violations speak: operations, messages, buffers, circular waits and pairs as a user finds them.

use std::fmt;

use crate::plan::{Buf, MessageId, Op, OpId, Rank, Tensor};
use crate::timeline::SpanKind;

/// An operation, as a user finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    /// Whose.
    pub rank: Rank,
    /// The schedule's step.
    pub step: u32,
    /// Index into the rank's operations.
    pub op: OpId,
    /// What it does.
    pub kind: SpanKind,
}

impl At {
    pub(super) fn new(rank: Rank, op: OpId, what: &Op) -> Self {
        Self { rank, step: what.step, op, kind: SpanKind::of(&what.kind) }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} step {} op {} ({})", self.rank, self.step, self.op, self.kind.name())
    }
}

/// A message, as a user finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wire {
    /// Index into the plan's messages.
    pub message: MessageId,
    /// Sender.
    pub from: Rank,
    /// Receiver.
    pub to: Rank,
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {} from rank {} to rank {}", self.message, self.from, self.to)
    }
}

/// A buffer, as a user finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Whose.
    pub rank: Rank,
    /// Which.
    pub buffer: Buf,
    /// What it holds.
    pub tensor: Tensor,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer {} of rank {} ({})", self.buffer.0, self.rank, tensor_name(self.tensor))
    }
}

/// What a tensor is called in messages.
pub(super) fn tensor_name(tensor: Tensor) -> &'static str {
    match tensor {
        Tensor::Query => "q",
        Tensor::KeyValue => "k and v",
        Tensor::State => "partial result",
        Tensor::Output => "o",
        Tensor::QuerySide => "q, o, do and lse",
        Tensor::OutputGrad => "do",
        Tensor::BackwardQuery => "q, do and lse",
        Tensor::Hidden => "layer input",
        Tensor::LayerOutput => "part of the layer output",
        Tensor::HiddenGrad => "part of the layer input's gradient",
        Tensor::Delta => "delta",
        Tensor::QueryGrad => "dq",
        Tensor::KeyValueGrad => "dk and dv",
        Tensor::Key => "k",
        Tensor::Value => "v",
        Tensor::KeyGrad => "dk",
        Tensor::ValueGrad => "dv",
        Tensor::Scores { .. } => "score rows",
    }
}

/// How two operations that nothing orders get in each other's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    /// The first sends it, the second writes.
    OverwrittenInFlight,
    /// The first reads, the second writes.
    OverwrittenWhileRead,
    /// The first receives it, the second reads.
    ReadBeforeArrival,
    /// The first writes, the second reads.
    ReadWhileWritten,
    /// Both write.
    WrittenTwice,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OverwrittenInFlight => "is overwritten while it is in flight",
            Self::OverwrittenWhileRead => "is overwritten while it is read",
            Self::ReadBeforeArrival => "is read before it has arrived",
            Self::ReadWhileWritten => "is read while it is written",
            Self::WrittenTwice => "is written by two operations at once",
        })
    }
}

/// Why an operation cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It runs behind the other one on the same lane.
    Lane,
    /// It runs behind the other one if a rank's communicators take turns.
    Turn,
    /// It waits for the other one by name.
    Wait,
    /// The other one is the other end of its transfer.
    Partner,
}

/// One link of a circular wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// Who waits.
    pub op: At,
    /// Why.
    pub reason: Reason,
    /// For whom.
    pub of: At,
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.reason {
            Reason::Lane => "queues on its lane behind",
            Reason::Turn => "takes its turn on the communicators after",
            Reason::Wait => "waits for",
            Reason::Partner => "needs its other end,",
        };
        write!(f, "{} {why} {}", self.op, self.of)
    }
}

/// A circular wait, hop by hop; the last hop leads back to the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle(pub Vec<Hop>);

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 12;
        for (i, hop) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{hop}", if i == 0 { "" } else { "; " })?;
        }
        if self.0.len() > SHOWN {
            write!(f, "; and {} more, back to the first", self.0.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// A (query, key) pair of one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    /// Position of the query.
    pub query: u64,
    /// Rank and slot that hold the query.
    pub query_at: (Rank, u64),
    /// Position of the key.
    pub key: u64,
    /// Rank and slot that hold the key.
    pub key_at: (Rank, u64),
    /// Query head.
    pub head: u32,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((i, qs), (j, ks)) = (self.query_at, self.key_at);
        let (q, k, h) = (self.query, self.key, self.head);
        write!(
            f,
            "query token {q} (rank {i}, slot {qs}) x key token {k} (rank {j}, slot {ks}), query head {h},"
        )
    }
}

/// What is wrong with the work on a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The mask allows it, and nothing that was computed of it arrives.
    Missing,
    /// It arrives twice.
    Doubled {
        /// Computed here.
        first: At,
        /// And here; the same operation, if its result was added twice.
        second: At,
    },
    /// The mask forbids it.
    Masked {
        /// Computed here.
        at: At,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => write!(f, "is never computed"),
            Self::Doubled { first, second } if first == second => write!(f, "is added twice: from {first}"),
            Self::Doubled { first, second } => write!(f, "is computed twice: at {first} and at {second}"),
            Self::Masked { at } => write!(f, "is computed although masked: at {at}"),
        }
    }
}
