//! `ringlab presets`: what is built in.

use anyhow::{Context, Result};
use ringlab_sim::config::nearest;
use serde::Serialize;

use super::Outcome;
use crate::args::PresetsArgs;
use crate::grid::grid;
use crate::output::{self, FORMAT_VERSION};
use crate::presets;

#[derive(Serialize, schemars::JsonSchema)]
struct Row {
    kind: &'static str,
    name: &'static str,
    summary: String,
}

#[derive(Serialize, schemars::JsonSchema)]
struct Report<'a> {
    version: u32,
    presets: &'a [Row],
}

/// JSON Schema of the result.
pub fn schema(generator: schemars::SchemaGenerator) -> schemars::Schema {
    generator.into_root_schema_for::<Report<'static>>()
}

/// Lists the presets, or prints one as TOML.
pub fn run(args: &PresetsArgs) -> Result<Outcome> {
    if let Some(name) = &args.name {
        output::emit_text(&args.out, &text_of(name)?)?;
        return Ok(Outcome::Fine);
    }
    let rows = rows()?;
    let report = Report { version: FORMAT_VERSION, presets: &rows };
    output::emit(&args.out, || table(&rows), &report, &rows)?;
    Ok(Outcome::Fine)
}

fn text_of(name: &str) -> Result<String> {
    let names = presets::cluster_names().into_iter().chain(presets::model_names());
    presets::cluster_text(name).or_else(|| presets::model_text(name)).with_context(|| {
        match nearest(name, names) {
            Some(near) => {
                format!("there is no preset {name:?}; did you mean {near}? `ringlab presets` lists all")
            }
            None => format!("there is no preset {name:?}; `ringlab presets` lists all"),
        }
    })
}

fn rows() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for name in presets::cluster_names() {
        let summary = match presets::cluster(name) {
            Ok(c) => format!("{} x {} {}", c.nodes, c.gpus_per_node, c.device.name),
            Err(_) => "any size: put numbers for N, M and R".into(),
        };
        rows.push(Row { kind: "cluster", name, summary });
    }
    for name in presets::model_names() {
        let m = presets::model(name)?;
        let summary =
            format!("{} layers, {} query and {} kv heads of {}", m.layers, m.heads, m.kv_heads, m.head_dim);
        rows.push(Row { kind: "model", name, summary });
    }
    Ok(rows)
}

fn table(rows: &[Row]) -> String {
    let cells = rows.iter().map(|r| [r.kind.to_owned(), r.name.to_owned(), r.summary.clone()]);
    grid(["kind", "name", "what"], 3, cells)
}
