//! From runs to what is told of them.

use std::time::{Duration, Instant};

use ringlab_sim::plan::{OpKind, Rank};
use ringlab_sim::problem;
use ringlab_sim::timeline::{Span, SpanKind, Timeline};
use ringlab_sim::units::{Bytes, SimTime};

use super::clock::Offset;
use super::error::CudaError;
use super::filler::Filler;
use super::lanes::Timed;
use super::options::{Copies, Measured, Recording, Run};
use super::passes::{How, Pass, failed};
use super::prepare::Session;
use super::tensors::gather;
use crate::outcome::{Forward, Gradients, Outcome, Results, Typical};

/// Most runs to fill a window: a run and its host's share take a millisecond or more.
const MOST: u64 = 1000;

impl Session<'_> {
    /// Uploads, warms up, measures and collects.
    pub fn run(&self) -> Result<Run, CudaError> {
        self.upload()?;
        let start = Instant::now();
        let warm = self.warm_up()?;
        let measuring = Instant::now();
        let repeats = self.repeats(&warm);
        let both = self.options.recording == Recording::Both;
        let mut recorded: Vec<(Pass, Timeline)> = Vec::new();
        let mut plain: Vec<Pass> = Vec::new();
        // In turn, so that both kinds meet the same clocks.
        for i in 0..repeats {
            let is_last = i + 1 == repeats;
            let pass = self.repeat(&warm, true, is_last && !both)?;
            let timeline = self.timeline(&pass)?;
            recorded.push((pass, timeline));
            std::thread::sleep(self.options.rest);
            if both {
                plain.push(self.repeat(&warm, false, is_last)?);
                std::thread::sleep(self.options.rest);
            }
        }
        // Behind each run but the last, and the warm-up's before the first.
        let filled = SimTime(warm.filled().0 * (recorded.len() + plain.len()) as u64);
        let load = (warm.loaded, measuring.elapsed(), filled);
        for member in &self.members {
            member.gpu.check().map_err(|source| failed(member.rank, source))?;
        }
        let wall_time = start.elapsed();
        let (results, wrong_padding_rows) =
            if self.options.collect { self.collect()? } else { (nothing(self.plan.pass), 0) };
        let measured = self.measured(&recorded, &plain, load)?;
        let recorded = recorded.into_iter().map(|(pass, timeline)| (pass.makespan, timeline)).collect();
        let timeline = measured.typical.timeline(recorded).unwrap_or_else(|| Timeline {
            ranks: self.plan.ranks(),
            spans: Vec::new(),
            makespan: measured.makespan(),
        });
        let outcome = Outcome {
            results,
            wrong_padding_rows,
            bytes_moved: self.bytes_moved(),
            wall_time,
            timeline,
            peak_bytes: measured.peak_bytes.clone(),
        };
        Ok(Run { outcome, measured })
    }

    /// Runs until kernels are loaded and the GPUs have worked for as long as was asked for.
    fn warm_up(&self) -> Result<WarmedUp, CudaError> {
        let mut lasts =
            self.pass(How { recorded: true, poisoned: true, open: true, ..How::default() })?.makespan;
        // What was loaded meanwhile was no load.
        let start = Instant::now();
        let (mut passes, mut fillers) = (1, Vec::new());
        while passes < self.options.warmup || start.elapsed() < self.options.sustain {
            let pass = self.pass(How { recorded: true, fillers: &fillers, ..How::default() })?;
            // Anew each time: the clock falls meanwhile.
            fillers = self.fillers(&pass)?;
            lasts = pass.makespan;
            passes += 1;
            std::thread::sleep(self.options.rest);
        }
        Ok(WarmedUp { loaded: start.elapsed(), lasts, fillers })
    }

    /// Measured runs of each kind: as many as were asked for, or more, so that both kinds fill whole windows.
    fn repeats(&self, warm: &WarmedUp) -> u32 {
        let (window, asked) = (time(self.options.window).0, u64::from(self.options.repeats.max(1)));
        if window == 0 {
            return asked as u32;
        }
        let kinds = if self.options.recording == Recording::Both { 2 } else { 1 };
        let one = kinds * (warm.lasts + warm.filled() + time(self.options.rest)).0.max(1);
        let windows = (asked * one).div_ceil(window);
        ((windows * window + one / 2) / one).min(MOST).max(asked) as u32
    }

    /// A measured run. Results are those of the last one, which must write all of them.
    fn repeat(&self, warm: &WarmedUp, recorded: bool, is_last: bool) -> Result<Pass, CudaError> {
        let poisoned = self.options.collect && is_last;
        self.pass(How { recorded, poisoned, is_last, fillers: &warm.fillers, open: false })
    }

    fn collect(&self) -> Result<(Results, usize), CudaError> {
        let holders: Vec<_> = self.holders().zip(self.held.iter().map(Vec::as_slice)).collect();
        gather(self.plan, self.inputs, (&self.real, &self.regions), self.dtype, &holders)
    }

    /// Bytes that this process's ranks received, as the plan counts them.
    fn bytes_moved(&self) -> Bytes {
        let here = |rank: Rank| self.members.iter().any(|m| m.rank == rank);
        self.plan.messages.iter().filter(|m| here(m.to)).map(|m| m.bytes).sum()
    }

    fn measured(
        &self,
        recorded: &[(Pass, Timeline)],
        plain: &[Pass],
        (loaded, wall, filled): (Duration, Duration, SimTime),
    ) -> Result<Measured, CudaError> {
        let passes = || recorded.iter().map(|(pass, _)| pass).chain(plain);
        let busy = filled + passes().map(|p| p.makespan).sum::<SimTime>();
        let names = self.members.iter().map(|m| m.gpu.name().map_err(|source| failed(m.rank, source)));
        let own: u64 = self.peak_bytes.iter().map(|b| b.0).sum();
        let mut context = 0;
        for (member, bytes) in self.members.iter().zip(&self.peak_bytes) {
            let (free, total) = member.gpu.memory().map_err(|source| failed(member.rank, source))?;
            context = context.max((total - free).saturating_sub(if self.is_virtual { own } else { bytes.0 }));
        }
        let first = &self.members[0];
        Ok(Measured {
            typical: if self.options.window.is_zero() { Typical::Median } else { Typical::Mean },
            makespans: recorded.iter().map(|(pass, _)| pass.makespan).collect(),
            unrecorded: plain.iter().map(|pass| pass.makespan).collect(),
            alignment_error: passes().map(|p| p.alignment_error).max().unwrap_or(SimTime::ZERO),
            posting: passes().map(|p| p.posting).max().unwrap_or(SimTime::ZERO),
            loaded_s: loaded.as_secs_f64(),
            duty: if wall.is_zero() { 0.0 } else { (busy.as_secs_f64() / wall.as_secs_f64()).min(1.0) },
            peak_bytes: self.peak_bytes.clone(),
            context_bytes: Bytes(context),
            device_names: names.collect::<Result<_, _>>()?,
            driver: first.gpu.driver().map_err(|source| failed(first.rank, source))?,
            ranks: self.members.iter().map(|m| m.rank).collect(),
            is_virtual: self.is_virtual,
            mode: self.mode,
            notes: self.notes.clone(),
        })
    }

    /// When each operation of the last recorded run ran.
    fn timeline(&self, pass: &Pass) -> Result<Timeline, CudaError> {
        let mut spans = Vec::new();
        for (i, program) in self.programs.iter().enumerate() {
            for &timed in &program.timed {
                let mut span = self.span(timed);
                (span.start, span.end) = self.times(pass, i, timed)?;
                spans.push(span);
            }
        }
        if !self.is_virtual {
            self.align_transfers(&mut spans);
        }
        spans.sort_by_key(|s| (s.end, s.rank, s.op));
        let makespan = spans.last().map_or(SimTime::ZERO, |s| s.end);
        Ok(Timeline { ranks: self.plan.ranks(), spans, makespan })
    }

    fn times(&self, pass: &Pass, member: usize, timed: Timed) -> Result<(SimTime, SimTime), CudaError> {
        let (gpu, anchor) = (&self.members[member].gpu, self.clock.anchors[member]);
        let at = |event| -> Result<SimTime, CudaError> {
            let since = gpu.elapsed(anchor, event).map_err(|source| failed(timed.rank, source))?;
            Ok(SimTime(u64::try_from(pass.offsets[member] + Offset::from(since.0)).unwrap_or(0)))
        };
        Ok((at(timed.start)?, at(timed.end)?))
    }

    fn span(&self, timed: Timed) -> Span {
        let Timed { rank, op, .. } = timed;
        let program = &self.plan.programs[rank as usize];
        let (op_ref, folds) = (&program.ops[op as usize], &self.folds[rank as usize]);
        let count = |op: u32| self.plan.flops(&program.ops[op as usize].kind);
        let followers = folds.followers.get(&op).map(Vec::as_slice).unwrap_or_default();
        let is_call = matches!(op_ref.kind, OpKind::Attend { .. });
        let along = is_call && folds.done_by.contains_key(&op);
        let all: f64 = [op].iter().chain(followers).map(|&op| count(op)).sum();
        let message = op_ref.kind.message().map(|m| self.plan.message(m).bytes);
        Span {
            rank,
            lane: op_ref.lane,
            op,
            step: op_ref.step,
            kind: SpanKind::of(&op_ref.kind),
            start: SimTime::ZERO,
            end: SimTime::ZERO,
            bytes: message.unwrap_or(Bytes(0)),
            flops: if along { 0.0 } else { all },
        }
    }

    /// A transfer's span is the time its bytes move, on both ends: that of the end that copies.
    fn align_transfers(&self, spans: &mut [Span]) {
        let copying = match self.options.copies {
            Copies::Push => SpanKind::Send,
            Copies::Pull => SpanKind::Recv,
        };
        if self.plan.transport == ringlab_sim::plan::Transport::Nccl {
            return;
        }
        let message = |s: &Span| self.plan.programs[s.rank as usize].ops[s.op as usize].kind.message();
        let mut moved = vec![None; self.plan.messages.len()];
        for span in spans.iter().filter(|s| s.kind == copying) {
            if let Some(m) = message(span) {
                moved[m as usize] = Some((span.start, span.end));
            }
        }
        for span in spans.iter_mut().filter(|s| s.kind.is_transfer()) {
            if let Some(times) = message(span).and_then(|m| moved[m as usize]) {
                (span.start, span.end) = times;
            }
        }
    }
}

/// Results that nobody asked for.
fn nothing(pass: problem::Pass) -> Results {
    match pass {
        problem::Pass::Forward => Results::Forward(Forward { o: Vec::new(), lse: Vec::new() }),
        problem::Pass::Backward => Results::Backward(Gradients::default()),
    }
}

/// What comes of the runs before the measured ones.
struct WarmedUp {
    /// How long runs followed each other, from the end of the first.
    loaded: Duration,
    /// Makespan of the last one.
    lasts: SimTime,
    /// What keeps GPUs working between runs.
    fillers: Vec<Filler>,
}

impl WarmedUp {
    /// How long the fillers of one run last.
    fn filled(&self) -> SimTime {
        self.fillers.iter().map(|f| f.lasts).max().unwrap_or(SimTime::ZERO)
    }
}

fn time(of: Duration) -> SimTime {
    SimTime::from_secs_f64(of.as_secs_f64())
}
