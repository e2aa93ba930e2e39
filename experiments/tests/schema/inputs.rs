use ringlab_experiments::presets;
use ringlab_experiments::sweep::{FIELDS, Grid};
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::config::model::Model;
use serde_json::{Value, json};

use crate::support::{Folder, ringlab};
use crate::{assert_valid, members, validator, without};

fn value(toml: &str) -> Value {
    toml::from_str(toml).unwrap()
}

fn toml_text(value: &Value) -> String {
    toml::to_string(value).unwrap()
}

/// The reader and the schema agree on `original` with each member left out, misspelt, or of another type.
fn agree_on_changes(schema: &str, original: &Value, reads: impl Fn(&str) -> bool) -> usize {
    let validator = validator(schema);
    assert_valid(&validator, schema, original);
    let mut refused = 0;
    for (at, key) in members(original) {
        let left_out = without(original, &at, &key);
        let mut misspelt = left_out.clone();
        misspelt.pointer_mut(&at).unwrap()[format!("{key}x")] = json!(1);
        let mut retyped = original.clone();
        retyped.pointer_mut(&at).unwrap()[&key] = json!([true]);
        for (how, changed) in [("left out", left_out), ("misspelt", misspelt), ("retyped", retyped)] {
            let (taken, valid) = (reads(&toml_text(&changed)), validator.is_valid(&changed));
            // Whether heads divide the width is arithmetic, which a schema cannot say.
            let arithmetic = schema == "model" && key == "head_dim" && how == "left out";
            // Nor can it say that what a calibration has spreads of must be there, or that no two rows are for the same calls.
            let has_calibration = !original["calibration"].is_null();
            let refers =
                how == "left out" && ((at == "/device" && key == "power" && has_calibration) || key == "use");
            assert!(
                taken == valid || arithmetic || refers,
                "{schema}: {at}/{key} {how}: read {taken}, valid {valid}"
            );
            refused += usize::from(!valid);
        }
    }
    refused
}

#[test]
fn clusters_are_what_the_reader_takes() {
    let mut names = presets::cluster_names();
    names.retain(|name| !name.contains('x') || presets::built_in_cluster(name).is_some());
    names.extend(["h100-16x8-rail", "h100-16x8-fat-tree-2to1"]);
    for name in names.into_iter().filter(|n| !n.contains("NxM")) {
        let original = value(&presets::cluster_text(name).unwrap());
        let refused = agree_on_changes("cluster", &original, |text| Cluster::parse("c", text).is_ok());
        assert!(refused > 80, "{name}: {refused}");
    }
}

#[test]
fn a_calibrated_cluster_can_be_a_preset() {
    let text = include_str!("../../results/h200-validation-2026-11-30/second/calibrated.toml");
    assert!(agree_on_changes("cluster", &value(text), |text| Cluster::parse("c", text).is_ok()) > 80);
}

