//! JSON objects with the place of every field, which serde_json does not keep.

use std::ops::Range;

use serde::de::IgnoredAny;

use super::error::ConfigError;
use super::field::{Field, Literal, Source};
use super::words::in_words;

/// One object of a valid document.
pub(super) struct Object<'a> {
    pub source: Source<'a>,
    path: String,
    span: Range<usize>,
    members: Vec<Member>,
}

struct Member {
    key: String,
    key_span: Range<usize>,
    value: Range<usize>,
}

impl<'a> Object<'a> {
    /// The document of `source`, which must be one object.
    pub fn parse(source: Source<'a>) -> Result<Self, ConfigError> {
        if source.text.trim().is_empty() {
            return Err(ConfigError::whole(source.label, "the file is empty"));
        }
        serde_json::from_str::<serde_json::Value>(source.text).map_err(|error| json_error(source, &error))?;
        let start = skip_blank(source.text.as_bytes(), 0);
        let span = start..value_end(source.text.as_bytes(), start);
        if !source.text[start..].starts_with('{') {
            let found =
                literal(&source.text[span.clone()]).map_or("null".to_owned(), |found| found.to_string());
            return Err(source.error(span, format!("the file holds {found}, expected an object in braces")));
        }
        Self::at(source, String::new(), span)
    }

    fn at(source: Source<'a>, path: String, span: Range<usize>) -> Result<Self, ConfigError> {
        let members = members(source.text, span.start);
        for (i, member) in members.iter().enumerate() {
            if members[..i].iter().any(|earlier| earlier.key == member.key) {
                let message = format!("`{}` is given twice", member.key);
                return Err(source.error(member.key_span.clone(), message));
            }
        }
        Ok(Self { source, path, span: span.start..span.start + 1, members })
    }

    /// An error about the object as a whole, at its opening brace.
    pub fn error(&self, message: impl Into<String>) -> ConfigError {
        self.source.error(self.span.clone(), message)
    }

    /// The first of `names` that is there and not null; two that disagree are an error.
    pub fn field(&self, names: &[&str]) -> Result<Option<Field<'a>>, ConfigError> {
        let mut found: Option<Field<'a>> = None;
        for field in names.iter().filter_map(|name| self.single(name)) {
            match &found {
                None => found = Some(field),
                Some(first) if first.literal == field.literal => {}
                Some(first) => {
                    let (first, second) = ((&first.path, &first.literal), (&field.path, &field.literal));
                    let message = format!("`{}` is {}, but `{}` is {}", second.0, second.1, first.0, first.1);
                    return Err(field.error(message));
                }
            }
        }
        Ok(found)
    }

    fn single(&self, name: &str) -> Option<Field<'a>> {
        let member = self.members.iter().find(|member| member.key == name)?;
        self.value(self.path_of(name), member.value.clone())
    }

    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The value at `span`; `None` for null.
    fn value(&self, path: String, span: Range<usize>) -> Option<Field<'a>> {
        let literal = literal(&self.source.text[span.clone()])?;
        Some(Field { source: self.source, path, span, literal })
    }

    /// A value that stands in for one the file leaves out, at the object's opening brace.
    pub fn assumed(&self, name: &str, literal: Literal) -> Field<'a> {
        Field { source: self.source, path: self.path_of(name), span: self.span.clone(), literal }
    }

    /// The keys in the order of the text.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.key.as_str())
    }

    /// The first list among `names`: itself and its items, nulls left out.
    pub fn list(&self, names: &[&str]) -> Option<(Field<'a>, Vec<Field<'a>>)> {
        let list = names
            .iter()
            .filter_map(|name| self.single(name))
            .find(|field| self.source.text[field.span.clone()].starts_with('['))?;
        let spans = items(self.source.text, list.span.start).into_iter().enumerate();
        let items = spans.filter_map(|(i, span)| self.value(format!("{}[{i}]", list.path), span)).collect();
        Some((list, items))
    }

    /// The object called `name`, `None` when there is no object of that name.
    pub fn object(&self, name: &str) -> Result<Option<Self>, ConfigError> {
        let is_object =
            |member: &&Member| member.key == name && self.source.text[member.value.clone()].starts_with('{');
        let Some(member) = self.members.iter().find(is_object) else { return Ok(None) };
        Self::at(self.source, self.path_of(name), member.value.clone()).map(Some)
    }
}

