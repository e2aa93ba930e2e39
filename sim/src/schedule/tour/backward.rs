//! The backward: keys travel as in the forward. dk and dv of a rank's keys follow them around each window, every rank
//! adding its share, and after w hops lie where the keys entered the window; the windows' sums go from there to the next
//! window's entry, where that window's sum is added, until after W hops they are home.

use super::keys::Keys;
use super::{Gradients, Rule, Site, Step, Tour};
use crate::plan::builder::PlanBuilder;
use crate::plan::{Buf, Bufs, MaskId, MessageId, OpId, OpKind, Rank, Tensor};
use crate::schedule::Options;
use crate::schedule::step::{Channel, classify};

/// A rank's buffers for the gradients of other ranks' keys, two of each to take turns.
struct Room {
    /// The rank's own share of a step.
    share: [Buf; 2],
    /// Sums of a window, on their way.
    arrived: [Buf; 2],
    /// The whole sum of a window.
    window: [Buf; 2],
    /// Sums of windows, on their way.
    windows: [Buf; 2],
}

/// Gradients of a rank's keys, and where they lie.
#[derive(Clone, Copy)]
struct Load {
    owner: Rank,
    buf: Buf,
}

struct Backward<'a> {
    tour: &'a Tour,
    sites: &'a [Site],
    gradients: &'a [Gradients],
    rooms: Vec<Room>,
    inside: Channel,
    between: Channel,
    /// By rank, what the last step left there to be sent on.
    loads: Vec<Option<Load>>,
    /// By rank, what arrived for this step.
    arrivals: Vec<Option<Load>>,
    /// By rank, the sum of a window that has come around.
    window_sums: Vec<Option<Load>>,
    /// By rank, the sum of all windows before.
    sums: Vec<Option<Load>>,
}

/// dq, dk and dv of all ranks.
pub(in crate::schedule) fn backward(
    b: &mut PlanBuilder,
    options: &Options,
    (tour, sites): (&Tour, &[Site]),
    gradients: &[Gradients],
    rule: &Rule,
) {
    let keys = Keys::new(b, options, tour, sites);
    let nothing = || vec![None; sites.len()];
    let mut back = Backward {
        tour,
        sites,
        gradients,
        rooms: (0..).zip(sites).map(|(r, site)| Room::new(b, r, site)).collect(),
        inside: Channel::new(options.transport, 1),
        between: Channel::new(options.transport, 2),
        loads: nothing(),
        arrivals: nothing(),
        window_sums: nothing(),
        sums: nothing(),
    };
    let mut done: Vec<Option<OpId>> = vec![None; sites.len()];
    for step in tour.steps() {
        keys.during(b, step);
        back.hand_on(b, step);
        for r in 0..b.ranks() {
            let (share, op) = back.attend(b, r, step, keys.holding(r, step), rule);
            done[r as usize] = op.or(done[r as usize]);
            back.loads[r as usize] = back.combine(b, r, step.t, share);
        }
        back.leave_for_next_window(b, step);
        keys.after(b, step, &done);
    }
    let end = Step { j: tour.windows, i: 0, t: tour.length() };
    back.hand_on(b, end);
    back.leave_for_next_window(b, end);
}

impl Room {
    fn new(b: &mut PlanBuilder, r: Rank, site: &Site) -> Self {
        let mut two = || [(); 2].map(|()| b.scratch(r, Tensor::KeyValueGrad, site.kv_block));
        Self { share: two(), arrived: two(), window: two(), windows: two() }
    }
}

