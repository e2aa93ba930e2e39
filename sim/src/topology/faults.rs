//! Links that are slow or have failed, and ways around them.

use super::{LinkId, Reach, Topology};
use crate::disturb::{Condition, DisturbError, LinkFault};
use crate::plan::Transport;
use crate::units::BytesPerSec;

/// How much slower than usual every link is; empty while all are as they should be.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    slowness: Vec<f64>,
    /// Rates of the links as they should be.
    usual: Vec<BytesPerSec>,
}

impl Faults {
    pub fn is_empty(&self) -> bool {
        self.slowness.is_empty()
    }

    /// What a transfer with `reach` on good links reaches over `links`: nothing if one has failed.
    fn over(&self, reach: Reach, links: &[LinkId]) -> Option<Reach> {
        let worst = links.iter().map(|&l| self.slowness[l as usize]).fold(1.0, f64::max);
        worst.is_finite().then(|| Reach { bandwidth: BytesPerSec(reach.bandwidth.0 / worst), ..reach })
    }
}

impl Topology {
    /// The same links, with these faults and no others. A slow link carries less, and so does every transfer over it.
    ///
    /// # Errors
    /// [`DisturbError::Absent`] for a GPU that the cluster does not have.
    pub fn with_faults(&self, faults: &[LinkFault]) -> Result<Self, DisturbError> {
        let mut topology = self.clone();
        let Faults { usual, .. } = std::mem::take(&mut topology.faults);
        if !usual.is_empty() {
            topology.links.capacities.clone_from(&usual);
        }
        if faults.is_empty() {
            return Ok(topology);
        }
        let mut slowness = vec![1.0_f64; topology.links.capacities.len()];
        for fault in faults {
            let by = if let Condition::Slowed(factor) = fault.condition { factor } else { f64::INFINITY };
            for link in topology.between(fault.a, fault.b)? {
                slowness[link as usize] = slowness[link as usize].max(by);
            }
        }
        let usual = topology.links.capacities.clone();
        for (capacity, slowness) in topology.links.capacities.iter_mut().zip(&slowness) {
            capacity.0 = if slowness.is_finite() { capacity.0 / slowness } else { 0.0 };
        }
        topology.faults = Faults { slowness, usual };
        Ok(topology)
    }

    /// The links on the route between two GPUs, both ways.
    fn between(&self, a: u32, b: u32) -> Result<Vec<LinkId>, DisturbError> {
        let absent = |&&gpu: &&u32| gpu >= self.gpus;
        if let Some(&number) = [a, b].iter().find(absent) {
            return Err(DisturbError::Absent { what: "GPU", number, count: self.gpus });
        }
        let mut links = Vec::new();
        self.route(a, b, Transport::CopyEngine, &mut links);
        self.route(b, a, Transport::CopyEngine, &mut links);
        Ok(links)
    }

    /// As [`Topology::route`], around links that have failed: over one or two other GPUs of the two nodes, the fewest
    /// links first. `None` if that leads nowhere.
    pub fn way(&self, from: u32, to: u32, transport: Transport, out: &mut Vec<LinkId>) -> Option<Reach> {
        if self.faults.is_empty() {
            return Some(self.route(from, to, transport, out));
        }
        let start = out.len();
        if let Some(reach) = self.along(&[from, to], transport, out) {
            return Some(reach);
        }
        out.truncate(start);
        let best = self.detours(from, to, transport).min_by_key(|detour| detour.links)?;
        self.along(&[from, best.over.0, best.over.1, to], transport, out)
    }

    fn detours(&self, from: u32, to: u32, transport: Transport) -> impl Iterator<Item = Detour> {
        let near = |gpu: u32| {
            let first = gpu / self.gpus_per_node * self.gpus_per_node;
            first..first + self.gpus_per_node
        };
        let relays = near(from).flat_map(move |c| near(to).map(move |d| (c, d)));
        let other = relays.filter(move |&(c, d)| c != to && d != from);
        let mut links = Vec::new();
        other.filter_map(move |over| {
            links.clear();
            self.along(&[from, over.0, over.1, to], transport, &mut links)?;
            Some(Detour { over, links: links.len() })
        })
    }

    /// The links from stop to stop; equal neighbours are one stop. The slowest stretch decides the rate, latencies add up.
    fn along(&self, stops: &[u32], transport: Transport, out: &mut Vec<LinkId>) -> Option<Reach> {
        let mut whole: Option<Reach> = None;
        for stretch in stops.windows(2).filter(|s| s[0] != s[1]) {
            let start = out.len();
            let reach = self.route(stretch[0], stretch[1], transport, out);
            let reach = self.faults.over(reach, &out[start..])?;
            whole = Some(whole.map_or(reach, |before| before.then(reach)));
        }
        whole.or_else(|| Some(self.inside(transport)))
    }
}

/// A way over two GPUs, which may be the ends themselves.
struct Detour {
    over: (u32, u32),
    links: usize,
}

impl Reach {
    fn then(self, next: Self) -> Self {
        Self {
            bandwidth: BytesPerSec(self.bandwidth.0.min(next.bandwidth.0)),
            latency: self.latency + next.latency,
            ramp: [self.ramp, next.ramp].into_iter().flatten().max_by_key(|ramp| ramp.time),
            sms: self.sms.max(next.sms),
            slows_calls: self.slows_calls.max(next.slows_calls),
            slowed_by_calls: self.slowed_by_calls.max(next.slowed_by_calls),
            priority: self.priority.max(next.priority),
        }
    }
}