/// What serde_json found wrong with the text of `source`, at its place.
pub fn json_error(source: Source<'_>, error: &serde_json::Error) -> ConfigError {
    let text = error.to_string();
    let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
    let line_start: usize =
        source.text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let start = (line_start + error.column().saturating_sub(1)).min(source.text.len());
    if error.is_data() {
        return source.error(start..start + 1, in_words(message));
    }
    // So it says of a number where one of several names is expected, too.
    if message == "expected value" && serde_json::from_str::<IgnoredAny>(source.text).is_ok() {
        return source.error(start..start + 1, "expected a name in quotes");
    }
    let found = source.error(start..start + 1, format!("not valid JSON: {message}"));
    match source.text.get(start..).and_then(|rest| rest.chars().next()) {
        Some('/' | '#') => found.with_hint("JSON has no comments; take them out"),
        Some('N' | 'I') => found.with_hint("JSON has no NaN and no Infinity; write null"),
        _ => found,
    }
}

/// The value written as `raw`; `None` for null.
fn literal(raw: &str) -> Option<Literal> {
    let literal = match raw.as_bytes().first()? {
        b'n' => return None,
        b't' => Literal::Flag(true),
        b'f' => Literal::Flag(false),
        b'"' => Literal::Text(unquote(raw)),
        b'{' => Literal::Other("an object"),
        b'[' => Literal::Other("a list"),
        _ if raw.bytes().all(|b| b.is_ascii_digit() || b == b'-') => Literal::Integer(raw.to_owned()),
        _ => Literal::Real(raw.to_owned()),
    };
    Some(literal)
}

/// A string of a valid document without its quotes and escapes.
fn unquote(raw: &str) -> String {
    serde_json::from_str(raw).unwrap_or_else(|_| raw.to_owned())
}

/// The members of the object that opens at `open`, in a valid document.
fn members(text: &str, open: usize) -> Vec<Member> {
    let bytes = text.as_bytes();
    let mut members = Vec::new();
    let mut at = skip_blank(bytes, open + 1);
    while bytes.get(at) == Some(&b'"') {
        let key_span = at..value_end(bytes, at);
        let colon = skip_blank(bytes, key_span.end);
        let start = skip_blank(bytes, colon + 1);
        let value = start..value_end(bytes, start);
        let comma = skip_blank(bytes, value.end);
        members.push(Member { key: unquote(&text[key_span.clone()]), key_span, value });
        at = skip_blank(bytes, comma + 1);
    }
    members
}

/// The items of the list that opens at `open`, in a valid document.
fn items(text: &str, open: usize) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut items = Vec::new();
    let mut at = skip_blank(bytes, open + 1);
    while bytes.get(at).is_some_and(|&byte| byte != b']') {
        let item = at..value_end(bytes, at);
        at = skip_blank(bytes, item.end);
        items.push(item);
        if bytes.get(at) == Some(&b',') {
            at = skip_blank(bytes, at + 1);
        }
    }
    items
}

fn skip_blank(bytes: &[u8], from: usize) -> usize {
    find(bytes, from, |byte| !byte.is_ascii_whitespace())
}

/// The first byte from `from` on that `is_it`, or the end.
fn find(bytes: &[u8], from: usize, is_it: impl Fn(&u8) -> bool) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    rest.iter().position(is_it).map_or(bytes.len(), |distance| from + distance)
}

/// Where the value that starts at `from` ends, in a valid document.
fn value_end(bytes: &[u8], from: usize) -> usize {
    match bytes.get(from) {
        Some(b'"') => string_end(bytes, from),
        Some(b'{' | b'[') => bracket_end(bytes, from),
        _ => find(bytes, from, |byte| b",]}".contains(byte) || byte.is_ascii_whitespace()),
    }
}

/// Where the object or list that opens at `from` ends, past its closing bracket.
fn bracket_end(bytes: &[u8], from: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = from;
    while let Some(&byte) = bytes.get(at) {
        at = if byte == b'"' { string_end(bytes, at) } else { at + 1 };
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return at,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
    }
    at
}

/// Where the string that opens at `from` ends, past its closing quote.
fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    at
}
