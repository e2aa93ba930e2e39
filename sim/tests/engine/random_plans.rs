//! Random plans on random clusters: bounds, and what must not matter.

use proptest::prelude::*;
use ringlab_sim::config::cluster::{Cluster, FabricTopology, Grid, NetworkTopology, Priority, Sections};
use ringlab_sim::cost::Costs;
use ringlab_sim::engine::{Discard, Machine, SimOptions, simulate, simulate_with};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{LANES, NO_OP, Op, OpKind, Partials, Plan, Transport};
use ringlab_sim::problem::{Pass, Problem, Shape};
use ringlab_sim::schedule::{self, Options, Route, Schedule};
use ringlab_sim::timeline::{SpanKind, Timeline};
use ringlab_sim::topology::Topology;
use ringlab_sim::units::{Bytes, BytesPerSec, SimTime};

use crate::support;

fn schedule() -> impl Strategy<Value = Schedule> {
    let striped = (1u64..5).prop_map(|block| Schedule::Striped { block });
    let double = (1u32..5, any::<bool>())
        .prop_map(|(window, rail)| Schedule::DoubleRing { window: Some(window), rail });
    prop_oneof![4 => prop::sample::select(schedule::ALL.to_vec()), 1 => striped, 1 => double]
}

fn options() -> impl Strategy<Value = Options> {
    let pass = prop_oneof![Just(Pass::Forward), Just(Pass::Backward)];
    let transport = prop_oneof![Just(Transport::CopyEngine), Just(Transport::Nccl)];
    let route = prop_oneof![Just(Route::Neighbour), Just(Route::Direct)];
    (pass, transport, route, 1u32..4, 0u32..4, any::<bool>()).prop_map(
        |(pass, transport, route, chunks, prefetch, needed_only)| Options {
            pass,
            transport,
            route,
            chunks,
            prefetch,
            needed_only,
            gpus_per_node: 8,
            partials: Partials::Fp32,
            pad: true,
        },
    )
}

prop_compose! {
    fn problem()(
        lens in prop::collection::vec(1u64..300, 1..4), group in 1u32..3, kv_heads in 1u32..3, window in 1u64..200,
        shape in 0usize..3, batch in 1u32..3
    ) -> Problem {
        let pattern = [Pattern::Full, Pattern::Causal, Pattern::Window(window)][shape];
        let shape = Shape { heads: group * kv_heads, kv_heads, batch, ..support::shape(1, 64) };
        Problem { shape, pattern, documents: lens }
    }
}

/// A plan of up to 16 ranks; a rank has at least as many tokens as a transfer has chunks.
fn plan() -> impl Strategy<Value = Plan> {
    let parts = (schedule(), problem(), 1u32..17, options());
    parts.prop_filter_map("no such plan", |(schedule, mut problem, ranks, options)| {
        problem.documents[0] += u64::from(ranks) * 4;
        schedule::build(schedule, &problem, ranks, &options).ok()
    })
}

prop_compose! {
    /// Sixteen GPUs in two nodes (or a torus in one), with every cost there is.
    fn cluster()(
        kind in 0usize..4, tile in 1u32..40, sms in 1u32..12, partial in 1.0f64..2.0, fixed in 0u64..5_000,
        launches in prop::array::uniform3(0u64..2_000_000), latency in 0u64..3_000_000, rate in 1e9f64..5e11,
        nics in prop::sample::select(vec![1u32, 2, 8, 16]), gpudirect in any::<bool>(), over in 1.0f64..8.0,
        held in prop::array::uniform2(0u32..8),
        grid in prop::sample::select(vec![Grid::Persistent, Grid::PersistentQueue, Grid::PerItem]),
        priorities in prop::array::uniform2(prop::sample::select(vec![Priority::Normal, Priority::High])),
        losses in prop::array::uniform4(prop_oneof![Just(0.0), 0.0f64..0.6])
    ) -> Cluster {
        let mut cluster = support::nvswitch(2);
        let link_bandwidth = BytesPerSec(rate);
        cluster.fabric.topology = match kind {
            0 => FabricTopology::Nvswitch { link_bandwidth },
            1 => FabricTopology::Pcie {
                link_bandwidth, gpus_per_switch: 3, host_bridge_bandwidth: BytesPerSec(rate * 0.7)
            },
            _ => FabricTopology::Torus { dims: vec![4, 2, 2], link_bandwidth, wraparound: kind == 2 },
        };
        if kind > 1 {
            (cluster.nodes, cluster.gpus_per_node) = (1, 16);
        }
        cluster.fabric.copy.latency = SimTime(latency);
        cluster.host.kernel_launch = SimTime(launches[0]);
        cluster.host.copy_launch = SimTime(launches[1]);
        cluster.host.nccl_launch = SimTime(launches[2]);
        cluster.device.sms = sms;
        cluster.fabric.nccl.sms = held[0];
        cluster.fabric.nccl.priority = priorities[0];
        for transport in [&mut cluster.fabric.nccl, &mut cluster.fabric.copy] {
            (transport.slows_calls, transport.slowed_by_calls) = (losses[2], losses[3]);
        }
        for row in &mut cluster.kernels {
            (row.tile_q, row.tile_kv, row.partial_tile_cost) = (tile, 2 * tile, partial);
            (row.prologue, row.epilogue) = (SimTime(fixed), SimTime(fixed / 2));
            row.grid = grid;
        }
        let network = cluster.network.as_mut().unwrap();
        network.nics_per_node = nics;
        (network.transport.sms, network.transport.priority) = (held[1], priorities[1]);
        (network.transport.slows_calls, network.transport.slowed_by_calls) = (losses[0], losses[1]);
        network.gpudirect = gpudirect;
        network.staging_bandwidth = (!gpudirect).then_some(BytesPerSec(rate * 0.4));
        if kind == 1 {
            network.topology = NetworkTopology::FatTree { nodes_per_leaf: 1, oversubscription: over };
        }
        cluster
    }
}

