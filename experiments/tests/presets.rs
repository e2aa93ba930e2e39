//! Presets against figures that do not come from them: published parameter counts, datasheets, published
//! kernel rates, and what happens to names and files that are none.

#[path = "presets/kernels.rs"]
mod kernels;
#[path = "presets/names.rs"]
mod names;
#[path = "presets/validated.rs"]
mod validated;

use ringlab_experiments::presets;
use ringlab_sim::config::cluster::{Cluster, Dtype, FabricTopology, NetworkTopology, Pass};
use ringlab_sim::units::{Bytes, BytesPerSec, Flops, FlopsPerSec, SimTime};

fn cluster(name: &str) -> Cluster {
    presets::cluster(name).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_preset_parses_under_its_own_name_and_survives_its_toml() {
    for name in presets::cluster_names().into_iter().filter(|name| !name.contains('N')) {
        let parsed = cluster(name);
        assert_eq!(parsed.name, name);
        let text = presets::cluster_text(name).expect(name);
        assert_eq!(Cluster::parse(name, &text).expect(name), parsed);
        assert_eq!(Cluster::parse(name, &parsed.to_toml()).expect(name), parsed, "{}", parsed.to_toml());
    }
    for name in presets::model_names() {
        let model = presets::model(name).unwrap_or_else(|error| panic!("{error}"));
        assert!(model.name.eq_ignore_ascii_case(name), "{name} {}", model.name);
        assert_eq!(presets::model(&model.name).expect(name), model);
    }
}

#[test]
fn every_constant_of_a_preset_has_a_source() {
    for name in presets::cluster_names().into_iter().filter(|name| !name.contains('N')) {
        let assumptions = cluster(name).assumptions();
        assert!(assumptions.len() > 30, "{name}");
        for assumption in assumptions {
            assert!(!assumption.source.is_empty() && !assumption.value.is_empty(), "{assumption:?}");
        }
    }
    let h100 = cluster("dgx-h100").assumptions();
    let nccl = h100.iter().find(|a| a.path == "fabric.nccl.bandwidth").expect("listed");
    assert_eq!(nccl.value, "280.1 GB/s");
    assert!(nccl.source.starts_with("DERIVED: the copy engine's 368.8 GB/s"));
}

#[test]
fn parameters_match_the_published_counts() {
    // Weights as the model cards count them, with norms and biases, which are below 0.1%.
    let published = [
        ("llama-2-7b", 6_738_415_616_u64),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3-405b", 405_853_388_800),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-72b", 72_706_203_648),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("gpt-neox-20b", 20_554_567_680),
    ];
    for (name, count) in published {
        let ours = presets::model(name).expect(name).parameters();
        let error = (ours as f64 / count as f64 - 1.0).abs();
        assert!(error < 1e-3, "{name}: {ours} against {count}");
    }
    // Mixtral: "46.7B total, 12.9B active per token".
    let active = presets::model("mixtral-8x7b").expect("preset").active_parameters();
    assert_eq!(active / 100_000_000, 128);
}

#[test]
fn key_value_bytes_follow_the_kv_heads() {
    let bf16 = Dtype::Bf16.size();
    let kv = |name| presets::model(name).expect("preset").kv_bytes_per_token(bf16);
    assert_eq!(kv("llama-3-8b"), Bytes(2 * 8 * 128 * 2));
    assert_eq!(kv("llama-2-7b"), Bytes(2 * 32 * 128 * 2));
    assert_eq!(kv("gpt-neox-20b"), Bytes(2 * 64 * 96 * 2));
    let llama = presets::model("llama-3-8b").expect("preset");
    assert_eq!(llama.q_bytes_per_token(bf16), Bytes(32 * 128 * 2));
}

#[test]
fn the_small_head_variants_keep_heads_times_layers() {
    for name in ["llama-7b", "llama-16h", "llama-8h", "llama-4h", "llama-2h"] {
        let model = presets::model(name).expect(name);
        assert_eq!(model.layers * model.heads, 1024, "{name}");
        assert_eq!((model.hidden, model.intermediate), (model.heads * 128, 11008), "{name}");
    }
}

