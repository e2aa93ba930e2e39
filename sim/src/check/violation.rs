//! What can be wrong with a plan, said so that it can be found: rank, step and operation, and for work the very pair.

use thiserror::Error;

use super::terms::{At, Conflict, Cycle, Fault, Pair, Place, Wire, tensor_name};
use crate::plan::{BlockId, Lane, OpId, Rank, Tensor};
use crate::units::Bytes;

/// Why a plan is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// The parts of the plan do not fit each other.
    #[error("the plan is malformed: {what}")]
    Plan {
        /// What does not fit.
        what: String,
    },
    /// A block that is no set of tokens and heads of the layout.
    #[error("block {block} is malformed: {what}")]
    Block {
        /// Which.
        block: BlockId,
        /// What does not fit.
        what: String,
    },
    /// A buffer whose promise cannot hold.
    #[error("{place} is malformed: {what}")]
    Buffer {
        /// Which.
        place: Place,
        /// What does not fit.
        what: String,
    },
    /// An operation that names something that is not there, or of the wrong kind.
    #[error("{at} is malformed: {what}")]
    Op {
        /// Which.
        at: At,
        /// What does not fit.
        what: String,
    },
    /// A message that is never sent.
    #[error("{wire} is never sent{}", received.map_or(String::new(), |r| format!("; {r} would wait for ever")))]
    NotSent {
        /// Which.
        wire: Wire,
        /// The receive that waits for it.
        received: Option<At>,
    },
    /// A message that is never received.
    #[error("{wire} is never received; {sent} would wait for ever")]
    NotReceived {
        /// Which.
        wire: Wire,
        /// The send that waits.
        sent: At,
    },
    /// A message with two sends or two receives.
    #[error("{wire} is transferred twice: by {first} and by {second}")]
    Repeated {
        /// Which.
        wire: Wire,
        /// One.
        first: At,
        /// The other.
        second: At,
    },
    /// A send or a receive on a rank that the message does not concern.
    #[error("{at} handles {wire}, which is another rank's")]
    WrongRank {
        /// Which message.
        wire: Wire,
        /// The send or receive.
        at: At,
    },
    /// A message whose size is not its block's.
    #[error("{wire} is {} bytes, but its block has {}", found.0, expected.0)]
    MessageBytes {
        /// Which.
        wire: Wire,
        /// What it says.
        found: Bytes,
        /// What its block needs.
        expected: Bytes,
    },
    /// Two ends of a message on different communicators.
    #[error("{sent} and {received} are two ends of one message, but on lanes {} and {}", lanes.0.0, lanes.1.0)]
    Communicators {
        /// The send.
        sent: At,
        /// The receive.
        received: At,
        /// Where they run.
        lanes: (Lane, Lane),
    },
    /// Messages between two ranks in one order at one end and in another at the other.
    #[error(
        "rank {from} sends message {} ({}) before message {} ({}), but rank {to} receives them the other way round \
         ({} before {})", first.message, sends.0, second.message, sends.1, receives.1, receives.0
    )]
    MessageOrder {
        /// Sender of both.
        from: Rank,
        /// Receiver of both.
        to: Rank,
        /// Sent first.
        first: Wire,
        /// Sent second.
        second: Wire,
        /// The sends, of the first and of the second.
        sends: (At, At),
        /// The receives, of the first and of the second.
        receives: (At, At),
    },
    /// Two communicators used in one order on one rank and in another on the other.
    #[error(
        "two communicators are used in different order: {} before {}, but {} before {}",
        here.0, here.1, there.1, there.0
    )]
    CommunicatorOrder {
        /// On one rank, in order.
        here: (At, At),
        /// Their other ends, on the other rank.
        there: (At, At),
    },
    /// Operations that wait for each other.
    #[error("circular wait: {cycle}")]
    CircularWait {
        /// Hop by hop.
        cycle: Cycle,
    },
    /// Operations that wait for each other if a rank's communicators run one after the other, as they may on a GPU.
    #[error("circular wait if the communicators of a rank take turns in launch order: {cycle}")]
    Interlock {
        /// Hop by hop.
        cycle: Cycle,
    },
    /// Two uses of a buffer that nothing orders.
    #[error("{place} {conflict}: nothing orders {first} and {second}")]
    Race {
        /// Which buffer.
        place: Place,
        /// How.
        conflict: Conflict,
        /// The earlier one in the rank's order.
        first: At,
        /// The later one.
        second: At,
    },
    /// A buffer that is used before anything is in it.
    #[error("{at} uses {place}, which holds nothing yet; it needs {needed}")]
    Uninitialised {
        /// Who.
        at: At,
        /// Which buffer.
        place: Place,
        /// What should be there.
        needed: String,
    },
    /// A buffer that holds something else than what is needed.
    #[error("{at} needs {needed} in {place}, which holds {held}")]
    WrongContent {
        /// Who.
        at: At,
        /// Which buffer, or the first of several.
        place: Place,
        /// What should be there.
        needed: String,
        /// What is there.
        held: String,
    },
    /// Query heads with kv heads of another group.
    #[error(
        "{at} pairs {queries} query heads with kv heads {keys}; with {group} query heads a kv head they need {needed}"
    )]
    Heads {
        /// Who.
        at: At,
        /// Query heads.
        queries: String,
        /// kv heads.
        keys: String,
        /// kv heads that belong to the query heads.
        needed: String,
        /// H / K.
        group: u32,
    },
    /// More than fits into a buffer.
    #[error("{at} puts {} bytes into {place}, which has room for {}", bytes.0, room.0)]
    TooLarge {
        /// Who.
        at: At,
        /// Which buffer.
        place: Place,
        /// How much.
        bytes: Bytes,
        /// How much fits.
        room: Bytes,
    },
    /// An input that is overwritten.
    #[error("{at} overwrites {place}, an input that is to be kept")]
    InputOverwritten {
        /// Who.
        at: At,
        /// Which buffer.
        place: Place,
    },
    /// An output that does not hold its block in the end.
    #[error("{place} must hold {needed} in the end, but holds {held}")]
    NoResult {
        /// Which buffer.
        place: Place,
        /// What should be there.
        needed: String,
        /// What is there.
        held: String,
    },
    /// Tokens whose result is in no output, or in two.
    #[error(
        "{} of rank {rank} slots {}..{}, heads {}..{}, is in {count} outputs; it must be in exactly one",
        tensor_name(*tensor), slots.0, slots.1, heads.0, heads.1
    )]
    Outputs {
        /// Which result.
        tensor: Tensor,
        /// Whose tokens.
        rank: Rank,
        /// Which, `[from, to)`.
        slots: (u64, u64),
        /// Which heads, `[from, to)`.
        heads: (u32, u32),
        /// In how many outputs.
        count: usize,
    },
    /// A pair that does not count exactly once in a result.
    #[error("in {}, {pair} {fault}", tensor_name(*result))]
    Coverage {
        /// o, dq, or dk and dv.
        result: Tensor,
        /// One such pair of all that are wrong in the same way.
        pair: Pair,
        /// In what way.
        fault: Fault,
    },
}

