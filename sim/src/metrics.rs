//! What a timeline means, each figure defined once, for predicted and measured timelines alike.

use serde::Serialize;

use crate::plan::{Lane, NO_OP, OpKind, Plan, Tensor};
use crate::timeline::Timeline;
use crate::units::{Bytes, SimTime};

/// Where one rank's time went: `busy + exposed + wait = makespan`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RankTimes {
    /// Sum of the durations of the compute lane's spans.
    pub busy: SimTime,
    /// Time in which the compute lane stands still while a transfer moves that it stands still for: in the gap before
    /// each compute operation, the part in which the transfers it waits for (or earlier ones of the same lane) move;
    /// after the last one, the part in which results (partial states, gradients) still arrive.
    pub exposed: SimTime,
    /// The rest: nothing to do, or waiting for a peer that is not ready or for the host's launch.
    pub wait: SimTime,
}

/// Figures of one pass.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metrics {
    /// When the last rank is done.
    pub makespan: SimTime,
    /// By rank.
    pub ranks: Vec<RankTimes>,
    /// `1 - sum(busy) / (P * makespan)`.
    pub bubble_ratio: f64,
    /// Exposed communication of the rank that has most of it.
    pub exposed_comm: SimTime,
    /// `max(busy) / mean(busy)`; 1 is balanced.
    pub imbalance: f64,
    /// FLOPs by the mask's area over `P * makespan`, in TFLOP/s a GPU.
    pub tflops_per_gpu: f64,
    /// The largest FLOPs of one rank over the mean: what balance alone allows.
    pub critical_flops: f64,
    /// The rank with the largest [`crate::plan::Program::peak_memory`].
    pub peak_memory: Bytes,
    /// Bytes that all ranks send.
    pub bytes_moved: Bytes,
}

/// Start and end of every operation of one rank.
type Times = Vec<Option<(SimTime, SimTime)>>;

impl Metrics {
    /// The figures of `timeline`, which came from executing or simulating `plan`.
    pub fn of(plan: &Plan, timeline: &Timeline) -> Self {
        let mut times: Vec<Times> = plan.programs.iter().map(|p| vec![None; p.ops.len()]).collect();
        let mut flops = vec![0.0; times.len()];
        for span in &timeline.spans {
            times[span.rank as usize][span.op as usize] = Some((span.start, span.end));
            flops[span.rank as usize] += span.flops;
        }
        let ranks: Vec<RankTimes> =
            times.iter().enumerate().map(|(r, t)| rank_times(plan, r, t, timeline.makespan)).collect();
        let busy: Vec<f64> = ranks.iter().map(|r| r.busy.as_secs_f64()).collect();
        let (total, most) = (busy.iter().sum::<f64>(), busy.iter().copied().fold(0.0, f64::max));
        let (p, makespan) = (ranks.len() as f64, timeline.makespan.as_secs_f64());
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        Self {
            makespan: timeline.makespan,
            bubble_ratio: if makespan > 0.0 { (1.0 - total / (p * makespan)).max(0.0) } else { 0.0 },
            exposed_comm: ranks.iter().map(|r| r.exposed).max().unwrap_or(SimTime::ZERO),
            imbalance: ratio(most * p, total),
            tflops_per_gpu: ratio(plan.mask_area_flops(), p * makespan) / 1e12,
            critical_flops: flops.iter().copied().fold(0.0, f64::max),
            peak_memory: plan
                .programs
                .iter()
                .map(crate::plan::Program::peak_memory)
                .max()
                .unwrap_or(Bytes(0)),
            bytes_moved: plan.bytes_moved(),
            ranks,
        }
    }
}

fn rank_times(plan: &Plan, rank: usize, times: &Times, makespan: SimTime) -> RankTimes {
    let ops = &plan.programs[rank].ops;
    let (mut busy, mut exposed, mut free) = (SimTime::ZERO, SimTime::ZERO, SimTime::ZERO);
    for (op, time) in ops.iter().zip(times) {
        let (true, Some((start, end))) = (op.lane.is_compute(), *time) else { continue };
        if start > free {
            let moving =
                op.waits.iter().filter(|&&w| w != NO_OP).flat_map(|&w| lane_tail(plan, rank, w, times, free));
            exposed += overlap(moving.collect(), free, start);
        }
        busy += end.saturating_sub(start);
        free = free.max(end);
    }
    let results = ops.iter().zip(times).filter_map(|(op, time)| match op.kind {
        OpKind::Recv { message, .. }
            if !matches!(plan.message(message).tensor, Tensor::KeyValue | Tensor::Key | Tensor::Value) =>
        {
            *time
        }
        _ => None,
    });
    exposed += overlap(results.collect(), free, makespan);
    RankTimes { busy, exposed, wait: makespan.saturating_sub(busy + exposed) }
}

/// The transfers of one lane up to `last` that end after `from`.
fn lane_tail(plan: &Plan, rank: usize, last: u32, times: &Times, from: SimTime) -> Vec<(SimTime, SimTime)> {
    let ops = &plan.programs[rank].ops;
    let lane: Lane = ops[last as usize].lane;
    if lane.is_compute() {
        return Vec::new();
    }
    let earlier = (0..=last as usize).rev().filter(|&i| ops[i].lane == lane).filter_map(|i| times[i]);
    earlier.take_while(|&(_, end)| end > from).collect()
}

/// How much of `[from, to)` the union of `spans` covers.
fn overlap(mut spans: Vec<(SimTime, SimTime)>, from: SimTime, to: SimTime) -> SimTime {
    spans.sort_unstable();
    let (mut covered, mut reached) = (SimTime::ZERO, from);
    for (start, end) in spans {
        let (start, end) = (start.max(reached), end.min(to));
        covered += end.saturating_sub(start);
        reached = reached.max(end);
    }
    covered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_counts_shared_time_once() {
        let t = SimTime;
        let spans = vec![(t(0), t(4)), (t(3), t(6)), (t(8), t(20)), (t(5), t(6))];
        assert_eq!(overlap(spans, t(2), t(10)), t(6));
    }
}
