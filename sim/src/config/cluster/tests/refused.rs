//! The exact place of what the TOML form refuses.

use super::{NVSWITCH, SMALL, edited, parse};

/// The line of [`SMALL`] that is `needle` after the first `from` became `to`.
fn line_of(from: &str, to: &str, needle: &str) -> usize {
    let text = SMALL.replacen(from, to, 1);
    text.lines().position(|line| line == needle).expect(needle) + 1
}

/// What stands in [`SMALL`], what takes its place, and what is said of that.
const AMOUNTS: &[(&str, &str, &str)] = &[
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

#[test]
fn amounts_ask_for_their_unit_at_their_place() {
    for &(from, to, message) in AMOUNTS {
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

/// As [`AMOUNTS`]: values that are fine by themselves.
const CONTRADICTIONS: &[(&str, &str, &str)] = &[
    (
        NVSWITCH,
        "{ kind = \"pcie\", link_bandwidth = \"450 GB/s\", gpus_per_switch = 3, host_bridge_bandwidth = \"30 GB/s\" }",
        "`fabric.topology.gpus_per_switch` is 3, which does not divide `gpus_per_node`, 4",
    ),
    (
        NVSWITCH,
        "{ kind = \"torus\", dims = [2, 3], link_bandwidth = \"450 GB/s\", wraparound = true }",
        "the torus has 6 chips, but `gpus_per_node` is 4",
    ),
    (
        NVSWITCH,
        "{ kind = \"torus\", dims = [], link_bandwidth = \"450 GB/s\", wraparound = true }",
        "`fabric.topology.dims` is empty, expected a list",
    ),
    (
        "\"369 GB/s\"",
        "\"900 GB/s\"",
        "`fabric.copy.bandwidth` is 900 GB/s, more than the 450 GB/s of its link",
    ),
    (
        "\"48 GB/s\"",
        "\"60 GB/s\"",
        "`network.transport.bandwidth` is 60 GB/s, more than the 50 GB/s of its link",
    ),
    (
        "nics_per_node = 2",
        "nics_per_node = 3",
        "`network.nics_per_node` is 3, which does not divide `gpus_per_node`, 4",
    ),
    (
        "gpudirect = false",
        "gpudirect = true",
        "`network.staging_bandwidth` has no use where `gpudirect` is true",
    ),
    ("staging_bandwidth = \"20 GB/s\"\n", "", "missing `network.staging_bandwidth`"),
    (
        "\"675 TFLOP/s\"",
        "\"1979 TFLOP/s\"",
        "`kernels[0].rate` is 1.979 PFLOP/s, more than the device's bf16 peak, 989 TFLOP/s",
    ),
    ("head_dim = 256", "head_dim = 128", "a second kernel for forward bf16 128"),
    ("sms = 32\n", "sms = 133\n", "`fabric.nccl.sms` is 133, expected a whole number from 0 to 132"),
    ("\"80 GB\"", "\"0 GB\"", "`device.memory` is zero"),
    (
        "oversubscription = 2.0",
        "oversubscription = 0.5",
        "`network.topology.oversubscription` is 0.5, expected a number from 1 to 64",
    ),
    ("nodes = 2", "nodes = 65536", "65536 nodes of 4 GPUs are more than 65536 GPUs"),
];

#[test]
fn values_that_contradict_each_other_are_refused() {
    for &(from, to, message) in CONTRADICTIONS {
        let error = edited(from, to).expect_err(message);
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