fn makespan(plan: &Plan, cluster: &Cluster, shuffle_ties: Option<u64>) -> SimTime {
    let mut machine =
        Machine::new(cluster, plan.ranks(), &SimOptions { shuffle_ties, ..SimOptions::default() }).unwrap();
    simulate_with(plan, &mut machine, &mut Discard).unwrap()
}

/// Duration of a compute operation by the cost model, or the least that a transfer can take.
fn least_time(plan: &Plan, costs: &mut Costs, topology: &Topology, rank: usize, op: usize) -> SimTime {
    let program = &plan.programs[rank];
    match program.ops[op].kind {
        OpKind::Attend { q_block, kv_block, mask, .. }
        | OpKind::AttendBackward { q_block, kv_block, mask, .. } => {
            let (kernels, blocks) = (costs.kernels(plan).unwrap(), (q_block, kv_block, mask));
            let kernel = costs.choose(plan, &kernels, blocks);
            let writes = matches!(program.ops[op].kind, OpKind::AttendBackward { init_dkv: true, .. });
            costs.call(plan, &kernel, blocks, (0, writes)).time(costs.sms())
        }
        OpKind::Send { message, .. } | OpKind::Recv { message, .. } => {
            let m = plan.message(message);
            let reach = topology.route(m.from, m.to, plan.transport, &mut Vec::new());
            reach.latency + m.bytes / reach.bandwidth
        }
        OpKind::Scores(ref op) => costs.scores_time(plan, program, op),
        ref kind => costs.memory_time(plan, program, kind),
    }
}

/// The longest chain of a plan's lanes, waits and messages, every operation at its least time: starts are raised until
/// none has to be.
fn critical_path(plan: &Plan, cluster: &Cluster) -> SimTime {
    let (mut costs, topology) = (Costs::new(cluster), Topology::new(cluster, plan.ranks()).unwrap());
    let mut posted = vec![SimTime::ZERO; plan.messages.len()];
    loop {
        let (before, mut longest) = (posted.clone(), SimTime::ZERO);
        for (rank, program) in plan.programs.iter().enumerate() {
            let mut ends: Vec<SimTime> = Vec::new();
            for (i, op) in program.ops.iter().enumerate() {
                let in_lane = |o: &Op| o.lane == op.lane && (op.group == 0 || o.group != op.group);
                let last = program.ops[..i].iter().rposition(in_lane);
                let waits = op.waits.iter().filter(|w| **w != NO_OP).map(|w| *w as usize).chain(last);
                let mut start = waits.map(|w| ends[w]).max().unwrap_or_default();
                if let Some(m) = op.kind.message() {
                    start = start.max(posted[m as usize]);
                    posted[m as usize] = start;
                }
                let end = start + least_time(plan, &mut costs, &topology, rank, i);
                longest = longest.max(end);
                ends.push(end);
            }
        }
        if posted == before {
            return longest;
        }
    }
}

/// Time that each link needs for all the bytes that cross it.
fn busiest_link(plan: &Plan, cluster: &Cluster) -> SimTime {
    let topology = Topology::new(cluster, plan.ranks()).unwrap();
    let mut crossed = vec![0_u64; topology.capacities().len()];
    for m in &plan.messages {
        let mut links = Vec::new();
        topology.route(m.from, m.to, plan.transport, &mut links);
        for link in links {
            crossed[link as usize] += m.bytes.0;
        }
    }
    let times =
        crossed.iter().zip(topology.capacities()).map(|(&b, &c)| SimTime::from_secs_f64(b as f64 / c.0));
    times.max().unwrap_or_default()
}

/// Time that the busiest rank's own operations need one after the other.
fn busiest_rank(plan: &Plan, cluster: &Cluster) -> SimTime {
    let (mut costs, topology) = (Costs::new(cluster), Topology::new(cluster, plan.ranks()).unwrap());
    let of = |rank: usize| {
        let compute = plan.programs[rank].ops.iter().enumerate().filter(|(_, op)| op.lane.is_compute());
        compute.map(|(i, _)| least_time(plan, &mut costs, &topology, rank, i)).sum()
    };
    (0..plan.programs.len()).map(of).max().unwrap_or_default()
}

