//! Schemas against what they describe: shipped files, real results, and both with something wrong.

#[path = "../sweep/support.rs"]
#[allow(dead_code, reason = "each test target uses a part")]
mod support;

mod inputs;
mod pages;
mod results;

use jsonschema::Validator;
use ringlab_experiments::schema;
use serde_json::Value;

/// The schema of this name, itself held against the draft that it names.
fn validator(name: &str) -> Validator {
    let schema = schema::schema(name).unwrap();
    jsonschema::meta::validate(&schema).unwrap_or_else(|e| panic!("{name}: {e}"));
    jsonschema::validator_for(&schema).unwrap()
}

fn assert_valid(validator: &Validator, what: &str, value: &Value) {
    let errors: Vec<String> =
        validator.iter_errors(value).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(errors.is_empty(), "{what}: {errors:?}");
}

/// The values of all objects in `value`, by JSON pointer.
fn members(value: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    collect(value, "", &mut all);
    all
}

fn collect(value: &Value, at: &str, all: &mut Vec<(String, String)>) {
    match value {
        Value::Object(object) => {
            for (key, inner) in object {
                all.push((at.to_owned(), key.clone()));
                collect(inner, &format!("{at}/{key}"), all);
            }
        }
        Value::Array(items) => {
            for (i, inner) in items.iter().enumerate() {
                collect(inner, &format!("{at}/{i}"), all);
            }
        }
        _ => {}
    }
}

/// `value` without one member.
fn without(value: &Value, at: &str, key: &str) -> Value {
    let mut changed = value.clone();
    changed.pointer_mut(at).unwrap().as_object_mut().unwrap().remove(key);
    changed
}
