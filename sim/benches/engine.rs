//! How fast plans are built, priced and simulated. `cargo bench -p ringlab-sim --bench engine`.

#[path = "../tests/engine/support.rs"]
mod support;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use ringlab_sim::engine::{Discard, Machine, SimOptions, simulate, simulate_with};
use ringlab_sim::layout::{Layout, LayoutKind};
use ringlab_sim::mask::Documents;
use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{Lane, OpKind, Plan, Slots, Tensor, Transport};
use ringlab_sim::problem::{Pass, Problem};
use ringlab_sim::schedule::{Options, Schedule};

const SCHEDULES: [Schedule; 4] =
    [Schedule::Ring, Schedule::Zigzag, Schedule::Striped { block: 1 }, Schedule::DistFlash];

fn main() {
    divan::main();
}

fn llama(tokens: u64) -> Problem {
    let mut shape = support::shape(32, 128);
    shape.kv_heads = 8;
    support::causal(tokens, shape)
}

fn machine(ranks: u32) -> Machine {
    Machine::new(&support::nvswitch(ranks.div_ceil(8)), ranks, &SimOptions::default()).unwrap()
}

/// Build, price and simulate one layer of 128Ki tokens on 8 ranks; items are configurations.
#[divan::bench(args = SCHEDULES)]
fn configuration_of_8_ranks(bencher: Bencher, schedule: Schedule) {
    let (problem, options) = (llama(128 << 10), Options::new(Pass::Forward));
    let mut machine = machine(8);
    bencher.counter(ItemsCount::new(1_u32)).bench_local(|| {
        let plan = support::build(schedule, black_box(&problem), 8, &options);
        simulate_with(&plan, &mut machine, &mut Discard).unwrap()
    });
}

/// Only the plan of that.
#[divan::bench(args = SCHEDULES)]
fn plan_of_8_ranks(bencher: Bencher, schedule: Schedule) {
    let (problem, options) = (llama(128 << 10), Options::new(Pass::Forward));
    bencher.counter(ItemsCount::new(1_u32)).bench_local(|| support::build(schedule, &problem, 8, &options));
}

/// Only the simulation of that; items are plan operations.
#[divan::bench(args = SCHEDULES)]
fn simulation_of_8_ranks(bencher: Bencher, schedule: Schedule) {
    let plan = support::build(schedule, &llama(128 << 10), 8, &Options::new(Pass::Forward));
    let mut machine = machine(8);
    let ops = ItemsCount::new(plan.op_count());
    bencher.counter(ops).bench_local(|| simulate_with(&plan, &mut machine, &mut Discard).unwrap());
}

/// The same with a timeline, and the machine made anew.
#[divan::bench(args = SCHEDULES)]
fn timeline_of_8_ranks(bencher: Bencher, schedule: Schedule) {
    let plan = support::build(schedule, &llama(128 << 10), 8, &Options::new(Pass::Forward));
    let cluster = support::nvswitch(1);
    let ops = ItemsCount::new(plan.op_count());
    bencher.counter(ops).bench_local(|| simulate(&plan, &cluster, &SimOptions::default()).unwrap());
}

/// The plan of a ring over 1024 ranks.
#[divan::bench(sample_count = 5, sample_size = 1)]
fn plan_of_1024_ranks(bencher: Bencher) {
    let (problem, options) = (llama(1 << 20), Options::new(Pass::Forward));
    bencher.bench_local(|| support::build(Schedule::Ring, &problem, 1024, &options));
}

/// Its simulation; items are plan operations.
#[divan::bench(sample_count = 5, sample_size = 1)]
fn simulation_of_1024_ranks(bencher: Bencher) {
    let plan = support::build(Schedule::Ring, &llama(1 << 20), 1024, &Options::new(Pass::Forward));
    let mut machine = machine(1024);
    let ops = ItemsCount::new(plan.op_count());
    bencher.counter(ops).bench_local(|| simulate_with(&plan, &mut machine, &mut Discard).unwrap());
}

/// Plans whose transfers share links; items are plan operations.
#[divan::bench(sample_count = 5, sample_size = 1, args = ["ring backward 256", "dist-flash 128", "dist-flash 512", "ring on a PCIe box", "ring on a fat tree of 256"])]
fn shared_links(bencher: Bencher, case: &str) {
    let (schedule, pass, ranks, cluster) = match case {
        "ring backward 256" => (Schedule::Ring, Pass::Backward, 256, support::nvswitch(32)),
        "dist-flash 128" => (Schedule::DistFlash, Pass::Forward, 128, support::nvswitch(16)),
        "dist-flash 512" => (Schedule::DistFlash, Pass::Forward, 512, support::nvswitch(64)),
        "ring on a PCIe box" => (Schedule::Ring, Pass::Backward, 8, support::pcie_box()),
        _ => (Schedule::Ring, Pass::Backward, 256, support::fat_tree(32)),
    };
    let plan = support::build(schedule, &llama(u64::from(ranks) * 4096), ranks, &Options::new(pass));
    let mut machine = Machine::new(&cluster, ranks, &SimOptions::default()).unwrap();
    let ops = ItemsCount::new(plan.op_count());
    bencher.counter(ops).bench_local(|| simulate_with(&plan, &mut machine, &mut Discard).unwrap());
}

/// A ring all-gather of 512 ranks, 4 chunks a step; items are plan operations.
#[divan::bench(sample_count = 5, sample_size = 1)]
fn all_gather_of_512_ranks(bencher: Bencher) {
    let plan = ring_all_gather(512, 4);
    let mut machine = machine(512);
    let ops = ItemsCount::new(plan.op_count());
    bencher.counter(ops).bench_local(|| simulate_with(&plan, &mut machine, &mut Discard).unwrap());
}

/// Every rank passes on what it got, chunk by chunk, and keeps it all.
fn ring_all_gather(ranks: u32, chunks: u64) -> Plan {
    let problem = llama(u64::from(ranks) * 1024);
    let layout =
        Layout::new(LayoutKind::Contiguous, ranks, Documents::single(u64::from(ranks) * 1024)).unwrap();
    let mut b = PlanBuilder::new("all-gather".into(), Pass::Forward, &problem, layout, Transport::CopyEngine);
    let part = |owner, k| Slots { rank: owner, from: 1024 * k / chunks, to: 1024 * (k + 1) / chunks };
    let mut buffers = Vec::new();
    for (rank, owner) in (0..ranks).flat_map(|rank| (0..ranks).map(move |owner| (rank, owner))) {
        for k in 0..chunks {
            let block = b.block(&[part(owner, k)], true);
            buffers.push(b.scratch(rank, Tensor::KeyValue, block));
        }
    }
    let buffer = |rank: u32, owner: u32, k| {
        buffers[(rank as usize * ranks as usize + owner as usize) * chunks as usize + k as usize]
    };
    for (step, to) in (1..ranks).flat_map(|step| (0..ranks).map(move |to| (step, to))) {
        let (from, owner) = ((to + ranks - 1) % ranks, (to + ranks - step) % ranks);
        for k in 0..chunks {
            let block = b.block(&[part(owner, k)], true);
            let message = b.message(from, to, Tensor::KeyValue, block);
            let send = OpKind::Send { message, buffer: buffer(from, owner, k).into() };
            let recv = OpKind::Recv { message, buffer: buffer(to, owner, k) };
            b.push(from, Lane::comm(0), step, 0, send);
            b.push(to, Lane::comm(1), step, 0, recv);
        }
    }
    b.finish()
}
