//! Reports of earlier measurements, predicted anew without the machine: those of two H200s in `experiments/results`, and what is
//! refused.

mod nccl;
mod refused;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{assert_described, number, ringlab, text};

const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/h200-validation-2026-11-30");

/// A cluster and a report of its validation.
struct Files {
    cluster: PathBuf,
    report: PathBuf,
}

fn two_h200s(which: &str) -> Files {
    let folder = Path::new(RESULTS).join(which);
    Files { cluster: folder.join("calibrated.toml"), report: folder.join("validate.json") }
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Exit code, standard output and standard error.
fn predict(files: &Files, more: &[&str]) -> (Option<i32>, String, String) {
    let [cluster, report] = [&files.cluster, &files.report].map(|path| path.to_str().unwrap());
    let done = ringlab(&[&["validate", "--cluster", cluster, "--measured", report], more].concat());
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

fn points(report: &Value) -> &Vec<Value> {
    report["points"].as_array().unwrap()
}

/// The measurements of `report`, which was made just now, are predicted as they were then, step by step.
pub fn assert_predicted_alike(cluster: &Path, report: &Value) {
    let folder = tempfile::tempdir().unwrap();
    let files = Files { cluster: cluster.to_owned(), report: folder.path().join("report.json") };
    std::fs::write(&files.report, report.to_string()).unwrap();
    let (code, again, error) = predict(&files, &["--format", "json"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_described(&again);
    assert_eq!(again["machine"], report["machine"]);
    let name = &report["cluster"];
    assert_eq!(again["measured_in"], json!({ "file": files.report, "cluster": name, "links_of": name }));
    assert_eq!(points(&again).len(), points(report).len());
    for (now, then) in points(&again).iter().zip(points(report)) {
        let then = then.as_object().unwrap();
        for (key, value) in then.iter().filter(|(key, _)| *key != "calls") {
            assert_eq!(&now[key], value, "{key}");
        }
        let calls = |point: &Value| point["calls"].as_array().unwrap().clone();
        let then = calls(&Value::Object(then.clone()));
        assert_eq!(calls(now).len(), then.len());
        for (now, then) in calls(now).iter().zip(&then) {
            for key in ["rank", "step", "predicted_s", "measured_s"] {
                assert_eq!(now[key], then[key], "{key}");
            }
        }
    }
}

/// What was measured is the report's to the last digit.
fn assert_measured_alike(now: &[Value], then: &[Value]) {
    for (now, then) in now.iter().zip(then) {
        for key in ["measured_s", "spread", "measured_bubble_ratio", "measured_exposed_s", "loaded_s", "duty"]
        {
            assert_eq!(now[key], then[key], "{key}");
        }
    }
}

/// Mean of magnitudes, largest, and mean.
fn summary(errors: &[f64]) -> [f64; 3] {
    let n = errors.len() as f64;
    let magnitudes = || errors.iter().map(|e| e.abs());
    [magnitudes().sum::<f64>() / n, magnitudes().fold(0.0, f64::max), errors.iter().sum::<f64>() / n]
}

/// What earned `h200-nvl2-validated` its name, with the model of today: the aims of docs/calibration.md.
#[test]
fn what_two_h200s_measured_is_predicted_today() {
    for which in ["fifth", "sixth"] {
        let measured = two_h200s(which);
        let links_of = measured.cluster.to_str().unwrap();
        let files = Files {
            cluster: two_h200s(&format!("{which}-refitted")).cluster,
            report: measured.report.clone(),
        };
        let (code, found, error) = predict(&files, &["--links-of", links_of, "--format", "json"]);
        assert_eq!(code, Some(0), "{which}: {error}");
        let (found, recorded): (Value, Value) = (serde_json::from_str(&found).unwrap(), read(&files.report));
        assert_eq!(points(&found).len(), points(&recorded).len(), "{which}: {}", found["left_out"]);
        assert_described(&found);
        assert_measured_alike(points(&found), points(&recorded));
        // Judged by predictions of today and times of the report, not by their summary.
        let pairs = points(&found).iter().zip(points(&recorded));
        let errors: Vec<f64> =
            pairs.map(|(now, then)| number(now, "predicted_s") / number(then, "measured_s") - 1.0).collect();
        let [mape, worst, bias] = summary(&errors);
        assert!(mape <= 0.03 && worst <= 0.08 && bias.abs() <= 0.015, "{which}: {mape} {worst} {bias}");
        for (key, value) in [("mape", mape), ("max_error", worst), ("bias", bias)] {
            assert!((number(&found, key) - value).abs() < 1e-9, "{which}: {key}");
        }
        assert!(number(&found, "speedup_mape") <= 0.02 && number(&found, "coverage") >= 0.9, "{which}");
    }
}

#[test]
fn steps_have_no_error_where_their_times_were_not_recorded() {
    // The fifth lists no calls; the sixth those of all points but nine, which have more than 64.
    for (which, without) in [("fifth", 117), ("sixth", 9)] {
        let (_, found, _) = predict(&two_h200s(which), &["--format", "json"]);
        let found: Value = serde_json::from_str(&found).unwrap();
        let is_without = |p: &&Value| p["median_step_error"].is_null() && p["worst_step_error"].is_null();
        assert_eq!(points(&found).iter().filter(is_without).count(), without, "{which}");
    }
}

/// What is true of a point.
type Is = fn(&Value) -> bool;

fn is_real(point: &Value) -> bool {
    point["launching"] != "virtual"
}

#[test]
fn options_leave_a_part_of_a_report() {
    let files = two_h200s("sixth");
    let recorded = read(&files.report);
    let cases: [(&[&str], Is); 9] = [
        (&["--schedule", "ring"], |p| p["schedule"] == "ring"),
        (&["--seq", "64Ki"], |p| p["seq_len"] == 65536),
        (&["--pass", "backward"], |p| p["pass"] == "backward"),
        (&["--kv-heads", "4"], |p| p["kv_heads"] == 4),
        (&["--head-dim", "64"], |p| p["head_dim"] == 64),
        (&["--transport", "nccl"], |p| p["transport"] == "nccl"),
        (&["--launching", "fused"], |p| p["launching"] == "fused"),
        (&["--virtual", "4,64"], |p| is_real(p) || p["cp"] == 4 || p["cp"] == 64),
        (&["--cp", "2", "--virtual", "8", "--seq", "64Ki"], |p| {
            (is_real(p) || p["cp"] == 8) && p["seq_len"] == 65536
        }),
    ];
    for (options, is_left) in cases {
        let (code, found, error) = predict(&files, &[options, &["--format", "json"]].concat());
        assert_eq!(code, Some(0), "{options:?}: {error}");
        let found: Value = serde_json::from_str(&found).unwrap();
        let left: Vec<&Value> = points(&recorded).iter().filter(|p| is_left(p)).collect();
        assert!(!left.is_empty() && left.len() < points(&recorded).len(), "{options:?}");
        let times = |points: &[&Value]| points.iter().map(|p| number(p, "measured_s")).collect::<Vec<_>>();
        assert_eq!(times(&points(&found).iter().collect::<Vec<_>>()), times(&left), "{options:?}");
    }
    for (options, said) in [
        (["--cp", "4"], "has --cp 4; it has 2"),
        (["--virtual", "5"], "has --virtual 5; it has 4,8,16,64"),
        (["--seq", "8193"], "it has --seq 8192,16384,32768,65536,131072, --kv-heads 4,16"),
    ] {
        let (code, _, error) = predict(&files, &options);
        assert!(code == Some(2) && error.contains(said), "{options:?}: {error}");
    }
}

#[test]
fn bounds_are_gates() {
    let files = two_h200s("sixth");
    let (code, found, error) = predict(&files, &["--max-bias", "0", "--max-mape", "0", "--max-error", "0"]);
    assert_eq!(code, Some(1));
    for said in ["the mean error is ", "the largest error is ", "the bias is ", "beyond the 0% of --max-bias"]
    {
        assert!(error.contains(said), "{error}");
    }
    let file = files.report.to_str().unwrap();
    let heading = format!(
        "hgx-h200-calibrated against 2 x NVIDIA H200 (CUDA 13.0 driver, ringlab 0.1.0), as measured earlier ({file})"
    );
    assert!(found.contains(&heading), "{found}");
    assert!(
        found.contains("virtual points: measured computations on the links of hgx-h200-calibrated"),
        "{found}"
    );
    let (code, _, error) = predict(&files, &["--max-bias", "3", "--max-mape", "3", "--max-error", "8"]);
    assert_eq!(code, Some(0), "{error}");
    let (code, _, error) = predict(&files, &["--max-bias", "-1"]);
    assert!(code == Some(2) && error.contains("--max-bias must be a finite number of percent"), "{error}");
}

/// In percent: a hundredth less than the error is beyond a bound, and a hundredth more is not.
#[test]
fn bounds_are_percent() {
    let files = two_h200s("sixth");
    let only = ["--schedule", "ring", "--pass", "forward"];
    let (code, found, _) = predict(&files, &[&only[..], &["--format", "json"]].concat());
    assert_eq!(code, Some(0));
    let found: Value = serde_json::from_str(&found).unwrap();
    let of = |p: &Value| number(p, "predicted_s") / number(p, "measured_s") - 1.0;
    let errors: Vec<f64> = points(&found).iter().map(of).collect();
    let mean = |of: fn(f64) -> f64| errors.iter().map(|&e| of(e)).sum::<f64>() / errors.len() as f64;
    let largest = errors.iter().fold(0.0_f64, |most, e| e.abs().max(most));
    for (option, error) in
        [("--max-mape", mean(f64::abs)), ("--max-bias", mean(|e| e).abs()), ("--max-error", largest)]
    {
        for (factor, expected) in [(0.99, 1), (1.01, 0)] {
            let bound = format!("{}", 100.0 * factor * error);
            let (code, _, said) = predict(&files, &[&only[..], &[option, &bound]].concat());
            assert_eq!(code, Some(expected), "{option} {bound}: {said}");
        }
    }
}

#[test]
fn links_of_virtual_ranks_that_are_not_there_are_said() {
    let files = two_h200s("sixth");
    let said = |launching| predict(&files, &["--launching", launching, "--links-of", "pcie-8x-a100"]).2;
    let nothing = "--links-of changes nothing: no point that is left has virtual ranks";
    assert!(said("stepwise").contains(nothing), "{}", said("stepwise"));
    assert!(!said("virtual").contains(nothing), "{}", said("virtual"));
}

#[test]
fn virtual_points_are_predicted_on_the_links_that_are_named() {
    let files = two_h200s("sixth");
    let times = |more: &[&str]| {
        let (_, found, error) =
            predict(&files, &[&["--schedule", "ring", "--format", "json"], more].concat());
        let found: Value = serde_json::from_str(&found).unwrap_or_else(|_| panic!("{error}"));
        let of = |is_virtual: bool| {
            let kind = points(&found).iter().filter(move |p| (p["launching"] == "virtual") == is_virtual);
            kind.map(|p| number(p, "predicted_s")).collect::<Vec<_>>()
        };
        (of(false), of(true), found["measured_in"].clone())
    };
    let (real, on_own, _) = times(&[]);
    let (same, on_pcie, origin) = times(&["--links-of", "pcie-8x-a100"]);
    assert_eq!(real, same);
    assert!(on_own.iter().zip(&on_pcie).all(|(own, pcie)| pcie > own), "{on_own:?} {on_pcie:?}");
    assert_eq!(
        (&origin["cluster"], &origin["links_of"]),
        (&json!("hgx-h200-calibrated"), &json!("pcie-8x-a100"))
    );

    // A report of a report names the cluster that measured.
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first.json");
    let options = ["--links-of", "pcie-8x-a100", "--format", "json", "-o", first.to_str().unwrap()];
    assert_eq!(predict(&files, &options).0, Some(0));
    let again = Files { cluster: "h200-nvl2-validated".into(), report: first };
    let (code, found, error) = predict(&again, &["--format", "json"]);
    assert_eq!(code, Some(0), "{error}");
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["measured_in"]["cluster"], "hgx-h200-calibrated");
    assert_eq!(found["measured_in"]["links_of"], "h200-nvl2-validated");
}

#[test]
fn options_of_machines_and_of_reports_exclude_each_other() {
    for option in [
        ["--limit", "3"],
        ["--backend", "cpu"],
        ["--load", "cold"],
        ["--nccl-ctas", "8"],
        ["--nccl-priority", "high"],
    ] {
        let (code, _, error) = predict(&two_h200s("sixth"), &option);
        assert!(code == Some(2) && error.contains("'--measured <FILE.json>' cannot be used with"), "{error}");
    }
    let alone = ringlab(&["validate", "--cluster", "ideal", "--links-of", "ideal"]);
    assert_eq!(alone.status.code(), Some(2));
}

#[test]
fn heads_without_a_kernel_of_their_own_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let sixth = two_h200s("sixth");
    let mut report = read(&sixth.report);
    let all = report["points"].as_array_mut().unwrap();
    all.retain(|point| point["schedule"] == "ring" && point["seq_len"] == 8192);
    let passes: Vec<&Value> = all.iter().map(|point| &point["pass"]).collect();
    assert_eq!(passes, ["forward", "backward"]);
    all[0]["head_dim"] = json!(80);
    let path = folder.path().join("report.json");
    std::fs::write(&path, report.to_string()).unwrap();
    let (code, _, error) = predict(&Files { report: path, ..sixth }, &[]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(error.matches(" kernel for heads of ").count(), 1, "{error}");
    assert!(error.contains("no forward kernel for heads of 80: that of 128\n"), "{error}");
}

/// A measurement cannot be made again at will.
#[test]
fn results_are_not_written_over_what_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let sixth = two_h200s("sixth");
    let copied = |from: &Path, name: &str| {
        let path = folder.path().join(name);
        std::fs::copy(from, &path).unwrap();
        path
    };
    let report = copied(&sixth.report, "report.svg");
    let files = Files { cluster: copied(&sixth.cluster, "node.toml"), report };
    let links = copied(&sixth.cluster, "links.toml");
    let links = links.to_str().unwrap();
    for (option, file) in [
        ("-o", files.report.to_str().unwrap()),
        ("--plot", files.report.to_str().unwrap()),
        ("-o", files.cluster.to_str().unwrap()),
        ("-o", links),
    ] {
        let before = std::fs::read(file).unwrap();
        let (code, _, error) = predict(&files, &["--links-of", links, option, file]);
        let said = format!("error: {file} is read by this command; give the result another file\n");
        assert_eq!((code, error), (Some(2), said), "{option}");
        assert_eq!(std::fs::read(file).unwrap(), before, "{option} {file}");
    }
}
