//! One error for every configuration text, shown in the way of a compiler.

use std::fmt::{self, Display, Formatter};
use std::ops::Range;

/// Characters of a source line that are shown; longer lines are cut around the place.
const SHOWN: usize = 100;

/// What is wrong with a configuration, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    label: String,
    message: String,
    hint: Option<String>,
    place: Option<Box<Place>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    line: usize,
    column: usize,
    /// The shown part of the line, and where in it the caret goes.
    shown: String,
    caret: Range<usize>,
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// An error that belongs to the whole of `label`: a file that cannot be read, a name that is not known.
    pub fn whole(label: impl Into<String>, message: impl Into<String>) -> Self {
        Self { label: label.into(), message: message.into(), hint: None, place: None }
    }

    /// An error at the bytes `span` of `text`.
    pub fn at(label: &str, text: &str, span: Range<usize>, message: impl Into<String>) -> Self {
        Self { place: Some(Box::new(Place::new(text, span))), ..Self::whole(label, message) }
    }

    /// The same error with what to do about it.
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The file or preset.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// What is wrong, in one line.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Line and column, from 1, where the error has a place.
    pub fn position(&self) -> Option<(usize, usize)> {
        self.place.as_ref().map(|place| (place.line, place.column))
    }
}

impl Place {
    fn new(text: &str, span: Range<usize>) -> Self {
        let start = floor_char_boundary(text, span.start);
        let end = floor_char_boundary(text, span.end).max(start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
        let line: Vec<char> = text[line_start..line_end].chars().map(printable).collect();
        let before = text[line_start..start].chars().count();
        let width = text[start..end.min(line_end).max(start)].chars().count().max(1);

        let first = if line.len() <= SHOWN { 0 } else { before.saturating_sub(SHOWN / 2) };
        let last = line.len().min(first + SHOWN);
        let caret = before - first..(before - first + width).min(last - first).max(before - first + 1);
        Self {
            line: text[..start].matches('\n').count() + 1,
            column: before + 1,
            shown: line[first..last].iter().collect::<String>().trim_end().to_owned(),
            caret,
        }
    }
}

/// The largest character boundary of `text` up to `index`.
fn floor_char_boundary(text: &str, index: usize) -> usize {
    let index = index.min(text.len());
    (0..=index).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0)
}

/// One column for every character, and nothing that steers a terminal.
fn printable(character: char) -> char {
    match character {
        '\t' | '\r' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

impl Display for ConfigError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(place) = &self.place else {
            write!(f, "{}: {}", self.label, self.message)?;
            return self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "\n  = help: {hint}"));
        };
        let number = place.line.to_string();
        let gutter = " ".repeat(number.len());
        let indent = " ".repeat(place.caret.start);
        let marks = "^".repeat(place.caret.len());
        writeln!(f, "{}", self.message)?;
        writeln!(f, "{gutter}--> {}:{}:{}", self.label, place.line, place.column)?;
        writeln!(f, "{gutter} |")?;
        writeln!(f, "{number} | {}", place.shown)?;
        write!(f, "{gutter} | {indent}{marks}")?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "\n{gutter} = help: {hint}"))
    }
}
