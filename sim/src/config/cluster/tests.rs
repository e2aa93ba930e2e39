//! The TOML form of a cluster: round trip and look-ups.

mod refused;

use proptest::prelude::*;

use super::*;

const SMALL: &str = r#"name = "pair"
source = "a test"
nodes = 2
gpus_per_node = 4

[device]
name = "card"
memory = "80 GB"
hbm_bandwidth = "3.35 TB/s"
sms = 132
copy_engines = 3
source = "datasheet"

[device.peak]
bf16 = "989 TFLOP/s"
fp8 = "1979 TFLOP/s"

[device.reached]
matmul = "759 TFLOP/s"
hbm = "3 TB/s"
source = "measured"

[host]
kernel_launch = "2.8 us"
copy_launch = "0 us"
nccl_launch = "19.3 us"
source = "measured"

[fabric]
source = "datasheet"
topology = { kind = "nvswitch", link_bandwidth = "450 GB/s" }

[fabric.copy]
bandwidth = "369 GB/s"
latency = "2.1 us"
sms = 0
source = "measured"

[fabric.nccl]
bandwidth = "280 GB/s"
latency = "17 us"
sms = 32
source = "measured"

[network]
nic_bandwidth = "400 Gb/s"
nics_per_node = 2
topology = { kind = "fat-tree", nodes_per_leaf = 1, oversubscription = 2.0 }
spine_latency = "0.5 us"
gpudirect = false
staging_bandwidth = "20 GB/s"
source = "datasheet"

[network.transport]
bandwidth = "48 GB/s"
latency = "14 us"
sms = 2
source = "assumed"

[[kernels]]
name = "kernel"
head_dim = 128
dtype = "bf16"
pass = "forward"
tile_q = 128
tile_kv = 128
rate = "675 TFLOP/s"
partial_tile_cost = 1.5
prologue = "1 us"
epilogue = "1 us"
grid = "persistent"
source = "measured"

[[kernels]]
name = "wide"
head_dim = 256
dtype = "bf16"
pass = "forward"
tile_q = 128
tile_kv = 80
rate = "757 TFLOP/s"
partial_tile_cost = 2
prologue = "1 us"
epilogue = "1 us"
grid = "per-item"
source = "measured"
"#;

const NVSWITCH: &str = "{ kind = \"nvswitch\", link_bandwidth = \"450 GB/s\" }";

fn parse(text: &str) -> Result<Cluster, ConfigError> {
    Cluster::parse("pair.toml", text)
}

/// [`SMALL`] with the first `from` replaced.
fn edited(from: &str, to: &str) -> Result<Cluster, ConfigError> {
    assert!(SMALL.contains(from), "{from}");
    parse(&SMALL.replacen(from, to, 1))
}

#[test]
fn every_field_is_read() {
    let pair = parse(SMALL).expect("valid");
    assert_eq!((pair.gpus(), pair.node_of(3), pair.node_of(4)), (8, 0, 1));
    assert_eq!(
        (pair.device.memory, pair.device.sms, pair.device.copy_engines),
        (Bytes(80_000_000_000), 132, 3)
    );
    assert_eq!(pair.device.peak.of(Dtype::Fp8), Some(FlopsPerSec(1979e12)));
    assert_eq!(pair.device.peak.of(Dtype::Fp32), None);
    assert_eq!(pair.host.nccl_launch, SimTime(19_300_000));
    assert_eq!(pair.fabric.topology.link_bandwidth(), BytesPerSec(450e9));
    assert_eq!((pair.fabric.copy.latency, pair.fabric.nccl.sms), (SimTime(2_100_000), 32));
    let network = pair.network.expect("a network");
    assert_eq!(network.nic_bandwidth, BytesPerSec(50e9));
    assert_eq!(network.topology, NetworkTopology::FatTree { nodes_per_leaf: 1, oversubscription: 2.0 });
    assert_eq!((network.gpudirect, network.staging_bandwidth), (false, Some(BytesPerSec(20e9))));
    assert_eq!((pair.kernels[1].tile_kv, pair.kernels[1].grid), (80, Grid::PerItem));
}

#[test]
fn serialised_form_reads_back() {
    let kinds = [
        NVSWITCH,
        "{ kind = \"pcie\", link_bandwidth = \"400 GB/s\", gpus_per_switch = 2, host_bridge_bandwidth = \"1 GB/s\" }",
        "{ kind = \"torus\", link_bandwidth = \"400 GB/s\", dims = [2, 2], wraparound = true }",
        "{ kind = \"nvswitch\", link_bandwidth = \"infinite\" }",
    ];
    for kind in kinds {
        let cluster = edited(NVSWITCH, kind).expect(kind);
        assert_eq!(parse(&cluster.to_toml()).expect("valid"), cluster, "{}", cluster.to_toml());
    }
}

