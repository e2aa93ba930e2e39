//! Rings whose partial results are merged by separate, unfused kernels.

use anyhow::Result;
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::plan::{OpKind, Plan};
use ringlab_sim::problem::{Pass, Problem};
use ringlab_sim::schedule::{self, Options, Schedule};
use ringlab_sim::units::Bytes;
use ringlab_sim::{engine, plan};

/// Bytes that one element moves when it is merged, or its gradient accumulated.
#[derive(Debug, Clone, Copy)]
pub struct Merging {
    /// Of o, forward.
    pub output: f64,
    /// Of dq, dk or dv, backward.
    pub gradient: f64,
}

/// Seconds of one pass on `ranks` ranks over NCCL: the plan, and every call after a rank's first followed by its merge.
pub fn seconds(
    cluster: &Cluster,
    schedule: Schedule,
    problem: &Problem,
    ranks: u32,
    pass: Pass,
    merging: Merging,
) -> Result<f64> {
    let options = Options { transport: plan::Transport::Nccl, pad: true, ..Options::new(pass) };
    let plan = schedule::build(schedule, problem, ranks, &options)?;
    let makespan = engine::simulate(&plan, cluster, &engine::SimOptions::default())?.makespan;
    let merged = merged_bytes(&plan, merging) / cluster.device.reached.hbm;
    Ok((makespan + merged).as_secs_f64())
}

/// On the rank that merges most.
fn merged_bytes(plan: &Plan, merging: Merging) -> Bytes {
    let tokens = |block| plan.block(block).tokens.len() as f64;
    let width = |heads: u32| f64::from(heads * plan.shape.head_dim * plan.shape.batch);
    let (q, kv) = (width(plan.shape.heads), width(plan.shape.kv_heads));
    let of_rank = |program: &plan::Program| {
        let calls = program.ops.iter().filter_map(|op| match op.kind {
            OpKind::Attend { q_block, .. } => Some(merging.output * tokens(q_block) * q),
            OpKind::AttendBackward { q_block, kv_block, .. } => {
                Some(merging.gradient * (tokens(q_block) * q + 2.0 * tokens(kv_block) * kv))
            }
            _ => None,
        });
        calls.skip(1).sum::<f64>()
    };
    Bytes(plan.programs.iter().map(of_rank).fold(0.0, f64::max) as u64)
}