impl Backward<'_> {
    /// A step's attention on rank r, and its share of the gradients of the keys it holds.
    fn attend(
        &self,
        b: &mut PlanBuilder,
        r: Rank,
        step: Step,
        kv: Bufs,
        rule: &Rule,
    ) -> (Option<Load>, Option<OpId>) {
        let (owner, first) = (self.tour.owner(r, step), step.t == 0);
        let (q_block, kv_block) = rule(r, owner);
        let Some(mask) = classify(b, q_block, kv_block).or(first.then_some(MaskId::PROBLEM)) else {
            return (None, None);
        };
        let (site, gradients) = (&self.sites[r as usize], &self.gradients[r as usize]);
        let alone = self.tour.length() == 1;
        let buf = if alone { gradients.dkv } else { self.rooms[r as usize].share[step.t as usize % 2] };
        let call = OpKind::AttendBackward {
            q: site.q,
            delta: gradients.delta,
            kv,
            dq: gradients.dq,
            dkv: buf.into(),
            q_block,
            kv_block,
            dkv_block: self.sites[owner as usize].kv_block,
            mask,
            init_dq: first,
            init_dkv: true,
        };
        let op = b.compute(r, step.t, call);
        ((!alone).then_some(Load { owner, buf }), Some(op))
    }

    /// What rank r has of the window's sum after a step: what arrived, with its share added.
    fn combine(&mut self, b: &mut PlanBuilder, r: Rank, t: u32, share: Option<Load>) -> Option<Load> {
        let arrived = self.arrivals[r as usize].take();
        if let (Some(into), Some(from)) = (arrived, share) {
            b.compute(r, t, OpKind::Accumulate { from: from.buf, into: into.buf });
        }
        arrived.or(share)
    }

    /// Sends what the last step left to the next place of the window; after its last step that is the keys' entry.
    fn hand_on(&mut self, b: &mut PlanBuilder, step: Step) {
        let comes_around = step.i == 0;
        let mut moves = Vec::new();
        for r in 0..b.ranks() {
            let Some(load) = self.loads[r as usize].take() else { continue };
            if self.tour.window == 1 {
                self.window_sums[r as usize] = Some(load);
                continue;
            }
            let (to, parity) = (self.tour.next(r), step.t as usize % 2);
            let (room, home) = (&self.rooms[to as usize], self.gradients[to as usize].dkv);
            let buf = match comes_around {
                false => room.arrived[parity],
                true if self.tour.windows == 1 => home,
                true => room.window[step.j as usize % 2],
            };
            let arrives = Some(Load { buf, ..load });
            if comes_around {
                self.window_sums[to as usize] = arrives;
            } else {
                self.arrivals[to as usize] = arrives;
            }
            moves.push((r, to, load, buf));
        }
        self.push(b, self.inside, step.t, &moves);
    }

    /// At the start of a window, adds the sum of the window before to those before it, and sends that on.
    fn leave_for_next_window(&mut self, b: &mut PlanBuilder, step: Step) {
        if step.i > 0 || self.tour.windows == 1 {
            return;
        }
        let mut moves = Vec::new();
        for r in 0..b.ranks() {
            let (window, before) = (self.window_sums[r as usize].take(), self.sums[r as usize].take());
            if let (Some(from), Some(into)) = (window, before) {
                b.compute(r, step.t, OpKind::Accumulate { from: from.buf, into: into.buf });
            }
            let Some(load) = before.or(window) else { continue };
            let to = self.tour.next_window(r);
            let goes_home = to == load.owner;
            let buf = if goes_home {
                self.gradients[to as usize].dkv
            } else {
                self.rooms[to as usize].windows[step.j as usize % 2]
            };
            moves.push((r, to, load, buf));
        }
        for &(_, to, load, buf) in moves.iter().filter(|(_, to, load, _)| *to != load.owner) {
            self.sums[to as usize] = Some(Load { buf, ..load });
        }
        self.push(b, self.between, step.t, &moves);
    }

    /// Pushes messages (from, to, what, into which buffer).
    fn push(&self, b: &mut PlanBuilder, channel: Channel, t: u32, moves: &[(Rank, Rank, Load, Buf)]) {
        let mut sends: Vec<Option<(MessageId, Bufs)>> = vec![None; self.sites.len()];
        let mut recvs: Vec<Option<(MessageId, Buf)>> = vec![None; self.sites.len()];
        for &(from, to, load, into) in moves {
            let block = self.sites[load.owner as usize].kv_block;
            let message = b.message(from, to, Tensor::KeyValueGrad, block);
            sends[from as usize] = Some((message, load.buf.into()));
            recvs[to as usize] = Some((message, into));
        }
        for (r, (send, recv)) in sends.iter().zip(&recvs).enumerate() {
            channel.exchange(b, (r as Rank, t), send.as_slice(), recv.as_slice(), None);
        }
    }
}
