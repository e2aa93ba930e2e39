//! A pass of one process as bytes, and the passes of all processes as one.
//!
//! A process sends the rows of its tensors that it has computed: those that are not NaN throughout, which is what an
//! executor leaves in rows of ranks that ran elsewhere. Rows that nobody sends stay NaN, and so fail against the reference.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ringlab_runtime::outcome::{Forward, Gradients, Outcome, Results, Typical};
use ringlab_sim::plan::{Lane, Plan, Rank};
use ringlab_sim::timeline::{Span, SpanKind, Timeline};
use ringlab_sim::units::{Bytes, SimTime};
use serde::{Deserialize, Serialize};

use super::executed::{Executed, Gpu};

/// Everything but the tensors.
#[derive(Serialize, Deserialize)]
struct Header {
    ranks: Vec<Rank>,
    spans: Vec<WireSpan>,
    recorded_ps: Vec<u64>,
    unrecorded_ps: Vec<u64>,
    alignment_error_ps: u64,
    loaded_s: f64,
    duty: f64,
    posting_ps: u64,
    context_bytes: u64,
    device_names: Vec<String>,
    driver: String,
    mode: String,
    notes: Vec<String>,
    bytes_moved: u64,
    wrong_padding_rows: usize,
    peak_bytes: Vec<u64>,
    wall_time_s: f64,
    tensors: Vec<Rows>,
}

/// A span without what the plan says of its operation.
#[derive(Serialize, Deserialize)]
struct WireSpan {
    rank: Rank,
    op: u32,
    start_ps: u64,
    end_ps: u64,
    bytes: u64,
    flops: f64,
}

/// Which rows of a tensor follow.
#[derive(Serialize, Deserialize)]
struct Rows {
    len: usize,
    width: usize,
    /// First row and number of rows.
    runs: Vec<(usize, usize)>,
}

/// A pass as bytes.
pub fn encode(executed: &Executed, ranks: &[Rank]) -> Result<Vec<u8>> {
    let outcome = &executed.outcome;
    let gpu = executed.gpu.as_ref().context("only runs on GPUs have several processes")?;
    let ps = |times: &[SimTime]| times.iter().map(|t| t.0).collect();
    let tensors = tensors(&outcome.results);
    let span = |s: &Span| WireSpan {
        rank: s.rank,
        op: s.op,
        start_ps: s.start.0,
        end_ps: s.end.0,
        bytes: s.bytes.0,
        flops: s.flops,
    };
    let header = Header {
        ranks: ranks.to_vec(),
        spans: outcome.timeline.spans.iter().map(span).collect(),
        recorded_ps: ps(&executed.recorded),
        unrecorded_ps: ps(&executed.unrecorded),
        alignment_error_ps: gpu.alignment_error.0,
        loaded_s: gpu.loaded_s,
        duty: gpu.duty,
        posting_ps: gpu.posting.0,
        context_bytes: gpu.context_bytes.0,
        device_names: gpu.device_names.clone(),
        driver: gpu.driver.clone(),
        mode: gpu.mode.clone(),
        notes: executed.notes.clone(),
        bytes_moved: outcome.bytes_moved.0,
        wrong_padding_rows: outcome.wrong_padding_rows,
        peak_bytes: outcome.peak_bytes.iter().map(|b| b.0).collect(),
        wall_time_s: outcome.wall_time.as_secs_f64(),
        tensors: tensors
            .iter()
            .map(|(x, width)| Rows { len: x.len(), width: *width, runs: own_rows(x, *width) })
            .collect(),
    };
    let head = serde_json::to_vec(&header)?;
    let mut bytes = (head.len() as u64).to_le_bytes().to_vec();
    bytes.extend(head);
    for (rows, (x, width)) in header.tensors.iter().zip(&tensors) {
        for &(first, count) in &rows.runs {
            x[first * width..(first + count) * width].iter().for_each(|v| bytes.extend(v.to_le_bytes()));
        }
    }
    Ok(bytes)
}

/// The tensors with the widths of their rows, in a fixed order.
fn tensors(results: &Results) -> Vec<(&[f32], usize)> {
    match results {
        Results::Forward(f) => {
            let width = f.o.len() / f.lse.len().max(1);
            vec![(&f.o, width), (&f.lse, 1)]
        }
        Results::Backward(g) => vec![(&g.dq, 1), (&g.dk, 1), (&g.dv, 1)],
    }
}

