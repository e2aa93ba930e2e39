//! A scalar of a configuration with its place, and its conversions; the same for TOML and JSON.

use std::fmt::{self, Display, Formatter};
use std::ops::{Range, RangeInclusive};

use super::error::ConfigError;
use super::nearest::nearest;
use crate::units::{Amount, UnitError};

/// A configuration text under the label that its messages show.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// File or preset name.
    pub label: &'a str,
    /// The whole text.
    pub text: &'a str,
}

impl<'a> Source<'a> {
    /// `text`, which may open with a byte order mark, under `label`.
    pub fn new(label: &'a str, text: &'a str) -> Self {
        Self { label, text: text.trim_start_matches('\u{feff}') }
    }

    /// Whether this is JSON rather than TOML: how it opens decides, then the label's ending. A `[` opens a table in
    /// TOML when a name or another `[` follows, a list in JSON otherwise.
    pub fn is_json(self) -> bool {
        let ends_in = |ending: &str| self.label.to_ascii_lowercase().ends_with(ending);
        let text = self.text.trim();
        let opens_list = text.strip_prefix('[').is_some_and(|rest| {
            !rest.trim_start().starts_with(|c: char| c.is_alphabetic() || c == '[' || c == '"')
        });
        text.starts_with(['{', '/'])
            || ends_in(".json")
            || (!ends_in(".toml") && (opens_list || text == "null"))
    }

    /// An error at the bytes `span` of the text.
    pub fn error(self, span: Range<usize>, message: impl Into<String>) -> ConfigError {
        ConfigError::at(self.label, self.text, span, message)
    }
}

/// A value as written, not yet given a meaning.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// Decimal digits, perhaps with a sign.
    Integer(String),
    /// Any other number.
    Real(String),
    /// Text in quotes.
    Text(String),
    /// true or false.
    Flag(bool),
    /// A list, a table, a date.
    Other(&'static str),
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(digits) | Self::Real(digits) => f.write_str(digits),
            Self::Text(text) => write!(f, "the text \"{}\"", text.escape_debug()),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Other(kind) => f.write_str(kind),
        }
    }
}

/// One value, the path of its key, and where it stands.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    /// Where it was read.
    pub source: Source<'a>,
    /// Its key with those of the tables around it.
    pub path: String,
    /// Its place in the text, in bytes.
    pub span: Range<usize>,
    /// What is written there.
    pub literal: Literal,
}

impl Field<'_> {
    /// An error at this value.
    pub fn error(&self, message: impl Into<String>) -> ConfigError {
        self.source.error(self.span.clone(), message)
    }

    fn mismatch(&self, expected: &str) -> ConfigError {
        self.error(format!("`{}` is {}, expected {expected}", self.path, self.literal))
    }

    /// Text that is not blank.
    pub fn text(&self) -> Result<String, ConfigError> {
        match &self.literal {
            Literal::Text(text) if !text.trim().is_empty() => Ok(text.clone()),
            Literal::Text(_) => Err(self.mismatch("text that is not blank")),
            _ => Err(self.mismatch("text in quotes")),
        }
    }

    /// true or false.
    pub fn flag(&self) -> Result<bool, ConfigError> {
        match self.literal {
            Literal::Flag(flag) => Ok(flag),
            _ => Err(self.mismatch("true or false")),
        }
    }

    /// A whole number within `range`.
    pub fn count(&self, range: RangeInclusive<u64>) -> Result<u64, ConfigError> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        match &self.literal {
            Literal::Integer(digits) => match digits.parse::<u64>() {
                Ok(count) if range.contains(&count) => Ok(count),
                _ => Err(self.mismatch(&expected)),
            },
            Literal::Text(text) if text.parse::<u64>().is_ok() => {
                Err(self.mismatch(&expected).with_hint(format!("write {text} without quotes")))
            }
            _ => Err(self.mismatch(&expected)),
        }
    }

    /// As [`Field::count`], for ranges within 32 bits.
    pub fn small_count(&self, range: RangeInclusive<u32>) -> Result<u32, ConfigError> {
        let wide = u64::from(*range.start())..=u64::from(*range.end());
        self.count(wide).map(|count| count as u32)
    }

    /// A plain number within `range`.
    pub fn real(&self, range: RangeInclusive<f64>) -> Result<f64, ConfigError> {
        let expected = || format!("a number from {} to {}", range.start(), range.end());
        match &self.literal {
            Literal::Integer(digits) | Literal::Real(digits) => match digits.parse::<f64>() {
                Ok(number) if range.contains(&number) => Ok(number),
                _ => Err(self.mismatch(&expected())),
            },
            _ => Err(self.mismatch(&expected())),
        }
    }

    /// Text with a unit; a plain number is read as text, so that its error asks for the unit.
    pub fn amount<T: Amount>(&self) -> Result<T, ConfigError> {
        let (Literal::Text(text) | Literal::Integer(text) | Literal::Real(text)) = &self.literal else {
            return Err(self.mismatch(T::QUANTITY.form()));
        };
        text.parse().map_err(|error: UnitError| {
            self.error(format!("`{}`: {}", self.path, error.message())).with_hint(error.hint())
        })
    }

    /// One of the fixed names of a type.
    pub fn keyword<T: Keyword>(&self) -> Result<T, ConfigError> {
        let Literal::Text(text) = &self.literal else {
            return Err(self.mismatch(&T::listed()));
        };
        T::from_name(text).ok_or_else(|| {
            let error = self.mismatch(&T::listed());
            match nearest(text, T::NAMES.iter().map(|(name, _)| *name)) {
                Some(name) => error.with_hint(format!("did you mean \"{name}\"?")),
                None => error,
            }
        })
    }
}

/// A type whose values have fixed names in configurations and on the command line.
pub trait Keyword: Copy + PartialEq + 'static {
    /// Every value with its name.
    const NAMES: &'static [(&'static str, Self)];

    /// The value called `name`.
    fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The name of `self`.
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }

    /// All names for a message: `one of "a", "b"`.
    fn listed() -> String {
        let quoted: Vec<_> = Self::NAMES.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        format!("one of {}", quoted.join(", "))
    }
}

/// Writes and reads keywords as their names.
macro_rules! text_is_name {
    ($($name:ident),*) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                use serde::de::{Error, Unexpected};
                let text = String::deserialize(deserializer)?;
                let unknown = || D::Error::invalid_value(Unexpected::Str(&text), &Self::listed().as_str());
                Self::from_name(&text).ok_or_else(unknown)
            }
        }
    )*};
}
pub(super) use text_is_name;
