//! The shape of a transformer, as far as its attention and its cost depend on it.

mod huggingface;
mod shape;
#[cfg(test)]
mod tests;
mod toml;

use serde::Serialize;

use super::cluster::Dtype;
use super::error::ConfigError;
use super::field::Source;
use crate::units::{Bytes, Tokens};

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Model {
    /// Name, as printed with results.
    pub name: String,
    /// Where the figures come from.
    pub source: String,
    /// Transformer layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Width of one head; `heads * head_dim` need not be `hidden`.
    pub head_dim: u64,
    /// Width of the feed-forward layer, of one expert where there are several; 0 if the configuration does not say.
    pub intermediate: u64,
    /// Entries of the vocabulary; 0 if the configuration does not say.
    pub vocab: u64,
    /// Experts of the feed-forward layer; `None` when it is dense.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<Moe>,
    /// Whether input and output embedding are one matrix.
    pub tied_embeddings: bool,
    /// Whether the feed-forward layer has a gate: three matrices instead of two.
    pub gated_mlp: bool,
    /// Longest sequence the model was built for, where it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_positions: Option<Tokens>,
    /// Keys that a query sees at most, where every layer limits them to the same number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<Tokens>,
    /// Which layers limit them, where only some do; then `sliding_window` is `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_mix: Option<LayerMix>,
    /// Type that the weights are stored in, where the file says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_dtype: Option<Dtype>,
}

/// Layers that attend to all earlier tokens next to layers that attend to a window of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LayerMix {
    /// Layers that attend to all earlier tokens; at least one.
    pub causal: u64,
    /// Layers that attend to the window; at least one.
    pub windowed: u64,
    /// Keys that a query of a windowed layer sees at most.
    pub window: Tokens,
}

/// Experts of a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Moe {
    /// Experts of a layer.
    pub count: u64,
    /// Experts that each token goes through.
    pub active: u64,
}

impl Model {
    /// Reads a model: TOML, or a HuggingFace `config.json` when `text` opens like JSON or `label` ends in `.json`.
    ///
    /// In TOML every key is known and `kv_heads` (as many as `heads`), `head_dim` (`hidden / heads`),
    /// `experts`, `tied_embeddings` (false), `gated_mlp` (true), `max_positions`, `sliding_window` and
    /// `windowed_layers` (all, where there is a window) may be left out. In JSON other fields are ignored.
    ///
    /// # Errors
    /// A [`ConfigError`] at the first field that is missing, malformed, out of range or contradicts another, or
    /// that says that attention differs between layers in a way that [`LayerMix`] does not hold.
    pub fn parse(label: &str, text: &str) -> Result<Self, ConfigError> {
        let source = Source::new(label, text);
        if source.is_json() { huggingface::read(source) } else { toml::read(source) }
    }

    /// What a reader must know where layers differ: figures for one layer are not those for all.
    pub fn layer_note(&self) -> Option<String> {
        self.layer_mix.map(|LayerMix { causal, windowed, window: Tokens(window) }| {
            format!(
                "{causal} of {} layers attend to all earlier tokens, {windowed} to a window of {window}: the figures \
                 are for one layer that attends to all; use --mask window:{window} for the others",
                self.layers
            )
        })
    }

    /// Bytes of K and V of one token in one layer: `2 * kv_heads * head_dim * element`.
    pub fn kv_bytes_per_token(&self, element: Bytes) -> Bytes {
        element * (2 * self.kv_heads * self.head_dim)
    }

    /// Bytes of Q, or of O, of one token in one layer: `heads * head_dim * element`.
    pub fn q_bytes_per_token(&self, element: Bytes) -> Bytes {
        element * (self.heads * self.head_dim)
    }

    /// Weights of one layer's attention: the projections to Q, K and V and from O.
    pub fn attention_weights(&self) -> u64 {
        2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
    }

    /// Weights of one feed-forward layer, or of one expert.
    pub fn mlp_weights(&self) -> u64 {
        let matrices = if self.gated_mlp { 3 } else { 2 };
        matrices * self.hidden * self.intermediate
    }

    /// Weights in all matrices, embeddings included; norms, biases and routers are left out.
    pub fn parameters(&self) -> u64 {
        self.weights_with(self.experts.map_or(1, |moe| moe.count))
    }

    /// As [`Model::parameters`], with only the experts that one token goes through.
    pub fn active_parameters(&self) -> u64 {
        self.weights_with(self.experts.map_or(1, |moe| moe.active))
    }

    fn weights_with(&self, experts: u64) -> u64 {
        let embeddings = if self.tied_embeddings { 1 } else { 2 };
        self.layers * (self.attention_weights() + experts * self.mlp_weights())
            + embeddings * self.vocab * self.hidden
    }
}
