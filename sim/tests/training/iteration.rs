//! Times against closed forms, and the parts against their sum.

use ringlab_sim::plan::{Partials, Tensor};
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::{
    AttentionKernel, Breakdown, Checkpointing, Context, Grid, Materialised, Passes, Sharding, Stack,
    Training, attention, iteration, layer, work,
};
use ringlab_sim::units::SimTime;

use crate::support::{cluster, llama_7b, model};

const ALL: [Checkpointing; 4] =
    [Checkpointing::None, Checkpointing::Selective, Checkpointing::FullLayer, Checkpointing::RematAware];

fn ring(seq: u64) -> Training {
    Training::new(Grid::ring(8), seq, Schedule::DistFlash)
}

fn total(b: &Breakdown) -> SimTime {
    [
        b.matmul,
        b.elementwise,
        b.attention,
        b.exposed_context,
        b.exposed_tensor,
        b.exposed_experts,
        b.exposed_data,
        b.exposed_pipeline,
        b.recompute,
        b.host,
        b.optimizer,
        b.bubble,
    ]
    .into_iter()
    .sum()
}

#[test]
fn parts_add_up() {
    for checkpointing in ALL {
        let b = iteration(&llama_7b(), &cluster(1), &Training { checkpointing, ..ring(1 << 16) }).unwrap();
        assert_eq!(total(&b), b.total, "{checkpointing:?}");
    }
}

/// Six FLOPs a weight and token; embeddings look up, the head multiplies.
#[test]
fn matrix_products_cost_six_flops_a_weight() {
    let (m, seq) = (llama_7b(), 1u64 << 16);
    let b = iteration(&m, &cluster(1), &ring(seq)).unwrap();
    let weights = (m.parameters() - m.vocab * m.hidden) as f64;
    let expected = 6.0 * weights * (seq / 8) as f64 / 250e12;
    assert!((b.matmul.as_secs_f64() / expected - 1.0).abs() < 1e-3, "{} for {expected}", b.matmul);
}

#[test]
fn only_active_experts_compute() {
    let text = |experts: &str| {
        model(&format!(
            "layers = 2\nhidden = 4096\nheads = 32\nkv_heads = 8\nintermediate = 14336\nvocab = 32000\n{experts}"
        ))
    };
    let (dense, sparse) = (text(""), text("experts = { count = 8, active = 2 }\n"));
    let t = ring(1 << 16);
    let difference = work::layer(&sparse, &t, 8192).flops.0 - work::layer(&dense, &t, 8192).flops.0;
    // One more expert of three matrices, and the router.
    assert_eq!(difference, 2.0 * 8192.0 * (3.0 * 4096.0 * 14336.0 + 8.0 * 4096.0));
    let shared = Training { grid: Grid { experts: 8, ..Grid::ring(8) }, ..t };
    assert!(iteration(&sparse, &cluster(1), &shared).unwrap().exposed_experts > SimTime::ZERO);
    assert_eq!(iteration(&sparse, &cluster(1), &t).unwrap().exposed_experts, SimTime::ZERO);
}

#[test]
fn recomputation_is_what_its_definition_says() {
    let (m, c) = (llama_7b(), cluster(1));
    let of = |checkpointing| layer(&m, &c, &Training { checkpointing, ..ring(1 << 17) }).unwrap();
    let full = of(Checkpointing::FullLayer);
    assert_eq!(full.recompute, full.forward);
    let aware = of(Checkpointing::RematAware);
    let attention = full.forward.attention + full.forward.context;
    assert_eq!(aware.recompute.total(), full.recompute.total().saturating_sub(attention));
    assert!(attention > SimTime::ZERO);
    assert_eq!(of(Checkpointing::None).recompute.total(), SimTime::ZERO);
    assert_eq!(of(Checkpointing::Selective).recompute.total(), SimTime::ZERO, "tiled kernels keep no scores");
}

