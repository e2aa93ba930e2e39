//! Instructions of building, pricing and simulating plans, counted by valgrind: the same on any load of the machine.
//! `cargo install gungraun-runner`, then `cargo bench -p ringlab-sim --bench instructions`.

#![allow(
    missing_docs,
    unused_qualifications,
    reason = "the macros make public modules and qualify what they call"
)]

#[path = "../tests/engine/support.rs"]
mod support;

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group, main};
use ringlab_sim::check;
use ringlab_sim::engine::{Discard, Machine, SimOptions, simulate_with};
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::{Pass, Problem};
use ringlab_sim::schedule::{Options, Schedule};

fn llama(tokens: u64) -> Problem {
    let mut shape = support::shape(32, 128);
    shape.kv_heads = 8;
    support::causal(tokens, shape)
}

fn plan(schedule: Schedule, tokens: u64, ranks: u32) -> Plan {
    support::build(schedule, &llama(tokens), ranks, &Options::new(Pass::Forward))
}

fn on_eight(schedule: Schedule) -> (Plan, Machine) {
    let machine = Machine::new(&support::nvswitch(1), 8, &SimOptions::default()).unwrap();
    (plan(schedule, 128 << 10, 8), machine)
}

#[library_benchmark]
#[bench::ring(Schedule::Ring)]
#[bench::zigzag(Schedule::Zigzag)]
#[bench::striped(Schedule::Striped { block: 1 })]
#[bench::dist_flash(Schedule::DistFlash)]
fn build(schedule: Schedule) -> Plan {
    plan(black_box(schedule), 128 << 10, 8)
}

#[library_benchmark]
#[bench::ring(on_eight(Schedule::Ring))]
#[bench::zigzag(on_eight(Schedule::Zigzag))]
#[bench::striped(on_eight(Schedule::Striped { block: 1 }))]
#[bench::dist_flash(on_eight(Schedule::DistFlash))]
fn simulate((plan, mut machine): (Plan, Machine)) -> ringlab_sim::units::SimTime {
    simulate_with(black_box(&plan), &mut machine, &mut Discard).unwrap()
}

#[library_benchmark]
#[bench::ring(plan(Schedule::Ring, 1 << 20, 64))]
#[bench::striped(plan(Schedule::Striped { block: 1 }, 1 << 20, 64))]
fn prove(plan: Plan) -> (Plan, check::Proof) {
    let proof = check::prove(black_box(&plan)).unwrap();
    (plan, proof)
}

library_benchmark_group!(name = plans; benchmarks = build, simulate, prove);
main!(library_benchmark_groups = plans);
