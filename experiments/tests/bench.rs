//! `ringlab bench` where there is no GPU, and the picture of its rows.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use ringlab_runtime::bench::{Device, GpuError};

fn results(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results/h200-kernels-2026-11-30-2").join(file)
}

fn ringlab(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::cargo_bin("ringlab").unwrap().args(args).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_machine_without_a_gpu_is_told_what_is_missing() {
    if !matches!(Device::count(), Err(GpuError::NoDriver)) {
        eprintln!("left out: this machine has a driver");
        return;
    }
    let (code, error) = ringlab(&["bench"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("no CUDA driver") && error.contains("install the NVIDIA driver"), "{error}");
}

#[test]
fn bad_input_is_refused_before_a_gpu_is_asked_for() {
    let (code, error) = ringlab(&["bench", "--min-len", "128Ki", "--max-len", "256Ki"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("no sequence of 128Ki to 256Ki tokens is timed"), "{error}");
    let (code, error) = ringlab(&["bench", "--peers", "nowhere.csv"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("cannot read nowhere.csv"), "{error}");
}

#[test]
fn rates_over_length_are_the_rows_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (rates, picture) = (results("rates.csv").to_string_lossy().into_owned(), at("rates.svg"));
    let choose = ["--where", "kv_heads=16", "--where", "ranks=1", "--where", "pass=forward"];
    let args =
        [&["plot", "kernels", &rates, "--x", "len", "--where", "head_dim=128", "-o", &picture], &choose[..]];
    let (code, error) = ringlab(&args.concat());
    assert_eq!(code, Some(0), "{error}");
    let data = fs::read_to_string(at("rates.data.csv")).unwrap();
    // Read off experiments/results/h200-kernels-2026-11-30-2/README.md.
    for row in [
        "\"ringlab-hopper, causal\",16384,727.9",
        "\"fa3, full\",16384,740.3",
        "\"torch-cudnn, causal\",16384,633.6",
    ] {
        assert!(data.lines().any(|line| line == row), "{row} is not in\n{data}");
    }
    let several = [&["plot", "kernels", &rates, "--x", "len", "-o", &picture], &choose[..]].concat();
    let (code, error) = ringlab(&several);
    assert_eq!(code, Some(0), "all heads of 16 are of dimension 128: {error}");
    let (code, error) = ringlab(&["plot", "kernels", &rates, "--x", "len", "-o", &picture]);
    assert_eq!(code, Some(2));
    assert!(error.contains("choose with --where head_dim=128"), "{error}");
    let (_, error) = ringlab(&["plot", "kernels", &rates, "--x", "batch", "-o", &picture]);
    assert!(error.contains("drawn over len"), "{error}");
}
