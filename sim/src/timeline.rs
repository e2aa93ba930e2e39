//! What happened when: the same type whether it was predicted or measured.

use serde::Serialize;

use crate::plan::{Lane, MaskId, OpId, OpKind, Plan, Rank, Scores};
use crate::units::{Bytes, SimTime};

/// What a span was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// A forward attention call.
    Attend,
    /// A backward attention call.
    AttendBackward,
    /// rowsum(o * do).
    Preprocess,
    /// Merging partial states.
    Merge,
    /// Adding gradients.
    Accumulate,
    /// Normalising the state.
    Finish,
    /// Projections around attention.
    Project,
    /// Products that give scores, or gradients by way of them.
    Score,
    /// Softmax of whole score rows, or its gradient.
    Softmax,
    /// Products of probabilities and values, or their gradients.
    Weigh,
    /// A message leaving.
    Send,
    /// A message arriving.
    Recv,
}

impl SpanKind {
    /// The kind of an operation.
    pub fn of(op: &OpKind) -> Self {
        match op {
            OpKind::Attend { .. } => Self::Attend,
            OpKind::AttendBackward { .. } => Self::AttendBackward,
            OpKind::Preprocess { .. } => Self::Preprocess,
            OpKind::Merge { .. } => Self::Merge,
            OpKind::Accumulate { .. } => Self::Accumulate,
            OpKind::Finish { .. } => Self::Finish,
            OpKind::Project(_) => Self::Project,
            OpKind::Scores(Scores::Score { .. } | Scores::ScoreBackward { .. }) => Self::Score,
            OpKind::Scores(Scores::Softmax { .. } | Scores::SoftmaxBackward { .. }) => Self::Softmax,
            OpKind::Scores(Scores::Weigh { .. } | Scores::WeighBackward { .. }) => Self::Weigh,
            OpKind::Send { .. } => Self::Send,
            OpKind::Recv { .. } => Self::Recv,
        }
    }

    /// Whether it moves a message.
    pub fn is_transfer(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }

    /// Name in tables and traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attend => "attend",
            Self::AttendBackward => "attend backward",
            Self::Preprocess => "preprocess",
            Self::Merge => "merge",
            Self::Accumulate => "accumulate",
            Self::Finish => "finish",
            Self::Project => "project",
            Self::Score => "score",
            Self::Softmax => "softmax",
            Self::Weigh => "weigh",
            Self::Send => "send",
            Self::Recv => "recv",
        }
    }
}

/// One operation of one rank, from its start to its end. A transfer's span is the time that its bytes move, on the
/// sender and on the receiver alike.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Span {
    /// Where.
    pub rank: Rank,
    /// On which lane.
    pub lane: Lane,
    /// Index of the operation in the rank's program.
    pub op: OpId,
    /// The schedule's step.
    pub step: u32,
    /// What it was.
    pub kind: SpanKind,
    /// Since the start of the pass.
    pub start: SimTime,
    /// Since the start of the pass.
    pub end: SimTime,
    /// Bytes moved between ranks.
    pub bytes: Bytes,
    /// FLOPs by the mask's area.
    pub flops: f64,
}

impl Span {
    /// How long it took.
    pub fn duration(&self) -> SimTime {
        self.end.saturating_sub(self.start)
    }

    /// What the operation did, for a person: which ranks' queries and keys, or which message.
    pub fn label(&self, plan: &Plan) -> String {
        let ranks = |block: u32| {
            let owners: Vec<String> = plan.block(block).slots.iter().map(|s| s.rank.to_string()).collect();
            let mut owners = owners;
            owners.dedup();
            owners.join("+")
        };
        let kind = plan.programs[self.rank as usize].ops[self.op as usize].kind;
        if let Some((q, kv, mask)) = kind.attended() {
            let masked = if mask == MaskId::NONE { "" } else { " masked" };
            return format!("q{} x kv{}{masked}", ranks(q), ranks(kv));
        }
        match kind {
            OpKind::Send { message, .. } | OpKind::Recv { message, .. } => {
                let m = plan.message(message);
                format!("{:?} of {}: {} -> {}", m.tensor, ranks(m.block), m.from, m.to)
            }
            _ => self.kind.name().to_owned(),
        }
    }
}

/// All spans of one pass.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Timeline {
    /// Number of ranks P.
    pub ranks: u32,
    /// The spans, ordered by end, then by rank.
    pub spans: Vec<Span>,
    /// When the last operation ended.
    pub makespan: SimTime,
}
