//! Which layers attend to all earlier tokens and which to a window of them, by each architecture's convention.
//!
//! Conventions are those of the configuration classes in the transformers library: a list of `layer_types`, one
//! layer in `sliding_window_pattern` that attends to all, or `max_window_layers` before the first window.

use super::Config;
use crate::config::error::ConfigError;
use crate::config::field::Field;
use crate::config::model::shape::{LAYERS, LayerAttention};
use crate::units::Tokens;

/// Longest window, in tokens.
const WINDOW: u64 = 1 << 31;

/// Architectures whose every n-th layer attends to all, unless their file gives another n.
const PATTERNS: &[(&str, u64)] = &[
    ("gemma2", 2),
    ("vaultgemma", 2),
    ("gpt_oss", 2),
    ("cohere2", 4),
    ("exaone4", 4),
    ("olmo3", 4),
    ("gemma3n_text", 5),
    ("gemma3_text", 6),
];

/// Names in lists of layers, and whether they stand for a window.
const KINDS: &[(&str, bool)] = &[
    ("full_attention", false),
    ("attention", false),
    ("global", false),
    ("sliding_attention", true),
    ("local", true),
];

/// Fields of models some of whose layers are no attention.
const NO_ATTENTION: &[&str] = &[
    "linear_num_value_heads",
    "linear_attn_config",
    "full_attention_interval",
    "attn_type_list",
    "hybrid_override_pattern",
    "attn_layer_period",
    "attn_layer_indices",
    "full_attn_idxs",
    "layers_block_type",
    "block_types",
    "mamba_d_ssm",
];

/// Fields of models some of whose layers have other heads.
const OTHER_HEADS: &[&str] = &[
    "block_configs",
    "num_key_value_heads_per_layer",
    "num_global_key_value_heads",
    "global_head_dim",
    "swa_num_attention_heads",
    "swa_num_key_value_heads",
    "hybrid_layer_pattern",
];

/// Fields of attention that leaves pairs out in another way than by a window.
const SPARSE: &[&str] = &[
    "attention_types",
    "attention_window",
    "dense_attention_every_n_layers",
    "global_attn_every_n_layers",
    "index_topk",
];

const ONE_KIND: &str = "write a model TOML for one kind of layer: `layers` counts those alone";

impl Config<'_, '_> {
    /// What each of `layers` layers attends to.
    pub(super) fn layer_attention(&self, layers: u64) -> Result<LayerAttention, ConfigError> {
        self.refuse(OTHER_HEADS, "gives some layers other heads than the rest", ONE_KIND)?;
        self.refuse_chunks()?;
        let window = self.window()?;
        if let Some((list, kinds)) = self.0.list(&["layer_types", "attention_layers"]) {
            let windowed = listed_windows(&list, &kinds, layers)?;
            if windowed > 0 && window.is_none() {
                let message = format!("`{}` has {windowed} layers with a window, but none is set", list.path);
                return Err(list.error(message).with_hint("give its length as `sliding_window`"));
            }
            return Ok(LayerAttention::new(layers, windowed, window));
        }
        self.refuse(NO_ATTENTION, "belongs to a model with layers that are no attention", ONE_KIND)?;
        self.refuse(SPARSE, "belongs to attention that no window describes", ONE_KIND)?;
        if window.is_none() {
            self.refuse_default_window()?;
        }
        Ok(LayerAttention::new(layers, self.patterned_windows(layers)?, window))
    }

    /// The window's length, unless `use_sliding_window` turns it off, as Qwen's does when left out.
    fn window(&self) -> Result<Option<Tokens>, ConfigError> {
        match self.0.field(&["use_sliding_window"])? {
            Some(field) if !field.flag()? => return Ok(None),
            None if self.model_type()?.is_some_and(|kind| kind.starts_with("qwen")) => return Ok(None),
            _ => {}
        }
        let name = if self.is_one_of(&["gpt_neo"])? { "window_size" } else { "sliding_window" };
        let Some(field) = self.0.field(&[name])? else { return Ok(None) };
        match field.count(1..=WINDOW) {
            Ok(length) => Ok(Some(Tokens(length))),
            Err(error) if error.hint().is_none() => Err(error.with_hint("null stands for no window")),
            Err(error) => Err(error),
        }
    }

    /// Layers with a window where no list says so.
    fn patterned_windows(&self, layers: u64) -> Result<u64, ConfigError> {
        let default = self
            .model_type()?
            .and_then(|kind| PATTERNS.iter().find(|(name, _)| *name == kind).map(|(_, every)| *every));
        let every = match self.0.field(&["sliding_window_pattern", "_sliding_window_pattern"])? {
            Some(field) => Some(field.count(LAYERS).map_err(|error| {
                error.with_hint("every how many layers one attends to all; or list `layer_types`")
            })?),
            None => default,
        };
        let switched = self.0.field(&["use_sliding_window"])?.is_some();
        let first = if switched { self.field(&["max_window_layers"], &[])? } else { None };
        Ok(match (every, first) {
            (Some(every), _) => layers - layers / every,
            (None, Some(field)) => layers.saturating_sub(field.count(0..=*LAYERS.end())?),
            (None, None) => layers,
        })
    }

    /// Architectures with windows set one by default: a file without it would be read as one without windows.
    fn refuse_default_window(&self) -> Result<(), ConfigError> {
        let says_so = self.0.keys().any(|key| key == "sliding_window");
        let has_windows = |kind: &String| kind == "mistral" || PATTERNS.iter().any(|(name, _)| name == kind);
        match self.model_type()?.filter(has_windows) {
            Some(kind) if !says_so => {
                let error = self.0.error(format!("missing `sliding_window`, which layers of {kind} have"));
                Err(error.with_hint("null stands for no window"))
            }
            _ => Ok(()),
        }
    }

    /// Attention in chunks is that of documents as long as a chunk.
    fn refuse_chunks(&self) -> Result<(), ConfigError> {
        let Some(field) = self.0.field(&["attention_chunk_size"])? else { return Ok(()) };
        let message = format!("`{}` is {}: some layers attend within chunks", field.path, field.literal);
        let chunk = &field.literal;
        Err(field.error(message).with_hint(format!(
            "a chunk acts like a document: {ONE_KIND}, and use --mask docs:{chunk},{chunk},... for the chunked ones"
        )))
    }

    fn refuse(&self, names: &[&str], why: &str, hint: &str) -> Result<(), ConfigError> {
        for name in names {
            if let Some(field) = self.0.field(&[name])? {
                return Err(field.error(format!("`{}` {why}", field.path)).with_hint(hint));
            }
        }
        Ok(())
    }
}

/// How many of the layers that `list` names have a window.
fn listed_windows(list: &Field<'_>, kinds: &[Field<'_>], layers: u64) -> Result<u64, ConfigError> {
    if kinds.len() as u64 != layers {
        let message = format!("`{}` names {} layers, but there are {layers}", list.path, kinds.len());
        return Err(list.error(message));
    }
    let mut windowed = 0;
    for kind in kinds {
        let name = kind.text()?;
        let known = KINDS.iter().find(|(known, _)| *known == name);
        let Some((_, has_window)) = known else {
            let message = format!("`{}` is {}, which cannot be planned", kind.path, kind.literal);
            return Err(kind.error(message).with_hint(ONE_KIND));
        };
        windowed += u64::from(*has_window);
    }
    Ok(windowed)
}
