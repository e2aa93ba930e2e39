//! Latency and bandwidth of messages.

use std::fmt;

use ringlab_sim::config::cluster::{Quantity, Ramp};
use ringlab_sim::plan::{Tensor, Transport};
use ringlab_sim::problem::{Dtype, Shape};
use ringlab_sim::timeline::{SpanKind, Timeline};
use ringlab_sim::units::{Bytes, BytesPerSec, SimTime};

use super::fit::{Fit, FitError, Sample, relative};
use super::probes::{self, Ways};
use super::{CalibrateError, FitReport, POOR, Point, Session};
use crate::machine::Launching;

/// Sizes at which a ramp may be half: 64 KiB to 64 MiB.
const FIRST_HALF: u64 = 64 << 10;
const HALVES: u32 = 11;

/// Constants of a fit; the last only with a ramp.
const NAMES: [&str; 3] = ["a message", "a byte", "the ramp"];

impl Session<'_> {
    /// One way and both ways, over the machine's sizes.
    pub(super) fn transfers(&mut self, transport: Transport, date: &str) -> Result<(), CalibrateError> {
        let name = name(transport);
        let mut by_way = Vec::new();
        for ways in [Ways::One, Ways::Both] {
            let mut samples = Vec::new();
            for bytes in self.machine.sizes().messages {
                self.say(&format!("{name}, {ways:?}, {bytes} bytes").to_lowercase())?;
                samples.push(self.message(bytes, ways, transport)?);
            }
            by_way.push(samples);
        }
        // A ring sends both ways at once, so the link's constants are those of both.
        let both = by_way.pop().unwrap_or_default();
        let found =
            Link::of(&both).map_err(|source| CalibrateError::Fit { what: name.to_owned(), source })?;
        self.report(format!("{name}, both ways"), found.to_string(), &NAMES, (&found.fit, &both));
        let one = by_way.pop().unwrap_or_default();
        if let Ok(alone) = Link::of(&one) {
            self.report(format!("{name}, one way"), alone.to_string(), &NAMES, (&alone.fit, &one));
        }
        let Link { latency, bandwidth, ramp, fit } = found;
        let fabric = &mut self.cluster.fabric;
        let (kept, of) = match transport {
            Transport::CopyEngine => (&mut fabric.copy, [Quantity::CopyBandwidth, Quantity::CopyLatency]),
            Transport::Nccl => (&mut fabric.nccl, [Quantity::NcclBandwidth, Quantity::NcclLatency]),
        };
        (kept.latency, kept.bandwidth, kept.ramp) = (latency, bandwidth, ramp);
        kept.source = format!(
            "fit to {} sizes sent both ways at once, measured {date}: rms residual {:.1}%",
            both.len(),
            100.0 * fit.residual
        );
        for of in of {
            self.know(of, &fit, both.len());
        }
        Ok(())
    }

    /// Copies between every two GPUs, and from each to the next at once, beside what the constants found between the first two
    /// give. With more than two GPUs only.
    pub(super) fn all_pairs(&mut self) -> Result<(), CalibrateError> {
        let (ranks, sizes) = (self.machine.identity().devices, self.machine.sizes());
        let Some(&bytes) = sizes.messages.iter().max().filter(|_| ranks > 2) else { return Ok(()) };
        let mut routes: Vec<(String, Vec<(u32, u32)>)> = (0..ranks)
            .flat_map(|a| (a + 1..ranks).map(move |b| (format!("{a} and {b}"), vec![(a, b), (b, a)])))
            .collect();
        let ring = (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect();
        routes.push((format!("each of {ranks} to the next at once"), ring));
        let (shape, tokens, sent) = self.sized(bytes);
        let copy = &self.cluster.fabric.copy;
        let ramp = copy.ramp.map_or(SimTime::ZERO, |ramp| ramp.of(sent));
        let fitted_s = (copy.latency + sent / copy.bandwidth + ramp).as_secs_f64();
        let mut points = Vec::new();
        for (probe, ways) in routes {
            self.say(&format!("copies, {probe}"))?;
            let plan = probes::copies(shape, tokens, ranks, &ways).ok_or(CalibrateError::Sizes("message"))?;
            let runs = self.machine.run(&plan, Launching::Stepwise, sizes.repeats)?;
            points.push(Point {
                probe,
                measured_s: slowest(&runs.timeline, &ways),
                fitted_s,
                spread: runs.spread(),
            });
        }
        self.keep_pairs(points);
        Ok(())
    }

    /// Reports copies, and names those that the constants miss.
    fn keep_pairs(&mut self, points: Vec<Point>) {
        let error = |p: &Point| p.fitted_s / p.measured_s - 1.0;
        for point in points.iter().filter(|p| error(p).abs() > POOR) {
            let (by, probe) = (100.0 * error(point), &point.probe);
            self.notes
                .push(format!("copies, {probe}: predictions by the first two GPUs are off by {by:+.1}%"));
        }
        let constants = "between every two GPUs, by the constants of the first two".into();
        self.fits.push(FitReport::of("copies, all pairs", constants, points));
    }

    /// The keys and values that a message of about so many bytes carries: their shape, tokens and bytes.
    fn sized(&self, bytes: u64) -> (Shape, u64, Bytes) {
        let shape = Shape { heads: 1, kv_heads: 1, head_dim: 64, dtype: Dtype::Fp32, batch: 1 };
        let kernel = self.machine.kernels().into_iter().next();
        let shape = kernel.map_or(shape, |k| Shape { head_dim: k.head_dim, dtype: k.dtype, ..shape });
        let tokens = (bytes / Tensor::KeyValue.bytes(&shape, 1, 1).0).max(1);
        (shape, tokens, Tensor::KeyValue.bytes(&shape, tokens, 1))
    }

    /// A message of about so many bytes each way of `ways`, of which the slower one counts.
    pub(super) fn message(
        &mut self,
        bytes: u64,
        ways: Ways,
        transport: Transport,
    ) -> Result<Sample, CalibrateError> {
        let (shape, tokens, sent) = self.sized(bytes);
        let plan = probes::message(shape, tokens, ways, transport).ok_or(CalibrateError::Sizes("message"))?;
        self.sample(
            format!("{} {} bytes", plan.name, sent.0),
            vec![1.0, sent.0 as f64],
            &plan,
            slowest_message,
        )
    }
}

