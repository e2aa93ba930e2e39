//! Requests that are wrong or too large get an answer, and the server lives on.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::ringlab;
use crate::server::Server;

#[test]
fn wrong_set_ups_get_the_command_lines_own_words() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        (json!({ "seq": "131073", "schedule": "zigzag" }), vec!["--seq", "131073", "--schedule", "zigzag"]),
        (json!({ "cp": 16 }), vec!["--cp", "16"]),
        (json!({ "cp": 0 }), vec!["--cp=0"]),
        (json!({ "cp": "eight" }), vec!["--cp=eight"]),
        (json!({ "link_bandwidth": "450" }), vec!["--link-bandwidth=450"]),
        (json!({ "mask": "diagonal" }), vec!["--mask", "diagonal"]),
        (json!({ "mask": "docs:1,2", "seq": "7" }), vec!["--mask", "docs:1,2", "--seq", "7"]),
        (json!({ "schedule": "zagzig" }), vec!["--schedule", "zagzig"]),
        (json!({ "heads": 7 }), vec!["--heads", "7"]),
        (json!({ "chunks": 0 }), vec!["--chunks", "0"]),
    ];
    for (run, args) in cases {
        let response = server.simulate(&run);
        assert_eq!(response.status, 400, "{run}: {}", response.body);
        let output = ringlab(folder.path(), &[&["simulate"], &args[..]].concat());
        assert_eq!(output.status.code(), Some(2));
        let said: Vec<String> = words(&String::from_utf8(output.stderr).unwrap());
        let first: Vec<String> = words(response.error().lines().next().unwrap());
        assert!(!first.is_empty() && said.windows(first.len()).any(|w| w == first), "{first:?} in {said:?}");
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn requests_that_are_no_questions_are_refused() {
    let server = Server::start();
    let post = |body: &str| server.post("/api/simulate", "application/json", body);
    for body in ["", "{", "[]", "{\"run\":[]}", "{\"run\":{},\"surprise\":1}", "\u{feff}{}"] {
        let response = post(body);
        assert!([400, 422].contains(&response.status), "{body}: {}", response.status);
        assert!(!response.error().is_empty());
    }
    for (run, expected) in [
        (json!({ "kv-heads": 8 }), "unknown key `kv-heads`; did you mean `kv_heads`?"),
        (json!({ "run": "other.toml" }), "unknown key `run`"),
        (json!({ "cp": null }), "`cp` is null"),
        (json!({ "cp": { "a": 1 } }), "expected text, a number"),
        (json!({ "schedule": ["ring,zigzag"] }), "has a comma"),
    ] {
        let response = server.simulate(&run);
        assert_eq!(response.status, 400);
        assert!(response.error().contains(expected), "{run}: {}", response.error());
    }
    let deep = format!("{{\"run\":{{\"cp\":{}1{}}}}}", "[".repeat(5000), "]".repeat(5000));
    assert_eq!(post(&deep).status, 400);
}

#[test]
fn files_of_this_machine_cannot_be_named() {
    let server = Server::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "secret, 12").unwrap();
    let path = file.path().to_str().unwrap();
    for run in
        [json!({ "cluster": path }), json!({ "model": path }), json!({ "mask": format!("docs:{path}") })]
    {
        let response = server.simulate(&run);
        assert_eq!(response.status, 400, "{run}");
        assert!(!response.body.contains("secret"), "{}", response.body);
    }
}

#[test]
fn too_much_is_refused_at_once() {
    let server = Server::start();
    let documents = format!("docs:{}", vec!["8"; 1025].join(","));
    let cases = [
        (json!({ "cluster": "h100-64x8-rail", "cp": 512 }), "ranks"),
        (json!({ "seq": "128Mi" }), "tokens"),
        (json!({ "mask": documents }), "documents"),
        (json!({ "batch": 2000 }), "batch"),
        (json!({ "cluster": "h100-32x8-rail", "cp": 256, "chunks": 64 }), "operations"),
        (json!({ "jitter": "3%", "repeats": 100_000 }), "operations"),
    ];
    for (run, what) in cases {
        let start = Instant::now();
        let response = server.simulate(&run);
        assert_eq!(response.status, 400);
        let error = response.error();
        assert!(error.contains(what) && error.contains("this page takes up to"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(5), "{what}: {:?}", start.elapsed());
    }
    let body = format!("{{\"run\":{{\"model\":\"{}\"}}}}", "x".repeat(300 << 10));
    assert_eq!(server.post("/api/simulate", "application/json", &body).status, 413);
    assert_eq!(server.simulate(&json!({})).status, 200, "the server lives on");
}

#[test]
fn the_largest_questions_end() {
    let server = Server::start();
    let largest = [
        json!({ "cluster": "h100-32x8-rail", "cp": 256, "seq": "64Mi", "pass": "forward+backward", "schedule": "ring,zigzag" }),
        json!({ "seq": "64Mi", "cp": 1, "batch": 64 }),
        json!({ "mask": format!("docs:{}", vec!["4096"; 1024].join(",")), "pad": true, "pass": "forward+backward" }),
    ];
    for run in largest {
        let start = Instant::now();
        let response = server.simulate(&run);
        assert_eq!(response.status, 200, "{run}: {}", response.body);
        assert!(start.elapsed() < Duration::from_secs(15), "{run}: {:?}", start.elapsed());
    }
}
