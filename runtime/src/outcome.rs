//! What running a plan gives, in global token order.

use std::time::Duration;

use ringlab_sim::timeline::{Span, Timeline};
use ringlab_sim::units::{Bytes, SimTime};

/// Result of a forward.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// Output, `[batch][tokens][heads][head_dim]`.
    pub o: Vec<f32>,
    /// Natural logarithm of the softmax denominator, `[batch][heads][tokens]`; `-inf` for a query without keys.
    pub lse: Vec<f32>,
}

/// Result of a backward.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Gradients {
    /// Shaped like q.
    pub dq: Vec<f32>,
    /// Shaped like k.
    pub dk: Vec<f32>,
    /// Shaped like v.
    pub dv: Vec<f32>,
}

/// The tensors of either pass.
#[derive(Debug, Clone, PartialEq)]
pub enum Results {
    /// Of a forward.
    Forward(Forward),
    /// Of a backward.
    Backward(Gradients),
}

impl Results {
    /// o and lse, if this was a forward.
    pub fn forward(&self) -> Option<&Forward> {
        match self {
            Self::Forward(forward) => Some(forward),
            Self::Backward(_) => None,
        }
    }

    /// dq, dk and dv, if this was a backward.
    pub fn gradients(&self) -> Option<&Gradients> {
        match self {
            Self::Forward(_) => None,
            Self::Backward(gradients) => Some(gradients),
        }
    }
}

/// A plan that was executed.
///
/// Sizes are counted from the elements that were sent or allocated, each at the size that it has in the plan: the
/// problem's element type, or fp32 for states, lse, delta and gradients.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The tensors.
    pub results: Results,
    /// Rows of padding tokens that are not what they must be: o and gradients 0, lse `-inf`.
    pub wrong_padding_rows: usize,
    /// Bytes that arrived, over all ranks.
    pub bytes_moved: Bytes,
    /// From before the first rank's first operation to after the last rank's last one.
    pub wall_time: Duration,
    /// When each operation ran.
    pub timeline: Timeline,
    /// For each rank, the sum of the sizes of the buffers that it used.
    pub peak_bytes: Vec<Bytes>,
}

/// Which time stands for those of all repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Typical {
    /// The middle one, the lower of two: some repeats are disturbed.
    #[default]
    Median,
    /// The mean: what makes repeats differ belongs to them, such as a clock that goes up and down.
    Mean,
}

impl Typical {
    /// That of `times`; zero of none.
    pub fn of(self, times: &[SimTime]) -> SimTime {
        match self {
            Self::Median => median(times),
            Self::Mean => mean(times.iter().copied()),
        }
    }

    /// That of one plan's repeats, each with its time: the one of the median time, or every span from the mean of its starts
    /// to the mean of its ends. `None` of none.
    pub fn timeline(self, repeats: Vec<(SimTime, Timeline)>) -> Option<Timeline> {
        match self {
            Self::Median => of_median(repeats),
            Self::Mean => of_means(repeats),
        }
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Median => "median",
            Self::Mean => "mean",
        }
    }
}

fn of_median(repeats: Vec<(SimTime, Timeline)>) -> Option<Timeline> {
    let times: Vec<SimTime> = repeats.iter().map(|&(time, _)| time).collect();
    let middle = median(&times);
    repeats.into_iter().find(|&(time, _)| time == middle).map(|(_, timeline)| timeline)
}

fn of_means(mut repeats: Vec<(SimTime, Timeline)>) -> Option<Timeline> {
    for (_, timeline) in &mut repeats {
        timeline.spans.sort_by_key(|s| (s.rank, s.op, s.kind, s.start));
    }
    let mut all = repeats.first()?.1.clone();
    for (i, span) in all.spans.iter_mut().enumerate() {
        let each = |of: fn(&Span) -> SimTime| repeats.iter().filter_map(move |(_, t)| t.spans.get(i).map(of));
        (span.start, span.end) = (mean(each(|s| s.start)), mean(each(|s| s.end)));
    }
    all.spans.sort_by_key(|s| (s.end, s.rank, s.op));
    all.makespan = all.spans.last().map_or(SimTime::ZERO, |s| s.end);
    Some(all)
}

/// Rounded to the nearest picosecond; zero of none.
fn mean(times: impl Iterator<Item = SimTime>) -> SimTime {
    let (count, sum) = times.fold((0, 0), |(count, sum), t| (count + 1, sum + u128::from(t.0)));
    SimTime((sum + count / 2).checked_div(count).unwrap_or(0) as u64)
}

/// The middle one, the lower of two; zero of none.
pub fn median(times: &[SimTime]) -> SimTime {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(SimTime::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringlab_sim::plan::Lane;
    use ringlab_sim::timeline::SpanKind;

    fn span(rank: u32, op: u32, (start, end): (u64, u64)) -> Span {
        let (lane, kind) = (Lane::COMPUTE, SpanKind::Attend);
        let (start, end) = (SimTime(start), SimTime(end));
        Span { rank, lane, op, step: 0, kind, start, end, bytes: Bytes(0), flops: 1.0 }
    }

    fn timeline(spans: &[Span]) -> Timeline {
        let makespan = spans.last().map_or(SimTime::ZERO, |s| s.end);
        Timeline { ranks: 2, spans: spans.to_vec(), makespan }
    }

    #[test]
    fn a_median_ignores_what_a_mean_counts() {
        let times = [10, 11, 19, 12].map(SimTime);
        assert_eq!(Typical::Median.of(&times), SimTime(11), "the lower of two");
        assert_eq!(Typical::Mean.of(&times), SimTime(13));
        assert_eq!((Typical::Median.of(&[]), Typical::Mean.of(&[])), (SimTime::ZERO, SimTime::ZERO));
    }

    #[test]
    fn operations_go_from_the_mean_of_their_starts_to_that_of_their_ends() {
        // In the second repeat rank 0 ends last.
        let first = timeline(&[span(0, 1, (0, 10)), span(1, 1, (2, 20))]);
        let second = timeline(&[span(1, 1, (6, 24)), span(0, 1, (4, 30))]);
        let repeats = vec![(SimTime(20), first), (SimTime(30), second.clone())];
        let mean = Typical::Mean.timeline(repeats.clone()).unwrap();
        assert_eq!(mean.spans, [span(0, 1, (2, 20)), span(1, 1, (4, 22))]);
        assert_eq!(mean.makespan, SimTime(22));
        let third = (SimTime(40), timeline(&[span(1, 1, (0, 40))]));
        assert_eq!(Typical::Median.timeline([repeats, vec![third]].concat()), Some(second));
        assert_eq!(Typical::Mean.timeline(Vec::new()), None);
    }
}
