//! `ringlab bench`: rates of the attention kernels on this machine's GPU, beside those of other implementations.

use std::path::Path;

use anyhow::{Context, Result, bail};
use ringlab_runtime::bench::{Cache, Device, Path as Family, Timing, WIDTH, bench, points};
use ringlab_sim::units::Tokens;
use serde::{Deserialize, Serialize};

use super::Outcome;
use crate::args::{BenchArgs, Kernels};
use crate::grid::grid;
use crate::output::{self, FORMAT_VERSION};
use crate::presets::refuse_folder;

/// One pass of one implementation at one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
struct Row {
    implementation: String,
    #[serde(default)]
    kernel: String,
    pass: String,
    dtype: String,
    head_dim: usize,
    heads: usize,
    kv_heads: usize,
    batch: usize,
    /// Tokens of a sequence, over all ranks.
    len: usize,
    mask: String,
    layout: String,
    ranks: usize,
    /// `whole`, or the one step of a ring that is timed.
    #[serde(default = "whole")]
    scope: String,
    /// Operations of the mask's area over the median.
    tflops: f64,
    median_ms: f64,
    min_ms: f64,
    max_ms: f64,
    /// (max - min) / median.
    #[serde(default)]
    spread: f64,
    repeats: usize,
    #[serde(default)]
    device: String,
    /// CUDA version of the driver, or what the implementation was built for.
    #[serde(default)]
    cuda: String,
    /// Version of the kernels' compiler.
    #[serde(default)]
    compiler: String,
    /// Version of the implementation.
    #[serde(default)]
    version: String,
}

fn whole() -> String {
    "whole".into()
}

#[derive(Serialize, schemars::JsonSchema)]
struct Report<'a> {
    version: u32,
    rates: &'a [Row],
}

/// JSON Schema of the result.
pub fn schema(generator: schemars::SchemaGenerator) -> schemars::Schema {
    generator.into_root_schema_for::<Report<'static>>()
}

/// Times the kernels and writes a row a pass and point.
pub fn run(args: &BenchArgs) -> Result<Outcome> {
    let (least, most) = (args.min_len.0 as usize, args.max_len.0 as usize);
    let points = points(&(least..=most));
    if points.is_empty() {
        bail!(
            "no sequence of {} to {} tokens is timed; they are 1Ki, 2Ki, ... 64Ki",
            args.min_len,
            args.max_len
        );
    }
    let peers = args.peers.iter().map(|path| peers(path)).collect::<Result<Vec<_>>>()?.concat();
    let family = args.kernels.map(|kernels| match kernels {
        Kernels::Hopper => Family::Hopper,
        Kernels::Portable => Family::Portable,
    });
    let device = Device::open_with(args.gpu, family, Some(Cache::from_env()))?;
    let machine = Machine::of(&device)?;
    let bar = indicatif::ProgressBar::new(points.len() as u64);
    let mut rows = Vec::new();
    for point in points {
        let timings = bench(&device, point, args.repeats as usize).with_context(|| {
            format!("{} tokens, {}, {} x {}", point.len, point.mask, point.layout, point.ranks)
        })?;
        rows.extend(timings.iter().map(|timing| machine.row(timing)));
        bar.inc(1);
    }
    bar.finish_and_clear();
    rows.extend(peers);
    output::emit(&args.out, || table(&rows), &Report { version: FORMAT_VERSION, rates: &rows }, &rows)?;
    Ok(Outcome::Fine)
}

/// What all rows of this program have in common.
struct Machine {
    implementation: String,
    device: String,
    cuda: String,
    compiler: String,
}

impl Machine {
    fn of(device: &Device) -> Result<Self> {
        Ok(Self {
            implementation: format!("ringlab-{}", device.target().path),
            device: device.name()?,
            cuda: device.driver_version()?,
            compiler: format!("NVRTC {}", device.compiler_version()),
        })
    }

    fn row(&self, timing: &Timing) -> Row {
        let point = timing.point;
        let heads = WIDTH / point.head_dim.elements();
        let milliseconds = |at: usize| timing.milliseconds.get(at).map_or(f64::NAN, |&ms| f64::from(ms));
        Row {
            implementation: self.implementation.clone(),
            kernel: timing.kernel.clone(),
            pass: timing.pass.into(),
            dtype: "bf16".into(),
            head_dim: point.head_dim.elements(),
            heads,
            kv_heads: heads / point.group,
            batch: point.batch,
            len: point.len,
            mask: point.mask.to_string(),
            layout: point.layout.to_string(),
            ranks: point.ranks,
            scope: point.scope.to_string(),
            tflops: (timing.tflops() * 10.0).round() / 10.0,
            median_ms: f64::from(timing.median()),
            min_ms: milliseconds(0),
            max_ms: milliseconds(timing.milliseconds.len().saturating_sub(1)),
            spread: 0.0,
            repeats: timing.milliseconds.len(),
            device: self.device.clone(),
            cuda: self.cuda.clone(),
            compiler: self.compiler.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
        }
        .with_spread()
    }
}

