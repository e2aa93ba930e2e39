//! Which plans are check runs on a machine.

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::problem::{Pass, Shape};

use crate::calibrate::probes::{self, several};
use crate::machine::Machine;

/// Tokens of a rank over those of the longest single call: sizes that no fit has.
const LENGTHS: [(u64, u64); 2] = [(3, 8), (3, 4)];
/// Tokens that give every part of a plan some.
const LEAST: u64 = 16;

/// The check plans of `machine` with their names, each at two lengths: all of them for its first head dimension, some for the
/// others.
pub(crate) fn plans(machine: &dyn Machine) -> Vec<(String, Plan)> {
    let sizes = machine.sizes();
    let Some(&longest) = sizes.calls.iter().max() else { return Vec::new() };
    let kernels = machine.kernels();
    let mut all = Vec::new();
    for (i, kernel) in kernels.iter().enumerate() {
        // A kernel of some calls only shares its plans with the one of all others.
        if kernels[..i].iter().any(|earlier| earlier.is_sibling(kernel)) {
            continue;
        }
        let first = &kernels[0];
        let is_first = (kernel.head_dim, kernel.dtype) == (first.head_dim, first.dtype);
        let shape = kernel.shape(sizes.heads);
        for (part, of) in LENGTHS {
            let tokens = (longest * part / of).max(LEAST);
            let built = match (kernel.pass, is_first) {
                (Pass::Forward, true) => forward(machine, shape, tokens),
                (Pass::Backward, true) => backward(machine, shape, tokens),
                (Pass::Forward, false) => fewer(machine, shape, tokens),
                (Pass::Backward, false) => vec![several::backward(shape, tokens, ranks(machine))],
            };
            all.extend(built.into_iter().flatten().map(|plan| (title(&plan, tokens), plan)));
        }
    }
    all
}

fn ranks(machine: &dyn Machine) -> u32 {
    machine.identity().devices
}

/// Without the prefix, with what tells it from its like.
fn title(plan: &Plan, tokens: u64) -> String {
    let Shape { heads, kv_heads, head_dim, dtype, .. } = plan.shape;
    let name = plan.name.trim_start_matches(probes::PREFIX);
    format!("{name}, {} {dtype} {head_dim}, {heads}/{kv_heads} heads, {tokens} tokens", plan.pass)
}

fn forward(machine: &dyn Machine, shape: Shape, tokens: u64) -> Vec<Option<Plan>> {
    let ranks = ranks(machine);
    let mut plans = vec![
        probes::call(shape, Pass::Forward, Pattern::Causal, tokens, ranks),
        several::unequal(shape, tokens, ranks),
        several::stripes(shape, tokens, ranks),
    ];
    plans.extend(fewer(machine, shape, tokens));
    if ranks > 1 && machine.has_nccl() {
        plans.push(several::exchange(shape, tokens, ranks, Transport::Nccl));
    }
    plans
}

/// What differs most from single calls.
fn fewer(machine: &dyn Machine, shape: Shape, tokens: u64) -> Vec<Option<Plan>> {
    let ranks = ranks(machine);
    let mut plans = vec![several::chunks(shape, tokens, ranks)];
    if ranks > 1 {
        plans.push(several::exchange(shape, tokens, ranks, Transport::CopyEngine));
    }
    plans
}

fn backward(machine: &dyn Machine, shape: Shape, tokens: u64) -> Vec<Option<Plan>> {
    let ranks = ranks(machine);
    let grouped = Shape { kv_heads: machine.sizes().grouped_kv_heads, ..shape };
    vec![
        probes::call(shape, Pass::Backward, Pattern::Causal, tokens, ranks),
        several::backward(shape, tokens, ranks),
        several::backward(grouped, tokens, ranks),
    ]
}
