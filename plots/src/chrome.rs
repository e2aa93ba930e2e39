//! Chrome trace events, as <https://ui.perfetto.dev> and chrome://tracing open them.
//!
//! Every rank of every schedule is a process, every lane a thread; spans of one lane that overlap in time, such as the
//! transfers of a group, are spread over further threads, because slices of one thread must nest. Spans are complete
//! events (`ph` X) with `ts` and `dur` in microseconds, exact to the picosecond; a message is a flow (`ph` s and f) from
//! its send to its receive.

use std::io::{self, Write};

use ringlab_sim::plan::{Lane, Rank};
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
        let threads = threads(panel);
        self.names(panel, ranks, &threads)?;
        let starts = flow_starts(panel);
        for (span, &thread) in panel.timeline.spans.iter().zip(&threads) {
            self.span(panel, span, thread)?;
            let message = panel.op(span).and_then(|op| op.kind.message());
            if let Some((id, Some(start))) = message.map(|m| (m, starts[m as usize])) {
                self.flow(span, thread, self.flow + u64::from(id), start)?;
            }
        }
        self.process += u64::from(ranks);
        self.flow += panel.plan.map_or(0, |p| p.messages.len() as u64);
        Ok(())
    }

    /// Names of processes and threads, and their order.
    fn names(&mut self, panel: &Panel<'_>, ranks: u32, threads: &[Thread]) -> io::Result<()> {
        let mut used: Vec<(Rank, Thread)> =
            panel.timeline.spans.iter().zip(threads).map(|(s, t)| (s.rank, *t)).collect();
        used.sort_unstable();
        used.dedup();
        let mut used = used.into_iter().peekable();
        for rank in 0..ranks {
            let pid = self.process + u64::from(rank);
            let name = quoted(&format!("{} rank {rank}", panel.title));
            self.metadata("process_name", pid, 0, &format!("\"name\":{name}"))?;
            self.metadata("process_sort_index", pid, 0, &format!("\"sort_index\":{pid}"))?;
            while let Some((_, thread)) = used.next_if(|(r, _)| *r == rank) {
                let (tid, name) = (thread.id(), quoted(&thread.name()));
                self.metadata("thread_name", pid, tid, &format!("\"name\":{name}"))?;
                self.metadata("thread_sort_index", pid, tid, &format!("\"sort_index\":{tid}"))?;
            }
        }
        Ok(())
    }

    fn metadata(&mut self, what: &str, pid: u64, tid: u64, args: &str) -> io::Result<()> {
        self.event(&format!(r#""ph":"M","name":"{what}","pid":{pid},"tid":{tid},"args":{{{args}}}"#))
    }

    fn span(&mut self, panel: &Panel<'_>, span: &Span, thread: Thread) -> io::Result<()> {
        let label = quoted(&panel.label(span));
        let pid = self.process + u64::from(span.rank);
        self.event(&format!(
            r#""ph":"X","name":{label},"cat":"{}","pid":{pid},"tid":{},"ts":{},"dur":{},"args":{{"step":{},"bytes":{},"flops":{},"label":{label}}}"#,
            span.kind.name(),
            thread.id(),
            microseconds(span.start.0),
            microseconds(span.duration().0),
            span.step,
            span.bytes.0,
            json!(span.flops),
        ))
    }

    /// One end of a message: its start at the sender, or where it starts at the receiver, not before `start`.
    fn flow(&mut self, span: &Span, thread: Thread, id: u64, start: u64) -> io::Result<()> {
        let (phase, binding, at) = match span.kind {
            SpanKind::Send => ("s", "", start),
            _ => ("f", r#","bp":"e""#, span.start.0.max(start)),
        };
        let pid = self.process + u64::from(span.rank);
        self.event(&format!(
            r#""ph":"{phase}"{binding},"id":{id},"name":"message","cat":"message","pid":{pid},"tid":{},"ts":{}"#,
            thread.id(),
            microseconds(at),
        ))
    }
}

/// A thread of a rank: a lane, and which of the threads that its overlapping spans need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Thread {
    lane: Lane,
    copy: u32,
}

impl Thread {
    /// Its number, which also orders a rank's threads: those of one lane are neighbours.
    fn id(self) -> u64 {
        (u64::from(self.lane.0) << 16) + u64::from(self.copy)
    }

    fn name(self) -> String {
        let lane = match self.lane {
            Lane::COMPUTE => "compute".to_owned(),
            lane => format!("communication {}", lane.0 - 1),
        };
        if self.copy == 0 { lane } else { format!("{lane} ({})", self.copy + 1) }
    }
}

/// The thread of each span: the first of its lane on which everything earlier has ended.
fn threads(panel: &Panel<'_>) -> Vec<Thread> {
    let spans = &panel.timeline.spans;
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|&i| (spans[i].rank, spans[i].lane, spans[i].start, i));
    let mut threads = vec![Thread { lane: Lane::COMPUTE, copy: 0 }; spans.len()];
    let (mut row, mut ends) = (None, Vec::new());
    for i in order {
        let span = &spans[i];
        if row != Some((span.rank, span.lane)) {
            row = Some((span.rank, span.lane));
            ends.clear();
        }
        let copy = ends.iter().position(|end| *end <= span.start).unwrap_or(ends.len());
        ends.resize(ends.len().max(copy + 1), span.end);
        ends[copy] = span.end;
        threads[i] = Thread { lane: span.lane, copy: copy as u32 };
    }
    threads
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
