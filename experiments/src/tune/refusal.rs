//! Nothing fits: by how much, and the smallest change with which something does.

use ringlab_sim::training::{Memory, Training, memory, memory_with};
use ringlab_sim::units::Bytes;

use super::space::Job;

/// Nodes are added up to this many times as many.
const MOST_NODES: u32 = 64;

/// What is missing, and what would do.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// The candidate that needs least memory.
    pub training: Training,
    /// Its memory.
    pub memory: Memory,
    /// The longest sequence, by halves, of which something fits.
    pub seq: Option<u64>,
    /// The fewest nodes, by doubling, on which something fits.
    pub nodes: Option<u32>,
}

/// Why nothing of `job` fits; `None` where there is no candidate at all.
pub fn refusal(job: &Job) -> Option<Refusal> {
    let (training, memory) = least(job)?;
    let shorter = (1..).map(|halves| job.seq >> halves).take_while(|&seq| seq > 0);
    let seq = shorter.map(|seq| job.with_length(seq)).find(fits).map(|job| job.seq);
    let larger = std::iter::successors(Some(job.cluster.nodes), |nodes| nodes.checked_mul(2)).skip(1);
    let larger = larger.take_while(|nodes| *nodes <= job.cluster.nodes.saturating_mul(MOST_NODES));
    let networked = job.cluster.network.is_some();
    let nodes = larger.filter(|_| networked).find(|&nodes| {
        let mut larger = job.clone();
        larger.cluster.nodes = nodes;
        fits(&larger)
    });
    Some(Refusal { training, memory, seq, nodes })
}

fn fits(job: &Job) -> bool {
    least(job).is_some_and(|(_, memory)| memory.over.is_none())
}

/// The candidate that needs least memory, by lower bounds until no other can need less.
fn least(job: &Job) -> Option<(Training, Memory)> {
    let floor = |t: &Training| memory_with(&job.model, &job.cluster, t, Bytes(0)).total;
    let mut all: Vec<(Bytes, Training)> = job.candidates().into_iter().map(|t| (floor(&t), t)).collect();
    all.sort_by_key(|(floor, _)| *floor);
    let mut best: Option<(Training, Memory)> = None;
    for (floor, training) in all {
        if best.is_some_and(|(_, found)| found.total <= floor) {
            break;
        }
        let Ok(exact) = memory(&job.model, &job.cluster, &training) else { continue };
        if best.is_none_or(|(_, found)| exact.total < found.total) {
            best = Some((training, exact));
        }
    }
    best
}
