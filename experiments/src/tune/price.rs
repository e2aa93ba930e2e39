//! What an iteration costs.

use ringlab_sim::units::SimTime;
use serde::Serialize;

/// Prices of a machine that is rented by the hour.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Price {
    /// A GPU for an hour, in whatever currency.
    pub per_gpu_hour: f64,
    /// A million tokens: `GPUs * hours of an iteration * price / tokens of an iteration * 10^6`.
    pub per_million_tokens: f64,
    /// Tokens of the whole run, where they are known.
    pub tokens: Option<u64>,
    /// Days of the whole run.
    pub days: Option<f64>,
    /// GPU hours of the whole run.
    pub gpu_hours: Option<f64>,
    /// The whole run.
    pub run: Option<f64>,
}

impl Price {
    /// At `per_gpu_hour`, where an iteration of `each` tokens takes `time` on `gpus` GPUs; a run has `tokens`.
    pub fn of(per_gpu_hour: f64, gpus: u64, each: u64, time: SimTime, tokens: Option<u64>) -> Self {
        let gpu_hours_per_token = gpus as f64 * time.as_secs_f64() / 3600.0 / each as f64;
        let gpu_hours = tokens.map(|tokens| gpu_hours_per_token * tokens as f64);
        Self {
            per_gpu_hour,
            per_million_tokens: gpu_hours_per_token * 1e6 * per_gpu_hour,
            tokens,
            days: gpu_hours.map(|hours| hours / gpus as f64 / 24.0),
            gpu_hours,
            run: gpu_hours.map(|hours| hours * per_gpu_hour),
        }
    }
}
