//! The script for GPU machines, on machines that are made up: every command that it would run has arguments that the binary
//! takes and a plan that can be made, on two, four and eight GPUs; and it ends in its budget.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use assert_cmd::cargo::CommandCargoExt as _;
use ringlab_experiments::presets;
use tempfile::TempDir;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/device/runtime.sh");

/// The parts for four and eight GPUs.
const PARTS: [&str; 5] = ["correct", "calibrate", "shape", "peers", "validate"];

fn program(folder: &Path, name: &str, body: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/bash\n{body}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// What a script did where nothing was real.
struct DryRun {
    output: Output,
    /// The arguments of each call of the binary.
    calls: Vec<String>,
    /// Where it wrote, kept as long as this is.
    _folder: TempDir,
}

impl DryRun {
    fn said(&self) -> String {
        text(&self.output.stdout) + &text(&self.output.stderr)
    }
}

/// Runs the script where so many GPUs seem to be.
fn dry_run(gpus: u32, parts: &[&str], budget: u32) -> DryRun {
    let folder = tempfile::tempdir().unwrap();
    let (bin, log) = (folder.path(), folder.path().join("log"));
    // What is asked for with -o is there afterwards.
    let cluster = bin.join("cluster.toml");
    fs::write(&cluster, presets::cluster_text("hgx-h200").unwrap()).unwrap();
    let (log_path, cluster) = (log.display(), cluster.display());
    let copy = format!("while [ $# -gt 1 ]; do [ \"$1\" != -o ] || cp {cluster} \"$2\"; shift; done");
    program(bin, "ringlab", &format!("echo \"$*\" >> {log_path}\n{copy}"));
    program(bin, "nvidia-smi", &format!("for i in $(seq {gpus}); do echo $i; done"));
    for name in ["torchrun", "python3", "sleep", "pkill"] {
        program(bin, name, "exit 0");
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args([SCRIPT, &bin.join("out").to_string_lossy(), &bin.join("ringlab").to_string_lossy()])
        .args(parts)
        .env("PATH", path)
        .env("budget", budget.to_string())
        .output()
        .unwrap();
    let calls = fs::read_to_string(&log).unwrap_or_default().lines().map(str::to_owned).collect();
    DryRun { output, calls, _folder: folder }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ringlab(arguments: &[&str]) -> Output {
    Command::cargo_bin("ringlab").unwrap().args(arguments).env("CUDA_VISIBLE_DEVICES", "").output().unwrap()
}

/// Options of `run` that `check` has not, and how many words each has.
const ONLY_RUN: [(&str, usize); 15] = [
    ("--backend", 2),
    ("--format", 2),
    ("-o", 2),
    ("--repeats", 2),
    ("--sustain", 2),
    ("--sample-rows", 2),
    ("--limit", 2),
    ("--mode", 2),
    ("--copy", 2),
    ("--virtual", 1),
    ("--rank", 2),
    ("--world-size", 2),
    ("--local-rank", 2),
    ("--rendezvous", 2),
    ("--run-id", 2),
];

/// The value of an option.
fn value<'a>(call: &'a str, option: &str) -> Option<&'a str> {
    let mut words = call.split(' ').skip_while(|&word| word != option);
    words.nth(1)
}

/// The plans of a call of `run`, proven.
fn assert_planned(call: &str) {
    let (words, mut kept) = (call.split(' ').collect::<Vec<_>>(), vec!["check"]);
    let mut i = 1;
    while let Some(&word) = words.get(i) {
        let skipped = ONLY_RUN.iter().find(|(name, _)| *name == word);
        i += skipped.map_or(1, |(_, words)| *words);
        if skipped.is_none() {
            kept.push(word);
        }
    }
    let done = ringlab(&kept);
    assert_eq!(done.status.code(), Some(0), "{call}: {}", text(&done.stderr));
    let named = value(call, "--schedule").unwrap().split(',').filter(|&name| name != "all");
    for name in named {
        let proven = text(&done.stdout)
            .lines()
            .any(|l| l.trim().starts_with(&format!("{name} ")) && l.contains("proven"));
        assert!(proven, "{call}: no proven {name} in\n{}", text(&done.stdout));
    }
}

/// The binary takes the call, and only misses a GPU.
fn assert_taken(call: &str) {
    let done = ringlab(&call.split(' ').collect::<Vec<_>>());
    let error = text(&done.stderr);
    let misses = ["CUDA driver", "no GPU", "no CUDA"].iter().any(|what| error.contains(what));
    assert!(done.status.code() == Some(2) && misses, "{call}: {error}");
}

#[test]
fn every_command_is_taken_and_has_its_plans() {
    for gpus in [2, 4, 8] {
        let done = dry_run(gpus, &[], 0);
        assert!(done.output.status.success(), "{gpus}: {}", done.said());
        assert!(done.calls.len() > 30, "{:?}", done.calls);
        for call in done.calls.iter().collect::<BTreeSet<_>>() {
            // Processes meet before they look for a GPU.
            let alone = !call.contains("--rank");
            if alone {
                assert_taken(call);
            }
            if call.starts_with("run ") && alone {
                assert_planned(call);
            }
        }
    }
}

/// Numbers of ranks and transports whose results are held against the reference.
fn held(calls: &[String]) -> BTreeSet<(u32, &str)> {
    let correct =
        calls.iter().filter(|call| call.contains("--seq 1920") && call.contains("forward+backward"));
    correct
        .map(|call| {
            (
                value(call, "--cp").unwrap().parse().unwrap(),
                value(call, "--transport").unwrap_or("copy-engine"),
            )
        })
        .collect()
}

#[test]
fn four_and_eight_gpus_are_proven_on_all_four_and_odd_numbers_of_them_within_a_budget() {
    for (gpus, groups) in [(4, &[4, 3][..]), (8, &[8, 4, 3, 5, 7][..])] {
        let done = dry_run(gpus, &PARTS, 590);
        let (said, calls) = (done.said(), &done.calls);
        assert!(done.output.status.success() && !said.contains("NOT RUN"), "{said}");
        let expected = groups.iter().flat_map(|&cp| [(cp, "copy-engine"), (cp, "nccl")]).collect();
        assert_eq!(held(calls), expected);
        let all = |cp: u32| {
            let of = calls
                .iter()
                .find(|c| value(c, "--cp") == Some(&cp.to_string()) && c.contains("--schedule all,"));
            value(of.unwrap(), "--schedule").unwrap().to_owned()
        };
        assert!(all(4).contains("usp:2x2") && all(4).contains("double-ring:2"));
        if gpus == 8 {
            let forms = ["double-ring:2", "double-ring:4", "usp:2x4", "usp:4x2", "striped:64"];
            assert!(forms.iter().all(|form| all(8).split(',').any(|name| name == *form)), "{}", all(8));
        }
        let shape: Vec<&String> = calls.iter().filter(|call| call.contains("--kv-heads 8")).collect();
        let sizes: Vec<_> = shape.iter().map(|call| (value(call, "--cp"), value(call, "--seq"))).collect();
        let (all, tokens) = (gpus.to_string(), format!("{}Ki", 8 * gpus));
        let together = (Some(all.as_str()), Some(tokens.as_str()));
        assert_eq!(sizes, [(Some("1"), Some("8Ki")), together, together]);
        assert!(shape.iter().all(|call| value(call, "--cluster").unwrap().ends_with("calibrated.toml")));
        let limit: u32 = value(calls.last().unwrap(), "--limit").unwrap().parse().unwrap();
        assert!((500..590).contains(&limit), "{limit} s for validate where the others took none");
    }
}

#[test]
fn validate_leaves_time_to_those_after_it() {
    let done = dry_run(8, &["validate", "shape", "peers"], 590);
    let limit: u32 = value(&done.calls[0], "--limit").unwrap().parse().unwrap();
    // 590 less 5, 35 for shape and 60 for peers, and 25 for a point that has begun.
    assert!((460..=465).contains(&limit), "{limit}");
}

#[test]
fn what_has_no_time_is_named() {
    let done = dry_run(8, &["correct", "shape", "validate"], 2);
    let said = done.said();
    assert_eq!((done.output.status.code(), done.calls.len()), (Some(1), 0), "{said}");
    for name in ["correct-8-nccl", "correct-5-copy-engine", "shape-one", "validate"] {
        assert!(said.contains(&format!("NOT RUN, no time left: {name}")), "{said}");
    }
    let done = dry_run(8, &["corect"], 0);
    assert!(done.output.status.code() == Some(1) && done.said().contains("there is no part corect"));
}
