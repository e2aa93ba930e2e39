//! Striped Attention (arXiv 2311.09431): blocks of b tokens are dealt out in turn, so every rank has something to do at
//! every step. With b = 1, `s <= r` is causal with the diagonal, `c(c+1)/2` pairs, and `s > r` strictly lower,
//! `c(c-1)/2` pairs.

use super::{Options, Schedule, ring};
use crate::layout::Layout;
use crate::plan::Plan;
use crate::problem::Problem;

pub(super) fn build(schedule: Schedule, problem: &Problem, layout: Layout, options: &Options) -> Plan {
    let builder = options.builder(schedule.to_string(), problem, layout);
    ring::build_whole_shards(builder, options)
}