impl Violation {
    /// Where it shows first: rank, step and operation, as far as it has them.
    pub fn at(&self) -> Option<At> {
        match self {
            Self::Op { at, .. }
            | Self::WrongRank { at, .. }
            | Self::Uninitialised { at, .. }
            | Self::WrongContent { at, .. }
            | Self::Heads { at, .. }
            | Self::TooLarge { at, .. }
            | Self::InputOverwritten { at, .. }
            | Self::NotReceived { sent: at, .. }
            | Self::Coverage { fault: Fault::Masked { at } | Fault::Doubled { second: at, .. }, .. }
            | Self::Communicators { sent: at, .. }
            | Self::MessageOrder { sends: (_, at), .. }
            | Self::CommunicatorOrder { here: (_, at), .. }
            | Self::Race { second: at, .. }
            | Self::Repeated { second: at, .. } => Some(*at),
            Self::NotSent { received, .. } => *received,
            Self::CircularWait { cycle } | Self::Interlock { cycle } => cycle.0.first().map(|hop| hop.op),
            _ => None,
        }
    }

    /// Violations are listed by rank, step and operation; those of the plan as a whole come first.
    pub(super) fn order(&self) -> Option<(Rank, u32, OpId)> {
        let result = match self {
            Self::Buffer { place, .. } | Self::NoResult { place, .. } => Some((place.rank, 0, 0)),
            Self::Coverage { pair, .. } => Some((pair.query_at.0, 0, 0)),
            Self::Outputs { rank, .. } => Some((*rank, 0, 0)),
            _ => None,
        };
        self.at().map(|at| (at.rank, at.step, at.op)).or(result)
    }
}

/// A list of violations that stops growing once it is long enough to be useful.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Violation>);

impl Findings {
    const LIMIT: usize = 20;

    pub fn push(&mut self, violation: Violation) {
        if !self.is_full() {
            self.0.push(violation);
        }
    }

    pub fn is_full(&self) -> bool {
        self.0.len() >= Self::LIMIT
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing found, or all of it, in order.
    pub fn done(self) -> Result<(), Vec<Violation>> {
        if self.is_empty() {
            return Ok(());
        }
        let mut list = self.0;
        list.sort_by_key(Violation::order);
        Err(list)
    }
}
