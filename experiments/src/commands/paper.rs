//! `ringlab paper`: published tables beside their predictions.

use anyhow::{Result, bail};
use serde::Serialize;

use super::Outcome;
use crate::args::PaperArgs;
use crate::grid::grid;
use crate::output::{self, FORMAT_VERSION};
use crate::papers::{self, Paper, Report, audit};
use crate::report::{Body, Cell, Column, Section, Table, page};

#[derive(Serialize, schemars::JsonSchema)]
struct ListRow {
    name: &'static str,
    title: String,
}

#[derive(Serialize, schemars::JsonSchema)]
struct List<'a> {
    version: u32,
    papers: &'a [ListRow],
}

/// A paper's row as CSV has it.
#[derive(Serialize)]
struct FlatRow<'a> {
    paper: &'static str,
    table: &'a str,
    case: &'a str,
    quantity: &'a str,
    unit: &'static str,
    published: String,
    predicted: String,
    error: Option<f64>,
    bound: Option<f64>,
    verdict: String,
    reason: Option<&'a str>,
}

/// JSON Schema of the list.
pub fn list_schema(generator: schemars::SchemaGenerator) -> schemars::Schema {
    generator.into_root_schema_for::<List<'static>>()
}

/// Lists the papers, reproduces one or all, or audits the guides.
pub fn run(args: &PaperArgs) -> Result<Outcome> {
    refuse_unused(args)?;
    match args.name.as_str() {
        "list" => list(args),
        "audit" => audit_guides(args),
        name => reproduce(args, &papers::run(name)?),
    }
}

/// Refuses options that what is asked for does not read.
fn refuse_unused(args: &PaperArgs) -> Result<()> {
    let of_audit = [
        ("--cluster", args.cluster.is_some()),
        ("--model", args.model.is_some()),
        ("--seq", args.seq.is_some()),
    ];
    if args.name != "audit"
        && let Some((option, _)) = of_audit.iter().find(|(_, given)| *given)
    {
        bail!(
            "{option} is for `ringlab paper audit` only; tables are of the papers' own machines and models"
        );
    }
    if args.name == "list" && args.report.is_some() {
        bail!("--report is for papers and the audit, not for the list; name one, or `all`");
    }
    Ok(())
}

fn list(args: &PaperArgs) -> Result<Outcome> {
    let rows: Vec<ListRow> =
        papers::list()?.into_iter().map(|(name, title)| ListRow { name, title }).collect();
    let table = || grid(["name", "what"], 2, rows.iter().map(|r| [r.name.to_owned(), r.title.clone()]));
    output::emit(&args.out, table, &List { version: FORMAT_VERSION, papers: &rows }, &rows)?;
    Ok(Outcome::Fine)
}

fn audit_guides(args: &PaperArgs) -> Result<Outcome> {
    let (cluster, model, seq) = audit::DEFAULT;
    let cluster = args.cluster.as_deref().unwrap_or(cluster);
    let model = args.model.as_deref().unwrap_or(model);
    let audit = audit::audit(cluster, model, args.seq.map_or(seq, |s| s.0))?;
    if let Some(path) = &args.report {
        output::write_file(path, audit.html().as_bytes())?;
    }
    output::emit(&args.out, || audit.markdown(), &audit, &audit.claims)?;
    Ok(Outcome::Fine)
}

fn reproduce(args: &PaperArgs, report: &Report) -> Result<Outcome> {
    if let Some(path) = &args.report {
        output::write_file(path, html(report).as_bytes())?;
    }
    let rows: Vec<FlatRow<'_>> = report.papers.iter().flat_map(flat).collect();
    output::emit(&args.out, || papers::render(&report.papers), report, &rows)?;
    Ok(Outcome::Fine)
}

/// The rows of all papers of `report` as CSV has them.
pub fn csv(report: &Report) -> Result<String> {
    output::csv_text(&report.papers.iter().flat_map(flat).collect::<Vec<_>>())
}

fn flat(paper: &Paper) -> impl Iterator<Item = FlatRow<'_>> {
    paper.rows.iter().map(|r| FlatRow {
        paper: paper.name,
        table: &r.table,
        case: &r.case,
        quantity: &r.quantity,
        unit: r.unit,
        published: r.published.text(),
        predicted: r.predicted.text(),
        error: r.error,
        bound: r.bound,
        verdict: papers::verdict(r),
        reason: r.reason.as_deref(),
    })
}

/// All papers on one page, with tables that sort.
fn html(report: &Report) -> String {
    let mut sections = Vec::new();
    for paper in &report.papers {
        let median = paper.median_abs_error.map_or("-".into(), |m| format!("{:.1}%", 100.0 * m));
        let intro = format!("{} Median absolute error of the rows that count: {median}.", paper.source);
        sections.push(Section::new(&paper.title, intro, Body::Table(rows(paper))));
        let assumed = paper.assumptions.iter().map(|a| {
            let fitted = a.fitted_on.as_ref().map_or(String::new(), |row| format!(" (fitted on {row})"));
            format!("{} = {}{fitted}: {}", a.name, a.value, a.source)
        });
        sections.push(
            Section::new(format!("{}: assumptions", paper.name), "", Body::Text(assumed.collect())).folded(),
        );
    }
    page("Published tables beside their predictions", "", &sections)
}

fn rows(paper: &Paper) -> Table {
    let column = |name: &str, help: &str| {
        let numeric = matches!(name, "published" | "predicted" | "error" | "bound");
        Column { name: name.into(), help: help.into(), numeric }
    };
    let columns = vec![
        column("table", "In the paper"),
        column("case", "Machine, model, length"),
        column("quantity", "With its unit"),
        column("published", "As printed"),
        column("predicted", "By the model"),
        column("error", "predicted / published - 1"),
        column("bound", "What balance or arithmetic allows"),
        column("verdict", "What became of it"),
        column("reason", "Why it differs, contradicts itself or is impossible"),
    ];
    let cells = paper.rows.iter().map(|r| {
        let number = |c: &papers::Cell| Cell::number(c.number(), c.text());
        vec![
            Cell::text(&r.table),
            Cell::text(&r.case),
            Cell::text(format!("{} ({})", r.quantity, r.unit)),
            number(&r.published),
            number(&r.predicted),
            Cell::number(r.error, r.error.map_or("-".into(), |e| format!("{:+.1}%", 100.0 * e))),
            Cell::number(r.bound, r.bound.map_or("-".into(), |b| format!("{b:.2}"))),
            Cell::text(papers::verdict(r)),
            Cell::text(r.reason.as_deref().unwrap_or_default()),
        ]
    });
    Table { columns, rows: cells.collect() }
}
