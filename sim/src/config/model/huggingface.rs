//! A HuggingFace `config.json`, unchanged, by the names of the transformers library.

use super::shape::{self, HeadShape, head_shape};
use super::{Model, Moe};
use crate::config::error::ConfigError;
use crate::config::field::{Field, Literal, Source};
use crate::config::json::Object;
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
const TIED: &[&str] = &["gpt2", "gpt_neo", "gpt_bigcode", "gemma", "gemma2", "opt", "bloom", "falcon", "mpt"];

/// Fields of attention that is not (grouped) multi-head: its bytes per token would come out wrong.
const OTHER_ATTENTION: &[&str] = &["kv_lora_rank", "q_lora_rank", "ssm_state_size", "linear_num_value_heads"];

pub(super) fn read(source: Source<'_>) -> Result<Model, ConfigError> {
    let document = Object::parse(source)?;
    // Multi-modal models keep the language model's fields one level down.
    let nested = document.object("text_config")?;
    let config = Config(nested.as_ref().unwrap_or(&document));
    config.refuse_other_attention()?;
    let hidden = config.required(&["hidden_size", "n_embd", "d_model"])?;
    let heads = config.required(&["num_attention_heads", "n_head", "n_heads"])?;
    let HeadShape { hidden: width, heads, kv_heads, head_dim } =
        head_shape(&hidden, &heads, config.kv_heads()?.as_ref(), config.0.field(&["head_dim"])?.as_ref())?;
    Ok(Model {
        name: name(&document, source.label)?,
        source: format!("HuggingFace configuration {}", source.label),
        layers: config.required(&["num_hidden_layers", "n_layer", "n_layers"])?.count(shape::LAYERS)?,
        hidden: width,
        heads,
        kv_heads,
        head_dim,
        intermediate: config.intermediate(width)?,
        vocab: config.required(&["vocab_size"])?.count(shape::VOCAB)?,
        experts: config.experts()?,
        tied_embeddings: config.tied_embeddings(&document)?,
        gated_mlp: config.gated_mlp()?,
        max_positions: config.tokens(&["max_position_embeddings", "n_positions"])?,
        sliding_window: config.sliding_window()?,
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
    fn required(&self, names: &[&str]) -> Result<Field<'a>, ConfigError> {
        self.0.field(names)?.ok_or_else(|| {
            let error = self.0.error(format!("missing `{}`", names[0]));
            match names[1..] {
                [] => error,
                _ => error.with_hint(format!("also known as `{}`", names[1..].join("`, `"))),
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

    /// Key heads; `None` means one for each query head. `multi_query` means a single one, except in Falcon's
    /// new decoder, which counts them in `num_kv_heads`.
    fn kv_heads(&self) -> Result<Option<Field<'a>>, ConfigError> {
        let given = self.0.field(&["num_key_value_heads"])?;
        let falcon = self.0.field(&["num_kv_heads", "n_head_kv"])?;
        if !self.is_set("multi_query")? || self.is_set("new_decoder_architecture")? {
            return Ok(given.or(falcon));
        }
        let Some(mut single) = self.0.field(&["multi_query"])? else { return Ok(given) };
        single.literal = Literal::Integer("1".to_owned());
        match given {
            Some(field) if field.literal != single.literal => Err(field
                .error(format!("`{}` is {}, but `multi_query` is true", field.path, field.literal))
                .with_hint("multi-query attention has one key head")),
            _ => Ok(Some(single)),
        }
    }

    fn intermediate(&self, hidden: u64) -> Result<u64, ConfigError> {
        // GPT-2 leaves its `n_inner` null for four times the width.
        let expert = self.0.field(&["moe_intermediate_size"])?;
        let dense = self.0.field(&["intermediate_size", "n_inner", "ffn_dim"])?;
        match (expert, dense) {
            (Some(field), _) | (None, Some(field)) => field.count(shape::WIDTH),
            (None, None) if self.is_one_of(UNGATED)? => Ok(4 * hidden),
            (None, None) => {
                Err(self.0.error("missing `intermediate_size`").with_hint("also known as `n_inner`"))
            }
        }
    }

    fn experts(&self) -> Result<Option<Moe>, ConfigError> {
        let Some(count) = self.0.field(&["num_local_experts", "num_experts", "n_routed_experts"])? else {
            return Ok(None);
        };
        shape::experts(&count, &self.required(&["num_experts_per_tok"])?).map(Some)
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
        let kind = self.0.field(&["model_type"])?.map(|field| field.text()).transpose()?;
        Ok(kind.is_some_and(|kind| model_types.contains(&kind.as_str())))
    }

    fn tokens(&self, names: &[&str]) -> Result<Option<Tokens>, ConfigError> {
        self.0.field(names)?.map(|field| field.amount()).transpose()
    }

    /// The window, unless `use_sliding_window` turns it off.
    fn sliding_window(&self) -> Result<Option<Tokens>, ConfigError> {
        match self.0.field(&["use_sliding_window"])? {
            Some(field) if !field.flag()? => Ok(None),
            _ => self.tokens(&["sliding_window"]),
        }
    }
}
