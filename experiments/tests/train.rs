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
