//! The gallery: every kind of picture, from nothing but what is built in.

use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use clap::Parser;
use ringlab_plots::gantt;

use super::{Kind, Request, Table, draw};
use crate::args::{Cli, Command};
use crate::commands::{self, simulate};
use crate::figures::{Picture, Run};
use crate::output::{make_folder, write_file};
use crate::predict::{DEFAULT_SEQ, Prediction};
use crate::setup::Setup;
use crate::sweep::{Grid, HEADER, Rows};

/// A picture of a sweep.
struct Entry {
    name: &'static str,
    sweep: &'static str,
    kind: Kind,
    /// Columns along and up the picture, where they are not its kind's usual ones.
    x: Option<&'static str>,
    y: Option<&'static str>,
    caption: &'static str,
}

macro_rules! entry {
    ($name:literal, $kind:expr, $x:expr, $y:expr, $caption:literal) => {
        Entry {
            name: $name,
            sweep: include_str!(concat!("gallery/", $name, ".toml")),
            kind: $kind,
            x: $x,
            y: $y,
            caption: $caption,
        }
    };
}

const ENTRIES: &[Entry] = &[
    entry!(
        "speedup-over-length",
        Kind::Speedup,
        None,
        None,
        "Short sequences are bound by launches and latencies, long ones by the balance of the work: curves rise to the \
         dotted bound. They may end a little above it, since the contiguous ring also pays for the diagonal's masked tiles."
    ),
    entry!(
        "speedup-over-ranks",
        Kind::Speedup,
        Some("cp"),
        None,
        "The bound of a balanced schedule is 2 - 1/P, that of DistFlashAttn less for even P. Beyond eight ranks a ring's \
         slowest hop is the network."
    ),
    entry!(
        "bubble",
        Kind::Bubble,
        None,
        None,
        "A contiguous ring under a causal mask leaves nearly half of the machine idle however long the sequence is."
    ),
    entry!(
        "exposed-over-bandwidth",
        Kind::Exposed,
        None,
        None,
        "Vertical lines: the bandwidth from which on a block of c = N/P tokens hides the transfer of the next one, \
         c = F e / (2 B (H/K) share), with the kernel's rate F."
    ),
    entry!(
        "memory",
        Kind::Memory,
        None,
        None,
        "Inputs, outputs, staging and gradients of one layer's attention; weights and other activations are not in it."
    ),
    entry!(
        "winner-length-ranks",
        Kind::Winner,
        None,
        None,
        "The fastest schedule and its speed-up over the contiguous ring; = where the second is within half a per cent."
    ),
    entry!(
        "winner-length-bandwidth",
        Kind::Winner,
        None,
        Some("link_bandwidth_bytes_per_s"),
        "The same over the bandwidth of the links: where transfers take longer than computing, what moves least wins."
    ),
];

/// What `simulate` is asked for the timelines.
const TIMELINE: &str = "ringlab simulate --seq 128Ki --cp 8 --schedule ring,zigzag,striped,dist-flash";
/// Length at which kernels are compared.
const KERNEL_LENGTH: &str = "16384";
const RATES: &str = include_str!("../../results/h200-kernels-2026-11-30-2/rates.csv");
const RESULTS: &str = "experiments/results/h200-kernels-2026-11-30-2";
const VALIDATION: &str = include_str!("../../results/h200-validation-2026-11-30/fifth/validate.json");
const VALIDATED: &str = "experiments/results/h200-validation-2026-11-30/fifth";

/// Makes every picture, its data and the page that shows them in `folder`.
///
/// # Errors
/// A folder that cannot be written.
pub fn gallery(folder: &Path) -> Result<()> {
    make_folder(folder)?;
    let mut page = String::from(
        "# Gallery\n\nEvery picture that `ringlab plot gallery -o docs/gallery` makes, with the data in it beside it. Shapes and \
         hatches tell series apart without colour. Times are predictions for one attention layer unless a caption says \
         otherwise.\n",
    );
    page += &timeline(folder)?;
    for entry in ENTRIES {
        page += &entry.make(folder)?;
    }
    page += &kernels(folder)?;
    page += &validation(folder)?;
    page += &paper(folder)?;
    write_file(&folder.join("README.md"), page.as_bytes())
}

impl Entry {
    fn request(&self) -> Request {
        let own = |column: Option<&str>| column.map(str::to_owned);
        Request { x: own(self.x), y: own(self.y), ..Request::of(self.kind) }
    }

    fn make(&self, folder: &Path) -> Result<String> {
        let name = self.name;
        let table = Table::parse(name, &rows(name, self.sweep)?)?;
        let drawn = draw(&table, &self.request())?;
        write_file(&folder.join(format!("{name}.svg")), &drawn.bytes(Picture::Svg)?)?;
        write_file(&folder.join(format!("{name}.data.csv")), drawn.data()?.as_bytes())?;
        write_file(&folder.join(format!("{name}.toml")), self.sweep.as_bytes())?;
        let heading = self.sweep.lines().next().unwrap_or_default().trim_start_matches("# ");
        let axes: String = [("--x", self.x), ("--y", self.y)]
            .into_iter()
            .filter_map(|(flag, column)| column.map(|c| format!(" {flag} {c}")))
            .collect();
        let kind =
            clap::ValueEnum::to_possible_value(&self.kind).map_or(String::new(), |v| v.get_name().to_owned());
        let commands = format!(
            "ringlab sweep docs/gallery/{name}.toml -o rows.csv\n    ringlab plot {kind} rows.csv{axes} -o {name}.svg"
        );
        Ok(section(heading, name, self.caption, &commands))
    }
}

