//! Timelines as CSV, one row a span.

use std::io::Write;

use crate::Panel;

/// The columns; times are in seconds since the start of the pass, exact to the picosecond.
pub const HEADER: [&str; 10] =
    ["schedule", "rank", "lane", "kind", "label", "step", "start_s", "end_s", "bytes", "flops"];

/// Writes the spans of all panels.
///
/// # Errors
/// Those of the writer.
pub fn write(panels: &[Panel<'_>], out: impl Write) -> Result<(), csv::Error> {
    let mut rows = csv::Writer::from_writer(out);
    rows.write_record(HEADER)?;
    for panel in panels {
        for span in &panel.timeline.spans {
            rows.write_record([
                panel.title.as_str(),
                &span.rank.to_string(),
                &span.lane.0.to_string(),
                span.kind.name(),
                &panel.label(span),
                &span.step.to_string(),
                &seconds(span.start.0),
                &seconds(span.end.0),
                &span.bytes.0.to_string(),
                &span.flops.to_string(),
            ])?;
        }
    }
    rows.flush()?;
    Ok(())
}

/// The spans of all panels as text.
pub fn timeline(panels: &[Panel<'_>]) -> String {
    let mut bytes = Vec::new();
    write(panels, &mut bytes).expect("writing to a Vec does not fail");
    String::from_utf8(bytes).expect("text was written")
}

fn seconds(picoseconds: u64) -> String {
    const SECOND: u64 = 1_000_000_000_000;
    format!("{}.{:012}", picoseconds / SECOND, picoseconds % SECOND)
}