#[test]
fn selective_recomputation_repeats_the_core_only() {
    let kernel = AttentionKernel::Materialised(Materialised::MEGATRON);
    let training = Training {
        context: Context { kernel, ..Context::new(Schedule::Ring) },
        checkpointing: Checkpointing::Selective,
        stack: Stack::MEGATRON,
        ..Training::new(Grid::tensor(8), 2048, Schedule::Ring)
    };
    let times = layer(&llama_7b(), &cluster(1), &training).unwrap();
    assert_eq!(times.recompute.total(), times.forward.attention);
}

/// (pp - 1) / v stages' worth of waiting (arXiv 2104.04473, section 2.2).
#[test]
fn the_bubble_of_a_pipeline() {
    let bubble = |pp, interleave, m| {
        let training = Training {
            micro_batches: m,
            sharding: Sharding::None,
            ..Training::new(Grid { pp, interleave, ..Grid::ONE }, 4096, Schedule::Ring)
        };
        let b = iteration(&llama_7b(), &cluster(1), &training).unwrap();
        let times = layer(&llama_7b(), &cluster(1), &training).unwrap();
        let stage = (times.forward.total() + times.backward.total()).as_secs_f64() * 32.0 / pp as f64;
        b.bubble.as_secs_f64() / (stage * m as f64)
    };
    assert!((bubble(8, 1, 64) - 7.0 / 64.0).abs() < 1e-9);
    assert!((bubble(8, 4, 64) - 7.0 / 4.0 / 64.0).abs() < 1e-9);
    assert_eq!(bubble(1, 1, 8), 0.0);
}

/// Long blocks on free links: the busiest rank's blocks, P - 1/2 for the ring, P/2 + 1/2 for DistFlashAttn.
#[test]
fn attention_tends_to_the_closed_forms() {
    let mut c = cluster(1);
    c.fabric.nccl.bandwidth.0 = f64::INFINITY;
    c.device.reached.hbm.0 = f64::INFINITY;
    if let ringlab_sim::config::cluster::FabricTopology::Nvswitch { link_bandwidth } = &mut c.fabric.topology
    {
        link_bandwidth.0 = f64::INFINITY;
    }
    let time = |schedule, ranks| {
        let t = Training::new(Grid::ring(ranks), 1 << 20, schedule);
        attention::time(&llama_7b(), &c, &t, Pass::Forward).unwrap().total().as_secs_f64()
    };
    let one = time(Schedule::Ring, 1);
    for (schedule, expected) in
        [(Schedule::Ring, 32.0 / 7.5), (Schedule::DistFlash, 32.0 / 4.5), (Schedule::Zigzag, 8.0)]
    {
        let found = one / time(schedule, 8);
        assert!((found / expected - 1.0).abs() < 0.01, "{schedule}: {found} for {expected}");
    }
}

#[test]
fn a_forward_has_no_training_in_it() {
    let t = Training { passes: Passes::Forward, checkpointing: Checkpointing::FullLayer, ..ring(1 << 16) };
    let b = iteration(&llama_7b(), &cluster(1), &t).unwrap();
    assert_eq!((b.optimizer, b.recompute), (SimTime::ZERO, SimTime::ZERO));
    let whole = iteration(&llama_7b(), &cluster(1), &ring(1 << 16)).unwrap();
    assert!((whole.matmul.as_secs_f64() / b.matmul.as_secs_f64() - 3.0).abs() < 1e-6);
}

/// 33 heads are 40 on eight ranks: attention takes 40/33 of what it would.
#[test]
fn padded_heads_are_paid_for() {
    let m = model(
        "layers = 32\nhidden = 4096\nheads = 33\nhead_dim = 128\nintermediate = 11008\nvocab = 32000\n",
    );
    let t = Training { pad_heads: true, ..Training::new(Grid::tensor(8), 1 << 17, Schedule::Ring) };
    let at = |m| layer(m, &cluster(1), &t).unwrap().forward.attention.as_secs_f64();
    let forty = model(
        "layers = 32\nhidden = 4096\nheads = 40\nhead_dim = 128\nintermediate = 11008\nvocab = 32000\n",
    );
    assert_eq!(at(&m), at(&forty));
}