/// What transfers take, by a fit to their sizes.
struct Link {
    latency: SimTime,
    bandwidth: BytesPerSec,
    ramp: Option<Ramp>,
    fit: Fit,
}

impl Link {
    /// Latency and bandwidth; with a ramp where that halves the residual.
    fn of(samples: &[Sample]) -> Result<Self, FitError> {
        let plain = relative(samples)?;
        let ramped = (0..HALVES).map(|k| FIRST_HALF << k).filter_map(|half| with_ramp(samples, half).ok());
        let best = ramped.min_by(|(a, _), (b, _)| a.residual.total_cmp(&b.residual));
        let best = best.filter(|(fit, _)| 2.0 * fit.residual < plain.residual && fit.clamped.is_empty());
        let (fit, ramp) = match best {
            Some((fit, half)) => {
                let ramp = Ramp { time: SimTime::from_secs_f64(fit.constants[2]), bytes: Bytes(half) };
                (fit, Some(ramp))
            }
            None => (plain, None),
        };
        let (latency, bandwidth) =
            (SimTime::from_secs_f64(fit.constants[0]), BytesPerSec(1.0 / fit.constants[1]));
        Ok(Self { latency, bandwidth, ramp, fit })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} + bytes / {}", self.latency, self.bandwidth)?;
        match self.ramp {
            Some(Ramp { time, bytes }) => write!(f, ", up to {time} more, half of it at {bytes}"),
            None => Ok(()),
        }
    }
}

/// The fit with a ramp of which a transfer of `half` bytes takes half.
fn with_ramp(samples: &[Sample], half: u64) -> Result<(Fit, u64), FitError> {
    let with = |sample: &Sample| {
        let bytes = sample.factors[1];
        let factors = vec![1.0, bytes, bytes / (bytes + half as f64)];
        Sample { factors, ..sample.clone() }
    };
    Ok((relative(&samples.iter().map(with).collect::<Vec<_>>())?, half))
}

