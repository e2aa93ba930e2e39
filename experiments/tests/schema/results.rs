use serde_json::{Value, json};

use crate::support::{Folder, stdout};
use crate::{assert_valid, members, validator, without};

/// Every command with a JSON result, and something small to ask it.
const RESULTS: &[(&str, &[&str])] = &[
    ("simulate", &["simulate", "--seq", "8Ki", "--pass", "forward+backward"]),
    ("simulate", &["simulate", "--seq", "8Ki", "--jitter", "3%", "--repeats", "3", "--cluster", "ideal"]),
    ("simulate", &["simulate", "--seq", "8Ki", "--transport", "nccl", "--nccl-priority", "high"]),
    ("check", &["check", "--seq", "4Ki", "--cp", "4"]),
    (
        "run",
        &[
            "run",
            "--seq",
            "64",
            "--heads",
            "2",
            "--kv-heads",
            "1",
            "--head-dim",
            "8",
            "--cp",
            "2",
            "--pass",
            "forward+backward",
        ],
    ),
    ("train", &["train", "--seq", "16Ki", "--over-time"]),
    ("train", &["train", "--seq", "512Ki", "--model", "llama-3-70b", "--forward-only"]),
    ("layout", &["layout"]),
    ("presets", &["presets"]),
    ("paper", &["paper", "megatron-sp"]),
    ("paper", &["paper", "ring-attention"]),
    ("paper-list", &["paper", "list"]),
    ("paper-audit", &["paper", "audit", "--seq", "16Ki"]),
    (
        "tune",
        &[
            "tune",
            "--cluster",
            "h100-1x4-rail",
            "--model",
            "llama-8h",
            "--seq",
            "16Ki",
            "--price-per-gpu-hour",
            "2",
            "--tokens",
            "1B",
        ],
    ),
];

#[test]
fn results_are_as_their_schemas_say() {
    for (name, args) in RESULTS {
        let result: Value =
            serde_json::from_str(&stdout(&[args, &["--format", "json"][..]].concat())).unwrap();
        let validator = validator(name);
        assert_valid(&validator, name, &result);
        // Every member is known to the schema, and none may be missing.
        for (at, key) in members(&result).into_iter().filter(|(at, _)| at.matches('/').count() <= 2) {
            let optional = ["fitted_on"].contains(&key.as_str());
            assert_eq!(
                validator.is_valid(&without(&result, &at, &key)),
                optional,
                "{name}: {at}/{key} left out"
            );
            let mut retyped = result.clone();
            retyped.pointer_mut(&at).unwrap()[&key] = json!({ "unknown": [] });
            assert!(!validator.is_valid(&retyped), "{name}: {at}/{key} is an object");
        }
    }
}

/// A cell as a value: a number or a flag where it is one.
fn cell(text: &str) -> Value {
    match text {
        "" => Value::Null,
        "true" | "false" => json!(text == "true"),
        _ => text.parse::<f64>().map_or_else(|_| json!(text), |number| json!(number)),
    }
}

#[test]
fn rows_of_sweeps_are_as_the_schema_says() {
    let folder = Folder::new(
        "cp = [2, 3]\nseq = [1000, 2048]\nschedule = \"all\"\njitter = [\"1%\", \"2%\"]\nrepeats = 2\n",
    );
    let text = stdout(&["sweep", &folder.at("sweep.toml")]);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header = reader.headers().unwrap().clone();
    let validator = validator("sweep-row");
    let mut rows = 0;
    for record in reader.records() {
        let record = record.unwrap();
        let row: serde_json::Map<String, Value> =
            header.iter().zip(&record).map(|(name, text)| (name.to_owned(), cell(text))).collect();
        assert_valid(&validator, "sweep", &Value::Object(row));
        rows += 1;
    }
    assert_eq!(rows, 2 * 2 * 2 * ringlab_sim::schedule::ALL.len());
}
