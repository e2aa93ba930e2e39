//! Two attention calls with an exchange beside them, on an H200's constants: what is exposed of the exchange, that is
//! `(both - calls alone) / exchange alone`, by hand and beside what H200s measured.

use ringlab_sim::config::cluster::{Cluster, Grid, Pass};
use ringlab_sim::engine::{SimOptions, simulate};
use ringlab_sim::layout::{Layout, LayoutKind};
use ringlab_sim::mask::{Documents, Pattern};
use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{Buf, Lane, MaskId, OpKind, Plan, Tensor, Transport};
use ringlab_sim::problem::Problem;
use ringlab_sim::units::SimTime;

use crate::support;

/// SMs of an H200, and those that NCCL's 32 channels take of them.
const SMS: f64 = 132.0;
const NCCL: f64 = 32.0;
/// How much later an exchange is posted that comes after the first call.
const LATER: SimTime = SimTime(50_000_000);

/// When the exchange is posted.
#[derive(Clone, Copy, PartialEq)]
enum Posted {
    WithTheCall,
    AfterTheCall,
}

fn h200(grid: Grid, posted: Posted) -> Cluster {
    let preset = include_str!("../../../experiments/presets/clusters/hgx-h200.toml");
    let free = "kernel_launch = \"0 us\"\ncopy_launch = \"0 us\"\nnccl_launch = \"0 us\"\nsource = \"test\"";
    let mut cluster = Cluster::parse("h200", &format!("{preset}\n[host]\n{free}\n")).unwrap();
    if posted == Posted::AfterTheCall {
        (cluster.host.nccl_launch, cluster.host.copy_launch) = (LATER, LATER);
    }
    for row in &mut cluster.kernels {
        row.grid = grid;
    }
    cluster
}

/// Two calls of `tokens` queries over as many keys on each of two ranks, and their keys and values exchanged.
fn plan(tokens: u64, transport: Transport, (calls, exchange): (bool, bool)) -> Plan {
    let problem =
        Problem { shape: support::shape(16, 128), pattern: Pattern::Full, documents: vec![2 * tokens] };
    let layout = Layout::new(LayoutKind::Contiguous, 2, Documents::single(2 * tokens)).unwrap();
    let mut b = PlanBuilder::new("overlap".into(), Pass::Forward, &problem, layout, transport);
    let blocks: Vec<_> =
        (0..2).map(|r| (b.block(&[b.shard(r)], false), b.block(&[b.shard(r)], true))).collect();
    let messages: Vec<_> = if exchange {
        (0..2).map(|r| b.message(r, 1 - r, Tensor::KeyValue, blocks[r as usize].1)).collect()
    } else {
        vec![]
    };
    for (rank, &(q_block, kv_block)) in (0..2).zip(&blocks) {
        let (q, kv) = (b.input(rank, Tensor::Query, q_block), b.input(rank, Tensor::KeyValue, kv_block));
        let state = b.scratch(rank, Tensor::State, q_block);
        let attend = |b: &mut PlanBuilder, init| {
            let (q, kv, mask) = (q.into(), kv.into(), MaskId::NONE);
            b.compute(rank, 0, OpKind::Attend { q, kv, state, q_block, kv_block, mask, init });
        };
        if calls {
            attend(&mut b, true);
        }
        if exchange {
            send_and_receive(&mut b, rank, (messages[rank as usize], messages[1 - rank as usize]), kv);
        }
        if calls {
            attend(&mut b, false);
        }
    }
    b.finish()
}

fn send_and_receive(b: &mut PlanBuilder, rank: u32, (mine, other): (u32, u32), kv: Buf) {
    let block = b.block(&[b.shard(1 - rank)], true);
    let (into, group) = (b.scratch(rank, Tensor::KeyValue, block), b.group());
    b.push(rank, Lane::comm(0), 0, group, OpKind::Send { message: mine, buffer: kv.into() });
    b.push(rank, Lane::comm(0), 0, group, OpKind::Recv { message: other, buffer: into });
}

fn seconds(plan: &Plan, cluster: &Cluster) -> f64 {
    simulate(plan, cluster, &SimOptions::default()).unwrap().makespan.as_secs_f64()
}

/// The exposed share of the exchange.
fn exposed(tokens: u64, transport: Transport, cluster: &Cluster, posted: Posted) -> f64 {
    let with = |what| seconds(&plan(tokens, transport, what), cluster);
    let later = if posted == Posted::AfterTheCall { LATER.as_secs_f64() } else { 0.0 };
    let (both, calls, exchange) = (with((true, true)), with((true, false)), with((false, true)) - later);
    // The exchange is shorter than the calls, so that all of it could be hidden.
    assert!(exchange < 0.9 * calls, "{exchange} of {calls}");
    (both - calls) / exchange
}

