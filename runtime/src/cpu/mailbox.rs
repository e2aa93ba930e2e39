//! Messages between ranks. Each rank has one unbounded channel that all others send into, so a send never blocks, and
//! blocks that come before they are asked for wait in the mailbox. The standard library's channel is enough: one
//! consumer a rank, and nothing is ever selected over.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ringlab_sim::plan::{MessageId, Rank};

use super::error::Place;
use super::memory::Storage;

/// What ranks tell each other.
pub(super) enum Letter {
    /// A message's block.
    Block(MessageId, Storage),
    /// The sender has ended with its program done. Channels keep order, so nothing of it comes after this.
    Finished(Rank),
    /// The sender has ended without; who is to blame, and where.
    Failed(Place),
}

/// Why a message does not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    TimedOut,
    SenderFinished,
    PeerFailed(Place),
}

pub(super) struct Mailbox<'a> {
    rank: Rank,
    incoming: Receiver<Letter>,
    outgoing: &'a [Sender<Letter>],
    early: BTreeMap<MessageId, Storage>,
    finished: Vec<bool>,
}

impl<'a> Mailbox<'a> {
    pub fn new(rank: Rank, incoming: Receiver<Letter>, outgoing: &'a [Sender<Letter>]) -> Self {
        Self { rank, incoming, outgoing, early: BTreeMap::new(), finished: vec![false; outgoing.len()] }
    }

    /// Sends a block. A receiver that has ended already has told everybody why.
    pub fn send(&self, to: Rank, message: MessageId, block: Storage) {
        let _ = self.outgoing[to as usize].send(Letter::Block(message, block));
    }

    /// Tells all other ranks how this one ended.
    pub fn announce(&self, end: Result<(), Place>) {
        for (rank, outgoing) in self.outgoing.iter().enumerate() {
            if rank != self.rank as usize {
                let letter = end.map_or_else(Letter::Failed, |()| Letter::Finished(self.rank));
                let _ = outgoing.send(letter);
            }
        }
    }

    /// Sorts what has arrived.
    ///
    /// # Errors
    /// Another rank has failed: who is to blame.
    pub fn poll(&mut self) -> Result<(), Place> {
        while let Ok(letter) = self.incoming.try_recv() {
            self.accept(letter)?;
        }
        Ok(())
    }

    /// Waits for a message from `from`, at most for `timeout`.
    pub fn receive(&mut self, message: MessageId, from: Rank, timeout: Duration) -> Result<Storage, Missing> {
        let start = Instant::now();
        self.poll().map_err(Missing::PeerFailed)?;
        loop {
            if let Some(block) = self.early.remove(&message) {
                return Ok(block);
            }
            if self.finished[from as usize] || from == self.rank {
                return Err(Missing::SenderFinished);
            }
            self.wait(timeout.saturating_sub(start.elapsed()))?;
        }
    }

    /// Waits until another rank fails, at most for `timeout`.
    pub fn wait_for_failure(&mut self, timeout: Duration) {
        let start = Instant::now();
        while self.wait(timeout.saturating_sub(start.elapsed())).is_ok() {}
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), Missing> {
        match self.incoming.recv_timeout(timeout) {
            Ok(letter) => self.accept(letter).map_err(Missing::PeerFailed),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(Missing::TimedOut),
        }
    }

    fn accept(&mut self, letter: Letter) -> Result<(), Place> {
        match letter {
            Letter::Block(message, block) => drop(self.early.insert(message, block)),
            Letter::Finished(rank) => self.finished[rank as usize] = true,
            Letter::Failed(culprit) => return Err(culprit),
        }
        Ok(())
    }
}
