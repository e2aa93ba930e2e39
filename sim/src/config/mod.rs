//! Clusters and models as data, read from TOML or a HuggingFace `config.json`.
//!
//! Nothing here opens a file: callers hand in text with a label for its messages. Every error names its
//! place, in the way of a compiler.

pub mod cluster;
mod error;
mod field;
mod json;
pub mod model;
mod nearest;
mod section;
mod words;

pub use error::ConfigError;
pub use field::{Field, Keyword, Literal, Source};
pub use json::json_error;
pub use nearest::nearest;
pub use section::{Entry, Keys, Section, parse_toml};
pub use words::in_words;
