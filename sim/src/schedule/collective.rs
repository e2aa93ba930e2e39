//! All-gather and reduce-scatter over all ranks, as messages: hop by hop around the ring, as NCCL's ring algorithm, or
//! straight between each two ranks in rounds. Either way a rank sends P - 1 shares.

use super::Route;
use super::step::{Channel, owner};
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, MessageId, OpKind, Rank, Tensor};

/// How a collective travels.
#[derive(Clone, Copy)]
pub(super) struct Collective {
    pub channel: Channel,
    pub route: Route,
    pub tensor: Tensor,
}

/// What a rank sends and receives in a round, with the buffers.
struct Round {
    to: Rank,
    from: Rank,
    /// Whose share it sends.
    sends: Rank,
    /// Whose share it receives.
    receives: Rank,
}

/// A message for every rank, made once, found by its receiver.
fn messages(
    b: &mut PlanBuilder,
    tensor: Tensor,
    shares: &[BlockId],
    round: impl Fn(Rank) -> Round,
) -> Vec<MessageId> {
    (0..b.ranks())
        .map(|r| {
            let Round { from, receives, .. } = round(r);
            b.message(from, r, tensor, shares[receives as usize])
        })
        .collect()
}

/// Buffers for every rank's share on rank `r`, in order of rank; the own one is an input.
pub(super) fn allocate(b: &mut PlanBuilder, r: Rank, tensor: Tensor, shares: &[BlockId]) -> Bufs {
    let bufs: Vec<Buf> = (0..)
        .zip(shares)
        .map(|(s, &share)| if s == r { b.input(r, tensor, share) } else { b.scratch(r, tensor, share) })
        .collect();
    Bufs { first: bufs[0], count: bufs.len() as u16 }
}

/// The buffer of rank s's share.
pub(super) fn share_of(bufs: Bufs, s: Rank) -> Buf {
    Buf(bufs.first.0 + s as u16)
}

impl Collective {
    /// All-gather: afterwards every rank holds all of `shares`, in `bufs` as [`allocate`] made them.
    pub fn gather(self, b: &mut PlanBuilder, shares: &[BlockId], bufs: &[Bufs]) {
        let ranks = b.ranks();
        for t in 1..ranks {
            let round = |r: Rank| match self.route {
                Route::Neighbour => Round {
                    to: (r + 1) % ranks,
                    from: owner(r, 1, ranks),
                    sends: owner(r, t - 1, ranks),
                    receives: owner(r, t, ranks),
                },
                Route::Direct => Round {
                    to: (r + t) % ranks,
                    from: owner(r, t, ranks),
                    sends: r,
                    receives: owner(r, t, ranks),
                },
            };
            let messages = messages(b, self.tensor, shares, round);
            for r in 0..ranks {
                let Round { to, sends, receives, .. } = round(r);
                let send = (messages[to as usize], share_of(bufs[r as usize], sends).into());
                let recv = (messages[r as usize], share_of(bufs[r as usize], receives));
                self.channel.exchange(b, (r, t), &[send], &[recv], None);
            }
        }
    }

    /// Reduce-scatter: every rank's parts of `shares`, in `parts` in order of rank, are summed up in their owner's part.
    /// On the ring each rank adds its part to what comes by; `parts` are not changed but for the own one.
    pub fn reduce_scatter(self, b: &mut PlanBuilder, step: u32, shares: &[BlockId], parts: &[Bufs]) {
        let ranks = b.ranks();
        let arrived: Vec<[Buf; 2]> =
            (0..ranks).map(|r| [(); 2].map(|()| b.scratch(r, self.tensor, shares[0]))).collect();
        for t in 1..ranks {
            let round = |r: Rank| match self.route {
                Route::Neighbour => Round {
                    to: (r + 1) % ranks,
                    from: owner(r, 1, ranks),
                    sends: owner(r, t, ranks),
                    receives: owner(r, t + 1, ranks),
                },
                Route::Direct => Round {
                    to: (r + t) % ranks,
                    from: owner(r, t, ranks),
                    sends: (r + t) % ranks,
                    receives: r,
                },
            };
            let messages = messages(b, self.tensor, shares, round);
            let parity = t as usize % 2;
            for r in 0..ranks {
                let Round { to, sends, .. } = round(r);
                let passes_on = self.route == Route::Neighbour && t > 1;
                let own = share_of(parts[r as usize], sends);
                let source = if passes_on { arrived[r as usize][1 - parity] } else { own };
                let send = (messages[to as usize], source.into());
                let recv = (messages[r as usize], arrived[r as usize][parity]);
                self.channel.exchange(b, (r, step + t), &[send], &[recv], None);
            }
            for r in 0..ranks {
                let (share, arrived) = (round(r).receives, arrived[r as usize][parity]);
                let own = share_of(parts[r as usize], share);
                let (from, into) = if share == r { (arrived, own) } else { (own, arrived) };
                b.compute(r, step + t, OpKind::Accumulate { from, into });
            }
        }
    }
}
