//! calibrate and validate on this processor's threads: the whole loop without a GPU. Machines that run tests are noisy, so the
//! bound is loose; what is exact is held exactly.

#[path = "measuring/recorded.rs"]
mod recorded;

use std::path::Path;

use assert_cmd::Command;
use ringlab_experiments::schema;
use ringlab_runtime::machine::Launching;
use ringlab_sim::config::cluster::{Cluster, Quantity};
use serde_json::Value;

fn ringlab(args: &[&str]) -> std::process::Output {
    Command::cargo_bin("ringlab").unwrap().args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn calibrate(path: &Path) -> Cluster {
    let done = ringlab(&["calibrate", "-o", path.to_str().unwrap()]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("rms residual"), "{}", text(&done.stderr));
    Cluster::parse("calibrated", &std::fs::read_to_string(path).unwrap()).unwrap()
}

fn validate(path: &Path, more: &[&str]) -> (Option<i32>, Value, String) {
    let path = path.to_str().unwrap();
    let args = ["validate", "--cluster", path, "--seq", "512", "--format", "json"];
    let done = ringlab(&[&args[..], more].concat());
    let report = serde_json::from_slice(&done.stdout).unwrap_or(Value::Null);
    (done.status.code(), report, text(&done.stderr))
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// The report is what the schema says, and no member of it or of a point is one too many.
fn assert_described(report: &Value) {
    let validator = jsonschema::validator_for(&schema::schema("validate").unwrap()).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(report).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:?}");
    for place in ["", "/points/0", "/classes/0", "/measured_in"] {
        let Some(keys) = report.pointer(place).and_then(Value::as_object) else { continue };
        for key in keys.keys() {
            let mut without = report.clone();
            without.pointer_mut(place).unwrap().as_object_mut().unwrap().remove(key);
            assert!(!validator.is_valid(&without), "{place}/{key} is not required");
        }
    }
}

#[test]
fn the_schema_knows_every_way_of_launching() {
    let schema = schema::schema("validate").unwrap();
    let ways = [Launching::Stepwise, Launching::Fused, Launching::FusedQueries, Launching::Virtual];
    let known = &schema["properties"]["points"]["items"]["properties"]["launching"]["enum"];
    assert_eq!(*known, serde_json::to_value(ways).unwrap());
}

#[test]
fn a_processor_is_calibrated_predicted_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("here.toml");
    let cluster = calibrate(&path);
    let calibration = cluster.calibration.as_ref().unwrap();
    assert_eq!((cluster.nodes, cluster.gpus_per_node), (1, calibration.devices));
    assert!(
        cluster.kernels.iter().all(|k| k.source.contains("single calls measured")),
        "{:?}",
        cluster.kernels
    );
    assert!(calibration.spreads.iter().any(|u| matches!(u.of, Quantity::Kernel(..)) && u.samples > 9));
    if calibration.devices < 2 {
        let (code, _, error) = validate(&path, &[]);
        assert_eq!(code, Some(2));
        assert!(error.contains("a schedule needs two"), "{error}");
        return;
    }

    let (code, report, error) = validate(&path, &["--schedule", "ring,zigzag,striped", "--cp", "2"]);
    assert_eq!(code, Some(0), "{error}");
    assert_described(&report);
    recorded::assert_predicted_alike(&path, &report);
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 12, "three schedules, two passes, plain and grouped heads");
    let errors: Vec<f64> = points.iter().map(|p| number(p, "error")).collect();
    for (point, error) in points.iter().zip(&errors) {
        let ratio = number(point, "predicted_s") / number(point, "measured_s");
        assert!((ratio - 1.0 - error).abs() < 1e-9);
        assert!((-1.0..10.0).contains(error), "{point}");
        // Contiguous causal shards of two ranks leave rank 0 idle for a third of the pass, whatever the processor.
        if point["schedule"] == "ring" && point["pass"] == "forward" {
            assert!((number(point, "predicted_bubble_ratio") - 1.0 / 3.0).abs() < 0.02, "{point}");
        }
    }
    let mape = errors.iter().map(|e| e.abs()).sum::<f64>() / 12.0;
    assert!((number(&report, "mape") - mape).abs() < 1e-9);
    assert!((number(&report, "bias") - errors.iter().sum::<f64>() / 12.0).abs() < 1e-9);

    let classes = report["classes"].as_array().unwrap();
    let of = |by: &str| classes.iter().filter(|c| c["by"] == by).map(|c| number(c, "points")).sum::<f64>();
    assert_eq!((of("schedule"), of("pass"), of("kv_heads"), of("tokens")), (12.0, 12.0, 12.0, 0.0));

    let (code, report, error) = validate(&path, &["--schedule", "ring,zigzag", "--cp", "2", "--limit", "0"]);
    assert_eq!(code, Some(1), "nothing was run");
    assert!(error.contains("the limit of 0 s was near: 8 of 8 points were NOT run"), "{error}");
    assert_eq!(report["not_reached"].as_array().unwrap().len(), 8);
    assert_described(&report);
    assert_eq!(report["mape"].to_string(), "0.0", "no points have no error");
    assert_eq!(report["points"].as_array().unwrap().len(), 0);

    let (code, _, error) = validate(&path, &["--head-dim", "999"]);
    assert_eq!(code, Some(2));
    let there_is = "it has --seq 256,512,1024, --kv-heads 1,2, --head-dim 64, --transport copy-engine, --launching stepwise";
    assert!(error.contains(there_is), "{error}");

    let (code, ..) =
        validate(&path, &["--schedule", "ring", "--cp", "2", "--pass", "forward", "--max-error", "0"]);
    assert_eq!(code, Some(1), "no prediction is exact to the last digit");
}

