//! Transfers that need SMs and wait for them.
//!
//! A persistent grid that takes its work from a queue leaves no SM before it has ended. The kernel of a transfer comes with
//! the transfer's latency: a call that has started by then goes first, and when it ends the transfer takes its SMs before
//! the next call does. A side that has its SMs keeps them while the other one still waits.
//!
//! A transfer of high priority is due as soon as it is posted, so that no call starts between that and the end of its
//! latency: it goes before the calls of the same instant, and before the next one when a call ends. It preempts none.

use super::Recorder;
use super::flows::Transfer;
use super::state::{DUE, Run, event};
use crate::config::cluster::Priority;
use crate::plan::MessageId;

/// The transfers that wait.
#[derive(Debug, Clone, Default)]
pub(super) struct Grants {
    waiting: Vec<Waiting>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    message: MessageId,
    transfer: Transfer,
    sms: u32,
    /// Whether its kernels have come, or go before those of calls in any case.
    is_due: bool,
    granted: [bool; 2],
}

impl Grants {
    /// Nothing waits.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// The kernels of a message's transfer have come.
    pub fn fall_due(&mut self, message: MessageId) {
        if let Some(waiting) = self.waiting.iter_mut().find(|w| w.message == message) {
            waiting.is_due = true;
        }
    }
}

impl<R: Recorder> Run<'_, R> {
    /// Begins a transfer, or lets it wait until its kernels have come if they need SMs that calls may keep.
    pub(super) fn await_sms(&mut self, message: MessageId, transfer: Transfer) {
        let path = self.flows.path_between(transfer.from, transfer.to);
        let (sms, latency) = (path.sms, path.latency);
        let is_due = path.priority == Priority::High;
        if sms == 0 || !self.tasks.have_queues() {
            return self.begin(&transfer);
        }
        self.lanes.grants.waiting.push(Waiting { message, transfer, sms, is_due, granted: [false; 2] });
        if !is_due {
            self.queue.push(self.queue.now().saturating_add(latency), event(DUE, message));
        }
    }

    /// Gives SMs to the transfers that are due, where no call keeps them.
    pub(super) fn grant(&mut self) {
        if self.lanes.grants.waiting.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.lanes.grants.waiting);
        waiting.retain_mut(|w| !w.is_due || !self.take_sms(w));
        self.lanes.grants.waiting = waiting;
    }

    /// Takes SMs for the sides that find some; begins the transfer, and says so, if both have them.
    fn take_sms(&mut self, waiting: &mut Waiting) -> bool {
        let Some(sms) = &mut self.sms else { return false };
        let now = self.queue.now();
        for (side, granted) in waiting.transfer.sides.iter().zip(&mut waiting.granted) {
            if !*granted && !sms.is_full(side.lane) {
                *granted = true;
                if let Some(new) = sms.reserve(side.lane, waiting.sms, now) {
                    self.lanes.put_off(new, self.queue);
                }
            }
        }
        if waiting.granted != [true; 2] {
            return false;
        }
        self.begin(&waiting.transfer);
        if let Some(sms) = &mut self.sms {
            for side in waiting.transfer.sides {
                sms.unreserve(side.lane, waiting.sms);
            }
        }
        true
    }
}
