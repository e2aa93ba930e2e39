//! Transfers on their way. A transfer takes its route's latency, then moves its bytes at a rate that it shares fairly
//! with the others on its links.
//!
//! A transfer that finds its links idle gets its end at once, and as long as it stays alone nothing else is computed.
//! When a transfer joins or leaves others, the links that it touched are marked, and at the end of the instant the
//! rates of everything connected with them are computed anew: once, however many transfers came and went, so that the
//! order of events within an instant decides nothing.

use super::fair::Sharing;
use super::paths::{Path, Paths};
use super::queue::Queue;
use crate::plan::{OpId, Rank, Transport};
use crate::topology::{LinkId, Topology};
use crate::units::{Bytes, SimTime};

const PS_PER_SEC: f64 = 1e12;
const NEVER: u64 = u64::MAX;

/// One side of a transfer: the lane that waits for it, and the operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Side {
    pub lane: u32,
    pub op: OpId,
}

/// A transfer on its way.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    pub sides: [Side; 2],
    /// When both sides were posted.
    pub start: u64,
    ranks: [Rank; 2],
    path: u32,
    state: State,
    /// When the first byte moves.
    active_at: u64,
    /// When the last byte has arrived, as far as is known.
    end: u64,
    /// Bytes to move from `since` on, at `rate` bytes a second.
    remaining: f64,
    since: u64,
    rate: f64,
    mark: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Gone,
    /// Its latency passes; an event tells when it is over.
    Latent,
    /// Its end is known, as long as nobody joins; the latency may still pass.
    Scheduled,
}

/// Who sends how much to whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    pub from: Rank,
    pub to: Rank,
    pub bytes: Bytes,
    pub sides: [Side; 2],
    /// When both sides were posted; now, unless it had to wait for SMs and its latency has passed with that.
    pub posted: u64,
}

/// All transfers on their way over one topology.
#[derive(Debug, Clone)]
pub(super) struct Flows {
    paths: Paths,
    transport: Transport,
    slots: Vec<Flow>,
    free: Vec<u32>,
    links: Vec<LinkUse>,
    dirty: Vec<LinkId>,
    epoch: u32,
    component: Component,
    /// By rank: whether an attention call runs there, and the transfers on their way from or to it.
    ranks: Vec<RankUse>,
}

#[derive(Debug, Clone, Default)]
struct RankUse {
    is_busy: bool,
    flows: Vec<u32>,
}

#[derive(Debug, Clone, Default)]
struct LinkUse {
    members: Vec<u32>,
    mark: u32,
    /// Index in the component that is being computed.
    local: u32,
}

/// Links and flows that are connected with each other.
#[derive(Debug, Clone, Default)]
struct Component {
    links: Vec<LinkId>,
    flows: Vec<u32>,
    sharing: Sharing,
}

impl Flows {
    pub fn new(paths: Paths) -> Self {
        let links = vec![LinkUse::default(); paths.topology().capacities().len()];
        Self {
            paths,
            transport: Transport::CopyEngine,
            slots: Vec::new(),
            free: Vec::new(),
            links,
            dirty: Vec::new(),
            epoch: 0,
            component: Component::default(),
            ranks: Vec::new(),
        }
    }

    /// Forgets all transfers; later ones travel by `transport` between `ranks` ranks.
    pub fn reset(&mut self, transport: Transport, ranks: u32) {
        self.paths.prepare(transport);
        self.transport = transport;
        self.slots.clear();
        self.free.clear();
        self.dirty.clear();
        self.epoch = 0;
        self.ranks.clear();
        self.ranks.resize(ranks as usize, RankUse::default());
        for link in &mut self.links {
            link.members.clear();
            link.mark = 0;
        }
    }

    /// Whether failed links leave no way from one rank to the other.
    pub fn are_apart(&mut self, from: Rank, to: Rank) -> bool {
        let path = self.paths.find(from, to, self.transport);
        self.paths.get(path).is_cut
    }

    /// The links.
    pub fn topology(&self) -> &Topology {
        self.paths.topology()
    }

    pub fn get(&self, flow: u32) -> &Flow {
        &self.slots[flow as usize]
    }

    /// What the transfer travels over.
    pub fn path(&self, flow: u32) -> &Path {
        self.paths.get(self.get(flow).path)
    }

    /// What a transfer between two ranks would travel over.
    pub fn path_between(&mut self, from: Rank, to: Rank) -> &Path {
        let path = self.paths.find(from, to, self.transport);
        self.paths.get(path)
    }

    /// Whether any transfer and attention calls may hold each other up.
    pub fn interfere(&self) -> bool {
        self.paths.topology().interferes(self.transport)
    }

    /// An attention call begins or ends on `rank`.
    pub fn set_busy(&mut self, rank: Rank, is_busy: bool) {
        let Self { ranks, slots, paths, dirty, .. } = self;
        let known = &mut ranks[rank as usize];
        known.is_busy = is_busy;
        for &slot in &known.flows {
            dirty.extend(paths.links(slots[slot as usize].path));
        }
    }

    /// The most that a transfer uses as things are, links aside.
    fn limit(&self, flow: &Flow) -> f64 {
        let path = self.paths.get(flow.path);
        let is_beside = flow.ranks.iter().any(|&rank| self.ranks[rank as usize].is_busy);
        if is_beside { path.limit_beside_calls } else { path.limit }
    }

