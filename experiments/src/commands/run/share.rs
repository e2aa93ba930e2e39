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
mod tests;
