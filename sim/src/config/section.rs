//! TOML tables with their places: unknown and missing keys, and the fields in between.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::error::ConfigError;
use super::field::{Field, Literal, Source};
use super::nearest::nearest;

/// The keys of a table, each with an example for the message when it is missing.
pub type Keys = &'static [(&'static str, &'static str)];

/// One item of a list: a scalar, or a table.
pub enum Entry<'a, 'd> {
    /// A scalar.
    Scalar(Field<'a>),
    /// A table.
    Table(Section<'a, 'd>),
}

/// One table of a document, all of its keys known.
pub struct Section<'a, 'd> {
    source: Source<'a>,
    path: String,
    span: Range<usize>,
    table: &'d DeTable<'a>,
    keys: Keys,
}

/// Parses the text of `source`.
pub fn parse_toml(source: Source<'_>) -> Result<Spanned<DeTable<'_>>, ConfigError> {
    if source.text.trim().is_empty() {
        return Err(ConfigError::whole(source.label, "the file is empty"));
    }
    DeTable::parse(source.text).map_err(|error| {
        // The parser's message may have a second line of detail.
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        source.error(error.span().unwrap_or(0..0), message)
    })
}

impl<'a, 'd> Section<'a, 'd> {
    /// The document itself.
    pub fn root(
        source: Source<'a>,
        document: &'d Spanned<DeTable<'a>>,
        keys: Keys,
    ) -> Result<Self, ConfigError> {
        Self::new(source, String::new(), 0..0, document.get_ref(), keys)
    }

    fn new(
        source: Source<'a>,
        path: String,
        span: Range<usize>,
        table: &'d DeTable<'a>,
        keys: Keys,
    ) -> Result<Self, ConfigError> {
        let section = Self { source, path, span, table, keys };
        let unknown = |key: &&Spanned<DeString<'_>>| !keys.iter().any(|(known, _)| known == key.get_ref());
        match table.keys().filter(unknown).min_by_key(|key| key.span().start) {
            Some(key) => Err(section.unknown_key(key.get_ref(), key.span())),
            None => Ok(section),
        }
    }

    fn unknown_key(&self, key: &str, span: Range<usize>) -> ConfigError {
        let names = || self.keys.iter().map(|(known, _)| *known);
        let hint = match nearest(key, names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known keys here: {}", names().collect::<Vec<_>>().join(", ")),
        };
        self.source.error(span, format!("unknown key `{}`", self.path_of(key))).with_hint(hint)
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// An error about the section as a whole.
    pub fn error(&self, message: impl Into<String>) -> ConfigError {
        self.source.error(self.span.clone(), message)
    }

    fn value(&self, key: &str) -> Option<&'d Spanned<DeValue<'a>>> {
        debug_assert!(self.keys.iter().any(|(known, _)| *known == key), "{key} is not listed");
        self.table.get(key)
    }

    fn missing(&self, key: &str) -> ConfigError {
        let example = self.keys.iter().find(|(known, _)| *known == key).map_or("", |(_, example)| example);
        let hint = if example.starts_with('[') {
            format!("add the section {example}")
        } else {
            format!("add a line like: {key} = {example}")
        };
        self.error(format!("missing `{}`", self.path_of(key))).with_hint(hint)
    }

    /// A value that may be absent.
    pub fn optional(&self, key: &str) -> Option<Field<'a>> {
        self.value(key).map(|value| self.field(self.path_of(key), value))
    }

    /// A value that must be there.
    pub fn required(&self, key: &str) -> Result<Field<'a>, ConfigError> {
        self.optional(key).ok_or_else(|| self.missing(key))
    }

    fn field(&self, path: String, value: &Spanned<DeValue<'a>>) -> Field<'a> {
        Field { source: self.source, path, span: value.span(), literal: literal(value.get_ref()) }
    }

    /// A table below this one that must be there.
    pub fn section(&self, key: &str, keys: Keys) -> Result<Section<'a, 'd>, ConfigError> {
        self.optional_section(key, keys)?.ok_or_else(|| self.missing(key))
    }

    /// A table below this one that may be absent.
    pub fn optional_section(&self, key: &str, keys: Keys) -> Result<Option<Section<'a, 'd>>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        self.subsection(self.path_of(key), value, keys).map(Some)
    }

    fn subsection(
        &self,
        path: String,
        value: &'d Spanned<DeValue<'a>>,
        keys: Keys,
    ) -> Result<Section<'a, 'd>, ConfigError> {
        match value.get_ref() {
            DeValue::Table(table) => Self::new(self.source, path, value.span(), table, keys),
            other => {
                let message = format!("`{path}` is {}, expected a table", literal(other));
                Err(self.source.error(value.span(), message))
            }
        }
    }

    /// A table below this one that must be there; its `kind` says which keys it has.
    pub fn tagged_section(
        &self,
        key: &str,
        kinds: &'static [(&'static str, Keys)],
    ) -> Result<(&'static str, Section<'a, 'd>), ConfigError> {
        let value = self.value(key).ok_or_else(|| self.missing(key))?;
        let path = self.path_of(key);
        let names = || kinds.iter().map(|(name, _)| *name);
        let hint = || format!("known kinds: {}", names().collect::<Vec<_>>().join(", "));
        let DeValue::Table(table) = value.get_ref() else {
            let message = format!("`{path}` is {}, expected a table", literal(value.get_ref()));
            return Err(self.source.error(value.span(), message).with_hint(hint()));
        };
        let Some(kind) = table.get("kind") else {
            let message = format!("missing `{path}.kind`");
            return Err(self.source.error(value.span(), message).with_hint(hint()));
        };
        let field = self.field(format!("{path}.kind"), kind);
        let text = field.text()?;
        match kinds.iter().find(|(name, _)| *name == text) {
            Some((name, keys)) => Ok((name, Self::new(self.source, path, value.span(), table, keys)?)),
            None => Err(field.error(format!("unknown kind \"{}\"", text.escape_debug())).with_hint(
                nearest(&text, names()).map_or_else(hint, |near| format!("did you mean \"{near}\"?")),
            )),
        }
    }

    /// The tables of a list that must be there and not empty.
    pub fn sections(&self, key: &str, keys: Keys) -> Result<Vec<Section<'a, 'd>>, ConfigError> {
        let items = self.items(key)?;
        items
            .into_iter()
            .enumerate()
            .map(|(i, value)| self.subsection(format!("{}[{i}]", self.path_of(key)), value, keys))
            .collect()
    }

    /// The scalars of a list that must be there and not empty.
    pub fn fields(&self, key: &str) -> Result<Vec<Field<'a>>, ConfigError> {
        let items = self.items(key)?;
        let path = |i| format!("{}[{i}]", self.path_of(key));
        Ok(items.into_iter().enumerate().map(|(i, value)| self.field(path(i), value)).collect())
    }

    /// The keys that are given, in the order of the text.
    pub fn given_keys(&self) -> Vec<&str> {
        let mut keys: Vec<_> = self.table.keys().collect();
        keys.sort_by_key(|key| key.span().start);
        keys.into_iter().map(|key| key.get_ref().as_ref()).collect()
    }

    /// The items of a list that is there and not empty, or the one value that stands in for it. Tables have `keys`.
    pub fn entries(&self, key: &str, keys: Keys) -> Result<Vec<Entry<'a, 'd>>, ConfigError> {
        let value = self.value(key).ok_or_else(|| self.missing(key))?;
        let path = self.path_of(key);
        let items: Vec<_> = match value.get_ref() {
            DeValue::Array(array) if array.is_empty() => {
                let message = format!("`{path}` is an empty list, expected at least one value");
                return Err(self.source.error(value.span(), message));
            }
            DeValue::Array(array) => {
                array.iter().enumerate().map(|(i, v)| (format!("{path}[{i}]"), v)).collect()
            }
            _ => vec![(path, value)],
        };
        let entry = |(path, item): (String, &'d Spanned<DeValue<'a>>)| match item.get_ref() {
            DeValue::Table(_) => self.subsection(path, item, keys).map(Entry::Table),
            _ => Ok(Entry::Scalar(self.field(path, item))),
        };
        items.into_iter().map(entry).collect()
    }

    fn items(&self, key: &str) -> Result<Vec<&'d Spanned<DeValue<'a>>>, ConfigError> {
        let value = self.value(key).ok_or_else(|| self.missing(key))?;
        match value.get_ref() {
            DeValue::Array(array) if !array.is_empty() => Ok(array.iter().collect()),
            other => {
                let found = if other.is_array() { "empty".to_owned() } else { literal(other).to_string() };
                let message = format!("`{}` is {found}, expected a list", self.path_of(key));
                Err(self.source.error(value.span(), message))
            }
        }
    }
}

fn literal(value: &DeValue<'_>) -> Literal {
    match value {
        DeValue::Integer(integer) if integer.radix() == 10 => Literal::Integer(integer.as_str().to_owned()),
        DeValue::Integer(integer) => Literal::Real(integer.to_string()),
        DeValue::Float(float) => Literal::Real(float.as_str().to_owned()),
        DeValue::String(text) => Literal::Text(text.clone().into_owned()),
        DeValue::Boolean(flag) => Literal::Flag(*flag),
        DeValue::Datetime(_) => Literal::Other("a date"),
        DeValue::Array(_) => Literal::Other("a list"),
        DeValue::Table(_) => Literal::Other("a table"),
    }
}