/// Runs of rows that are not NaN throughout.
fn own_rows(x: &[f32], width: usize) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (row, values) in x.chunks(width.max(1)).enumerate() {
        if values.iter().all(|v| v.is_nan()) {
            continue;
        }
        match runs.last_mut() {
            Some((first, count)) if *first + *count == row => *count += 1,
            _ => runs.push((row, 1)),
        }
    }
    runs
}

/// One pass out of the parts of all processes. The timeline is made of each process's own median repeat.
pub fn merge(plan: &Plan, parts: &[Vec<u8>]) -> Result<Executed> {
    let mut decoded = parts.iter().map(|bytes| decode(bytes)).collect::<Result<Vec<_>>>()?.into_iter();
    let (first, mut tensors) = decoded.next().context("no process sent its part")?;
    let mut all = vec![first];
    for (header, other) in decoded {
        for (x, (y, rows)) in tensors.iter_mut().zip(other.into_iter().zip(&header.tensors)) {
            if x.len() != y.len() {
                bail!(
                    "processes have tensors of {} and {} elements; start all with the same options",
                    x.len(),
                    y.len()
                );
            }
            for &(first, count) in &rows.runs {
                let range = first * rows.width..(first + count) * rows.width;
                x[range.clone()].copy_from_slice(&y[range]);
            }
        }
        all.push(header);
    }
    assemble(plan, &all, tensors)
}

fn decode(bytes: &[u8]) -> Result<(Header, Vec<Vec<f32>>)> {
    let damaged = "a process's part is damaged";
    let (length, rest) = bytes.split_first_chunk::<8>().context(damaged)?;
    let (head, mut data) = rest.split_at_checked(u64::from_le_bytes(*length) as usize).context(damaged)?;
    let header: Header = serde_json::from_slice(head).context(damaged)?;
    let mut tensors = Vec::new();
    for rows in &header.tensors {
        let mut x = vec![f32::NAN; rows.len];
        for &(first, count) in &rows.runs {
            let (values, rest) = data.split_at_checked(count * rows.width * 4).context(damaged)?;
            data = rest;
            let target = x.get_mut(first * rows.width..(first + count) * rows.width).context(damaged)?;
            for (x, value) in target.iter_mut().zip(values.as_chunks::<4>().0) {
                *x = f32::from_le_bytes(*value);
            }
        }
        tensors.push(x);
    }
    Ok((header, tensors))
}

fn assemble(plan: &Plan, all: &[Header], tensors: Vec<Vec<f32>>) -> Result<Executed> {
    let results = match <[Vec<f32>; 3]>::try_from(tensors) {
        Ok([dq, dk, dv]) => Results::Backward(Gradients { dq, dk, dv }),
        Err(tensors) => {
            let [o, lse] = <[Vec<f32>; 2]>::try_from(tensors)
                .ok()
                .context("a part has neither a forward nor gradients")?;
            Results::Forward(Forward { o, lse })
        }
    };
    let ranks = plan.ranks() as usize;
    let (mut peak_bytes, mut device_names) = (vec![Bytes(0); ranks], vec![String::new(); ranks]);
    for header in all {
        place(&mut peak_bytes, &header.peak_bytes, &header.ranks, |b| Bytes(*b))?;
        place(&mut device_names, &header.device_names, &header.ranks, Clone::clone)?;
    }
    let least = |of: fn(&Header) -> f64| all.iter().map(of).fold(f64::INFINITY, f64::min);
    let most = |of: fn(&Header) -> u64| all.iter().map(of).max().unwrap_or(0);
    let mut notes: Vec<String> = all.iter().flat_map(|h| h.notes.clone()).collect();
    notes.sort();
    notes.dedup();
    notes.push(format!("{} processes: the timeline is of each one's own median repeat", all.len()));
    Ok(Executed {
        outcome: Outcome {
            results,
            wrong_padding_rows: all.iter().map(|h| h.wrong_padding_rows).sum(),
            bytes_moved: Bytes(all.iter().map(|h| h.bytes_moved).sum()),
            wall_time: Duration::from_secs_f64(all.iter().map(|h| h.wall_time_s).fold(0.0, f64::max)),
            timeline: timeline(plan, all)?,
            peak_bytes,
        },
        // Several processes have no load: they could not agree on its end.
        typical: Typical::Median,
        recorded: slowest(all, |h| &h.recorded_ps),
        unrecorded: slowest(all, |h| &h.unrecorded_ps),
        gpu: Some(Gpu {
            alignment_error: SimTime(most(|h| h.alignment_error_ps)),
            loaded_s: least(|h| h.loaded_s),
            duty: least(|h| h.duty),
            posting: SimTime(most(|h| h.posting_ps)),
            context_bytes: Bytes(most(|h| h.context_bytes)),
            device_names,
            driver: all[0].driver.clone(),
            mode: all[0].mode.clone(),
            is_virtual: false,
        }),
        notes,
    })
}

