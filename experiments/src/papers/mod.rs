//! Published tables, reproduced: each number beside its prediction, what bounds it, and a verdict.
//!
//! One folder a paper lies in `experiments/papers`: the printed table, what it is worth (`provenance.md`) and the set-up
//! with every assumption (`setup.toml`).

pub mod audit;
pub mod compare;
mod distflashattn;
mod guides;
mod megatron_sp;
mod merging;
mod ring_attention;
mod ring_flash_attention;
mod ring_self_attention;
mod row;
mod setup;
mod striped;
mod table;
mod ulysses;
mod usp;

use anyhow::{Result, bail};
use ringlab_sim::config::nearest;
use serde::de::DeserializeOwned;

pub use row::{Cell, Paper, Report, Row, Summary, Verdict, median_abs_error};
pub use setup::{Assumption, Setup};
pub use table::{render, verdict};

/// Version of the JSON format.
const VERSION: u32 = 1;

type Reproduce = fn(&Setup) -> Result<Vec<Row>>;

/// Name, set-up and reproduction of every paper.
const PAPERS: &[(&str, &str, Reproduce)] = &[
    ("distflashattn", include_str!("../../papers/distflashattn/setup.toml"), distflashattn::rows),
    ("lightseq", include_str!("../../papers/lightseq/setup.toml"), distflashattn::lightseq),
    ("striped", include_str!("../../papers/striped/setup.toml"), striped::rows),
    ("ring-attention", include_str!("../../papers/ring-attention/setup.toml"), ring_attention::rows),
    (
        "ring-self-attention",
        include_str!("../../papers/ring-self-attention/setup.toml"),
        ring_self_attention::rows,
    ),
    ("ulysses", include_str!("../../papers/ulysses/setup.toml"), ulysses::rows),
    ("megatron-sp", include_str!("../../papers/megatron-sp/setup.toml"), megatron_sp::rows),
    ("usp", include_str!("../../papers/usp/setup.toml"), usp::rows),
    (
        "ring-flash-attention",
        include_str!("../../papers/ring-flash-attention/setup.toml"),
        ring_flash_attention::rows,
    ),
    ("guides", include_str!("../../papers/guides/setup.toml"), guides::rows),
];

/// Names of the papers.
pub fn names() -> Vec<&'static str> {
    PAPERS.iter().map(|(name, ..)| *name).collect()
}

/// Name and title of every paper.
///
/// # Errors
/// A set-up that cannot be read.
pub fn list() -> Result<Vec<(&'static str, String)>> {
    PAPERS.iter().map(|(name, setup, _)| Ok((*name, Setup::parse(setup)?.title))).collect()
}

/// Reproduces one paper, or all of them for `all`.
///
/// # Errors
/// A name that is no paper, with the nearest one.
pub fn run(name: &str) -> Result<Report> {
    let chosen: Vec<_> = PAPERS.iter().filter(|(known, ..)| name == "all" || *known == name).collect();
    if chosen.is_empty() {
        let near = nearest(name, names()).map_or(String::new(), |near| format!("; did you mean {near}?"));
        bail!("there is no paper {name:?}{near} (papers: {}, or all)", names().join(", "));
    }
    let papers = chosen.into_iter().map(|(name, text, rows)| reproduce(name, text, *rows));
    Ok(Report { version: VERSION, papers: papers.collect::<Result<_>>()? })
}

fn reproduce(name: &'static str, text: &str, rows: Reproduce) -> Result<Paper> {
    let setup = Setup::parse(text)?;
    let rows = rows(&setup)?;
    Ok(Paper {
        name,
        median_abs_error: median_abs_error(&rows),
        tables: row::summaries(&rows),
        rows,
        title: setup.title,
        source: setup.source,
        assumptions: setup.assumptions,
    })
}

/// The rows of a printed table.
fn printed<T: DeserializeOwned>(text: &str) -> Result<Vec<T>> {
    Ok(csv::Reader::from_reader(text.as_bytes()).deserialize().collect::<Result<_, _>>()?)
}

/// Tokens of a printed length: `64K` is 65536.
fn tokens(text: &str) -> Result<u64> {
    let digits = text.trim_start_matches('>').trim_end_matches('K');
    Ok(digits.parse::<u64>()? * if text.ends_with('K') { 1024 } else { 1 })
}