fn section(heading: &str, name: &str, caption: &str, commands: &str) -> String {
    format!(
        "\n## {heading}\n\n![{heading}]({name}.svg)\n\n{caption} Data: [{name}.data.csv]({name}.data.csv).\n\n    {commands}\n"
    )
}

/// The rows of a sweep.
fn rows(label: &str, sweep: &str) -> Result<String> {
    let grid = Grid::parse(label, sweep)?;
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut text = format!("{HEADER}\n");
    let rows = Rows { grid: &grid, rows: 0..grid.len, threads, stop: &AtomicBool::new(false) };
    rows.run(|lines, _| {
        text += lines;
        Ok(())
    })?;
    Ok(text)
}

fn timeline(folder: &Path) -> Result<String> {
    let cli = Cli::try_parse_from(TIMELINE.split(' '))?;
    let Command::Simulate(args) = cli.command else { anyhow::bail!("{TIMELINE} is no simulation") };
    let setup = Setup::new(&args.setup, DEFAULT_SEQ)?;
    let prediction = Prediction::of(&setup, false)?;
    let runs: Vec<Run<'_>> = prediction
        .passes()
        .map(|s| Run { plan: &s.plan, timeline: &s.timeline, metrics: &s.metrics })
        .collect();
    let panels: Vec<_> = runs.iter().map(Run::panel).collect();
    let svg = gantt::svg(&simulate::title(&setup), &panels);
    write_file(&folder.join("timeline.svg"), svg.as_bytes())?;
    write_file(&folder.join("timeline.data.csv"), ringlab_plots::csv::timeline(&panels).as_bytes())?;
    let caption =
        "Who computes and who waits: idle time is the pale ground, hatched blocks are cut by the mask.";
    let command = format!("{TIMELINE} \\\n        --plot timeline.svg --spans timeline.data.csv");
    Ok(section("Four schedules on one time axis", "timeline", caption, &command))
}

fn kernels(folder: &Path) -> Result<String> {
    let table = Table::parse("rates", RATES)?;
    let choices = [
        ("len", KERNEL_LENGTH),
        ("head_dim", "128"),
        ("layout", "contiguous"),
        ("heads", "16"),
        ("kv_heads", "16"),
    ];
    let table = choices.into_iter().try_fold(table, |table, (column, value)| table.only(column, value))?;
    let drawn = draw(&table, &Request::of(Kind::Kernels))?;
    write_file(&folder.join("kernels.svg"), &drawn.bytes(Picture::Svg)?)?;
    write_file(&folder.join("kernels.data.csv"), drawn.data()?.as_bytes())?;
    let caption = format!(
        "Measured, not predicted: medians of [{RESULTS}](../../{RESULTS}), FLOPs by the mask's area."
    );
    let wheres: Vec<String> = choices.iter().map(|(c, v)| format!("--where {c}={v}")).collect();
    let wheres = wheres.join(" ");
    let command = format!("ringlab plot kernels {RESULTS}/rates.csv \\\n        {wheres} -o kernels.svg");
    Ok(section("Attention kernels on an H200", "kernels", &caption, &command))
}

fn validation(folder: &Path) -> Result<String> {
    let table = Table::parse("validate", VALIDATION)?;
    let drawn = draw(&table, &Request::of(Kind::Validate))?;
    write_file(&folder.join("validate.svg"), &drawn.bytes(Picture::Svg)?)?;
    write_file(&folder.join("validate.data.csv"), drawn.data()?.as_bytes())?;
    let caption = format!(
        "Whole schedules on two H200s, each predicted from single calls and messages, then run: [{VALIDATED}](../../{VALIDATED})."
    );
    let command = format!("ringlab plot validate {VALIDATED}/validate.json -o validate.svg");
    Ok(section("Predicted and measured on two H200s", "validate", &caption, &command))
}

fn paper(folder: &Path) -> Result<String> {
    const NAME: &str = "striped";
    let rows = commands::paper::csv(&crate::papers::run(NAME)?)?;
    let table = Table::parse(NAME, &rows)?.only("unit", "x")?;
    let drawn = draw(&table, &Request { by: Some("table".into()), ..Request::of(Kind::Paper) })?;
    write_file(&folder.join("paper.svg"), &drawn.bytes(Picture::Svg)?)?;
    write_file(&folder.join("paper.data.csv"), drawn.data()?.as_bytes())?;
    let caption = "Printed speed-ups over predicted ones: on the diagonal they agree, outside the dotted lines they differ by more \
                   than a tenth.";
    let command = format!(
        "ringlab paper {NAME} --format csv -o rows.csv\n    ringlab plot paper rows.csv --where unit=x --by table -o paper.svg"
    );
    Ok(section("Striped Attention's speed-ups, printed and predicted", "paper", caption, &command))
}