/// Lanes run one operation (or group) at a time, and nothing starts before what it waits for has ended.
fn keeps_the_plan(plan: &Plan, timeline: &Timeline) {
    let mut times: Vec<_> = plan.programs.iter().map(|p| vec![None; p.ops.len()]).collect();
    for s in &timeline.spans {
        let before = times[s.rank as usize][s.op as usize].replace((s.start, s.end));
        assert!(before.is_none(), "one span an operation");
    }
    for (program, times) in plan.programs.iter().zip(times) {
        let times: Vec<(SimTime, SimTime)> = times.into_iter().map(Option::unwrap).collect();
        // Of each lane: the group in hand, when everything before it had ended, and when all so far has.
        let mut lanes = [(0, SimTime::ZERO, SimTime::ZERO); LANES];
        for (op, (start, end)) in program.ops.iter().zip(&times) {
            for wait in op.waits.iter().filter(|w| **w != NO_OP) {
                assert!(*start >= times[*wait as usize].1, "waits are kept");
            }
            let (group, before, so_far) = &mut lanes[usize::from(op.lane.0)];
            if op.group == 0 || op.group != *group {
                (*group, *before) = (op.group, *so_far);
            }
            assert!(start >= before, "lanes are queues");
            *so_far = (*so_far).max(*end);
        }
    }
}

proptest! {
    #[test]
    fn no_plan_beats_its_bounds(plan in plan(), cluster in cluster()) {
        let makespan = makespan(&plan, &cluster, None);
        prop_assert!(makespan >= critical_path(&plan, &cluster), "critical path");
        prop_assert!(makespan >= busiest_rank(&plan, &cluster), "work of one rank");
        // Every transfer of a link may end a fraction of a picosecond early against the exact share.
        let slack = SimTime(plan.messages.len() as u64);
        prop_assert!(makespan + slack >= busiest_link(&plan, &cluster), "bytes of one link");
    }

    #[test]
    fn the_order_of_ties_does_not_matter(plan in plan(), cluster in cluster(), seed in any::<u64>()) {
        let in_order = makespan(&plan, &cluster, None);
        prop_assert_eq!(makespan(&plan, &cluster, Some(seed)), in_order);
        // Where everything happens at once, ties are all there is.
        let ideal = support::ideal(16);
        prop_assert_eq!(makespan(&plan, &ideal, Some(seed)), makespan(&plan, &ideal, None));
    }

    #[test]
    fn timelines_keep_the_plan_and_are_the_same_twice(plan in plan(), cluster in cluster(), seed in any::<u64>()) {
        let timeline = simulate(&plan, &cluster, &SimOptions::default()).unwrap();
        keeps_the_plan(&plan, &timeline);
        prop_assert_eq!(timeline.makespan, timeline.spans.iter().map(|s| s.end).max().unwrap_or_default());
        prop_assert!(timeline.spans.is_sorted_by_key(|s| (s.end, s.rank)));
        prop_assert_eq!(&timeline, &simulate(&plan, &cluster, &SimOptions::default()).unwrap());
        prop_assert_eq!(timeline.makespan, makespan(&plan, &cluster, None), "with and without spans");
        let shuffled = simulate(&plan, &cluster, &SimOptions { shuffle_ties: Some(seed), ..SimOptions::default() }).unwrap();
        prop_assert_eq!(&timeline.spans, &shuffled.spans);
        let flops: f64 = timeline.spans.iter().map(|s| s.flops).sum();
        // Where the forward left its probabilities, a backward has four products instead of five.
        let kept = plan.pass == Pass::Backward && plan.programs[0].ops.iter().any(|op| matches!(op.kind, OpKind::Scores(_)));
        prop_assert_eq!(flops * 5.0, plan.mask_area_flops() * if kept { 4.0 } else { 5.0 });
        let sent = timeline.spans.iter().filter(|s| s.kind == SpanKind::Send).map(|s| s.bytes).sum::<Bytes>();
        prop_assert_eq!(sent, plan.bytes_moved());
    }

    /// One machine for many plans: neither what it ran before nor its table of geometries shows.
    #[test]
    fn a_machine_forgets_what_it_ran(
        plans in prop::collection::vec(plan(), 2..5), mut cluster in cluster(), items_an_sm in prop::option::of(0u32..4)
    ) {
        for row in &mut cluster.kernels {
            row.sections = items_an_sm.map(|items_an_sm| Sections { cache: Bytes(0), items_an_sm });
        }
        let mut machine = Machine::new(&cluster, 16, &SimOptions::default()).unwrap();
        let mut uncached = Machine::uncached(&cluster, 16, &SimOptions::default()).unwrap();
        for plan in &plans {
            let fresh = makespan(plan, &cluster, None);
            prop_assert_eq!(simulate_with(plan, &mut machine, &mut Discard), Ok(fresh));
            prop_assert_eq!(simulate_with(plan, &mut uncached, &mut Discard), Ok(fresh));
        }
    }
}
