//! Routes between pairs of GPUs, found when first asked for and kept.

use crate::config::cluster::{Priority, Ramp};
use crate::plan::Transport;
use crate::topology::{LinkId, Reach, Topology};
use crate::units::{Bytes, BytesPerSec, SimTime};

/// A route and what one transfer reaches on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    first: u32,
    count: u32,
    pub latency: u64,
    ramp: Option<Ramp>,
    /// The most that one transfer uses, links aside, in bytes a second.
    pub limit: f64,
    /// SMs that a transfer holds on both GPUs.
    pub sms: u32,
    /// Who gets free SMs first, it or a waiting call.
    pub priority: Priority,
    /// Share of its speed that a call beside a transfer loses.
    pub slows_calls: f64,
    /// The most that one transfer uses beside a call on one of its GPUs.
    pub limit_beside_calls: f64,
    /// Whether failed links leave no way.
    pub is_cut: bool,
    /// What one transfer gets while it is alone.
    pub idle_rate: f64,
    last: (Bytes, SimTime),
}

impl Path {
    /// The ramp of a transfer of so many bytes.
    pub fn ramp_of(&self, bytes: Bytes) -> u64 {
        self.ramp.map_or(0, |ramp| ramp.of(bytes).0)
    }
}

/// Routes of one topology.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    topology: Topology,
    ranks: u32,
    /// By transport, then by `from * ranks + to`; empty until the transport is used.
    index: [Vec<u32>; 2],
    known: Vec<Path>,
    links: Vec<LinkId>,
}

const UNKNOWN: u32 = u32::MAX;

impl Paths {
    pub fn new(topology: Topology, ranks: u32) -> Self {
        Self { topology, ranks, index: [Vec::new(), Vec::new()], known: Vec::new(), links: Vec::new() }
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Makes room for the routes of `transport`.
    pub fn prepare(&mut self, transport: Transport) {
        let pairs = self.ranks as usize * self.ranks as usize;
        self.index[transport as usize].resize(pairs, UNKNOWN);
    }

    /// The route between two ranks, by a transport that was prepared.
    pub fn find(&mut self, from: u32, to: u32, transport: Transport) -> u32 {
        let pair = from as usize * self.ranks as usize + to as usize;
        match self.index[transport as usize][pair] {
            UNKNOWN => {
                let path = self.add(from, to, transport);
                self.index[transport as usize][pair] = path;
                path
            }
            path => path,
        }
    }

    fn add(&mut self, from: u32, to: u32, transport: Transport) -> u32 {
        let first = self.links.len() as u32;
        let way = self.topology.way(from, to, transport, &mut self.links);
        let reach = way.unwrap_or(Reach::NOTHING);
        let capacities = self.topology.capacities();
        let links = &self.links[first as usize..];
        let narrowest = links.iter().map(|&l| capacities[l as usize].0).fold(f64::INFINITY, f64::min);
        self.known.push(Path {
            first,
            count: links.len() as u32,
            latency: reach.latency.0,
            ramp: reach.ramp,
            limit: reach.bandwidth.0,
            sms: reach.sms,
            priority: reach.priority,
            slows_calls: reach.slows_calls,
            limit_beside_calls: reach.bandwidth.0 * (1.0 - reach.slowed_by_calls),
            is_cut: way.is_none(),
            idle_rate: reach.bandwidth.0.min(narrowest),
            last: (Bytes(0), SimTime::ZERO),
        });
        self.known.len() as u32 - 1
    }

    pub fn get(&self, path: u32) -> &Path {
        &self.known[path as usize]
    }

    pub fn links(&self, path: u32) -> &[LinkId] {
        let Path { first, count, .. } = self.known[path as usize];
        &self.links[first as usize..(first + count) as usize]
    }

    /// Time that `bytes` take on an idle route, latency aside.
    pub fn idle_time(&mut self, path: u32, bytes: Bytes) -> SimTime {
        let path = &mut self.known[path as usize];
        if path.last.0 != bytes {
            path.last = (bytes, bytes / BytesPerSec(path.idle_rate));
        }
        path.last.1
    }
}
