//! One line of the CSV for every point.

use ringlab_runtime::machine::Launching;
use ringlab_runtime::validate::Compared;
use ringlab_sim::plan::Transport;
use serde::Serialize;

/// A point.
#[derive(Serialize)]
pub struct Row {
    schedule: String,
    pass: String,
    cp: u32,
    seq_len: u64,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    dtype: String,
    transport: Transport,
    launching: Launching,
    chunks: u32,
    predicted_s: f64,
    predicted_low_s: Option<f64>,
    predicted_high_s: Option<f64>,
    measured_s: f64,
    spread_s: f64,
    error: f64,
    inside: Option<bool>,
    predicted_bubble_ratio: f64,
    measured_bubble_ratio: f64,
    predicted_exposed_s: f64,
    measured_exposed_s: f64,
    median_step_error: Option<f64>,
    worst_step_error: Option<f64>,
    loaded_s: f64,
    duty: f64,
}

impl From<&Compared> for Row {
    fn from(p: &Compared) -> Self {
        let (point, shape) = (&p.point, &p.point.shape);
        Self {
            schedule: point.schedule.to_string(),
            pass: point.pass.to_string(),
            cp: point.cp,
            seq_len: point.seq_len,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            dtype: shape.dtype.to_string(),
            transport: point.transport,
            launching: point.launching,
            chunks: point.chunks,
            predicted_s: p.predicted_s,
            predicted_low_s: p.predicted_low_s,
            predicted_high_s: p.predicted_high_s,
            measured_s: p.measured_s,
            spread_s: p.spread_s,
            error: p.error,
            inside: p.inside,
            predicted_bubble_ratio: p.predicted_bubble_ratio,
            measured_bubble_ratio: p.measured_bubble_ratio,
            predicted_exposed_s: p.predicted_exposed_s,
            measured_exposed_s: p.measured_exposed_s,
            median_step_error: p.median_step_error,
            worst_step_error: p.worst_step_error,
            loaded_s: p.loaded_s,
            duty: p.duty,
        }
    }
}
