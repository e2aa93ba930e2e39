//! A HuggingFace `config.json`, unchanged, by the names of the transformers library.

mod heads;
mod layers;

use super::shape::{self, HeadShape, head_shape};
use super::{Model, Moe};
use crate::config::cluster::Dtype;
use crate::config::error::ConfigError;
use crate::config::field::{Field, Source};
use crate::config::json::Object;
use crate::config::nearest::nearest;
use crate::units::Tokens;

/// Architectures whose feed-forward layer has no gate.
const UNGATED: &[&str] = &[
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gpt_bigcode",
    "gptj",
    "opt",
    "bloom",
    "falcon",
    "phi",
    "starcoder2",
    "mpt",
];

/// Architectures that share input and output embedding when their file does not say.
const TIED: &[&str] = &[
    "gpt2",
    "gpt_neo",
    "gpt_bigcode",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "cohere",
    "cohere2",
    "opt",
    "bloom",
    "falcon",
    "mpt",
];

/// Fields of attention that is not (grouped) multi-head: its bytes per token would come out wrong.
const OTHER_ATTENTION: &[&str] = &["kv_lora_rank", "q_lora_rank", "ssm_state_size"];

/// Names of element types, with or without `torch.` before them.
const DTYPES: &[(&str, Dtype)] = &[
    ("bfloat16", Dtype::Bf16),
    ("float16", Dtype::Fp16),
    ("half", Dtype::Fp16),
    ("float32", Dtype::Fp32),
    ("float", Dtype::Fp32),
    ("float8_e4m3fn", Dtype::Fp8),
    ("float8_e5m2", Dtype::Fp8),
];

pub(super) fn read(source: Source<'_>) -> Result<Model, ConfigError> {
    let document = Object::parse(source)?;
    // Multi-modal models keep the language model's fields one level down.
    let nested = document.object("text_config")?;
    let config = Config(nested.as_ref().unwrap_or(&document));
    config.refuse_other_attention()?;
    let hidden = config.required(&["hidden_size", "n_embd", "d_model"], &["dim"])?;
    let heads = config.required(&["num_attention_heads", "n_head", "n_heads"], &["num_heads"])?;
    let head_dim = config.field(&["head_dim"], &["kv_channels", "d_kv"])?;
    let HeadShape { hidden: width, heads, kv_heads, head_dim } =
        head_shape(&hidden, &heads, config.kv_heads()?.as_ref(), head_dim.as_ref())?;
    let layers = config.required(&["num_hidden_layers", "n_layer", "n_layers"], &["num_layers"])?;
    let layers = layers.count(shape::LAYERS)?;
    let attention = config.layer_attention(layers)?;
    Ok(Model {
        name: name(&document, source.label)?,
        source: format!("HuggingFace configuration {}", source.label),
        layers,
        hidden: width,
        heads,
        kv_heads,
        head_dim,
        intermediate: config.intermediate(width)?,
        vocab: config.vocab()?,
        experts: config.experts()?,
        tied_embeddings: config.tied_embeddings(&document)?,
        gated_mlp: config.gated_mlp()?,
        max_positions: config.max_positions()?,
        sliding_window: attention.sliding_window,
        layer_mix: attention.mix,
        stored_dtype: stored_dtype(&config, &document)?,
    })
}

/// The type of the weights; multi-modal models may give it for the whole only.
fn stored_dtype(config: &Config<'_, '_>, document: &Object<'_>) -> Result<Option<Dtype>, ConfigError> {
    let names = &["dtype", "torch_dtype"];
    let Some(field) =
        config.0.field(names)?.map_or_else(|| document.field(names), |field| Ok(Some(field)))?
    else {
        return Ok(None);
    };
    let text = field.text()?;
    let plain = text.strip_prefix("torch.").unwrap_or(&text);
    let known = DTYPES.iter().find(|(name, _)| *name == plain).map(|(_, dtype)| *dtype);
    known.map(Some).ok_or_else(|| {
        let names: Vec<_> = DTYPES.iter().map(|(name, _)| *name).collect();
        let message = format!("`{}` is {}, which is no known type", field.path, field.literal);
        field.error(message).with_hint(format!("known types: {}", names.join(", ")))
    })
}

/// The model's own name where the file has one, the label otherwise.
fn name(document: &Object<'_>, label: &str) -> Result<String, ConfigError> {
    let named = document.field(&["_name_or_path"])?.and_then(|field| field.text().ok());
    Ok(named.unwrap_or_else(|| label.to_owned()))
}