#[test]
fn a_single_node_needs_no_network() {
    let start = SMALL.find("[network]").expect("a network");
    let end = SMALL.find("[[kernels]]").expect("kernels");
    let alone = format!("{}{}", &SMALL[..start], &SMALL[end..]);
    let error = parse(&alone).expect_err("two nodes");
    assert_eq!(error.message(), "`nodes` is 2, but there is no `network` between them");
    assert_eq!(error.position(), Some((3, 9)));
    let single = parse(&alone.replace("nodes = 2", "nodes = 1")).expect("one node");
    assert_eq!((single.network.clone(), single.nics_of(3)), (None, 0..0));
    assert_eq!(parse(&single.to_toml()).expect("valid"), single);
}

#[test]
fn nics_are_matched_in_order() {
    let nics = |count: u32| {
        let cluster = edited("nics_per_node = 2", &format!("nics_per_node = {count}")).expect("divides");
        (0..4).map(|local| cluster.nics_of(local)).collect::<Vec<_>>()
    };
    assert_eq!(nics(1), [0..1, 0..1, 0..1, 0..1]);
    assert_eq!(nics(2), [0..1, 0..1, 1..2, 1..2]);
    assert_eq!(nics(4), [0..1, 1..2, 2..3, 3..4]);
    assert_eq!(nics(8), [0..2, 2..4, 4..6, 6..8]);
}

#[test]
fn kernels_are_found_by_padded_head_dimension() {
    let pair = parse(SMALL).expect("valid");
    let dim = |head_dim, dtype| pair.kernel(head_dim, dtype, Pass::Forward).map(|row| row.head_dim);
    assert_eq!(
        (dim(64, Dtype::Bf16), dim(128, Dtype::Bf16), dim(129, Dtype::Bf16)),
        (Ok(128), Ok(128), Ok(256))
    );
    assert_eq!(dim(128, Dtype::Fp16), Ok(128));
    assert!(dim(257, Dtype::Bf16).is_err() && dim(128, Dtype::Fp32).is_err());
    assert_eq!(
        pair.kernel(128, Dtype::Bf16, Pass::Backward).expect_err("no row").to_string(),
        "cluster `pair` has no backward attention kernel for bf16 heads of 128; \
         it has: forward bf16 128, forward bf16 256"
    );
}

#[test]
fn assumptions_carry_the_nearest_source() {
    let assumptions = parse(SMALL).expect("valid").assumptions();
    let find = |path: &str| {
        let found = assumptions.iter().find(|assumption| assumption.path == path).expect(path);
        (found.value.as_str(), found.source.as_str())
    };
    assert_eq!(find("nodes"), ("2", "a test"));
    assert_eq!(find("device.peak.bf16"), ("989 TFLOP/s", "datasheet"));
    assert_eq!(find("fabric.topology.link_bandwidth"), ("450 GB/s", "datasheet"));
    assert_eq!(find("network.transport.bandwidth"), ("48 GB/s", "assumed"));
    assert_eq!(find("kernels[1].tile_kv"), ("80", "measured"));
    assert!(assumptions.iter().all(|assumption| !assumption.path.ends_with("source")));
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,200}") {
        let _outcome = parse(&text).map_err(|error| error.to_string());
    }

    #[test]
    fn mutated_files_never_panic(
        at in 0_usize..2000, cut in 0_usize..60, insert in "[\\[\\]{}=\",.a-z0-9 \n_\u{e9}\u{0}-]{0,8}",
    ) {
        let at = at.min(SMALL.len());
        let mutated = format!("{}{insert}{}", &SMALL[..at], &SMALL[(at + cut).min(SMALL.len())..]);
        match parse(&mutated) {
            Ok(cluster) => prop_assert_eq!(parse(&cluster.to_toml()), Ok(cluster)),
            Err(error) => {
                let (line, column) = error.position().unwrap_or((1, 1));
                prop_assert!(line <= mutated.split('\n').count() && column > 0);
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}

#[test]
fn a_ramp_is_half_at_its_bytes_and_reads_back() {
    let with = SMALL.replace(
        "latency = \"17 us\"",
        "latency = \"17 us\"\nramp = { time = \"32 us\", bytes = \"8 MiB\" }",
    );
    let cluster = Cluster::parse("test", &with).unwrap();
    let ramp = cluster.fabric.nccl.ramp.unwrap();
    let of = |bytes| ramp.of(Bytes(bytes));
    assert_eq!((of(0), of(8 << 20), of(24 << 20)), (SimTime::ZERO, SimTime(16_000_000), SimTime(24_000_000)));
    assert_eq!(Cluster::parse("again", &cluster.to_toml()).unwrap(), cluster);
    assert_eq!(cluster.fabric.copy.ramp, None);
    let bad = Cluster::parse("test", &with.replace("\"8 MiB\"", "8")).unwrap_err().to_string();
    assert!(bad.contains("fabric.nccl.ramp.bytes"), "{bad}");
}
