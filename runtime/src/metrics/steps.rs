//! How long each rank computed and communicated in each step of a schedule.

use std::collections::BTreeMap;

use ringlab_sim::plan::Rank;
use ringlab_sim::timeline::{Span, Timeline};
use ringlab_sim::units::SimTime;

/// One step of one rank; `None` for what it did not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Step {
    /// Sum of the durations of the step's spans on the compute lane.
    pub compute: Option<SimTime>,
    /// Time in which at least one of the step's messages moves, on their way in or out.
    pub communication: Option<SimTime>,
}

/// The steps of every rank, by the step's number.
pub fn steps(timeline: &Timeline) -> Vec<BTreeMap<u32, Step>> {
    let mut grouped: BTreeMap<(Rank, u32), Vec<&Span>> = BTreeMap::new();
    for span in &timeline.spans {
        grouped.entry((span.rank, span.step)).or_default().push(span);
    }
    let mut ranks = vec![BTreeMap::new(); timeline.ranks as usize];
    for ((rank, step), spans) in grouped {
        if let Some(steps) = ranks.get_mut(rank as usize) {
            steps.insert(step, of(&spans));
        }
    }
    ranks
}

fn of(spans: &[&Span]) -> Step {
    let computing = spans.iter().filter(|s| s.lane.is_compute());
    let compute = computing.map(|s| s.duration()).reduce(|a, b| a + b);
    let moving: Vec<_> = spans.iter().filter(|s| s.kind.is_transfer()).map(|s| (s.start, s.end)).collect();
    Step { compute, communication: (!moving.is_empty()).then(|| covered(moving)) }
}

/// Time in which at least one message of `rank` moves.
pub fn communication(timeline: &Timeline, rank: Rank) -> SimTime {
    let own = timeline.spans.iter().filter(|s| s.rank == rank && s.kind.is_transfer());
    covered(own.map(|s| (s.start, s.end)).collect())
}

/// How much the union of `spans` covers.
fn covered(mut spans: Vec<(SimTime, SimTime)>) -> SimTime {
    spans.sort_unstable();
    let (mut sum, mut reached) = (SimTime::ZERO, SimTime::ZERO);
    for (start, end) in spans {
        sum += end.saturating_sub(start.max(reached));
        reached = reached.max(end);
    }
    sum
}
