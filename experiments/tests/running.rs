//! `ringlab run` as a user sees it: transcripts, the fields of its JSON, metrics over HTTP, Ctrl-C.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::cargo::CommandCargoExt;
use serde_json::Value;

fn ringlab(arguments: &str) -> Command {
    let mut command = Command::cargo_bin("ringlab").unwrap();
    command.args(arguments.split_whitespace());
    command
}

/// A small problem: one layer of two heads of eight.
const SMALL: &str = "--heads 2 --kv-heads 1 --head-dim 8 --seq 64";

fn json(arguments: &str) -> Value {
    let Output { status, stdout, stderr } =
        ringlab(&format!("run {SMALL} --format json {arguments}")).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap()
}

#[test]
fn transcripts() {
    trycmd::TestCases::new().case("tests/running/*.md");
}

#[cfg(unix)]
#[test]
fn variables_that_are_no_text_are_nobodys() {
    use std::os::unix::ffi::OsStrExt as _;
    let strange = std::ffi::OsStr::from_bytes(b"a\xffb");
    let output =
        ringlab(&format!("run {SMALL} --cp 2 --schedule ring")).env("FOO", strange).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn json_has_the_promised_fields_and_ranks() {
    let json = json("--cp 2 --schedule ring --pass forward+backward --repeats 3");
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    let (forward, backward) = (&results[0], &results[1]);
    for (field, value) in [("schedule", "ring"), ("backend", "cpu"), ("pass", "forward")] {
        assert_eq!(forward[field], value);
    }
    for (field, value) in [("cp", 2), ("seq_len", 64), ("repeats", 3)] {
        assert_eq!(forward[field], value);
    }
    // Each of two ranks sends k and v of 32 tokens: one kv head of 8, in fp32.
    assert_eq!(forward["bytes_moved"], 2 * 2 * 32 * 8 * 4);
    for field in ["o_max_rel_error", "lse_max_rel_error"] {
        assert!(forward[field].as_f64().unwrap() < 1e-5 && backward[field].is_null(), "{field}");
    }
    for field in ["dq_max_rel_error", "dk_max_rel_error", "dv_max_rel_error"] {
        assert!(backward[field].as_f64().unwrap() < 1e-5 && forward[field].is_null(), "{field}");
    }
    let time = |field: &str| forward[field].as_f64().unwrap();
    assert!(time("time_min_s") <= time("time_s") && time("time_s") <= time("time_max_s"));
    for rank in forward["ranks"].as_array().unwrap() {
        let part = |field: &str| rank[field].as_f64().unwrap();
        let sum = part("compute_s") + part("exposed_comm_s") + part("wait_s");
        assert!((sum - time("timeline_s")).abs() < 1e-9, "{rank}");
    }
    assert!(forward["predicted_s"].is_null(), "a cluster says nothing about threads");
}

#[test]
fn errors_over_ranks_stay_at_the_level_of_one() {
    let json = json("--errors-over-cp 1,2,4,8 --schedule ring,zigzag,dist-flash --pass forward+backward");
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), 4 * 3 * 2);
    let worst = |cp: u64| {
        let of_cp = results.iter().filter(|r| r["cp"] == cp);
        let errors =
            of_cp.flat_map(|r| ["o", "dq", "dk", "dv"].map(|t| r[format!("{t}_max_rel_error")].as_f64()));
        errors.flatten().fold(0.0, f64::max)
    };
    for cp in [2, 4, 8] {
        assert!(worst(cp) < 4.0 * worst(1), "{cp}: {} against {}", worst(cp), worst(1));
    }
}