/// No preset has them: two kernels for one head dimension, heads in sections, and what transfers and calls cost each other.
#[test]
fn constants_of_measured_clusters_are_what_the_reader_takes() {
    let validator = validator("cluster");
    let mut good = value(&presets::cluster_text("hgx-h200").unwrap());
    let mut wide = good["kernels"][2].clone();
    wide["use"] = json!({ "min_keys": 32768, "or_visited": 0.9, "above_keys": 2048 });
    wide["grid"] = json!("persistent-queue");
    wide["sections"] = json!({ "cache": "32 MiB", "items_an_sm": 4 });
    good["kernels"].as_array_mut().unwrap().push(wide);
    good["device"]["reached"]["call"] = json!("2.5 us");
    for transport in ["copy", "nccl"] {
        good["fabric"][transport]["slows_calls"] = json!(0.05);
        good["fabric"][transport]["slowed_by_calls"] = json!(0.99);
    }
    good["fabric"]["nccl"]["priority"] = json!("high");
    let reads = |cluster: &Value| Cluster::parse("c", &toml_text(cluster)).is_ok();
    assert_valid(&validator, "measured", &good);
    assert!(reads(&good));
    let last = good["kernels"].as_array().unwrap().len() - 1;
    for (at, key, bad) in [
        (format!("/kernels/{last}/use"), "min_keys", json!(0)),
        (format!("/kernels/{last}/use"), "or_visited", json!(1.5)),
        (format!("/kernels/{last}/use"), "above_keys", json!("2Ki")),
        (format!("/kernels/{last}/use"), "tile", json!(128)),
        (format!("/kernels/{last}"), "use", json!(true)),
        (format!("/kernels/{last}"), "grid", json!("queue")),
        (format!("/kernels/{last}"), "grid", json!("persistent")),
        (format!("/kernels/{last}"), "items", json!("key-tiles")),
        (format!("/kernels/{last}"), "sections", json!("32 MiB")),
        (format!("/kernels/{last}/sections"), "cache", json!(33_554_432)),
        (format!("/kernels/{last}/sections"), "items_an_sm", json!(-1)),
        (format!("/kernels/{last}/sections"), "heads", json!(3)),
        ("/device/reached".into(), "call", json!(2.5)),
        ("/fabric/copy".into(), "slows_calls", json!(1.0)),
        ("/fabric/nccl".into(), "slowed_by_calls", json!(-0.1)),
        ("/fabric/nccl".into(), "priority", json!("highest")),
        ("/fabric/nccl".into(), "priority", json!(1)),
        ("/fabric/copy".into(), "priority", json!("high")),
    ] {
        let mut cluster = good.clone();
        cluster.pointer_mut(&at).unwrap()[key] = bad;
        assert!(!validator.is_valid(&cluster) && !reads(&cluster), "{at}/{key}");
    }
    for (table, key) in [
        ("use", "min_keys"),
        ("use", "or_visited"),
        ("use", "above_keys"),
        ("sections", "cache"),
        ("sections", "items_an_sm"),
    ] {
        let cluster = without(&good, &format!("/kernels/{last}/{table}"), key);
        assert!(!validator.is_valid(&cluster) && !reads(&cluster), "without {key}");
    }
}

#[test]
fn settings_of_nccl_are_what_the_reader_takes() {
    let validator = validator("cluster");
    let mut good = value(&presets::cluster_text("h100-2x8-rail").unwrap());
    let limit = |ctas: u32, lost: f64| json!({ "ctas": ctas, "bandwidth": "70 GB/s", "sms": ctas, "slowed_by_calls": lost, "source": "test" });
    good["fabric"]["nccl"]["limits"] = json!([limit(4, 0.0), limit(8, 0.99)]);
    good["fabric"]["nccl"]["high_priority"] = json!({ "sms": 0, "slowed_by_calls": 0.1, "source": "test" });
    let reads = |text: &str| Cluster::parse("c", text).is_ok();
    assert!(agree_on_changes("cluster", &good, reads) > 90);
    let misplaced =
        (good["fabric"]["nccl"]["limits"].clone(), good["fabric"]["nccl"]["high_priority"].clone());
    for (at, key, bad) in [
        ("/fabric/nccl", "limits", json!([])),
        ("/fabric/nccl/limits/0", "ctas", json!(0)),
        ("/fabric/nccl/limits/0", "bandwidth", json!(70)),
        ("/fabric/nccl/limits/1", "slowed_by_calls", json!(1.0)),
        ("/fabric/nccl/high_priority", "sms", json!(-1)),
        ("/fabric/copy", "limits", misplaced.0.clone()),
        ("/fabric/copy", "high_priority", misplaced.1.clone()),
        ("/network/transport", "limits", misplaced.0),
        ("/network/transport", "high_priority", misplaced.1),
    ] {
        let mut cluster = good.clone();
        cluster.pointer_mut(at).unwrap()[key] = bad;
        assert!(!validator.is_valid(&cluster) && !reads(&toml_text(&cluster)), "{at}/{key}");
    }
}