/// Puts values of a process's ranks, or of all ranks, where they belong.
fn place<T, U>(all: &mut [T], values: &[U], ranks: &[Rank], convert: impl Fn(&U) -> T) -> Result<()> {
    let is_whole = values.len() == all.len();
    for (i, &rank) in ranks.iter().enumerate() {
        let from = if is_whole { rank as usize } else { i };
        let (Some(slot), Some(value)) = (all.get_mut(rank as usize), values.get(from)) else {
            bail!("a process speaks of rank {rank} of another plan; start all with the same options");
        };
        *slot = convert(value);
    }
    Ok(())
}

/// Repeat by repeat, the slowest process.
fn slowest(all: &[Header], of: fn(&Header) -> &Vec<u64>) -> Vec<SimTime> {
    let repeats = all.iter().map(|h| of(h).len()).min().unwrap_or(0);
    (0..repeats).map(|i| SimTime(all.iter().map(|h| of(h)[i]).max().unwrap_or(0))).collect()
}

fn timeline(plan: &Plan, all: &[Header]) -> Result<Timeline> {
    let mut spans = Vec::new();
    for wire in all.iter().flat_map(|h| &h.spans) {
        let op = plan.programs.get(wire.rank as usize).and_then(|p| p.ops.get(wire.op as usize));
        let op =
            op.context("a process speaks of operations of another plan; start all with the same options")?;
        let lane: Lane = op.lane;
        spans.push(Span {
            rank: wire.rank,
            lane,
            op: wire.op,
            step: op.step,
            kind: SpanKind::of(&op.kind),
            start: SimTime(wire.start_ps),
            end: SimTime(wire.end_ps),
            bytes: Bytes(wire.bytes),
            flops: wire.flops,
        });
    }
    spans.sort_by_key(|s| (s.end, s.rank, s.op));
    let makespan = spans.last().map_or(SimTime::ZERO, |s| s.end);
    Ok(Timeline { ranks: plan.ranks(), spans, makespan })
}

#[cfg(test)]
mod tests {
    use ringlab_runtime::cpu::{self, RunOptions};
    use ringlab_runtime::inputs::Inputs;
    use ringlab_runtime::rendezvous::Meeting;
    use ringlab_sim::mask::Pattern;
    use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
    use ringlab_sim::schedule::{Options, Schedule, build};

    use super::super::world::exchange;
    use super::*;

    /// A forward on two ranks, as one process ran it.
    fn whole() -> (Plan, Executed) {
        let shape = Shape { heads: 2, kv_heads: 1, head_dim: 4, dtype: Dtype::Fp32, batch: 1 };
        let problem = Problem { shape, pattern: Pattern::Causal, documents: vec![16] };
        let plan = build(Schedule::Zigzag, &problem, 2, &Options::new(Pass::Forward)).unwrap();
        let inputs = Inputs::random(1, &problem).unwrap();
        let outcome = cpu::run(&plan, &inputs, &RunOptions::default()).unwrap();
        let gpu = Gpu {
            alignment_error: SimTime(5),
            loaded_s: 0.3,
            duty: 0.9,
            posting: SimTime(7),
            context_bytes: Bytes(11),
            device_names: vec!["a".into(), "b".into()],
            driver: "13.0".into(),
            mode: "fused".into(),
            is_virtual: false,
        };
        let times = vec![SimTime(100), SimTime(90)];
        let executed = Executed {
            outcome,
            typical: Typical::Median,
            recorded: times.clone(),
            unrecorded: times,
            gpu: Some(gpu),
            notes: Vec::new(),
        };
        (plan, executed)
    }

