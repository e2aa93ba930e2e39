//! `ringlab train` on the command line.

use assert_cmd::Command;
use serde_json::Value;

fn ringlab(args: &[&str]) -> String {
    let output = Command::cargo_bin("ringlab").unwrap().args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A zigzag ring of 8 needs a multiple of 16: 1001 tokens become 1008.
#[test]
fn padding_is_said() {
    let text = ringlab(&["train", "--seq", "1001"]);
    assert!(text.contains("padding to fit the zigzag layout: 7 tokens a sequence"), "{text}");
    let json: Value =
        serde_json::from_str(&ringlab(&["train", "--seq", "1001", "--format", "json"])).unwrap();
    assert_eq!(json["padding"], 7);
    assert!(!ringlab(&["train", "--seq", "1008"]).contains("padding"));
}

/// 8 GPUs of a cluster that nothing fills: the search ends at its limit, and says so.
#[test]
fn the_limit_of_the_search_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = folder.path().join("endless.toml");
    let small = ringlab(&["presets", "ideal"]).replace("gpus_per_node = 1024", "gpus_per_node = 8");
    std::fs::write(&cluster, small).unwrap();
    let text = ringlab(&["train", "--cluster", cluster.to_str().unwrap()]);
    assert!(text.contains("longest sequence that fits: 1073741824 tokens"), "{text}");
    assert!(text.contains("more than 1073741824 tokens are not looked for"), "{text}");
    assert!(!ringlab(&["train"]).contains("not looked for"));
}

/// JSON names a sharding as `--sharding` of tune does, and only rings are called rings.
#[test]
fn names_are_those_of_the_command_line() {
    for (zero, name) in [("0", "none"), ("1", "optimizer"), ("2", "gradients"), ("3", "weights")] {
        let json: Value =
            serde_json::from_str(&ringlab(&["train", "--zero", zero, "--format", "json"])).unwrap();
        let sharding = &json["training"]["sharding"];
        assert_eq!(sharding, name, "--zero {zero}");
    }
    let context = |more: &[&str]| {
        let text = ringlab(&[&["train"], more].concat());
        text.lines().nth(1).unwrap().split(" x dp").next().unwrap().to_owned()
    };
    assert_eq!(context(&[]), "tp 1 x cp 8 (ulysses 1 x ring 8, zigzag)");
    assert_eq!(context(&["--schedule", "ulysses"]), "tp 1 x cp 8 (ulysses)");
    assert_eq!(context(&["--schedule", "usp:2x4"]), "tp 1 x cp 8 (usp:2x4)");
    assert_eq!(context(&["--ulysses", "2"]), "tp 1 x cp 8 (ulysses 2 x ring 4, zigzag)");
}