#[test]
fn metrics_and_spans_are_files_that_appear_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (prom, csv) = (folder.path().join("run.prom"), folder.path().join("spans.csv"));
    let arguments =
        format!("--cp 2 --schedule ring --metrics {} --timeline-csv {}", prom.display(), csv.display());
    let bytes = json(&arguments)["results"][0]["bytes_moved"].as_f64().unwrap();
    let text = std::fs::read_to_string(prom).unwrap();
    let received = text.lines().filter(|l| l.starts_with("ringlab_received_bytes_total{"));
    let sum: f64 = received.map(|l| l.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum();
    assert_eq!(sum, bytes);
    assert!(std::fs::read_to_string(csv).unwrap().starts_with("schedule,rank,lane,kind,"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing temporary is left");
}

/// A run that serves metrics on a free port, and its address.
fn serving(arguments: &str) -> (Child, String) {
    let mut child = ringlab(&format!("run {arguments} --metrics 127.0.0.1:0"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut text, mut byte) = (String::new(), [0]);
    let stderr = child.stderr.as_mut().unwrap();
    while !text.ends_with("/metrics\n") {
        assert_eq!(stderr.read(&mut byte).unwrap(), 1, "{text}");
        text.push(char::from(byte[0]));
    }
    let address = text.trim_end().rsplit_once("http://").unwrap().1.trim_end_matches("/metrics").to_owned();
    (child, address)
}

fn get(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Asks until `wanted` is among the metrics.
fn wait_for(address: &str, wanted: &str) -> String {
    let start = Instant::now();
    loop {
        let answer = get(address);
        if answer.contains(wanted) {
            return answer;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no {wanted} in {answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(unix)]
fn interrupt(child: &Child) {
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
}

#[cfg(unix)]
#[test]
fn metrics_are_served_until_ctrl_c_with_hold() {
    let (child, address) = serving(&format!("{SMALL} --cp 2 --schedule dist-flash --hold"));
    let answer = wait_for(&address, "distflashattn_idle_bubble_ratio{");
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("text/plain; version=0.0.4"),
        "{answer}"
    );
    assert!(answer.contains("ringlab_makespan_seconds{cp=\"2\",pass=\"forward\",schedule=\"dist-flash\"} "));
    // The table is out before it holds.
    std::thread::sleep(Duration::from_millis(300));
    interrupt(&child);
    let Output { status, stdout, .. } = child.wait_with_output().unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(String::from_utf8_lossy(&stdout).contains("dist-flash   forward"));
}

#[cfg(unix)]
#[test]
fn ctrl_c_reports_what_there_is() {
    let ranks = "--errors-over-cp 2,3,4,5,6,7,8,9,10,11,12,13,14,15,16 --pad";
    let (child, address) = serving(&format!("--heads 8 --kv-heads 1 --head-dim 64 --seq 320 {ranks}"));
    wait_for(&address, "ringlab_makespan_seconds{cp=\"2\"");
    interrupt(&child);
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(status.code(), Some(130), "{stderr}");
    assert!(stdout.contains("ring on 2") && stdout.contains("exact"), "{stdout}");
    assert!(!stdout.contains("ring on 16"), "{stdout}");
    assert!(stderr.contains("stopped after"), "{stderr}");
}

/// The whole reference of 4Ki tokens takes two cores minutes.
#[cfg(unix)]
#[test]
fn ctrl_c_before_the_first_pass_ends_at_once() {
    let (child, _) = serving("--seq 4Ki --schedule ring");
    std::thread::sleep(Duration::from_millis(300));
    interrupt(&child);
    let start = Instant::now();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(130), "{stderr}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(stdout.is_empty() && stderr.ends_with("stopped before the first pass\n"), "{stderr}");
}

#[test]
fn more_rows_than_there_are_is_all_rows() {
    // Two heads of 64 tokens.
    for (rows, sampled) in [("127", Value::from(127)), ("128", Value::Null), ("99999999999", Value::Null)] {
        let json = json(&format!("--cp 2 --schedule ring --sample-rows {rows}"));
        assert_eq!(json["results"][0]["sampled_rows"], sampled, "{rows}");
        assert!(json["results"][0]["o_max_rel_error"].as_f64().unwrap() < 1e-5, "{rows}");
    }
}

#[test]
fn a_file_for_two_results_is_refused_by_any_name() {
    let folder = std::env::temp_dir();
    let file = folder.join("ringlab-two-results");
    let (a, b) = (file.display(), folder.join(".").join("ringlab-two-results"));
    for arguments in [format!("--trace {a} --metrics {a}"), format!("-o {a} --trace {}", b.display())] {
        let Output { status, stderr, .. } =
            ringlab(&format!("run {SMALL} --cp 2 {arguments}")).output().unwrap();
        let stderr = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("is named for two results"), "{stderr}");
        assert!(!file.exists());
    }
}

#[test]
fn a_layout_of_more_tokens_than_memory_holds_is_refused() {
    let Output { status, stderr, .. } =
        ringlab("layout --seq 2048Mi --cp 8 --schedule zigzag").output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(
        stderr.starts_with("error: 2147483648 tokens in 1 schedules are 2147483648 rows")
            && stderr.contains("--seq"),
        "{stderr}"
    );
    let Output { stderr, .. } = ringlab("layout --schedule usp:3x3 --cp 2").output().unwrap();
    assert!(!String::from_utf8_lossy(&stderr).contains("--pad"));
}

#[test]
fn what_is_wrong_with_the_launch_is_said_before_what_is_wrong_with_the_machine() {
    let nccl = "--transport nccl";
    for (variables, flags, wanted) in [
        ([("RANK", "3"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")], nccl, "RANK=3 is not below WORLD_SIZE=2"),
        ([("RANK", "x"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")], nccl, "is no whole number"),
        ([("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")], "", "add --transport nccl"),
    ] {
        let mut command = ringlab(&format!("run --backend cuda {flags}"));
        command.envs(variables).envs([
            ("TORCHELASTIC_RUN_ID", "17"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "1"),
        ]);
        let Output { status, stderr, .. } = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(2), "{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(wanted), "{stderr}");
        assert!(!stderr.contains("libcuda"), "{stderr}");
    }
}

#[test]
fn without_a_gpu_cuda_is_bad_input_with_a_hint() {
    if ringlab_runtime::cuda::gpu_count().is_ok() {
        eprintln!("this machine has GPUs: nothing to see here");
        return;
    }
    let Output { status, stdout, stderr } = ringlab("run --backend cuda --cp 2").output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(stdout.is_empty() && stderr.starts_with("error: no CUDA driver (libcuda)"), "{stderr}");
    assert_eq!(stderr.matches("install the NVIDIA driver").count(), 1, "{stderr}");
}

#[test]
fn a_limit_leaves_out_what_it_has_no_time_for() {
    let run = |more: &str| {
        let all = format!("run {SMALL} --cp 2 --schedule ring,zigzag --pass forward+backward {more}");
        let done = ringlab(&all).output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (code, error) = run("--limit 0");
    assert_eq!(code, Some(1), "nothing was run: {error}");
    assert!(error.contains("the limit of 0 s was near"), "{error}");
    assert_eq!(run("--limit 600").0, Some(0));
    let (code, error) = run("--sustain 300");
    assert_eq!(code, Some(2), "threads have no clock that falls");
    assert!(error.contains("--sustain is for GPUs only"), "{error}");
}