    /// What the process of `rank` has of it. Zigzag over 16 tokens gives rank 0 tokens 0-3 and 12-15.
    fn part(whole: &Executed, rank: u32) -> Executed {
        let mut part = whole.clone();
        let outer = |token: usize| !(4..12).contains(&token);
        let is_own = |token: usize| outer(token) == (rank == 0);
        let Results::Forward(forward) = &mut part.outcome.results else { panic!("a forward") };
        for (i, x) in forward.o.iter_mut().enumerate() {
            *x = if is_own(i / 8) { *x } else { f32::NAN };
        }
        for (i, x) in forward.lse.iter_mut().enumerate() {
            *x = if is_own(i % 16) { *x } else { f32::NAN };
        }
        part.outcome.timeline.spans.retain(|s| s.rank == rank);
        let received =
            part.outcome.timeline.spans.iter().filter(|s| s.kind == SpanKind::Recv).map(|s| s.bytes);
        part.outcome.bytes_moved = received.sum();
        part.outcome.peak_bytes = vec![whole.outcome.peak_bytes[rank as usize]];
        let gpu = part.gpu.as_mut().unwrap();
        gpu.device_names = vec![gpu.device_names[rank as usize].clone()];
        part
    }

    /// What two processes have after a pass.
    fn exchanged(to_all: bool) -> (Executed, Vec<Executed>) {
        let (plan, whole) = whole();
        let folder = tempfile::tempdir().unwrap();
        let process = |rank: u32| {
            let limit = Duration::from_secs(10);
            let meeting = Meeting::join(folder.path(), "run", rank, 2, limit).unwrap();
            let own = part(&whole, rank);
            exchange(&meeting, "pass-1", &plan, (own, &[rank]), rank == 0, to_all).unwrap()
        };
        let both = std::thread::scope(|scope| {
            let process = &process;
            let threads = [0, 1].map(|rank| scope.spawn(move || process(rank)));
            threads.map(|thread| thread.join().unwrap()).to_vec()
        });
        (whole, both)
    }

    #[test]
    fn a_forward_that_a_backward_follows_is_whole_in_every_process() {
        let (whole, both) = exchanged(true);
        assert!(both.iter().all(|e| e.outcome.results == whole.outcome.results));
        let (whole, both) = exchanged(false);
        assert_eq!(both[0].outcome.results, whole.outcome.results);
        let Results::Forward(own) = &both[1].outcome.results else { panic!("a forward") };
        assert!(own.o.iter().any(|x| x.is_nan()), "without one the others keep what they have");
    }

    #[test]
    fn parts_of_processes_make_the_whole() {
        let (plan, whole) = whole();
        let mut slower = part(&whole, 1);
        slower.recorded = vec![SimTime(80), SimTime(130)];
        slower.unrecorded = vec![SimTime(120)];
        slower.gpu.as_mut().unwrap().alignment_error = SimTime(6);
        slower.gpu.as_mut().unwrap().duty = 0.8;
        let parts = [encode(&part(&whole, 0), &[0]).unwrap(), encode(&slower, &[1]).unwrap()];
        let merged = merge(&plan, &parts).unwrap();
        assert_eq!(merged.outcome.results, whole.outcome.results);
        assert_eq!(merged.outcome.timeline, whole.outcome.timeline);
        assert_eq!(merged.outcome.bytes_moved, whole.outcome.bytes_moved);
        assert_eq!(merged.outcome.peak_bytes, whole.outcome.peak_bytes);
        assert_eq!(merged.recorded, [SimTime(100), SimTime(130)], "the slower process, repeat by repeat");
        assert_eq!(merged.unrecorded, [SimTime(120)]);
        let gpu = merged.gpu.unwrap();
        assert_eq!((gpu.alignment_error, gpu.device_names), (SimTime(6), vec!["a".into(), "b".into()]));
        assert_eq!((gpu.loaded_s, gpu.duty), (0.3, 0.8), "the least loaded process");
    }

    #[test]
    fn what_nobody_computed_stays_nan() {
        let (plan, whole) = whole();
        let alone = merge(&plan, &[encode(&part(&whole, 1), &[1]).unwrap()]).unwrap();
        let forward = alone.outcome.results.forward().unwrap();
        assert_eq!(forward.lse.iter().filter(|x| x.is_nan()).count(), 16, "8 tokens of 2 heads");
        assert_eq!(forward.o.iter().filter(|x| x.is_nan()).count(), 64);
    }

    #[test]
    fn damaged_and_foreign_parts_are_refused() {
        let (plan, whole) = whole();
        let bytes = encode(&part(&whole, 0), &[0]).unwrap();
        for cut in [0, 7, 20, bytes.len() - 1] {
            assert!(merge(&plan, &[bytes[..cut].to_vec()]).is_err(), "cut at {cut}");
        }
        let foreign = encode(&whole, &[0, 1, 2]).unwrap();
        assert!(merge(&plan, &[foreign]).unwrap_err().to_string().contains("rank 2"));
    }
}
