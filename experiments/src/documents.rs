//! The `--mask` argument: a pattern and, maybe, packed documents.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ringlab_sim::mask::Pattern;
use ringlab_sim::units::Tokens;

use crate::setup::Files;

/// What `--mask` says.
#[derive(Debug, PartialEq, Eq)]
pub struct MaskArg {
    /// The mask inside a document.
    pub pattern: Pattern,
    /// Lengths of the documents, if it names any.
    pub documents: Option<Vec<u64>>,
}

impl MaskArg {
    /// Parses `full`, `causal`, `window:W`, `docs:...` (causal), or a pattern and documents joined by `+`.
    pub fn parse(text: &str, files: Files) -> Result<Self> {
        let (mut pattern, mut documents) = (None, None);
        for part in text.split('+') {
            let again = if let Some(list) = part.strip_prefix("docs:") {
                let lens = read(list, files).with_context(|| format!("--mask {part}"))?;
                documents.replace(lens).is_some()
            } else {
                let parsed = part.parse().with_context(|| {
                    format!("--mask {text}: neither a pattern nor docs:LEN,LEN,... or docs:FILE")
                })?;
                pattern.replace(parsed).is_some()
            };
            if again {
                bail!("--mask {text}: one pattern and one docs: at most, as in window:4096+docs:FILE");
            }
        }
        Ok(Self { pattern: pattern.unwrap_or(Pattern::Causal), documents })
    }
}

/// The file that the documents of the mask `text` are read from, if it names one.
pub fn file(text: &str) -> Option<PathBuf> {
    let lists = text.split('+').filter_map(|part| part.strip_prefix("docs:"));
    lists.map(PathBuf::from).find(|path| path.is_file())
}

/// The list itself, or the file that holds it.
fn read(list: &str, files: Files) -> Result<Vec<u64>> {
    let is_list = !list.is_empty() && list.chars().all(|c| c.is_ascii_alphanumeric() || ", []".contains(c));
    let path = Path::new(list);
    let starts_like_one = list.starts_with(|c: char| c.is_ascii_digit()) || list.starts_with('[');
    if is_list && starts_like_one && (files == Files::Refused || !path.exists()) {
        return lengths(list, "");
    }
    if files == Files::Refused {
        bail!("documents are given by their lengths here: docs:LEN,LEN,...");
    }
    if list.is_empty() {
        bail!("no documents given; write docs:LEN,LEN,... or docs:FILE");
    }
    let text = crate::presets::read_text(path)?;
    lengths(&text, &format!("{}: ", path.display()))
}

/// Lengths from numbers apart by commas or white space; if the first is 0 they are cu_seqlens.
fn lengths(text: &str, place: &str) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    let dense: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    if dense.contains(",,") || dense.starts_with(',') {
        bail!("{place}there is nothing between two commas; leave one out");
    }
    for (i, line) in text.lines().enumerate() {
        for word in line.split([',', ' ', '\t', '[', ']']).filter(|w| !w.is_empty()) {
            let at = if place.is_empty() { String::new() } else { format!("{place}line {}: ", i + 1) };
            let number = if word == "0" { Ok(Tokens(0)) } else { word.parse() };
            numbers.push(number.with_context(|| format!("{at}{word:?} is not a number of tokens"))?.0);
        }
    }
    if numbers.first() != Some(&0) {
        if let Some(i) = numbers.iter().position(|&n| n == 0) {
            bail!("{place}document {i} has no tokens; leave it out, or start with 0 to give cu_seqlens");
        }
        if numbers.is_empty() {
            bail!("{place}no documents given; write lengths, or cu_seqlens from 0 on");
        }
        return Ok(numbers);
    }
    if numbers.len() < 2 {
        bail!("{place}cu_seqlens needs at least one end after the 0");
    }
    let steps = numbers.windows(2).enumerate().map(|(i, w)| match w[1].checked_sub(w[0]) {
        Some(len) if len > 0 => Ok(len),
        _ => bail!("{place}cu_seqlens must increase, but {} follows {} (document {i})", w[1], w[0]),
    });
    steps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_cu_seqlens_say_the_same() {
        for text in ["9,8,8", "0,9,17,25", "[0, 9, 17, 25]"] {
            assert_eq!(lengths(text, "").unwrap(), [9, 8, 8], "{text}");
        }
        let arg = MaskArg::parse("window:4+docs:4,4", Files::Refused).unwrap();
        assert_eq!(arg, MaskArg { pattern: Pattern::Window(4), documents: Some(vec![4, 4]) });
    }

    #[test]
    fn a_mask_that_is_none_names_all_kinds() {
        for (text, expected) in
            [("foo", "docs:LEN"), ("window:99999999999", "4294967295"), ("window:0", "from 1")]
        {
            let error = format!("{:#}", MaskArg::parse(text, Files::Refused).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn wrong_lists_say_what_is_wrong() {
        let cases = [
            ("0,9,9", "must increase, but 9 follows 9"),
            ("4,0,4", "document 1 has no tokens"),
            ("0", "at least one end"),
            ("", "no documents given"),
            ("4,x", "\"x\" is not a number"),
        ];
        for (text, expected) in cases {
            let error = format!("{:#}", lengths(text, "").unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
