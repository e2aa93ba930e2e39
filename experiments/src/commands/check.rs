//! `ringlab check`: the proof.

use std::time::Instant;

use anyhow::Result;
use ringlab_sim::check;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::units::Bytes;
use serde::Serialize;

use super::Outcome;
use crate::args::CheckArgs;
use crate::grid::grid;
use crate::output::{self, FORMAT_VERSION};
use crate::setup::Setup;

const DEFAULT_SEQ: u64 = 128 << 10;

#[derive(Serialize, schemars::JsonSchema)]
struct Row {
    schedule: String,
    pass: String,
    cp: u32,
    seq_len: u64,
    proven: bool,
    operations: usize,
    messages: usize,
    /// Unmasked pairs of one head, each computed exactly once.
    pairs: u128,
    peak_memory_bytes: u64,
    bytes_moved: u64,
    check_s: f64,
    violations: String,
}

#[derive(Serialize, schemars::JsonSchema)]
struct Report<'a> {
    version: u32,
    results: &'a [Row],
    left_out: &'a [String],
}

/// JSON Schema of the result.
pub fn schema(generator: schemars::SchemaGenerator) -> schemars::Schema {
    generator.into_root_schema_for::<Report<'static>>()
}

/// Proves every plan that was asked for.
pub fn run(args: &CheckArgs) -> Result<Outcome> {
    let setup = Setup::new(&args.setup, DEFAULT_SEQ)?;
    let prove_passes = |schedule| setup.passes.iter().map(|&pass| prove(&setup, schedule, pass)).collect();
    let (rows, left_out): (Vec<Vec<Row>>, _) =
        setup.each_schedule(Setup::tolerates(&args.setup), prove_passes)?;
    let rows = rows.into_iter().flatten().collect::<Vec<_>>();
    let report = Report { version: FORMAT_VERSION, results: &rows, left_out: &left_out };
    output::emit(&args.out, || table(&rows, &left_out), &report, &rows)?;
    Ok(if rows.iter().all(|r| r.proven) { Outcome::Fine } else { Outcome::Failed })
}

fn prove(setup: &Setup, schedule: Schedule, pass: Pass) -> Result<Row> {
    let plan = setup.plan(schedule, pass)?;
    let start = Instant::now();
    let proof = check::prove(&plan);
    let check_s = start.elapsed().as_secs_f64();
    let violations = proof.err().unwrap_or_default();
    let memory = plan.programs.iter().map(ringlab_sim::plan::Program::peak_memory).max();
    Ok(Row {
        schedule: schedule.to_string(),
        pass: pass.to_string(),
        cp: setup.cp,
        seq_len: setup.problem.tokens(),
        proven: violations.is_empty(),
        operations: plan.op_count(),
        messages: plan.messages.len(),
        pairs: plan.unmasked_pairs(),
        peak_memory_bytes: memory.unwrap_or(Bytes(0)).0,
        bytes_moved: plan.bytes_moved().0,
        check_s,
        violations: violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    })
}

fn table(rows: &[Row], left_out: &[String]) -> String {
    let header = ["schedule", "pass", "verdict", "pairs, each once", "operations", "sent", "memory", "took"];
    let cells = rows.iter().map(|r| {
        [
            r.schedule.clone(),
            r.pass.clone(),
            if r.proven { "proven".into() } else { "REFUSED".into() },
            if r.proven { r.pairs.to_string() } else { "-".into() },
            r.operations.to_string(),
            Bytes(r.bytes_moved).to_string(),
            Bytes(r.peak_memory_bytes).to_string(),
            format!("{:.0} ms", r.check_s * 1e3),
        ]
    });
    let mut text = grid(header, 3, cells);
    for r in rows.iter().filter(|r| !r.proven) {
        text += &format!("\n{} {}:\n  {}\n", r.schedule, r.pass, r.violations.replace('\n', "\n  "));
    }
    for line in left_out {
        text += &format!("  left out: {line}\n");
    }
    text + "  proven: every unmasked pair once and no masked one, messages matched, no circular wait, no buffer \
            overwritten in use\n"
}
