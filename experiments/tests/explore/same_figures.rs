//! The page, its run file and the command line give the same figures.

use std::fs;

use serde_json::{Value, json};

use crate::server::Server;
use crate::{json_of, ringlab};

fn setups() -> Vec<Value> {
    let model =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/presets/models/mistral-7b.toml")).unwrap();
    vec![
        json!({}),
        json!({ "cp": 7, "pad": true, "seq": "100000", "schedule": ["ring", "striped:64"] }),
        json!({ "cluster": "h100-2x8-rail", "cp": 16, "pass": "forward+backward", "transport": "nccl", "chunks": 2 }),
        json!({ "cluster": "h200-nvl2-validated", "cp": 2, "transport": "nccl", "nccl_priority": "high" }),
        json!({ "mask": "window:4Ki+docs:30000,90000,11072", "pad": true, "link_bandwidth": "25 GB/s" }),
        json!({ "mask": "full", "route": "direct", "prefetch": 3, "dtype": "fp16", "needed_only": true }),
        json!({ "straggler": "3:1.5", "slow_link": "0-1:4", "jitter": "3%", "repeats": 5, "seed": 7 }),
        json!({ "schedule": "usp:2x4,ulysses,all-gather", "straggler": "any:1.2", "repeats": 3 }),
        json!({ "model": model, "schedule": ["zigzag"], "pass": "backward" }),
    ]
}

#[test]
fn the_page_its_run_file_and_its_command_agree_to_the_last_digit() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    for run in setups() {
        let response = server.simulate(&run);
        assert_eq!(response.status, 200, "{run}: {}", response.body);
        let answer = response.json();
        fs::write(folder.path().join("ringlab.toml"), answer["toml"].as_str().unwrap()).unwrap();
        let by_file = json_of(folder.path(), &["simulate", "--run", "ringlab.toml", "--format", "json"]);
        assert_eq!(answer["prediction"], by_file, "{run}");

        let words = shell_words(answer["command"].as_str().unwrap());
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(words.remove(0), "ringlab");
        words.extend(["--format", "json"]);
        assert_eq!(json_of(folder.path(), &words), by_file, "{run}");
    }
}

/// Words of a command line with single quotes.
fn shell_words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words
}

#[test]
fn the_shown_timeline_is_the_simulators() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let question = json!({ "run": { "pass": "forward+backward" }, "show": "dist-flash", "pass": "backward" });
    let answer = server.post("/api/simulate", "application/json", &question.to_string()).json();
    let args = [
        "simulate",
        "--schedule",
        "dist-flash",
        "--pass",
        "backward",
        "--spans",
        "spans.csv",
        "--format",
        "json",
    ];
    let row = json_of(folder.path(), &args)["results"][0].clone();
    let view = &answer["view"];
    assert_eq!((view["pass"].as_str(), view["ranks"].as_u64()), (Some("backward"), Some(8)));
    let makespan = view["makespan_ps"].as_f64().unwrap() * 1e-12;
    assert!((makespan - row["makespan_s"].as_f64().unwrap()).abs() < 1e-15);

    let spans = fs::read_to_string(folder.path().join("spans.csv")).unwrap();
    let columns = &view["spans"];
    assert_eq!(columns["rank"].as_array().unwrap().len(), spans.lines().count() - 1);
    let sum = |name: &str| columns[name].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).sum::<f64>();
    let sent = row["bytes_moved"].as_f64().unwrap();
    assert_eq!(sum("bytes"), 2.0 * sent, "every message is a send and a receive");
    let times = view["times"].as_array().unwrap();
    let part = |t: &Value, name: &str| t[name].as_u64().unwrap();
    for t in times {
        let parts = part(t, "busy_ps") + part(t, "exposed_ps") + part(t, "wait_ps");
        assert_eq!(parts, view["makespan_ps"].as_u64().unwrap());
    }
}

#[test]
fn options_on_the_command_line_win_over_the_run_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = "seq = \"64Ki\"\ncp = 4\nschedule = [\"ring\", \"zigzag\"]\npad = true\n";
    fs::write(folder.path().join("run.toml"), file).unwrap();
    let first = |args: &[&str]| {
        let result =
            json_of(folder.path(), &[&["simulate", "--format", "json", "--run", "run.toml"], args].concat());
        let rows = result["results"].as_array().unwrap().clone();
        (rows[0]["cp"].as_u64().unwrap(), rows[0]["seq_len"].as_u64().unwrap(), rows.len())
    };
    assert_eq!(first(&[]), (4, 64 << 10, 2));
    assert_eq!(first(&["--cp", "2"]), (2, 64 << 10, 2));
    assert_eq!(first(&["--schedule", "striped", "--seq=32Ki"]), (4, 32 << 10, 1));
    let odd = ringlab(folder.path(), &["simulate", "--run", "run.toml", "--cp", "7", "--pad=false"]);
    assert_eq!(odd.status.code(), Some(2), "the length does not divide without padding");
    fs::write(folder.path().join("slow.toml"), "cp = 4\nstraggler = \"1:2\"\n").unwrap();
    let slow = ringlab(folder.path(), &["check", "--run", "slow.toml"]);
    let error = String::from_utf8(slow.stderr).unwrap();
    assert!(
        error.contains("`ringlab check` does not take `straggler`") && error.contains("slow.toml:2:13"),
        "{error}"
    );
    for command in ["check", "layout"] {
        let output = ringlab(folder.path(), &[command, "--run", "run.toml", "--format", "json"]);
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let run =
        ["run", "--run", "run.toml", "--seq", "64", "--heads", "2", "--kv-heads", "1", "--head-dim", "8"];
    assert_eq!(json_of(folder.path(), &[&run[..], &["--format", "json"]].concat())["results"][0]["cp"], 4);
}

#[test]
fn a_wrong_run_file_is_shown_at_its_place() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.toml"), "cp = 8\nsequence = \"64Ki\"\n").unwrap();
    let output = ringlab(folder.path(), &["simulate", "--run", "run.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("unknown key `sequence`") && error.contains("run.toml:2:1"), "{error}");
    let output = ringlab(folder.path(), &["simulate", "--run", "absent.toml"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("absent.toml: there is no such file"));
}

#[test]
fn a_report_is_one_file_with_the_same_figures() {
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "simulate",
        "--schedule",
        "ring,zigzag,ulysses,usp",
        "--pass",
        "forward+backward",
        "--report",
        "r.html",
        "--format",
        "json",
    ];
    let result = json_of(folder.path(), &args);
    let page = fs::read_to_string(folder.path().join("r.html")).unwrap();
    let values = page.split("data-value=\"").skip(1).filter_map(|t| t.split('"').next()?.parse::<f64>().ok());
    let values: Vec<f64> = values.collect();
    for row in result["results"].as_array().unwrap() {
        let time = row["makespan_s"].as_f64().unwrap();
        assert!(values.iter().any(|v| (v - time).abs() <= 1e-14 * time), "{time}");
    }
    for asks in ["http://", "https://", "src=", "url(", "@import"] {
        assert!(!page.contains(asks), "{asks}");
    }
    let timelines = page.matches("type=\"application/json\"").count();
    assert_eq!(timelines, 2 * result["results"].as_array().unwrap().len(), "two passes a schedule");
    assert!(
        page.contains("<code>ringlab simulate --schedule ring,")
            && page.contains("--report r.html --format json</code>")
    );
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(files, ["r.html"]);
}
