//! Messages of all ranks at once, each to the next rank.

use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{BlockId, Buf, Lane, OpId, OpKind, Tensor, Transport};

/// What a rank sends.
pub(super) struct Sent {
    pub tensor: Tensor,
    pub block: BlockId,
    pub buffer: Buf,
    /// Which of its operations is to have ended.
    pub after: Option<OpId>,
}

/// Each rank's `sent` goes to the next rank. A rank neither sends nor receives before its own operation has ended; the
/// receives by rank.
pub(super) fn pass_on(b: &mut PlanBuilder, step: u32, sent: &[Sent], over: Transport) -> Vec<OpId> {
    let ranks = sent.len() as u32;
    let message = |(from, s): (u32, &Sent)| b.message(from, (from + 1) % ranks, s.tensor, s.block);
    let messages: Vec<_> = (0..ranks).zip(sent).map(message).collect();
    let mut received = Vec::new();
    for (rank, own) in (0..ranks).zip(sent) {
        let before = ((rank + ranks - 1) % ranks) as usize;
        let (group, receives) = match over {
            Transport::CopyEngine => (0, Lane::comm(1)),
            Transport::Nccl => (b.group(), Lane::comm(0)),
        };
        let buffer = b.scratch(rank, sent[before].tensor, sent[before].block);
        let send = OpKind::Send { message: messages[rank as usize], buffer: own.buffer.into() };
        let recv = OpKind::Recv { message: messages[before], buffer };
        let send = b.push(rank, Lane::comm(0), step, group, send);
        let recv = b.push(rank, receives, step, group, recv);
        if let Some(after) = own.after {
            b.wait(rank, send, after);
            b.wait(rank, recv, after);
        }
        received.push(recv);
    }
    received
}
