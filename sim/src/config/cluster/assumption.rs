//! Every constant of a cluster beside its source, for `--explain`.

use serde::Serialize;
use serde_json::Value;

use super::Cluster;

/// One constant of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Assumption {
    /// Where it stands: `fabric.copy.bandwidth`, `kernels[0].rate`.
    pub path: String,
    /// Its value as it would be written.
    pub value: String,
    /// Where it comes from: the `source` of its section, or of the nearest section around it.
    pub source: String,
}

/// Keys that name things and are no constants.
const NAMES: &[&str] = &["name", "source", "kind"];

pub(super) fn list(cluster: &Cluster) -> Vec<Assumption> {
    let value = serde_json::to_value(cluster).expect("a cluster is a table of plain values");
    let mut found = Vec::new();
    walk(&value, "", "", &mut found);
    found
}

fn walk(value: &Value, path: &str, source: &str, found: &mut Vec<Assumption>) {
    match value {
        Value::Object(table) => {
            let source = table.get("source").and_then(Value::as_str).unwrap_or(source);
            for (key, below) in table.iter().filter(|(key, _)| !NAMES.contains(&key.as_str())) {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                walk(below, &path, source, found);
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                walk(item, &format!("{path}[{i}]"), source, found);
            }
        }
        plain => {
            let value = plain.as_str().map_or_else(|| plain.to_string(), str::to_owned);
            found.push(Assumption { path: path.to_owned(), value, source: source.to_owned() });
        }
    }
}