#[track_caller]
fn assert_near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-6, "{value}, expected {expected}");
}

/// Measured with cuDNN, one thread block an SM: 94% and 94% posted with the call, 33% and 20% after it.
#[test]
fn nccl_beside_a_persistent_grid_of_fixed_shares() {
    for tokens in [8 << 10, 16 << 10] {
        let first = exposed(
            tokens,
            Transport::Nccl,
            &h200(Grid::Persistent, Posted::WithTheCall),
            Posted::WithTheCall,
        );
        // The blocks that found no SM run their shares after the exchange: all of it is exposed.
        assert_near(first, 1.0);
        assert!((first - 0.94).abs() < 0.1);
        let after = exposed(
            tokens,
            Transport::Nccl,
            &h200(Grid::Persistent, Posted::AfterTheCall),
            Posted::AfterTheCall,
        );
        // For the time of the exchange the calls have N - n of N SMs.
        assert_near(after, NCCL / SMS);
        assert!((0.15..0.35).contains(&after));
    }
}

/// Measured with FlashAttention-2, many thread blocks: 39% and 66% posted with the call, 19% and 15% after it.
#[test]
fn nccl_beside_many_short_thread_blocks() {
    let posted = Posted::WithTheCall;
    let first = exposed(8 << 10, Transport::Nccl, &h200(Grid::PerItem, posted), posted);
    assert_near(first, NCCL / SMS);
}

/// Our own kernels. Measured once, 64Ki tokens over two ranks: 1.5 ms of a step's exchange exposed, which began as the first
/// call ended.
#[test]
fn nccl_beside_a_persistent_grid_with_a_queue() {
    let tokens = 16 << 10;
    let posted = Posted::AfterTheCall;
    let cluster = h200(Grid::PersistentQueue, posted);
    // It waits for the first call's end, and takes n of N SMs from the second one.
    assert_near(exposed(tokens, Transport::Nccl, &cluster, posted), {
        let with = |what| seconds(&plan(tokens, Transport::Nccl, what), &cluster);
        let exchange = with((false, true)) - LATER.as_secs_f64();
        // Its latency has passed by then.
        (exchange - cluster.fabric.nccl.latency.as_secs_f64()) / exchange * NCCL / SMS
    });
    // Posted before, with its latency over, it only slows the first call down.
    let mut cluster = h200(Grid::PersistentQueue, Posted::WithTheCall);
    cluster.fabric.nccl.latency = SimTime::ZERO;
    assert_near(exposed(tokens, Transport::Nccl, &cluster, Posted::WithTheCall), NCCL / SMS);
    // What needs the exchange's data cannot start before it: with the first call it is a chain.
    let waits = plan_that_needs_the_exchange(tokens);
    let cluster = h200(Grid::PersistentQueue, Posted::AfterTheCall);
    let with = |what| seconds(&plan(tokens, Transport::Nccl, what), &cluster);
    let exchange = with((false, true)) - LATER.as_secs_f64() - cluster.fabric.nccl.latency.as_secs_f64();
    assert_near(seconds(&waits, &cluster) / (with((true, false)) + exchange), 1.0);
}

/// As [`plan`], where the second call attends what arrives.
fn plan_that_needs_the_exchange(tokens: u64) -> Plan {
    let mut plan = plan(tokens, Transport::Nccl, (true, true));
    for program in &mut plan.programs {
        let recv = program.ops.iter().position(|op| matches!(op.kind, OpKind::Recv { .. })).unwrap();
        let second = program.ops.len() - 1;
        let lane = usize::from(program.ops[recv].lane.0);
        program.ops[second].waits[lane] = recv as u32;
    }
    plan
}

/// Measured with cuDNN: 5% and 29%; with FlashAttention-2: none and 27%. Copies hold no SM but use the same memory.
#[test]
fn copies_beside_calls_cost_what_they_take_of_the_memory() {
    let posted = Posted::WithTheCall;
    let mut cluster = h200(Grid::PersistentQueue, posted);
    assert_near(exposed(8 << 10, Transport::CopyEngine, &cluster, posted), 0.0);
    for share in [0.05, 0.29] {
        cluster.fabric.copy.slows_calls = share;
        assert_near(exposed(8 << 10, Transport::CopyEngine, &cluster, posted), share);
    }
    // A copy that is slowed down as well takes 1 / (1 - c) of its time, and costs that much more.
    let latency = cluster.fabric.copy.latency.as_secs_f64();
    let exchange = seconds(&plan(8 << 10, Transport::CopyEngine, (false, true)), &cluster);
    cluster.fabric.copy.slowed_by_calls = 0.2;
    let longer = (latency + (exchange - latency) / 0.8) / exchange;
    assert_near(exposed(8 << 10, Transport::CopyEngine, &cluster, posted), 0.29 * longer);
}
