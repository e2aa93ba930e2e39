//! Errors by what the points have in common: a mechanism that the model lacks shows as the bias of a class.

use serde::Serialize;

use super::Compared;

/// Points that have one thing in common.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Class {
    /// What: `schedule`, `pass`, `tokens` and so on.
    pub by: &'static str,
    /// Its value.
    pub value: String,
    /// How many they are.
    pub points: usize,
    /// Mean of `|error|`.
    pub mape: f64,
    /// Mean of `error`.
    pub bias: f64,
    /// Largest `|error|`.
    pub max_error: f64,
}

/// A property of a point.
type Property = fn(&Compared) -> String;

/// Properties in the order in which they are shown.
const PROPERTIES: [(&str, Property); 8] = [
    ("schedule", |p| p.point.schedule.to_string()),
    ("pass", |p| p.point.pass.to_string()),
    ("transport", |p| p.point.transport_name().into()),
    ("launching", |p| p.point.launching.name().into()),
    ("tokens", |p| p.point.seq_len.to_string()),
    ("head_dim", |p| p.point.shape.head_dim.to_string()),
    ("kv_heads", |p| p.point.shape.kv_heads.to_string()),
    ("cp", |p| p.point.cp.to_string()),
];

/// The classes of every property that differs between points, each in the order of its first point, numbers by size.
pub(super) fn classes(points: &[Compared]) -> Vec<Class> {
    let mut all = Vec::new();
    for (by, property) in PROPERTIES {
        let mut values: Vec<String> = Vec::new();
        for value in points.iter().map(property) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        // Names, which are no numbers, stay as they are.
        values.sort_by_key(|value| value.parse::<u64>().unwrap_or(0));
        if values.len() > 1 {
            all.extend(values.into_iter().map(|value| class(points, (by, property), value)));
        }
    }
    all
}

fn class(points: &[Compared], (by, property): (&'static str, Property), value: String) -> Class {
    let errors: Vec<f64> = points.iter().filter(|p| property(p) == value).map(|p| p.error).collect();
    let n = errors.len() as f64;
    Class {
        by,
        value,
        points: errors.len(),
        mape: errors.iter().map(|e| e.abs()).sum::<f64>() / n,
        bias: errors.iter().sum::<f64>() / n,
        max_error: errors.iter().fold(0.0, |worst, e| e.abs().max(worst)),
    }
}
