//! Set-ups as run files and command lines.

use clap::Arg;

use super::{Entry, Value, option, options};

/// The run file of `entries`.
pub fn to_toml(entries: &[Entry]) -> String {
    let mut text = String::from("# ringlab simulate --run THIS-FILE\n");
    for Entry { key, value } in entries {
        let value = match value {
            Value::Flag(flag) => flag.to_string(),
            Value::List(items) => toml::Value::from(items.clone()).to_string(),
            Value::Text(text) if text.contains('\n') => file_in_file(text),
            Value::Text(text) if is_plain_number(text) => text.clone(),
            Value::Text(text) => toml::Value::from(text.as_str()).to_string(),
        };
        text += &format!("{key} = {value}\n");
    }
    text
}

/// Decimal digits that TOML reads back as they are.
fn is_plain_number(text: &str) -> bool {
    let digits = !text.is_empty() && text.len() < 19 && text.bytes().all(|b| b.is_ascii_digit());
    digits && (text == "0" || !text.starts_with('0'))
}

/// Literal text keeps its lines; text that would end it is escaped.
fn file_in_file(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    let text = text.trim_matches('\n');
    let literal = |c: char| c == '\n' || c == '\t' || !c.is_control();
    if text.contains("'''") || text.ends_with('\'') || !text.chars().all(literal) {
        return toml::Value::from(format!("{text}\n")).to_string();
    }
    format!("'''\n{text}\n'''")
}

/// The command that does what `entries` say, without what is the default anyway.
pub fn command_line(command: &str, entries: &[Entry]) -> String {
    let options = options();
    let mut line = format!("ringlab {command}");
    for entry in entries {
        let Some(option) = option(&options, &entry.key) else { continue };
        if let Some(argument) = argument(option, &entry.value) {
            line += &format!(" {argument}");
        }
    }
    line
}

fn argument(option: &Arg, value: &Value) -> Option<String> {
    let long = option.get_long()?;
    let text = match value {
        Value::Flag(false) => return None,
        Value::Flag(true) => return Some(format!("--{long}")),
        Value::Text(text) => text.clone(),
        Value::List(items) => items.join(","),
    };
    let defaults = option.get_default_values();
    let is_default = defaults.len() == 1 && defaults[0] == text.as_str();
    (!is_default).then(|| format!("--{long} {}", quoted(&text)))
}

/// `word` as a POSIX shell reads it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,+=@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}
