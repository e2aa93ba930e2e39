//! Flags in device memory, by which ranks wait for each other without their hosts. All are lowered before every run.

use ringlab_sim::plan::{MessageId, Plan, Rank};

use super::command::Address;

/// Rounds of the clocks' comparison.
pub(super) const ROUNDS: usize = 5;

/// Where every rank's flags lie.
#[derive(Debug, Clone)]
pub(super) struct Flags {
    /// By rank; 0 for a rank of another process, whose flags nobody here can reach.
    bases: Vec<Address>,
    messages: usize,
}

impl Flags {
    /// Flags that each rank needs.
    pub fn count(plan: &Plan) -> usize {
        3 * plan.messages.len() + 1 + ROUNDS * (1 + plan.programs.len())
    }

    /// The first flag of a rank.
    pub fn base(&self, rank: Rank) -> Address {
        self.bases[rank as usize]
    }

    pub fn new(bases: Vec<Address>, messages: usize) -> Self {
        Self { bases, messages }
    }

    fn at(&self, rank: Rank, index: usize) -> Address {
        self.bases[rank as usize] + 4 * index as u64
    }

    /// On the sender: pushed, the receiver's buffer is free; pulled, the message has been read.
    pub fn free(&self, sender: Rank, message: MessageId) -> Address {
        self.at(sender, message as usize)
    }

    /// On the receiver: pushed, the message has arrived; pulled, it may be read.
    pub fn sent(&self, receiver: Rank, message: MessageId) -> Address {
        self.at(receiver, self.messages + message as usize)
    }

    /// On the receiver: the message lies in its buffer.
    pub fn landed(&self, receiver: Rank, message: MessageId) -> Address {
        self.at(receiver, 2 * self.messages + message as usize)
    }

    /// The pass may start.
    pub fn gate(&self, rank: Rank) -> Address {
        self.at(rank, 3 * self.messages)
    }

    /// On a rank: rank 0 asks for the time.
    pub fn ping(&self, rank: Rank, round: usize) -> Address {
        self.at(rank, 3 * self.messages + 1 + round)
    }

    /// On rank 0: a rank has taken its time.
    pub fn pong(&self, rank: Rank, round: usize) -> Address {
        self.at(0, 3 * self.messages + 1 + ROUNDS * (1 + rank as usize) + round)
    }
}
