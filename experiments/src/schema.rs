//! JSON Schema of every file that is read and of every result that is written.
//!
//! Schemas of results come from the types that are written, those of run files and sweeps from the options and fields
//! that are read; clusters and models, which are read by hand, are written by hand and held against the reader by a test.

mod input;

use anyhow::{Result, anyhow, bail};
use ringlab_sim::config::nearest;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value};

use crate::commands;
use crate::output::FORMAT_VERSION;
use crate::papers;

/// Where a schema comes from.
type Make = fn() -> Result<Value>;

/// Name, what it is of, and how it is made.
const SCHEMAS: &[(&str, &str, Make)] = &[
    ("cluster", "a cluster's TOML (--cluster)", || embedded(include_str!("schema/cluster.json"))),
    ("model", "a model's TOML (--model)", || embedded(include_str!("schema/model.json"))),
    ("run-file", "a run file's TOML (--run)", || Ok(input::run_file())),
    ("sweep-file", "a sweep's TOML", || Ok(input::sweep_file())),
    ("simulate", "`ringlab simulate --format json`", || result("simulate", commands::simulate::schema)),
    ("check", "`ringlab check --format json`", || result("check", commands::check::schema)),
    ("run", "`ringlab run --format json`", || result("run", commands::run::schema)),
    ("layout", "`ringlab layout --format json`", || result("layout", commands::layout::schema)),
    ("presets", "`ringlab presets --format json`", || result("presets", commands::presets::schema)),
    ("paper", "`ringlab paper NAME --format json`", || {
        result("paper", SchemaGenerator::into_root_schema_for::<papers::Report>)
    }),
    ("paper-list", "`ringlab paper list --format json`", || {
        result("paper-list", commands::paper::list_schema)
    }),
    ("paper-audit", "`ringlab paper audit --format json`", || {
        result("paper-audit", SchemaGenerator::into_root_schema_for::<papers::audit::Audit>)
    }),
    ("tune", "`ringlab tune --format json`", || result("tune", commands::tune::schema)),
    ("train", "`ringlab train --format json`", || embedded(include_str!("schema/train.json"))),
    ("validate", "`ringlab validate --format json`", || embedded(include_str!("schema/validate.json"))),
    ("bench", "`ringlab bench --format json`", || result("bench", commands::bench::schema)),
    ("sweep-row", "a row of `ringlab sweep`'s CSV, as an object", || Ok(input::sweep_row())),
];

/// Name and meaning of every schema.
pub fn list() -> impl Iterator<Item = (&'static str, &'static str)> {
    SCHEMAS.iter().map(|(name, of, _)| (*name, *of))
}

/// The schema of this name.
///
/// # Errors
/// A name that is no schema, with the nearest one.
pub fn schema(name: &str) -> Result<Value> {
    let Some((.., make)) = SCHEMAS.iter().find(|(known, ..)| *known == name) else {
        let names = || SCHEMAS.iter().map(|(name, ..)| *name);
        let near = nearest(name, names()).map_or(String::new(), |near| format!("; did you mean {near}?"));
        bail!(
            "there is no schema {name:?}{near} (schemas: {}, or all)",
            names().collect::<Vec<_>>().join(", ")
        );
    };
    make()
}

fn embedded(text: &str) -> Result<Value> {
    Ok(serde_json::from_str(text)?)
}

/// The schema of a result, as it is written, and its version.
fn result(name: &str, make: impl FnOnce(SchemaGenerator) -> Schema) -> Result<Value> {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = make(settings.into_generator()).to_value();
    let object = schema.as_object_mut().ok_or_else(|| anyhow!("the schema of {name} is no object"))?;
    object.insert("title".into(), name.into());
    object.insert(
        "description".into(),
        format!("Version {FORMAT_VERSION}; fields may be added within it.").into(),
    );
    Ok(schema)
}

/// An object with these properties and no other.
fn closed(title: &str, description: &str, properties: &Map<String, Value>) -> Value {
    serde_json::json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": description,
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}
