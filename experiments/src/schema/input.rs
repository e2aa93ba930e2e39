//! Schemas of what is read by its own tables: options of run files, fields of sweeps, columns of rows.

use serde_json::{Map, Value, json};

use super::closed;
use crate::runfile::{Entry, Value as Given, accepts, describe};
use crate::sweep::{FIELDS, HEADER};

/// Text that no number, unit or name is.
const NONSENSE: &str = "\u{1}";

/// Options of a run file: what the option's own parser takes decides the type.
pub fn run_file() -> Value {
    let mut properties = Map::new();
    for option in describe() {
        let given = |value| Entry { key: option.key.clone(), value };
        let text = |text: &str| accepts(&given(Given::Text(text.into())));
        let mut scalar = vec![match option.choices.is_empty() {
            true => json!({ "type": "string" }),
            false => json!({ "enum": option.choices }),
        }];
        if text("1") || text(NONSENSE) {
            scalar.push(json!({ "type": "number" }));
        }
        if accepts(&given(Given::Flag(true))) && !text(NONSENSE) {
            scalar.push(json!({ "type": "boolean" }));
        }
        let mut kinds = scalar.clone();
        if option.many {
            kinds.push(json!({ "type": "array", "items": { "anyOf": scalar } }));
        }
        properties.insert(option.key.clone(), json!({ "description": option.help, "anyOf": kinds }));
    }
    let about = "The options of simulate, check, run and layout by their names, with _ for -.";
    closed("Run file", about, &properties)
}

/// Fields of a sweep: a value, a list, or a range of numbers.
pub fn sweep_file() -> Value {
    let properties = FIELDS.iter().map(|(key, example)| {
        let is_text = example.starts_with(['"', '[']);
        let is_flag = *example == "false";
        // Lengths and rates are numbers with a unit.
        let has_range =
            !is_flag && (!is_text || example.trim_matches('"').starts_with(|c: char| c.is_ascii_digit()));
        let has_range = has_range && !["jitter", "slow_link", "failed_link"].contains(key);
        let scalar = match (is_flag, is_text) {
            (true, _) => json!({ "type": "boolean" }),
            (_, true) if *key == "seq" => json!({ "type": ["integer", "string"] }),
            (_, true) => json!({ "type": "string" }),
            _ => json!({ "type": "integer" }),
        };
        let one = if has_range { json!({ "anyOf": [scalar, range(&scalar)] }) } else { scalar };
        let many = json!({ "type": "array", "minItems": 1, "items": one });
        ((*key).to_owned(), json!({ "examples": [example.trim_matches('"')], "anyOf": [one, many] }))
    });
    let about = "Fields of a grid; each has one value, a list, or a range. The first field varies slowest.";
    closed("Sweep file", about, &properties.collect())
}

fn range(scalar: &Value) -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["from", "to"],
        "properties": { "from": scalar, "to": scalar, "times": { "type": "number", "exclusiveMinimum": 1 }, "step": scalar },
        "oneOf": [{ "required": ["times"] }, { "required": ["step"] }],
    })
}

/// Columns of text; all others are numbers or empty.
const TEXT: &[&str] = &[
    "cluster",
    "model",
    "dtype",
    "mask",
    "schedule",
    "pass",
    "transport",
    "nccl_priority",
    "route",
    "straggler",
    "jitter",
    "slow_link",
    "failed_link",
    "reason",
];
const FLAGS: &[&str] = &["needed_only", "pad", "fits"];

/// A row of a sweep, empty cells `null`.
pub fn sweep_row() -> Value {
    let columns: Vec<&str> = HEADER.split(',').collect();
    let properties = columns.iter().map(|column| {
        let kind = match *column {
            text if TEXT.contains(&text) => json!({ "type": ["string", "null"] }),
            flag if FLAGS.contains(&flag) => json!({ "type": ["boolean", "null"] }),
            "row" => json!({ "type": "integer", "minimum": 0 }),
            _ => json!({ "type": ["number", "null"] }),
        };
        ((*column).to_owned(), kind)
    });
    let mut schema = closed(
        "Row of a sweep",
        "Empty cells are null; what could not be planned has a reason.",
        &properties.collect(),
    );
    schema["required"] = json!(columns);
    schema
}