/// For messages.
pub(super) fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::CopyEngine => "copies",
        Transport::Nccl => "NCCL",
    }
}

/// From the start of a send to the end of its receive, in seconds, for the message between two ranks that takes longest.
fn slowest_message(timeline: &Timeline) -> f64 {
    slowest(timeline, &[(0, 1), (1, 0)])
}

/// The same of the messages on these ways, one each.
fn slowest(timeline: &Timeline, ways: &[(u32, u32)]) -> f64 {
    let of = |rank, kind| timeline.spans.iter().find(move |s| s.rank == rank && s.kind == kind);
    let one = |&(from, to): &(u32, u32)| {
        let (send, recv) = (of(from, SpanKind::Send)?, of(to, SpanKind::Recv)?);
        Some(recv.end.max(send.end).saturating_sub(send.start))
    };
    ways.iter().filter_map(one).max().unwrap_or(SimTime::ZERO).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringlab_sim::plan::Lane;
    use ringlab_sim::timeline::Span;

    fn samples(time: impl Fn(f64) -> f64) -> Vec<Sample> {
        let sizes = [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10].map(|kib: u64| (kib << 10) as f64);
        let sample =
            |&b: &f64| Sample { probe: String::new(), factors: vec![1.0, b], seconds: time(b), spread: 0.0 };
        sizes.iter().map(sample).collect()
    }

    #[test]
    fn a_ramp_is_found_where_there_is_one() {
        let half = f64::from(8 << 20);
        let found = Link::of(&samples(|b| 18e-6 + b / 318e9 + 32e-6 * b / (b + half))).unwrap();
        assert_eq!((found.latency, found.bandwidth.0.round()), (SimTime(18_000_000), 318e9));
        assert_eq!(found.ramp, Some(Ramp { time: SimTime(32_000_000), bytes: Bytes(8 << 20) }));
        let plain = Link::of(&samples(|b| 10e-6 + b / 385e9)).unwrap();
        assert_eq!((plain.latency, plain.ramp), (SimTime(10_000_000), None));
    }

    /// A send from 1 us on and its receive from 3 us on, until these.
    #[test]
    fn a_message_lasts_from_its_send_to_the_later_end() {
        let us = |us: u64| SimTime(1_000_000 * us);
        let lasts = |sent: u64, received: u64| {
            let span = |rank, kind, (start, end)| Span {
                rank,
                lane: Lane::comm(0),
                op: 0,
                step: 0,
                kind,
                start: us(start),
                end: us(end),
                bytes: Bytes(1),
                flops: 0.0,
            };
            let there = [span(0, SpanKind::Send, (1, sent)), span(1, SpanKind::Recv, (3, received))];
            let back = [span(1, SpanKind::Send, (0, 2)), span(0, SpanKind::Recv, (0, 2))];
            let spans = there.into_iter().chain(back).collect();
            slowest_message(&Timeline { ranks: 2, spans, makespan: SimTime::ZERO })
        };
        assert_eq!(lasts(5, 9), us(8).as_secs_f64());
        assert_eq!(lasts(12, 9), us(11).as_secs_f64());
        assert_eq!(lasts(2, 3), us(2).as_secs_f64(), "two ways are as slow as the slower one");
    }

    #[test]
    fn nccl_on_two_h200s_has_one() {
        // Measured both ways at once, in microseconds, for 64 KiB to 256 MiB (experiments/results/h200-validation-2026-11-30).
        let mut measured = samples(|_| 1.0);
        for (sample, us) in measured.iter_mut().zip([18.7, 26.9, 41.8, 94.8, 260.4, 892.0]) {
            sample.seconds = us * 1e-6;
        }
        let found = Link::of(&measured).unwrap();
        assert!(found.ramp.is_some() && found.fit.residual < 0.04, "{found}, {}", found.fit.residual);
        assert!((300e9..340e9).contains(&found.bandwidth.0), "{found}");
    }
}
