//! Problems and plans that the tests share.

use ringlab_sim::check::prove;
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Rank, Tensor, Transport};
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::{BuildError, Options, Route, Schedule, build};

pub fn shape(heads: u32, kv_heads: u32) -> Shape {
    Shape { heads, kv_heads, head_dim: 8, dtype: Dtype::Bf16, batch: 1 }
}

pub fn problem(shape: Shape, pattern: Pattern, documents: &[u64]) -> Problem {
    Problem { shape, pattern, documents: documents.to_vec() }
}

/// One causal sequence.
pub fn causal(shape: Shape, tokens: u64) -> Problem {
    problem(shape, Pattern::Causal, &[tokens])
}

pub fn plan(schedule: Schedule, problem: &Problem, ranks: u32, pass: Pass) -> Plan {
    build(schedule, problem, ranks, &Options::new(pass))
        .unwrap_or_else(|e| panic!("{schedule} on {ranks}: {e}"))
}

/// Proves the plan: every pair of every head counts once. `None` if the schedule refuses the problem for a reason that
/// it may have: heads or a mask that it does not cover.
pub fn proves(schedule: Schedule, problem: &Problem, ranks: u32, options: &Options) -> Option<Plan> {
    let options = Options { pad: true, ..*options };
    let context = || format!("{schedule} on {ranks} ranks, {problem:?}, {options:?}");
    let plan = match build(schedule, problem, ranks, &options) {
        Ok(plan) => plan,
        Err(BuildError::Heads { .. } | BuildError::FewHeads { .. } | BuildError::Mask { .. }) => return None,
        Err(error) => panic!("{error}: {}", context()),
    };
    let proof = prove(&plan).unwrap_or_else(|violations| {
        let list: Vec<String> = violations.iter().take(4).map(|v| format!("  {v}")).collect();
        panic!("{}:\n{}", context(), list.join("\n"))
    });
    assert_eq!(proof.pairs, plan.unmasked_pairs() * u128::from(plan.shape.heads), "{}", context());
    Some(plan)
}

/// Every pass, transport and route.
pub fn ways() -> Vec<Options> {
    let mut all = Vec::new();
    for pass in [Pass::Forward, Pass::Backward] {
        for transport in [Transport::CopyEngine, Transport::Nccl] {
            for route in [Route::Neighbour, Route::Direct] {
                all.push(Options { transport, route, ..Options::new(pass) });
            }
        }
    }
    all
}

/// Bytes of `tensor` that a rank sends.
pub fn sent(plan: &Plan, rank: Rank, tensor: Tensor) -> u64 {
    plan.messages.iter().filter(|m| m.from == rank && m.tensor == tensor).map(|m| m.bytes.0).sum()
}

/// The terms of the formulas, in bytes: `qo = c H D e` and `kv = 2 c K D e`, and the same in fp32.
pub struct Terms {
    pub qo: u64,
    pub kv: u64,
    pub dq: u64,
    pub dkv: u64,
    /// lse of own tokens, which goes where o goes: `c H 4`.
    pub lse: u64,
}

impl Terms {
    pub fn of(shape: &Shape, c: u64) -> Self {
        let (h, k, d) = (u64::from(shape.heads), u64::from(shape.kv_heads), u64::from(shape.head_dim));
        let e = shape.dtype.size().0;
        Self {
            qo: c * h * d * e,
            kv: 2 * c * k * d * e,
            dq: c * h * d * 4,
            dkv: 2 * c * k * d * 4,
            lse: c * h * 4,
        }
    }
}

/// Every window of `ranks` ranks, on and off rails, and every grid, inside and across nodes.
pub fn windows_and_grids(ranks: u32) -> Vec<Schedule> {
    let divisors = (1..=ranks).filter(|d| ranks.is_multiple_of(*d));
    let with = |d: u32, flag: bool| {
        let grid = Some((d, ranks / d));
        [Schedule::DoubleRing { window: Some(d), rail: flag }, Schedule::Usp { grid, across: flag }]
    };
    divisors.flat_map(|d| [with(d, false), with(d, true)].concat()).collect()
}
