//! Latency and bandwidth of messages.

use ringlab_sim::config::cluster::Quantity;
use ringlab_sim::plan::{Tensor, Transport};
use ringlab_sim::problem::{Dtype, Shape};
use ringlab_sim::timeline::{SpanKind, Timeline};
use ringlab_sim::units::{BytesPerSec, SimTime};

use super::fit::{Sample, relative};
use super::probes::{self, Ways};
use super::{CalibrateError, Session};

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
        let fit = relative(&both).map_err(|source| CalibrateError::Fit { what: name.to_owned(), source })?;
        let (latency, bandwidth) =
            (SimTime::from_secs_f64(fit.constants[0]), BytesPerSec(1.0 / fit.constants[1]));
        self.report(format!("{name}, both ways"), format!("{latency} + bytes / {bandwidth}"), &fit, &both);
        let one = by_way.pop().unwrap_or_default();
        if let Ok(alone) = relative(&one) {
            let constants = format!(
                "{} + bytes / {}",
                SimTime::from_secs_f64(alone.constants[0]),
                BytesPerSec(1.0 / alone.constants[1])
            );
            self.report(format!("{name}, one way"), constants, &alone, &one);
        }
        let fabric = &mut self.cluster.fabric;
        let (kept, of) = match transport {
            Transport::CopyEngine => (&mut fabric.copy, [Quantity::CopyBandwidth, Quantity::CopyLatency]),
            Transport::Nccl => (&mut fabric.nccl, [Quantity::NcclBandwidth, Quantity::NcclLatency]),
        };
        (kept.latency, kept.bandwidth) = (latency, bandwidth);
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

    fn message(&mut self, bytes: u64, ways: Ways, transport: Transport) -> Result<Sample, CalibrateError> {
        let shape = Shape { heads: 1, kv_heads: 1, head_dim: 64, dtype: Dtype::Fp32, batch: 1 };
        let kernel = self.machine.kernels().into_iter().next();
        let shape = kernel.map_or(shape, |k| Shape { head_dim: k.head_dim, dtype: k.dtype, ..shape });
        let tokens = (bytes / Tensor::KeyValue.bytes(&shape, 1, 1).0).max(1);
        let plan = probes::message(shape, tokens, ways, transport).ok_or(CalibrateError::Sizes("message"))?;
        let sent = Tensor::KeyValue.bytes(&shape, tokens, 1);
        self.sample(
            format!("{} {} bytes", plan.name, sent.0),
            vec![1.0, sent.0 as f64],
            &plan,
            slowest_message,
        )
    }
}

/// For messages.
pub(super) fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::CopyEngine => "copies",
        Transport::Nccl => "NCCL",
    }
}

/// From the start of a send to the end of its receive, in seconds, for the message that takes longest.
fn slowest_message(timeline: &Timeline) -> f64 {
    let ends = |rank, kind| timeline.spans.iter().filter(move |s| s.rank == rank && s.kind == kind).copied();
    let one = |from: u32| {
        let (send, recv) = (ends(from, SpanKind::Send).next(), ends(1 - from, SpanKind::Recv).next());
        send.zip(recv).map(|(send, recv)| recv.end.max(send.end).saturating_sub(send.start))
    };
    one(0).into_iter().chain(one(1)).max().unwrap_or(SimTime::ZERO).as_secs_f64()
}
