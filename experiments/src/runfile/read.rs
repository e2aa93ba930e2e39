//! Run files as text.

use std::ops::Range;

use anyhow::Result;
use ringlab_sim::config::ConfigError;
use toml::de::{DeTable, DeValue};

use super::{Entry, Value, means_something, option, options, unknown};
use crate::setup::Files;

/// The entries of a run file in the order in which they are written, with their values' places.
pub fn entries(label: &str, text: &str) -> Result<Vec<(Entry, Range<usize>)>> {
    let table = DeTable::parse(text).map_err(|error| {
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        ConfigError::at(label, text, error.span().unwrap_or(0..0), message)
    })?;
    let known = options();
    let mut items: Vec<_> = table.get_ref().iter().collect();
    items.sort_by_key(|(key, _)| key.span().start);
    let mut entries = Vec::new();
    for (key, value) in items {
        let name = key.get_ref().as_ref();
        if option(&known, name).is_none() {
            let (message, hint) = unknown(&known, name);
            return Err(ConfigError::at(label, text, key.span(), message).with_hint(hint).into());
        }
        let span = value.span();
        let value = located(label, text, span.clone(), plain(value.get_ref()))?;
        let entry = Entry { key: name.to_owned(), value: keep_lines(text, span.start, value) };
        located(label, text, span.clone(), means_something(&entry, Files::Read))?;
        entries.push((entry, span));
    }
    Ok(entries)
}

/// The result, its error at the place that it is about.
pub fn located<T>(label: &str, text: &str, span: Range<usize>, result: Result<T>) -> Result<T> {
    result.map_err(|error| ConfigError::at(label, text, span, format!("{error:#}")).into())
}

fn plain(value: &DeValue<'_>) -> Result<Value> {
    Ok(match value {
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Array(items) => {
            Value::List(items.iter().map(|item| scalar(item.get_ref())).collect::<Result<_>>()?)
        }
        other => Value::Text(scalar(other)?),
    })
}

fn scalar(value: &DeValue<'_>) -> Result<String> {
    match value {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.to_string()),
        DeValue::Boolean(flag) => Ok(flag.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
            anyhow::bail!("expected text, a number, true or false, or a list of these")
        }
    }
}

/// Text of several lines is a file in the file: empty lines before it give its errors the outer file's line numbers.
fn keep_lines(text: &str, start: usize, value: Value) -> Value {
    match value {
        Value::Text(inner) if inner.contains('\n') => {
            let opened_before_a_line_end =
                text[start..].get(3..).is_some_and(|t| t.starts_with(['\n', '\r']));
            let lines = text[..start].matches('\n').count() + usize::from(opened_before_a_line_end);
            Value::Text("\n".repeat(lines) + &inner)
        }
        other => other,
    }
}
