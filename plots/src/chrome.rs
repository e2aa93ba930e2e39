//! Chrome trace events, as <https://ui.perfetto.dev> and chrome://tracing open them.
//!
//! Every rank of every schedule is a process, every lane a thread. Spans are complete events (`ph` X) with `ts` and
//! `dur` in microseconds, exact to the picosecond; a message is a flow (`ph` s and f) from its send to its receive.

use std::io::{self, Write};

use ringlab_sim::plan::{LANES, Lane};
use ringlab_sim::timeline::{Span, SpanKind};
use serde_json::json;

use crate::Panel;

/// Writes the trace of all panels, event by event: the text is never in memory as a whole.
///
/// # Errors
/// Those of the writer.
pub fn write(panels: &[Panel<'_>], out: impl Write) -> io::Result<()> {
    let mut events = Events { out, count: 0, process: 0, flow: 0 };
    events.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    for panel in panels {
        events.panel(panel)?;
    }
    events.out.write_all(b"\n]}\n")?;
    events.out.flush()
}

/// The trace of all panels as bytes of JSON.
pub fn trace(panels: &[Panel<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(panels, &mut bytes).expect("writing to a Vec does not fail");
    bytes
}

struct Events<W> {
    out: W,
    count: u64,
    /// Process of the panel's rank 0.
    process: u64,
    /// Flow of the panel's message 0.
    flow: u64,
}

/// Picoseconds as decimal microseconds.
fn microseconds(picoseconds: u64) -> String {
    format!("{}.{:06}", picoseconds / 1_000_000, picoseconds % 1_000_000)
}

/// Text as a JSON string.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}

impl<W: Write> Events<W> {
    fn event(&mut self, fields: &str) -> io::Result<()> {
        let comma = if self.count == 0 { "" } else { "," };
        self.count += 1;
        write!(self.out, "{comma}\n{{{fields}}}")
    }

    fn panel(&mut self, panel: &Panel<'_>) -> io::Result<()> {
        let ranks = panel.ranks();
        self.names(panel, ranks)?;
        let starts = flow_starts(panel);
        for span in &panel.timeline.spans {
            self.span(panel, span)?;
            let message = panel.op(span).and_then(|op| op.kind.message());
            if let Some((id, Some(start))) = message.map(|m| (m, starts[m as usize])) {
                self.flow(span, self.flow + u64::from(id), start)?;
            }
        }
        self.process += u64::from(ranks);
        self.flow += panel.plan.map_or(0, |p| p.messages.len() as u64);
        Ok(())
    }

    /// Names of processes and threads, and their order.
    fn names(&mut self, panel: &Panel<'_>, ranks: u32) -> io::Result<()> {
        let mut used = vec![[false; LANES]; ranks as usize];
        for span in &panel.timeline.spans {
            if let Some(lane) = used[span.rank as usize].get_mut(usize::from(span.lane.0)) {
                *lane = true;
            }
        }
        for (rank, lanes) in used.iter().enumerate() {
            let pid = self.process + rank as u64;
            let name = quoted(&format!("{} rank {rank}", panel.title));
            self.metadata("process_name", pid, 0, &format!("\"name\":{name}"))?;
            self.metadata("process_sort_index", pid, 0, &format!("\"sort_index\":{pid}"))?;
            for lane in (0..LANES).filter(|&l| lanes[l]) {
                let name = quoted(&lane_name(Lane(lane as u8)));
                self.metadata("thread_name", pid, lane, &format!("\"name\":{name}"))?;
                self.metadata("thread_sort_index", pid, lane, &format!("\"sort_index\":{lane}"))?;
            }
        }
        Ok(())
    }

    fn metadata(&mut self, what: &str, pid: u64, tid: usize, args: &str) -> io::Result<()> {
        self.event(&format!(r#""ph":"M","name":"{what}","pid":{pid},"tid":{tid},"args":{{{args}}}"#))
    }

    fn span(&mut self, panel: &Panel<'_>, span: &Span) -> io::Result<()> {
        let label = quoted(&panel.label(span));
        let pid = self.process + u64::from(span.rank);
        self.event(&format!(
            r#""ph":"X","name":{label},"cat":"{}","pid":{pid},"tid":{},"ts":{},"dur":{},"args":{{"step":{},"bytes":{},"flops":{},"label":{label}}}"#,
            span.kind.name(),
            span.lane.0,
            microseconds(span.start.0),
            microseconds(span.duration().0),
            span.step,
            span.bytes.0,
            json!(span.flops),
        ))
    }

    /// One end of a message: its start at the sender, or its end at the receiver, not before `start`.
    fn flow(&mut self, span: &Span, id: u64, start: u64) -> io::Result<()> {
        let (phase, binding, at) = match span.kind {
            SpanKind::Send => ("s", "", start),
            _ => ("f", r#","bp":"e""#, span.start.0.max(start)),
        };
        let pid = self.process + u64::from(span.rank);
        self.event(&format!(
            r#""ph":"{phase}"{binding},"id":{id},"name":"message","cat":"message","pid":{pid},"tid":{},"ts":{}"#,
            span.lane.0,
            microseconds(at),
        ))
    }
}

fn lane_name(lane: Lane) -> String {
    if lane.is_compute() { "compute".to_owned() } else { format!("communication {}", lane.0 - 1) }
}

/// When each message leaves, for those of which the timeline has both ends.
fn flow_starts(panel: &Panel<'_>) -> Vec<Option<u64>> {
    let messages = panel.plan.map_or(0, |p| p.messages.len());
    let (mut sent, mut received) = (vec![None; messages], vec![false; messages]);
    for span in &panel.timeline.spans {
        let Some(message) = panel.op(span).and_then(|op| op.kind.message()) else { continue };
        match span.kind {
            SpanKind::Send => sent[message as usize] = Some(span.start.0),
            _ => received[message as usize] = true,
        }
    }
    sent.into_iter().zip(received).map(|(start, both)| start.filter(|_| both)).collect()
}