#[test]
fn striped_models_have_the_papers_matrix_weights() {
    // The paper's operations of one layer's dense part: 2 * (4 d^2 + 2 d d_ff) a token.
    for (name, d, d_ff) in
        [("striped-1b", 2048_u64, 5504_u64), ("striped-3b", 3200, 8640), ("striped-7b", 4096, 11008)]
    {
        let model = presets::model(name).expect(name);
        assert_eq!(model.attention_weights() + model.mlp_weights(), 4 * d * d + 2 * d * d_ff, "{name}");
    }
}

#[test]
fn the_ideal_cluster_counts_pairs_in_whole_picoseconds() {
    let ideal = cluster("ideal");
    for (head_dim, forward, backward) in [(64, 2, 5), (128, 4, 10), (256, 8, 20)] {
        for (pass, operations, expected) in [(Pass::Forward, 4, forward), (Pass::Backward, 10, backward)] {
            let row = ideal.kernel(head_dim, Dtype::Bf16, pass).expect("covered");
            for pairs in [1_u64, 3, 8_589_967_360] {
                let work = Flops(f64::from(operations * head_dim) * pairs as f64);
                assert_eq!(work / row.rate, SimTime(pairs * expected), "{head_dim} {pass:?}");
            }
        }
    }
    assert_eq!(Bytes(1 << 40) / ideal.fabric.copy.bandwidth, SimTime::ZERO);
}

#[test]
fn datasheet_figures() {
    let of = |name: &str| {
        let cluster = cluster(name);
        let link = cluster.fabric.topology.link_bandwidth();
        (cluster.device.memory, cluster.device.hbm_bandwidth, cluster.device.peak.bf16, link)
    };
    let gb = |count: u64| Bytes(count * 1_000_000_000);
    assert_eq!(of("dgx-h100"), (gb(80), BytesPerSec(3.35e12), FlopsPerSec(989e12), BytesPerSec(450e9)));
    assert_eq!(of("dgx-a100-80gb"), (gb(80), BytesPerSec(2.039e12), FlopsPerSec(312e12), BytesPerSec(300e9)));
    assert_eq!(of("hgx-h200"), (gb(141), BytesPerSec(4.8e12), FlopsPerSec(989e12), BytesPerSec(478e9)));
    assert_eq!(of("dgx-b200"), (gb(180), BytesPerSec(8e12), FlopsPerSec(2.25e15), BytesPerSec(900e9)));
    assert_eq!(
        of("tpu-v4-4x4"),
        (Bytes(32 << 30), BytesPerSec(1.2e12), FlopsPerSec(275e12), BytesPerSec(50e9))
    );
}

#[test]
fn link_fits_reproduce_the_measured_times() {
    // Microseconds on an H200 machine by MiB; the host's cost of a call is the floor.
    let h200 = cluster("hgx-h200");
    let copy = [(1, 4.7), (4, 12.9), (16, 45.7), (64, 173.0), (256, 679.0), (1024, 2707.0)];
    let nccl = [(1, 21.4), (4, 28.9), (16, 80.4), (64, 247.0), (256, 871.0)];
    let sides = [
        (&h200.fabric.copy, h200.host.copy_launch, &copy[..], 0.019),
        (&h200.fabric.nccl, h200.host.nccl_launch, &nccl[..], 0.088),
    ];
    for (transport, launch, points, tolerance) in sides {
        for &(mib, measured) in points {
            let predicted = (transport.latency + Bytes(mib << 20) / transport.bandwidth).max(launch);
            let error = predicted.as_secs_f64() * 1e6 / measured - 1.0;
            assert!(error.abs() < tolerance, "{mib} MiB: {predicted} against {measured} us");
        }
    }
}

#[test]
fn network_presets_have_the_nics_their_names_promise() {
    let pair = cluster("2x-dgx-a100-100g");
    assert_eq!((pair.nodes, pair.gpus()), (2, 16));
    assert_eq!(pair.network.as_ref().expect("two nodes").nic_bandwidth, BytesPerSec(12.5e9));
    assert_eq!((pair.nics_of(0), pair.nics_of(7)), (0..1, 7..8));

    let rails = cluster("h100-16x8-rail");
    assert_eq!((rails.gpus(), rails.node_of(127)), (128, 15));
    assert_eq!(rails.nics_of(5), 5..6);
    assert_eq!(rails.network.expect("rails").topology, NetworkTopology::RailOptimised);

    let FabricTopology::Torus { dims, wraparound, .. } = cluster("tpu-v4-4x4").fabric.topology else {
        panic!("a torus");
    };
    assert_eq!((dims, wraparound), (vec![4, 4], false));
}