#[test]
fn clusters_of_no_machine_or_of_another_are_refused() {
    let (code, _, error) = validate(Path::new("hgx-h200"), &[]);
    assert_eq!(code, Some(2));
    assert!(error.contains("was not measured on any machine"), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("elsewhere.toml");
    let preset = ringlab(&["presets", "cpu-threads"]);
    let calibration =
        "[calibration]\ndevice = \"Babbage\"\ndevices = 2\nversions = \"1\"\ndate = \"1840-01-01\"\n";
    let spread = "spreads = [{ of = \"model\", spread = 0.1, residual = 0.0, samples = 1 }]\n";
    std::fs::write(&path, text(&preset.stdout) + calibration + spread).unwrap();
    let (code, _, error) = validate(&path, &[]);
    assert_eq!(code, Some(2));
    assert!(error.contains("was measured on another machine: device Babbage"), "{error}");

    let shown = ringlab(&[
        "simulate",
        "--cluster",
        path.to_str().unwrap(),
        "--cp",
        "2",
        "--dtype",
        "fp32",
        "--head-dim",
        "64",
    ]);
    let shown = text(&shown.stdout);
    assert!(shown.contains("90% interval by the calibration") && shown.contains("(±16.4%)"), "{shown}");
}

/// Threads of which one check run was off by all of its predicted time.
fn hardly_known(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("hardly.toml");
    let preset = text(&ringlab(&["presets", "cpu-threads"]).stdout);
    let calibration =
        "[calibration]\ndevice = \"Babbage\"\ndevices = 2\nversions = \"1\"\ndate = \"1840-01-01\"\n";
    let spread = "spreads = [{ of = \"model\", spread = 0.0, residual = 1.0, samples = 1 }]\n";
    std::fs::write(&path, preset + calibration + spread).unwrap();
    path
}

const HARDLY: [&str; 10] =
    ["--cp", "2", "--dtype", "fp32", "--head-dim", "64", "--seq", "1Ki", "--schedule", "ring"];

#[test]
fn an_interval_is_as_wide_as_its_upper_end_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = hardly_known(folder.path());
    let simulate = ["simulate", "--cluster", path.to_str().unwrap()];
    let page = folder.path().join("page.html");
    let shown = ringlab(&[&simulate[..], &HARDLY, &["--report", page.to_str().unwrap()]].concat());
    // Student's t with one degree of freedom: 90% are within 6.314; a time is not below zero.
    let line = text(&shown.stdout).lines().find(|l| l.contains("ring: 0 to ")).map(str::to_owned);
    let line = line.unwrap_or_else(|| panic!("{}", text(&shown.stdout)));
    assert!(line.ends_with("(±631.4%)"), "{line}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("90% interval by the calibration") && page.contains(line.trim()), "{line}");
}

#[test]
fn a_disturbed_run_on_a_calibrated_cluster_says_that_it_has_no_interval() {
    let folder = tempfile::tempdir().unwrap();
    let path = hardly_known(folder.path());
    let disturbed =
        [&["simulate", "--cluster", path.to_str().unwrap(), "--straggler", "1:1.5"], &HARDLY[..]].concat();
    let shown = text(&ringlab(&disturbed).stdout);
    assert!(shown.contains("no 90% interval: the calibration") && !shown.contains('±'), "{shown}");
    let uncalibrated = text(&ringlab(&["simulate", "--straggler", "1:1.5", "--schedule", "ring"]).stdout);
    assert!(!uncalibrated.contains("no 90% interval"), "{uncalibrated}");
}

#[test]
fn ranks_without_devices_are_told_what_this_machine_can_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("here.toml");
    let devices = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    let device = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    let here = format!(
        "device = \"{device}\"\ndevices = {devices}\nversions = \"ringlab {}\"",
        env!("CARGO_PKG_VERSION")
    );
    let elsewhere = "device = \"Babbage\"\ndevices = 2\nversions = \"1\"";
    let known = std::fs::read_to_string(hardly_known(folder.path())).unwrap();
    std::fs::write(&path, known.replace(elsewhere, &here)).unwrap();
    let (code, _, error) = validate(&path, &["--cp", "1024"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("`ringlab simulate` take any number") && !error.contains("--virtual"), "{error}");
}

#[test]
fn a_power_limit_sets_the_clock_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limited.toml");
    let preset = text(&ringlab(&["presets", "hgx-h200"]).stdout);
    let power = "[device.power]\nboost = 1.25\nidle = 0.17\nexponent = 2.5\nsource = \"test\"\n";
    std::fs::write(&path, preset + power).unwrap();
    let row = |more: &[&str]| {
        let args =
            ["simulate", "--cluster", path.to_str().unwrap(), "--schedule", "ring", "--format", "json"];
        let done = ringlab(&[&args[..], more].concat());
        assert!(done.status.success(), "{}", text(&done.stderr));
        let report: Value = serde_json::from_slice(&done.stdout).unwrap();
        report["results"][0].clone()
    };
    let (sustained, cold) = (row(&["--cp", "1"]), row(&["--cp", "1", "--load", "cold"]));
    let ratio = number(&sustained, "makespan_s") / number(&cold, "makespan_s");
    // Less by what the clock gains where 0.99 of the SMs' time goes into products: (0.998 / 0.99)^0.4.
    assert!((ratio - 1.246).abs() < 1e-3, "{ratio}");
    assert!(cold["notes"].as_str().unwrap().contains("cold clock: ranks compute 1.250x"), "{cold}");
    // Under a causal mask rank 0 of a ring computes a fifteenth of what the last rank does, whose calls of 16Ki tokens multiply
    // for 0.95 of their time: (0.992 / 0.95)^0.4 is 1.017.
    let causal = row(&["--load", "sustained"]);
    let notes = causal["notes"].as_str().unwrap();
    assert!(notes.contains("power limit: ranks compute 1.02") && notes.contains("to 1.250x"), "{notes}");

    let refused = ringlab(&["simulate", "--load", "sustained"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("dgx-h100 has no [device.power]"), "{}", text(&refused.stderr));
}

/// A pipe that nobody reads.
fn unread_pipe() -> std::io::PipeWriter {
    std::io::pipe().unwrap().1
}

/// What `validate` does when nobody reads its standard output: exit code, and what it says.
fn unread(args: &[&str]) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("ringlab"));
    let done = command.arg("validate").args(args).stdout(unread_pipe()).output().unwrap();
    (done.status.code(), text(&done.stderr))
}

#[test]
fn gates_and_pictures_need_nobody_who_reads_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("picture.svg");
    let sixth = concat!(env!("CARGO_MANIFEST_DIR"), "/results/h200-validation-2026-11-30/sixth");
    let [cluster, report] = ["calibrated.toml", "validate.json"].map(|name| format!("{sixth}/{name}"));
    let (cluster, report, drawn) = (cluster.as_str(), report.as_str(), picture.to_str().unwrap());
    let args = ["--cluster", cluster, "--measured", report, "--schedule", "ring", "--seq", "16Ki"];
    let (code, error) = unread(&[&args[..], &["--max-mape", "0", "--plot", drawn]].concat());
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("beyond the 0% of --max-mape"), "{error}");
    assert!(std::fs::read_to_string(&picture).unwrap().contains("</svg>"));
    let (code, error) = unread(&args);
    assert_eq!(code, Some(0), "{error}");
    // Nor anybody who reads what is said besides.
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("ringlab"));
    command.arg("validate").args(args).args(["--links-of", "pcie-8x-a100", "--max-mape", "0"]);
    let done = command.stderr(unread_pipe()).output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stdout));
}