impl Row {
    fn with_spread(mut self) -> Self {
        self.spread = ((self.max_ms - self.min_ms) / self.median_ms * 1e4).round() / 1e4;
        self
    }
}

/// Rows of other implementations; a column that this result has not is named on standard error.
fn peers(path: &Path) -> Result<Vec<Row>> {
    refuse_folder(path)?;
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (rows, unknown) = parse(&path.to_string_lossy(), &text)?;
    if !unknown.is_empty() {
        say!("note: {}: left out the columns {}", path.display(), unknown.join(", "));
    }
    Ok(rows)
}

/// The rows of `text` and the columns that are not in them.
fn parse(label: &str, text: &str) -> Result<(Vec<Row>, Vec<String>)> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header: Vec<String> =
        reader.headers().with_context(|| label.to_owned())?.iter().map(str::to_owned).collect();
    let mut rows = Vec::new();
    for (index, record) in reader.deserialize().enumerate() {
        let row: Row =
            record.with_context(|| format!("{label}: row {} is no row of a benchmark", index + 1))?;
        if ![row.tflops, row.median_ms, row.min_ms, row.max_ms].iter().all(|x| x.is_finite() && *x > 0.0) {
            bail!("{label}: row {}: rates and times are positive numbers", index + 1);
        }
        rows.push(row.with_spread());
    }
    let Some(first) = rows.first() else { bail!("{label} has no rows") };
    let mut known = csv::Writer::from_writer(Vec::new());
    known.serialize(first)?;
    let known = String::from_utf8(known.into_inner()?)?;
    let known: Vec<&str> = known.lines().next().unwrap_or_default().split(',').collect();
    let unknown = header.into_iter().filter(|column| !known.contains(&column.as_str())).collect();
    Ok((rows, unknown))
}

fn table(rows: &[Row]) -> String {
    let header = [
        "implementation",
        "pass",
        "mask",
        "layout",
        "scope",
        "D",
        "heads",
        "len",
        "batch",
        "TFLOP/s",
        "spread",
    ];
    let cells = rows.iter().map(|row| {
        [
            row.implementation.clone(),
            row.pass.clone(),
            row.mask.clone(),
            format!("{} x{}", row.layout, row.ranks),
            row.scope.clone(),
            row.head_dim.to_string(),
            format!("{}/{}", row.heads, row.kv_heads),
            Tokens(row.len as u64).to_string(),
            row.batch.to_string(),
            format!("{:.1}", row.tflops),
            format!("{:.1}%", 100.0 * row.spread),
        ]
    });
    grid(header, 5, cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEERS: &str = include_str!("../../results/h200-kernels-2026-11-30/bench-peers.csv");

    #[test]
    fn rows_of_others_are_read_and_their_spread_is_that_of_their_times() {
        let (rows, unknown) = parse("peers", PEERS).unwrap();
        assert!(unknown.is_empty());
        let cudnn = &rows[0];
        assert_eq!(
            (cudnn.implementation.as_str(), cudnn.scope.as_str(), cudnn.len),
            ("torch-cudnn", "whole", 2048)
        );
        // (0.423744 - 0.421312) / 0.422352
        assert_eq!(cudnn.spread, 0.0058);
    }

    #[test]
    fn other_columns_are_named_and_wrong_rows_refused() {
        let mut lines = PEERS.lines();
        let (header, first) = (lines.next().unwrap(), lines.next().unwrap());
        let (_, unknown) = parse("peers", &format!("{header},sm\n{first},132\n")).unwrap();
        assert_eq!(unknown, ["sm"]);
        let wrong = first.replacen(",2048,", ",long,", 1);
        let error = format!("{:#}", parse("peers.csv", &format!("{header}\n{wrong}\n")).unwrap_err());
        assert!(error.starts_with("peers.csv: row 1 is no row of a benchmark"), "{error}");
        assert!(parse("peers.csv", &format!("{header}\n")).unwrap_err().to_string().contains("no rows"));
        let nothing = first.replacen("0.42235200107097626", "0", 1);
        assert!(
            parse("peers.csv", &format!("{header}\n{nothing}\n"))
                .unwrap_err()
                .to_string()
                .contains("positive")
        );
    }
}
