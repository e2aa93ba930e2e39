//! The TOML form of a model.

use super::shape::{self, HeadShape, head_shape};
use super::{Model, Moe};
use crate::config::error::ConfigError;
use crate::config::field::Source;
use crate::config::section::{Keys, Section, parse_toml};

const MODEL: Keys = &[
    ("name", "\"my-model\""),
    ("source", "\"where the figures come from\""),
    ("layers", "32"),
    ("hidden", "4096"),
    ("heads", "32"),
    ("kv_heads", "8"),
    ("head_dim", "128"),
    ("intermediate", "14336"),
    ("vocab", "128256"),
    ("experts", "{ count = 8, active = 2 }"),
    ("tied_embeddings", "false"),
    ("gated_mlp", "true"),
    ("max_positions", "\"128Ki\""),
    ("sliding_window", "4096"),
];
const EXPERTS: Keys = &[("count", "8"), ("active", "2")];

pub(super) fn read(source: Source<'_>) -> Result<Model, ConfigError> {
    let document = parse_toml(source)?;
    let root = Section::root(source, &document, MODEL)?;
    let amount = |key| root.optional(key).map(|field| field.amount()).transpose();
    let flag = |key, default| root.optional(key).map_or(Ok(default), |field| field.flag());
    let HeadShape { hidden, heads, kv_heads, head_dim } = head_shape(
        &root.required("hidden")?,
        &root.required("heads")?,
        root.optional("kv_heads").as_ref(),
        root.optional("head_dim").as_ref(),
    )?;
    Ok(Model {
        name: root.required("name")?.text()?,
        source: root.required("source")?.text()?,
        layers: root.required("layers")?.count(shape::LAYERS)?,
        hidden,
        heads,
        kv_heads,
        head_dim,
        intermediate: root.required("intermediate")?.count(shape::WIDTH)?,
        vocab: root.required("vocab")?.count(shape::VOCAB)?,
        experts: experts(&root)?,
        tied_embeddings: flag("tied_embeddings", false)?,
        gated_mlp: flag("gated_mlp", true)?,
        max_positions: amount("max_positions")?,
        sliding_window: amount("sliding_window")?,
    })
}

fn experts(root: &Section<'_, '_>) -> Result<Option<Moe>, ConfigError> {
    let Some(table) = root.optional_section("experts", EXPERTS)? else { return Ok(None) };
    shape::experts(&table.required("count")?, &table.required("active")?).map(Some)
}