/// The object that holds the language model's fields.
struct Config<'o, 'a>(&'o Object<'a>);

impl<'a> Config<'_, 'a> {
    fn required(&self, names: &[&str], rarer: &[&str]) -> Result<Field<'a>, ConfigError> {
        self.field(names, rarer)?.ok_or_else(|| {
            let error = self.0.error(format!("missing `{}`", names[0]));
            if let Some(near) = names.iter().find_map(|name| nearest(name, self.0.keys())) {
                return error.with_hint(format!("did you mean `{}` by `{near}`?", names[0]));
            }
            let others = [&names[1..], rarer].concat();
            if others.is_empty() {
                error
            } else {
                error.with_hint(format!("also known as `{}`", others.join("`, `")))
            }
        })
    }

    fn refuse_other_attention(&self) -> Result<(), ConfigError> {
        match self.0.field(&["is_encoder_decoder"])? {
            Some(field) if field.flag()? => {
                return Err(field.error("an encoder-decoder model has no single causal attention"));
            }
            _ => {}
        }
        for name in OTHER_ATTENTION {
            if let Some(field) = self.0.field(&[name])? {
                let message = format!("`{name}` belongs to attention without plain key and value heads");
                return Err(field
                    .error(message)
                    .with_hint("only multi-head and grouped-query attention is modelled"));
            }
        }
        Ok(())
    }

    fn is_set(&self, name: &str) -> Result<bool, ConfigError> {
        self.0.field(&[name])?.map_or(Ok(false), |field| field.flag())
    }

    /// 0 if it is missing: attention does not depend on it.
    fn intermediate(&self, hidden: u64) -> Result<u64, ConfigError> {
        // GPT-2 leaves its `n_inner` null for four times the width.
        let expert = self.0.field(&["moe_intermediate_size"])?;
        let dense =
            self.field(&["intermediate_size", "n_inner", "ffn_dim"], &["ffn_hidden_size", "hidden_dim"])?;
        // DBRX keeps its own in `ffn_config`.
        let nested = self.0.object("ffn_config")?.map(|ffn| ffn.field(&["ffn_hidden_size"])).transpose()?;
        match expert.or(dense).or(nested.flatten()) {
            Some(field) => field.count(shape::WIDTH),
            None if self.is_one_of(UNGATED)? => Ok(4 * hidden),
            None => Ok(0),
        }
    }

    /// 0 if it is missing: attention does not depend on it.
    fn vocab(&self) -> Result<u64, ConfigError> {
        match self.field(&["vocab_size"], &["padded_vocab_size"])? {
            Some(field) => field.count(shape::VOCAB),
            None => Ok(0),
        }
    }

    fn experts(&self) -> Result<Option<Moe>, ConfigError> {
        let Some(count) = self.0.field(&["num_local_experts", "num_experts", "n_routed_experts"])? else {
            return self.nested_experts();
        };
        shape::experts(&count, &self.required(&["num_experts_per_tok"], &[])?).map(Some)
    }

    /// DBRX's experts, which it keeps in `ffn_config`.
    fn nested_experts(&self) -> Result<Option<Moe>, ConfigError> {
        let Some(ffn) = self.0.object("ffn_config")? else { return Ok(None) };
        match (ffn.field(&["moe_num_experts"])?, ffn.field(&["moe_top_k"])?) {
            (Some(count), Some(active)) => shape::experts(&count, &active).map(Some),
            _ => Ok(None),
        }
    }

    fn tied_embeddings(&self, document: &Object<'a>) -> Result<bool, ConfigError> {
        let name = &["tie_word_embeddings"];
        match self.0.field(name)?.or(document.field(name)?) {
            Some(field) => field.flag(),
            None => self.is_one_of(TIED),
        }
    }

    fn gated_mlp(&self) -> Result<bool, ConfigError> {
        self.is_one_of(UNGATED).map(|ungated| !ungated)
    }

    fn is_one_of(&self, model_types: &[&str]) -> Result<bool, ConfigError> {
        Ok(self.model_type()?.is_some_and(|kind| model_types.contains(&kind.as_str())))
    }

    fn model_type(&self) -> Result<Option<String>, ConfigError> {
        self.0.field(&["model_type"])?.map(|field| field.text()).transpose()
    }

    fn max_positions(&self) -> Result<Option<Tokens>, ConfigError> {
        let field =
            self.field(&["max_position_embeddings", "n_positions"], &["max_seq_len", "seq_length"])?;
        field.map(|field| field.count(1..=1 << 31).map(Tokens)).transpose()
    }
}
