//! What the README shows is what the program prints and draws.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn ringlab(args: &[&str]) -> String {
    let output = Command::cargo_bin("ringlab").unwrap().args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// As an indented block; the time that a proof took is left out.
fn block(text: &str) -> Vec<String> {
    let without_time = |line: &str| match line.rsplit_once("  ") {
        Some((head, tail)) if tail.trim().ends_with(" ms") => head.trim_end().to_owned(),
        _ => line.trim_end().to_owned(),
    };
    let lines = text.lines().filter(|l| !l.trim().is_empty() && !l.contains('─'));
    lines.map(|l| without_time(l).split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn assert_shown(args: &[&str]) {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let command = format!("    $ ringlab {}\n", args.join(" "));
    let shown = readme.split(&command).nth(1).unwrap_or_else(|| panic!("README does not show {command}"));
    let shown: Vec<&str> = shown.lines().take_while(|l| l.is_empty() || l.starts_with("    ")).collect();
    let (shown, printed) = (block(&shown.join("\n")), block(&ringlab(args)));
    assert_eq!(
        shown[..printed.len().min(shown.len())],
        printed[..],
        "README shows an old result of {args:?}"
    );
}

#[test]
fn the_shown_prediction_is_the_printed_one() {
    assert_shown(&["simulate"]);
}

#[test]
fn the_shown_proof_is_the_printed_one() {
    assert_shown(&["check", "--seq", "1Mi", "--cp", "64"]);
}

#[test]
fn the_picture_is_the_drawn_one() {
    let folder = tempfile::tempdir().unwrap();
    let drawn = folder.path().join("timeline.svg");
    ringlab(&["simulate", "--schedule", "ring,zigzag,striped,dist-flash", "--plot", drawn.to_str().unwrap()]);
    let kept = fs::read_to_string(root().join("docs/timeline.svg")).unwrap();
    assert!(fs::read_to_string(drawn).unwrap() == kept, "docs/timeline.svg is old: draw it again");
}

/// Those that write into a folder do so in one of their own.
#[test]
fn the_shown_commands_on_tuning_and_formats_run() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut run = 0;
    for line in readme.lines().filter_map(|l| l.strip_prefix("    ringlab ")) {
        let command: Vec<&str> = line.split('#').next().unwrap().split_whitespace().collect();
        if ["tune", "schema", "completions", "man"].contains(&command[0]) {
            let mut ringlab = Command::cargo_bin("ringlab").unwrap();
            ringlab.args(&command).current_dir(folder.path()).assert().success();
            run += 1;
        }
    }
    assert_eq!(run, 5, "as many as the README shows");
}
