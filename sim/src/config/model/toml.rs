//! The TOML form of a model.

use super::shape::{self, HeadShape, LayerAttention, head_shape};
use super::{Model, Moe};
use crate::config::error::ConfigError;
use crate::config::field::{Field, Source};
use crate::config::section::{Keys, Section, parse_toml};
use crate::units::Tokens;

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
    ("windowed_layers", "16"),
];
/// Keys that only a cluster has.
const CLUSTER: &[&str] = &["nodes", "gpus_per_node", "device", "fabric", "kernels"];
const EXPERTS: Keys = &[("count", "8"), ("active", "2")];

pub(super) fn read(source: Source<'_>) -> Result<Model, ConfigError> {
    let document = parse_toml(source)?;
    if let Some((key, _)) =
        document.get_ref().iter().find(|(key, _)| CLUSTER.contains(&key.get_ref().as_ref()))
    {
        let error =
            source.error(key.span(), format!("`{}` belongs to a cluster, expected a model", key.get_ref()));
        return Err(error.with_hint("give this file as the cluster, with --cluster"));
    }
    let root = Section::root(source, &document, MODEL)?;
    let amount = |key| root.optional(key).map(|field| field.amount()).transpose();
    let flag = |key, default| root.optional(key).map_or(Ok(default), |field| field.flag());
    let HeadShape { hidden, heads, kv_heads, head_dim } = head_shape(
        &root.required("hidden")?,
        &root.required("heads")?,
        root.optional("kv_heads").as_ref(),
        root.optional("head_dim").as_ref(),
    )?;
    let layers = root.required("layers")?.count(shape::LAYERS)?;
    let window = amount("sliding_window")?;
    let windowed = root.optional("windowed_layers").map(|field| windowed_layers(&field, window, layers));
    let attention = LayerAttention::new(layers, windowed.transpose()?.unwrap_or(layers), window);
    Ok(Model {
        name: root.required("name")?.text()?,
        source: root.required("source")?.text()?,
        layers,
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
        sliding_window: attention.sliding_window,
        layer_mix: attention.mix,
        stored_dtype: None,
    })
}

/// How many layers have the window, of which there must be one.
fn windowed_layers(field: &Field<'_>, window: Option<Tokens>, layers: u64) -> Result<u64, ConfigError> {
    if window.is_none() {
        let error = field.error("`windowed_layers` is given, but there is no `sliding_window`");
        return Err(error.with_hint("add a line like: sliding_window = 4096"));
    }
    field.count(0..=layers)
}

fn experts(root: &Section<'_, '_>) -> Result<Option<Moe>, ConfigError> {
    let Some(table) = root.optional_section("experts", EXPERTS)? else { return Ok(None) };
    shape::experts(&table.required("count")?, &table.required("active")?).map(Some)
}
