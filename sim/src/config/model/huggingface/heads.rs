//! Where each architecture keeps the number of its heads.

use super::Config;
use crate::config::error::ConfigError;
use crate::config::field::{Field, Literal};
use crate::config::json::Object;

/// Fields that an architecture's file may leave out, with the value of its configuration class.
const DEFAULTS: &[(&str, &str, &str)] = &[
    ("gemma", "head_dim", "256"),
    ("gemma2", "head_dim", "256"),
    ("gemma3_text", "head_dim", "256"),
    ("gemma3_text", "num_attention_heads", "8"),
    ("gemma3_text", "num_key_value_heads", "4"),
    ("gemma3_text", "vocab_size", "262208"),
    ("gpt_oss", "head_dim", "64"),
    ("qwen3", "head_dim", "128"),
    ("qwen2", "max_window_layers", "28"),
    ("qwen2_moe", "max_window_layers", "28"),
    ("qwen3", "max_window_layers", "28"),
    ("qwen3_moe", "max_window_layers", "28"),
];

impl<'a> Config<'_, 'a> {
    /// The first of `names` as [`Object::field`] finds it, else one of the `rarer` names, else what the
    /// architecture's class assumes where its file is silent.
    pub(super) fn field(&self, names: &[&str], rarer: &[&str]) -> Result<Option<Field<'a>>, ConfigError> {
        if let Some(field) = self.0.field(names)? {
            return Ok(Some(field));
        }
        if let Some(field) = self.0.field(rarer)? {
            return Ok(Some(field));
        }
        let Some(kind) = self.model_type()? else { return Ok(None) };
        let default = DEFAULTS.iter().find(|(class, name, _)| *class == kind && *name == names[0]);
        Ok(default.map(|(_, name, value)| self.0.assumed(name, Literal::Integer((*value).to_owned()))))
    }

    /// Key heads; `None` means one for each query head.
    pub(super) fn kv_heads(&self) -> Result<Option<Field<'a>>, ConfigError> {
        if let Some(attention) = self.0.object("attn_config")? {
            return mpt_kv_heads(&attention);
        }
        if self.is_set("multi_query_attention")? {
            return self.required(&["multi_query_group_num"], &[]).map(Some);
        }
        // Falcon's new decoder counts them in `num_kv_heads`, whatever `multi_query` says.
        if !self.is_set("multi_query")? || self.is_set("new_decoder_architecture")? {
            let others = &["num_kv_heads", "n_head_kv", "n_kv_heads", "num_query_groups"];
            return self.field(&["num_key_value_heads"], others);
        }
        let given = self.0.field(&["num_key_value_heads"])?;
        let Some(flag) = self.0.field(&["multi_query"])? else { return Ok(given) };
        let single = Field { literal: Literal::Integer("1".to_owned()), ..flag };
        match given {
            Some(field) if field.literal != single.literal => Err(field
                .error(format!("`{}` is {}, but `multi_query` is true", field.path, field.literal))
                .with_hint("multi-query attention has one key head")),
            _ => Ok(Some(single)),
        }
    }
}

/// Key heads of MPT and DBRX, which keep them in `attn_config`.
fn mpt_kv_heads<'a>(attention: &Object<'a>) -> Result<Option<Field<'a>>, ConfigError> {
    let window = attention.field(&["sliding_window_size"])?;
    if let Some(field) = window.filter(|field| field.literal != Literal::Integer("-1".to_owned())) {
        let message = format!("`{}` is {}, expected -1", field.path, field.literal);
        return Err(field.error(message).with_hint("windows of this architecture are not read; use --mask"));
    }
    let heads = attention.field(&["kv_n_heads"])?;
    let Some(kind) = attention.field(&["attn_type"])? else { return Ok(heads) };
    match (kind.text()?.as_str(), &heads) {
        ("multihead_attention", None) | ("grouped_query_attention", Some(_)) => Ok(heads),
        ("multiquery_attention", None) => {
            Ok(Some(Field { literal: Literal::Integer("1".to_owned()), ..kind }))
        }
        ("grouped_query_attention", None) => {
            Err(kind.error(format!("`{}` is {}, but `kv_n_heads` is missing", kind.path, kind.literal)))
        }
        ("multihead_attention" | "multiquery_attention", Some(heads)) => {
            let message = format!("`{}` is {}, but `{}` is given", kind.path, kind.literal, heads.path);
            Err(kind.error(message))
        }
        _ => Err(kind.error(format!("`{}` is {}, which is not known", kind.path, kind.literal))),
    }
}