#[test]
fn sharding_costs_traffic_only_where_it_is_exposed() {
    let (m, c) = (llama_7b(), cluster(2));
    let of = |sharding, seq| {
        let replicas = Grid { dp: 16, ..Grid::ONE };
        let t =
            Training { sharding, overlap_gradients: false, ..Training::new(replicas, seq, Schedule::Ring) };
        iteration(&m, &c, &t).unwrap().exposed_data.as_secs_f64()
    };
    assert!(of(Sharding::Weights, 1 << 16) == 0.0, "hidden behind long sequences");
    assert!(of(Sharding::Weights, 1 << 8) > 0.0);
    // Layers' 16-bit gradients over sixteen ranks at 80 GB/s, there and back.
    let layers = (m.parameters() - 2 * m.vocab * m.hidden + 64 * m.hidden) as f64;
    let expected = 2.0 * 15.0 / 16.0 * 2.0 * layers / 80e9;
    assert!((of(Sharding::None, 1 << 16) / expected - 1.0).abs() < 1e-3);
}

/// 2 D bytes and two floats a row instead of D + 2 floats; keys and queries as before.
#[test]
fn partial_results_travel_in_the_element_type_if_asked_to() {
    let bytes = |element, pass, tensor| {
        let partials = if element { Partials::Element } else { Partials::Fp32 };
        let context = Context { partials, ..Context::new(Schedule::DistFlash) };
        let training = Training { context, ..ring(1 << 14) };
        let plan = attention::plan(&training, attention::shape(&llama_7b(), &training), pass).unwrap();
        plan.messages.iter().filter(|m| m.tensor == tensor).map(|m| m.bytes.0).sum::<u64>()
    };
    let rows = 2048 * 32 * 6; // six helped blocks at P = 8
    assert_eq!(bytes(false, Pass::Forward, Tensor::State), rows * 4 * 130);
    assert_eq!(bytes(true, Pass::Forward, Tensor::State), rows * (2 * 128 + 8));
    for tensor in [Tensor::QueryGrad, Tensor::KeyValueGrad] {
        assert_eq!(bytes(false, Pass::Backward, tensor), 2 * bytes(true, Pass::Backward, tensor));
    }
    assert_eq!(bytes(false, Pass::Forward, Tensor::KeyValue), bytes(true, Pass::Forward, Tensor::KeyValue));
}

/// Megatron's count of a GPT's FLOPs, `72 B s l h^2 (1 + s/6h + V/12hl)` (arXiv 2104.04473, section 3.5, which recomputes:
/// 96 for 72).
#[test]
fn model_flops_are_megatrons() {
    let (l, h, v, s) = (24.0, 2048.0, 51200.0, 4096.0);
    let m = model(
        "layers = 24\nhidden = 2048\nheads = 16\nintermediate = 8192\nvocab = 51200\ngated_mlp = false\n",
    );
    let context = Context { causal: false, ..Context::new(Schedule::Ring) };
    let training = Training { context, micro_batch: 3, ..Training::new(Grid::ring(8), 4096, Schedule::Ring) };
    let expected = 72.0 * 3.0 * s * l * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * h * l));
    assert!((work::model_flops(&m, &training).0 / expected - 1.0).abs() < 1e-9);
    let forward = Training { passes: Passes::Forward, ..training };
    assert!((work::model_flops(&m, &forward).0 * 3.0 / expected - 1.0).abs() < 1e-9);
    let causal = Training { context: Context::new(Schedule::Ring), ..training };
    assert!(work::model_flops(&m, &causal).0 < work::model_flops(&m, &training).0);
}
