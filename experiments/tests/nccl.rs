//! Settings of NCCL on the command line: what is predicted with them, and what is refused.

use std::collections::HashMap;

use assert_cmd::Command;
use ringlab_experiments::presets;
use ringlab_sim::config::cluster::{Cluster, NcclLimit, Priority};
use ringlab_sim::units::{Bytes, BytesPerSec, SimTime};
use serde_json::{Value, json};
use tempfile::TempDir;

fn ringlab(line: &str) -> std::process::Output {
    Command::cargo_bin("ringlab").unwrap().args(line.split_whitespace()).output().unwrap()
}

/// Two H200s as calibrated, whose hosts launch in no time, and which know what at most 4 and 8 CTAs do.
fn cluster() -> Cluster {
    let mut cluster = presets::cluster("h200-nvl2-validated").unwrap();
    let host = &mut cluster.host;
    (host.kernel_launch, host.copy_launch, host.nccl_launch) = (SimTime::ZERO, SimTime::ZERO, SimTime::ZERO);
    let limit = |ctas, bandwidth| NcclLimit {
        ctas,
        bandwidth: BytesPerSec(bandwidth),
        sms: ctas,
        slowed_by_calls: 0.2,
        source: "by hand".into(),
    };
    cluster.fabric.nccl.limits = vec![limit(4, 75e9), limit(8, 140e9)];
    cluster
}

