//! From which length on sharing a sequence pays.

use ringlab_sim::config::cluster::Cluster;

use super::board::Costed;
use super::search::Search;
use super::space::{Degrees, Job, Space};

/// The shortest sequence that is tried.
const SHORTEST: u64 = 4 << 10;

/// The best at one length, with whole sequences and with shared ones; `None` where nothing fits.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Tokens of a sequence.
    pub seq: u64,
    /// Sequences of an iteration.
    pub sequences: u64,
    /// No sequence is shared.
    pub whole: Option<Costed>,
    /// Every sequence is shared by two ranks or more.
    pub shared: Option<Costed>,
}

impl Length {
    /// Whether sharing is faster, or the only way that fits.
    pub fn pays(&self) -> bool {
        match (&self.whole, &self.shared) {
            (Some(whole), Some(shared)) => shared.time.total < whole.time.total,
            (whole, shared) => whole.is_none() && shared.is_some(),
        }
    }
}

/// Lengths in powers of two with the best of both kinds.
#[derive(Debug, Clone)]
pub struct Crossover {
    /// In increasing order, up to the job's own.
    pub lengths: Vec<Length>,
}

impl Crossover {
    /// The shortest length from which on sharing pays at every longer one that was tried.
    pub fn from(&self) -> Option<&Length> {
        let paying = self.lengths.iter().rev().take_while(|l| l.pays());
        paying.last()
    }
}

/// Tries every length by halves down from the job's own, with as many tokens an iteration.
pub fn crossover(job: &Job, search: &Search<'_>) -> Crossover {
    let mut lengths = Vec::new();
    let mut seq = job.seq;
    while seq >= SHORTEST.min(job.seq) && !stopped(search) {
        let job = job.with_length(seq);
        let (whole, shared) =
            (best(&job, Degrees::Only(vec![1]), search), best(&job, Degrees::AtLeast(2), search));
        if !stopped(search) {
            lengths.push(Length { seq, sequences: job.sequences, whole, shared });
        }
        if !seq.is_multiple_of(2) {
            break;
        }
        seq /= 2;
    }
    lengths.reverse();
    Crossover { lengths }
}

fn stopped(search: &Search<'_>) -> bool {
    search.stop.load(std::sync::atomic::Ordering::Relaxed)
}

fn best(job: &Job, cp: Degrees, search: &Search<'_>) -> Option<Costed> {
    let job = Job { space: Space { cp, ..job.space.clone() }, ..job.clone() };
    Search { keep: 1, thorough: false, ..*search }.run(&job).best.first().copied()
}

/// The cluster with links inside nodes, or between them, so many times as fast.
pub fn with_links(cluster: &Cluster, inside: f64, between: f64) -> Cluster {
    use ringlab_sim::config::cluster::FabricTopology;
    let mut cluster = cluster.clone();
    let fabric = &mut cluster.fabric;
    let mut rates = vec![&mut fabric.copy.bandwidth, &mut fabric.nccl.bandwidth];
    match &mut fabric.topology {
        FabricTopology::Nvswitch { link_bandwidth } | FabricTopology::Torus { link_bandwidth, .. } => {
            rates.push(link_bandwidth);
        }
        FabricTopology::Pcie { link_bandwidth, host_bridge_bandwidth, .. } => {
            rates.extend([link_bandwidth, host_bridge_bandwidth]);
        }
    }
    for rate in rates {
        rate.0 *= inside;
    }
    if let Some(network) = &mut cluster.network {
        network.nic_bandwidth.0 *= between;
        network.transport.bandwidth.0 *= between;
    }
    cluster
}
