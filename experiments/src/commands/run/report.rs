//! The result of a run, as a whole.

use serde::Serialize;

use super::advice::Environment;
use super::judge::Bounds;
use super::row::{Full, RankRow, Row};
use crate::args::{Backend, RunArgs, TransportArg};
use crate::nccl::Nccl;
use crate::output::FORMAT_VERSION;

/// Everything that is shown.
pub struct Report<'a> {
    pub rows: &'a [Row],
    pub ranks: &'a [Vec<RankRow>],
    pub left_out: &'a [String],
    pub environment: &'a Environment,
    /// Why there is no prediction.
    pub unpredicted: Option<&'a str>,
    pub processes: u32,
    pub launcher: &'static str,
    pub driver: Option<&'a str>,
}

/// The result for programs.
#[derive(Serialize, schemars::JsonSchema)]
pub struct Json<'a> {
    version: u32,
    backend: &'static str,
    /// The largest error that is fine; of gradients on GPUs. `bounds` has all.
    max_error: f64,
    bounds: Bounds,
    seed: u64,
    processes: u32,
    launcher: &'static str,
    driver: Option<&'a str>,
    /// How NCCL was set up; `null` where messages do not go by it.
    nccl: Option<Nccl>,
    results: Vec<Full<'a>>,
    left_out: &'a [String],
    environment: &'a Environment,
}

/// JSON Schema of the result.
pub fn schema(generator: schemars::SchemaGenerator) -> schemars::Schema {
    generator.into_root_schema_for::<Json<'static>>()
}

impl Report<'_> {
    /// The form for programs.
    pub fn json(&self, args: &RunArgs) -> Json<'_> {
        let is_nccl = args.setup.transport == TransportArg::Nccl && args.backend == Backend::Cuda;
        Json {
            version: FORMAT_VERSION,
            backend: args.backend.name(),
            max_error: Bounds::of(args).gradients,
            bounds: Bounds::of(args),
            seed: args.seed,
            processes: self.processes,
            launcher: self.launcher,
            driver: self.driver,
            nccl: is_nccl.then(|| args.gpu.nccl.settings().into()),
            results: self.rows.iter().zip(self.ranks).map(|(row, ranks)| Full { row, ranks }).collect(),
            left_out: self.left_out,
            environment: self.environment,
        }
    }
}