/// The cluster as a file, and `line` with its path for CLUSTER.
fn with(cluster: &Cluster, line: &str) -> (TempDir, std::process::Output) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.toml");
    std::fs::write(&path, cluster.to_toml()).unwrap();
    let output = ringlab(&line.replace("CLUSTER", path.to_str().unwrap()));
    (folder, output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const RING: &str = "simulate --cluster CLUSTER --cp 2 --seq 64Ki --schedule ring --transport nccl";

fn simulated(cluster: &Cluster, more: &str) -> Value {
    simulated_with(cluster, RING, more)
}

fn simulated_with(cluster: &Cluster, line: &str, more: &str) -> Value {
    let (_folder, output) = with(cluster, &format!("{line} --format json {more}"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn assert_refused(line: &str, message: &str) {
    let (_folder, output) = with(&cluster(), line);
    assert_eq!(output.status.code(), Some(2), "{line}");
    let error = text(&output.stderr);
    assert!(error.contains(message), "{line}: {error}");
}

/// With no step ahead an exchange moves beside no call, and all of it is exposed: 32Ki tokens of 8 heads of 128, keys and values in
/// 16 bits, are 134 MB.
#[test]
fn a_limit_sets_the_exposed_time() {
    let cluster = cluster();
    let nccl = &cluster.fabric.nccl;
    let bytes = Bytes((32 << 10) * 8 * 128 * 2 * 2);
    let others = (nccl.latency + nccl.ramp.unwrap().of(bytes)).as_secs_f64();
    for (more, rate, ctas) in [
        ("", nccl.bandwidth.0, Value::Null),
        ("--nccl-ctas 8", 140e9, json!(8)),
        ("--nccl-ctas 4 --nccl-priority high", 75e9, json!(4)),
    ] {
        let report = simulated(&cluster, &format!("--prefetch 0 {more}"));
        let exposed = report["results"][0]["exposed_comm_s"].as_f64().unwrap();
        let expected = others + bytes.0 as f64 / rate;
        assert!((exposed / expected - 1.0).abs() < 1e-6, "{more}: {exposed} s, by hand {expected}");
        let priority = if more.contains("high") { "high" } else { "normal" };
        assert_eq!(report["nccl"], json!({ "ctas": ctas, "priority": priority }));
    }
}

/// An exchange that is posted with the first call waits for its end at normal priority, and nothing is left to hide it; at high
/// priority it moves beside that call.
#[test]
fn priority_and_limit_are_predicted_together_and_said() {
    let cluster = cluster();
    let time = |more: &str| simulated(&cluster, more)["results"][0]["makespan_s"].as_f64().unwrap();
    let [normal, high] = ["normal", "high"].map(|p| time(&format!("--nccl-ctas 8 --nccl-priority {p}")));
    assert!(high < normal && time("--nccl-ctas 8") == normal, "{high} {normal}");
    let (_folder, output) = with(&cluster, &format!("{RING} --nccl-ctas 8 --nccl-priority high --explain"));
    let shown = text(&output.stdout);
    assert!(shown.contains(", NCCL transfers of at most 8 CTAs at high priority\n"), "{shown}");
    assert!(shown.contains("fabric.nccl.bandwidth = 140 GB/s\n      at most 8 CTAs: by hand;"), "{shown}");
    assert!(!shown.contains("limits["), "only what counts is explained: {shown}");
}

/// What a file says of priority holds where no option says otherwise.
#[test]
fn a_files_priority_is_kept() {
    let mut high = cluster();
    high.set_nccl_priority(Priority::High);
    for (more, priority) in [("", "high"), ("--nccl-ctas 8", "high"), ("--nccl-priority normal", "normal")] {
        assert_eq!(simulated(&high, more)["nccl"]["priority"], json!(priority), "{more}");
    }
}

#[test]
fn copies_have_no_settings() {
    let line = RING.replace("--transport nccl", "");
    let (_folder, output) = with(&cluster(), &format!("{line} --format json"));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["nccl"], Value::Null);
    let only = "--nccl-ctas and --nccl-priority are for NCCL transfers; add --transport nccl";
    assert_refused(&format!("{line} --nccl-ctas 8"), only);
    let validate = "validate --cluster CLUSTER --backend cuda";
    assert_refused(&format!("{validate} --nccl-priority high"), only);
    assert_refused(&format!("{validate} --transport nccl,copy-engine --nccl-ctas 8"), only);
    assert_refused("validate --cluster CLUSTER --nccl-ctas 8", "are for GPUs only; add --backend cuda");
}

#[test]
fn a_limit_that_the_cluster_does_not_know_is_refused() {
    let known = "does not say what NCCL does with at most 6 CTAs; it has limits of 4, 8";
    assert_refused(&format!("{RING} --nccl-ctas 6"), known);
    assert_refused("validate --cluster CLUSTER --backend cuda --transport nccl --nccl-ctas 6", known);
    let none = ringlab("simulate --transport nccl --nccl-ctas 8");
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).contains("it has no [[fabric.nccl.limits]]"), "{}", text(&none.stderr));
    assert_refused(&format!("{RING} --nccl-ctas 0"), "expected a whole number from 1 to 64");
}

/// A run file says the same as the options, which win over it.
#[test]
fn run_files_have_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("node.toml"), cluster().to_toml()).unwrap();
    let file = format!(
        "cluster = {:?}\ncp = 2\nseq = \"64Ki\"\nschedule = \"ring\"\ntransport = \"nccl\"\nnccl_ctas = 8\nnccl_priority = \"high\"\n",
        at("node.toml")
    );
    std::fs::write(at("run.toml"), &file).unwrap();
    let of_file = |more: &str| {
        let output = ringlab(&format!("simulate --run {} --format json {more}", at("run.toml")));
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let cluster = cluster();
    assert_eq!(of_file(""), simulated(&cluster, "--nccl-ctas 8 --nccl-priority high"));
    assert_eq!(of_file("--nccl-ctas 4"), simulated(&cluster, "--nccl-ctas 4 --nccl-priority high"));
    assert_ne!(of_file("")["results"], of_file("--nccl-ctas 4")["results"]);

    let refused = |command: &str, text_of_file: &str| {
        std::fs::write(at("bad.toml"), text_of_file).unwrap();
        let output = ringlab(&format!("{command} --run {}", at("bad.toml")));
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    let error = refused("simulate", "nccl_ctas = 0\n");
    assert!(error.contains("from 1 to 64") && error.contains("bad.toml:1:13"), "{error}");
    let error = refused("simulate", "nccl_priority = \"hihg\"\n");
    assert!(error.contains("normal, high") && error.contains("bad.toml:1:17"), "{error}");
    let error = refused("simulate", "nccl_priority = \"high\"\n");
    assert!(error.contains("add --transport nccl"), "{error}");
    let error = refused("layout", &file);
    assert!(error.contains("`ringlab layout` does not take `nccl_ctas`"), "{error}");
}

const GRID: &str = "cluster = \"node.toml\"\ncp = 2\nseq = \"16Ki\"\nschedule = [\"ring\", \"zigzag\"]\ntransport = \"nccl\"\n\
                    prefetch = 0\nlink_bandwidth = [\"400 GB/s\", \"100 GB/s\"]\nnccl_ctas = [4, 8]\nnccl_priority = [\"normal\", \"high\"]\n";

/// The rows of [`GRID`] on the limited cluster: cells by column.
fn swept() -> Vec<HashMap<String, String>> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("node.toml"), cluster().to_toml()).unwrap();
    std::fs::write(folder.path().join("grid.toml"), GRID).unwrap();
    let mut sweep = Command::cargo_bin("ringlab").unwrap();
    let output = sweep.current_dir(&folder).args(["sweep", "grid.toml"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    csv::Reader::from_reader(&output.stdout[..]).into_deserialize().map(Result::unwrap).collect()
}

#[test]
fn rows_of_a_sweep_are_what_simulate_says() {
    let cluster = cluster();
    let rows = swept();
    assert_eq!(rows.len(), 16);
    for row in &rows {
        let more = format!(
            "--seq 16Ki --prefetch 0 --schedule {} --link-bandwidth {}B/s --nccl-ctas {} --nccl-priority {}",
            row["schedule"], row["link_bandwidth_bytes_per_s"], row["nccl_ctas"], row["nccl_priority"]
        );
        let report = simulated_with(&cluster, "simulate --cluster CLUSTER --cp 2 --transport nccl", &more);
        for figure in ["makespan_s", "exposed_comm_s"] {
            let expected = report["results"][0][figure].as_f64().unwrap();
            assert_eq!(row[figure].parse::<f64>().unwrap(), expected, "{more}: {figure}");
        }
    }
    let exposed = |ctas: &str, link: &str| {
        let is_it = |row: &&HashMap<String, String>| {
            row["schedule"] == "ring" && row["nccl_ctas"] == ctas && row["link_bandwidth_bytes_per_s"] == link
        };
        rows.iter().find(is_it).unwrap()["exposed_comm_s"].parse::<f64>().unwrap()
    };
    // 8Ki tokens of 8 heads of 128, keys and values in 16 bits, are 33.5 MB; a link bounds the limits.
    let bytes = f64::from(8192 * 8 * 128 * 2 * 2);
    for (link, rates) in [("400000000000", [75e9, 140e9]), ("100000000000", [75e9, 100e9])] {
        let longer = exposed("4", link) - exposed("8", link);
        let expected = bytes / rates[0] - bytes / rates[1];
        assert!((longer / expected - 1.0).abs() < 1e-6, "{link}: {longer} s, by hand {expected}");
    }
}
