//! The TOML form of a cluster: round trip, look-ups, and the exact place of what it refuses.

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

/// The line of [`SMALL`] that is `needle` after the first `from` became `to`.
fn line_of(from: &str, to: &str, needle: &str) -> usize {
    let text = SMALL.replacen(from, to, 1);
    text.lines().position(|line| line == needle).expect(needle) + 1
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

#[test]
fn amounts_ask_for_their_unit_at_their_place() {
    let cases = [
        ("\"369 GB/s\"", "369", "`fabric.copy.bandwidth`: `369` has no unit, expected a bandwidth"),
        ("\"369 GB/s\"", "369.5", "`fabric.copy.bandwidth`: `369.5` has no unit, expected a bandwidth"),
        ("\"369 GB/s\"", "\"369\"", "`fabric.copy.bandwidth`: `369` has no unit, expected a bandwidth"),
        (
            "\"369 GB/s\"",
            "\"-369 GB/s\"",
            "`fabric.copy.bandwidth`: `-369 GB/s` is negative, expected a bandwidth",
        ),
        (
            "\"369 GB/s\"",
            "\"0 GB/s\"",
            "`fabric.copy.bandwidth`: `0 GB/s` is zero, expected a bandwidth above zero",
        ),
        (
            "\"369 GB/s\"",
            "inf",
            "`fabric.copy.bandwidth`: expected a bandwidth, found `inf`, which is not a number",
        ),
        (
            "\"369 GB/s\"",
            "\"369 GB\"",
            "`fabric.copy.bandwidth`: `GB` is the unit of a memory size, expected a bandwidth",
        ),
        (
            "\"369 GB/s\"",
            "\"1 B/s\"",
            "`fabric.copy.bandwidth`: `1 B/s` is too small, expected a bandwidth of at least 1 MB/s",
        ),
        ("\"369 GB/s\"", "true", "`fabric.copy.bandwidth` is true, expected text with a number and a unit"),
        (
            "\"80 GB\"",
            "\"18446744073709551616 B\"",
            "`device.memory`: `18446744073709551616 B` is too large, expected a memory size of at most 8192 TiB",
        ),
    ];
    for (from, to, message) in cases {
        let error = edited(from, to).expect_err(to);
        assert_eq!(error.message(), message);
        let prefix = if from.contains("369") { "bandwidth = " } else { "memory = " };
        let line = line_of(from, to, &format!("{prefix}{to}"));
        assert_eq!(error.position(), Some((line, prefix.len() + 1)), "{error}");
    }
    let error = edited("\"369 GB/s\"", "369").expect_err("no unit");
    assert_eq!(error.hint(), Some("write 369 GB/s or 369 Gb/s"));
}

#[test]
fn keys_are_known_and_complete() {
    let error = edited("hbm_bandwidth", "hbm_bandwith").expect_err("mistyped");
    assert_eq!((error.message(), error.position()), ("unknown key `device.hbm_bandwith`", Some((9, 1))));
    assert_eq!(error.hint(), Some("did you mean `hbm_bandwidth`?"));

    let error = edited("sms = 132", "zeta = 1\nalpha = 1").expect_err("two unknown");
    assert_eq!(error.message(), "unknown key `device.zeta`");

    let error = edited("sms = 132", "frequency = 132").expect_err("unknown");
    assert!(error.hint().is_some_and(|hint| hint.starts_with("known keys here: name, memory")), "{error}");

    let error = edited("sms = 132\n", "").expect_err("missing");
    assert_eq!((error.message(), error.position()), ("missing `device.sms`", Some((6, 1))));
    assert_eq!(error.hint(), Some("add a line like: sms = 132"));

    let error = edited("[host]", "[hosts]").expect_err("mistyped");
    assert_eq!((error.message(), error.hint()), ("unknown key `hosts`", Some("did you mean `host`?")));

    let error = edited("source = \"datasheet\"", "source = \"\"").expect_err("blank");
    assert_eq!(error.message(), "`device.source` is the text \"\", expected text that is not blank");

    let error = edited("nodes = 2", "nodes = 2\nnodes = 3").expect_err("twice");
    assert_eq!((error.message(), error.position()), ("duplicate key", Some((4, 1))));
    assert_eq!(parse("").expect_err("empty").to_string(), "pair.toml: the file is empty");
}

#[test]
fn kinds_and_keywords_are_known() {
    let error = edited("\"nvswitch\"", "\"nvswich\"").expect_err("mistyped");
    assert_eq!(
        (error.message(), error.hint()),
        ("unknown kind \"nvswich\"", Some("did you mean \"nvswitch\"?"))
    );
    let error = edited("kind = \"nvswitch\", ", "").expect_err("no kind");
    assert_eq!(
        (error.message(), error.hint()),
        ("missing `fabric.topology.kind`", Some("known kinds: nvswitch, pcie, torus"))
    );
    let error = edited("link_bandwidth = \"450 GB/s\"", "dims = [4]").expect_err("a torus's key");
    assert_eq!(error.message(), "unknown key `fabric.topology.dims`");
    let error = edited("\"bf16\"", "\"bf61\"").expect_err("mistyped");
    assert_eq!(
        error.message(),
        "`kernels[0].dtype` is the text \"bf61\", expected one of \"bf16\", \"fp16\", \"fp8\", \"tf32\", \"fp32\""
    );
    assert_eq!(error.hint(), Some("did you mean \"bf16\"?"));
}

#[test]
fn values_that_contradict_each_other_are_refused() {
    let pcie = |per_switch| {
        format!(
            "{{ kind = \"pcie\", link_bandwidth = \"450 GB/s\", gpus_per_switch = {per_switch}, \
             host_bridge_bandwidth = \"30 GB/s\" }}"
        )
    };
    let torus = "{ kind = \"torus\", dims = [2, 3], link_bandwidth = \"450 GB/s\", wraparound = true }";
    let cases = [
        (
            NVSWITCH,
            pcie(3),
            "`fabric.topology.gpus_per_switch` is 3, which does not divide `gpus_per_node`, 4",
        ),
        (NVSWITCH, torus.to_owned(), "the torus has 6 chips, but `gpus_per_node` is 4"),
        (NVSWITCH, torus.replace("[2, 3]", "[]"), "`fabric.topology.dims` is empty, expected a list"),
        (
            "\"369 GB/s\"",
            "\"900 GB/s\"".to_owned(),
            "`fabric.copy.bandwidth` is 900 GB/s, more than the 450 GB/s of its link",
        ),
        (
            "\"48 GB/s\"",
            "\"60 GB/s\"".to_owned(),
            "`network.transport.bandwidth` is 60 GB/s, more than the 50 GB/s of its link",
        ),
        (
            "nics_per_node = 2",
            "nics_per_node = 3".to_owned(),
            "`network.nics_per_node` is 3, which does not divide `gpus_per_node`, 4",
        ),
        (
            "gpudirect = false",
            "gpudirect = true".to_owned(),
            "`network.staging_bandwidth` has no use where `gpudirect` is true",
        ),
        ("staging_bandwidth = \"20 GB/s\"\n", String::new(), "missing `network.staging_bandwidth`"),
        (
            "\"675 TFLOP/s\"",
            "\"1979 TFLOP/s\"".to_owned(),
            "`kernels[0].rate` is 1.979 PFLOP/s, more than the device's bf16 peak, 989 TFLOP/s",
        ),
        ("head_dim = 256", "head_dim = 128".to_owned(), "a second kernel for forward bf16 128"),
        (
            "sms = 32\n",
            "sms = 133\n".to_owned(),
            "`fabric.nccl.sms` is 133, expected a whole number from 0 to 132",
        ),
        ("\"80 GB\"", "\"0 GB\"".to_owned(), "`device.memory` is zero"),
        (
            "oversubscription = 2.0",
            "oversubscription = 0.5".to_owned(),
            "`network.topology.oversubscription` is 0.5, expected a number from 1 to 64",
        ),
        ("nodes = 2", "nodes = 65536".to_owned(), "65536 nodes of 4 GPUs are more than 65536 GPUs"),
    ];
    for (from, to, message) in cases {
        let error = edited(from, &to).expect_err(message);
        assert_eq!(error.message(), message);
        assert!(error.position().is_some());
    }
    // Two NICs a GPU carry twice the rate of one.
    let doubled =
        SMALL.replace("nics_per_node = 2", "nics_per_node = 8").replace("\"48 GB/s\"", "\"96 GB/s\"");
    assert!(parse(&doubled).is_ok());
}

#[test]
fn long_lines_and_control_characters_are_shown_safely() {
    let text = format!("{}layers = 1", "x = 1 \u{1b}[31m".repeat(30));
    let shown = parse(&text).expect_err("no TOML").to_string();
    assert!(!shown.contains('\u{1b}') && shown.lines().all(|line| line.chars().count() < 120), "{shown}");
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