#[test]
fn power_limits_are_what_the_reader_takes() {
    let mut original = value(&presets::cluster_text("hgx-h200").unwrap());
    let limit = |boost: f64, idle: f64, exponent: f64| json!({ "boost": boost, "idle": idle, "exponent": exponent, "source": "measured" });
    original["device"]["power"] = limit(1.127, 0.17, 2.5);
    let reads = |text: &str| Cluster::parse("c", text).is_ok();
    assert!(agree_on_changes("cluster", &original, reads) > 90);
    let validator = validator("cluster");
    for (limit, taken) in [
        (limit(1.0, 0.0, 1.0), true),
        (limit(10.0, 0.999, 10.0), true),
        (limit(0.99, 0.17, 2.5), false),
        (limit(11.0, 0.17, 2.5), false),
        (limit(1.1, 1.0, 2.5), false),
        (limit(1.1, -0.1, 2.5), false),
        (limit(1.1, 0.17, 0.9), false),
    ] {
        original["device"]["power"] = limit;
        assert_eq!(
            (reads(&toml_text(&original)), validator.is_valid(&original)),
            (taken, taken),
            "{original}"
        );
    }
}

#[test]
fn models_are_what_the_reader_takes() {
    for name in presets::model_names() {
        let original = value(&presets::model_text(name).unwrap());
        assert!(agree_on_changes("model", &original, |text| Model::parse("m", text).is_ok()) > 15, "{name}");
    }
}

#[test]
fn a_network_without_gpudirect_is_staged() {
    let validator = validator("cluster");
    let mut cluster = value(&presets::cluster_text("h100-2x8-rail").unwrap());
    cluster["network"]["gpudirect"] = json!(false);
    assert!(!validator.is_valid(&cluster));
    cluster["network"]["staging_bandwidth"] = json!("20 GB/s");
    assert_valid(&validator, "staged", &cluster);
}

/// Whether `ringlab layout` takes the run file.
fn layout_takes(text: &str) -> bool {
    let folder = Folder::new("");
    std::fs::write(folder.path("run.toml"), text).unwrap();
    ringlab(&["layout", "--run", &folder.at("run.toml")]).status.success()
}

#[test]
fn run_files_are_what_the_command_line_takes() {
    let validator = validator("run-file");
    let good = "seq = 64\ncp = 4\nschedule = [\"ring\", \"zigzag\"]\npass = \"backward\"\npad = true\nheads = 8\nkv_heads = \"2\"\n\
                link_bandwidth = \"200 GB/s\"\ndtype = \"bf16\"\nmask = \"causal\"\n";
    assert_valid(&validator, "run file", &value(good));
    assert!(layout_takes(good));
    for bad in
        ["sequence = 64\n", "pass = \"forwards\"\n", "cp = true\n", "cp = [1, 2]\n", "pad = \"perhaps\"\n"]
    {
        assert!(!validator.is_valid(&value(bad)), "{bad}");
        assert!(!layout_takes(bad), "{bad}");
    }
}

#[test]
fn sweeps_are_what_the_reader_takes() {
    let validator = validator("sweep-file");
    let check = |text: &str, expected: bool| {
        assert_eq!(Grid::parse("s", text).is_ok(), expected, "{text}");
        let valid = validator.is_valid(&value(text));
        assert_eq!(valid, expected, "{text}");
    };
    for (key, example) in FIELDS {
        check(&format!("{key} = {example}\n"), true);
        check(&format!("{key} = []\n"), false);
        check(&format!("{key}x = {example}\n"), false);
        check(&format!("{key} = {{ from = {example} }}\n"), false);
    }
    check(
        "seq = { from = \"8Ki\", to = \"1Mi\", times = 2 }\ncp = [2, { from = 4, to = 8, step = 2 }]\n",
        true,
    );
    check("seq = { from = \"8Ki\", to = \"1Mi\", times = 2, step = 8 }\n", false);
    check("schedule = { from = \"ring\", to = \"zigzag\", step = 1 }\n", false);
    for name in ["bubble", "memory", "winner-length-bandwidth", "exposed-over-bandwidth"] {
        let path = format!("{}/src/charts/gallery/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        check(&std::fs::read_to_string(path).unwrap(), true);
    }
}