    /// Starts a transfer now; returns its slot. `event` makes the queue's event of a flow.
    pub fn start(&mut self, transfer: &Transfer, queue: &mut Queue, event: impl Fn(u32) -> u32) -> u32 {
        let path = self.paths.find(transfer.from, transfer.to, self.transport);
        let known = self.paths.get(path);
        let (ramp, Path { latency, limit, limit_beside_calls, .. }) = (known.ramp_of(transfer.bytes), *known);
        let (now, ranks) = (queue.now(), [transfer.from, transfer.to]);
        // While SMs were waited for the latency passed, but nothing filled the pipeline.
        let active_at = transfer.posted.saturating_add(latency).max(now).saturating_add(ramp);
        let is_slow = limit != limit_beside_calls;
        let is_alone =
            !is_slow && self.paths.links(path).iter().all(|&l| self.links[l as usize].members.is_empty());
        let mut flow = Flow {
            sides: transfer.sides,
            ranks,
            start: transfer.posted,
            path,
            state: State::Latent,
            active_at,
            end: NEVER,
            remaining: transfer.bytes.0 as f64,
            since: active_at,
            rate: 0.0,
            mark: 0,
        };
        if is_alone {
            flow.state = State::Scheduled;
            flow.rate = self.paths.get(path).idle_rate;
            flow.end = active_at.saturating_add(self.paths.idle_time(path, transfer.bytes).0);
        }
        let posted = if is_alone { flow.end } else { active_at };
        let slot = self.insert(flow);
        for &link in self.paths.links(path) {
            self.links[link as usize].members.push(slot);
        }
        if is_slow {
            for rank in ranks {
                self.ranks[rank as usize].flows.push(slot);
            }
        }
        queue.push(posted, event(slot));
        slot
    }

    fn insert(&mut self, flow: Flow) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = flow;
            slot
        } else {
            self.slots.push(flow);
            self.slots.len() as u32 - 1
        }
    }

    /// Takes the event of `slot` at time `now`; true if the transfer has ended with it, and its slot is free again.
    pub fn take_event(&mut self, slot: u32, now: u64) -> bool {
        let flow = &mut self.slots[slot as usize];
        match flow.state {
            State::Latent if flow.active_at == now => {
                flow.state = State::Scheduled;
                self.dirty.extend(self.paths.links(flow.path));
                false
            }
            State::Scheduled if flow.end == now => {
                flow.state = State::Gone;
                self.free.push(slot);
                self.leave(slot);
                true
            }
            // Left over from before the rates changed.
            _ => false,
        }
    }

    fn leave(&mut self, slot: u32) {
        for rank in self.slots[slot as usize].ranks {
            self.ranks[rank as usize].flows.retain(|&flow| flow != slot);
        }
        for &link in self.paths.links(self.slots[slot as usize].path) {
            let members = &mut self.links[link as usize].members;
            if let Some(i) = members.iter().position(|&m| m == slot) {
                members.swap_remove(i);
            }
            if !members.is_empty() {
                self.dirty.push(link);
            }
        }
    }

    /// Computes the rates of everything that changed in this instant.
    pub fn settle(&mut self, queue: &mut Queue, event: impl Fn(u32) -> u32) {
        if self.dirty.is_empty() {
            return;
        }
        self.epoch += 1;
        while let Some(link) = self.dirty.pop() {
            if self.links[link as usize].mark != self.epoch {
                self.gather(link);
                self.share(queue, &event);
            }
        }
    }

    /// Collects what is connected with `link`.
    fn gather(&mut self, link: LinkId) {
        let Component { links, flows, .. } = &mut self.component;
        flows.clear();
        links.clear();
        links.push(link);
        self.links[link as usize].mark = self.epoch;
        let mut next = 0;
        while next < links.len() {
            let link = links[next] as usize;
            next += 1;
            for i in 0..self.links[link].members.len() {
                let slot = self.links[link].members[i];
                let flow = &mut self.slots[slot as usize];
                if flow.mark == self.epoch {
                    continue;
                }
                flow.mark = self.epoch;
                flows.push(slot);
                for &other in self.paths.links(flow.path) {
                    let mark = &mut self.links[other as usize].mark;
                    if *mark != self.epoch {
                        *mark = self.epoch;
                        links.push(other);
                    }
                }
            }
        }
    }

    /// Shares the collected links among the collected flows that move.
    fn share(&mut self, queue: &mut Queue, event: impl Fn(u32) -> u32) {
        let mut component = std::mem::take(&mut self.component);
        let Component { links, flows, sharing } = &mut component;
        let capacities = self.paths.topology().capacities();
        sharing.reset(links.iter().map(|&l| capacities[l as usize].0));
        for (local, &link) in links.iter().enumerate() {
            self.links[link as usize].local = local as u32;
        }
        flows.retain(|&slot| {
            let flow = &mut self.slots[slot as usize];
            if flow.state == State::Scheduled && flow.active_at > queue.now() {
                flow.state = State::Latent;
                flow.end = NEVER;
                queue.push(flow.active_at, event(slot));
            }
            if flow.state == State::Scheduled {
                let flow = &self.slots[slot as usize];
                let crossed = self.paths.links(flow.path).iter().map(|&l| self.links[l as usize].local);
                sharing.add_flow(self.limit(flow), crossed);
            }
            self.slots[slot as usize].state == State::Scheduled
        });
        for (&slot, &rate) in flows.iter().zip(sharing.fill()) {
            let flow = &mut self.slots[slot as usize];
            if flow.end == NEVER || flow.rate != rate {
                flow.go_on_at(rate, queue.now());
                queue.push(flow.end, event(slot));
            }
        }
        self.component = component;
    }
}

impl Flow {
    fn go_on_at(&mut self, rate: f64, now: u64) {
        // An infinite rate over no time moves nothing.
        if now > self.since {
            let moved = self.rate * (now - self.since) as f64 / PS_PER_SEC;
            self.remaining = (self.remaining - moved).max(0.0);
        }
        self.since = now;
        self.rate = rate;
        self.end = now.saturating_add(SimTime::quotient(self.remaining, rate).0);
    }
}
