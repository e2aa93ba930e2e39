use crate::support::{Folder, columns, stdout};

fn sweep(text: &str) -> String {
    let folder = Folder::new(text);
    stdout(&["sweep", &folder.at("sweep.toml")])
}

/// `simulate` builds its own plans, machine and timeline for every schedule.
#[test]
fn rows_are_what_simulate_says() {
    let text = "cluster = [\"pcie-8x-a100\", \"dgx-h100\"]\npass = [\"forward\", \"forward+backward\"]\ncp = [4, 8]\n\
                transport = [\"copy-engine\", \"nccl\"]\nseq = 16384\nschedule = \"all\"\nchunks = 2\n";
    let names = [
        "cluster",
        "pass",
        "cp",
        "transport",
        "schedule",
        "makespan_s",
        "bubble_ratio",
        "exposed_comm_s",
        "tflops_per_gpu",
        "mfu",
        "peak_memory_bytes",
        "bytes_moved",
        "imbalance",
        "fits",
    ];
    let rows = columns(&sweep(text), &names);
    let schedules = ringlab_sim::schedule::ALL.len();
    assert_eq!(rows.len(), 2 * 2 * 2 * 2 * schedules);
    for group in rows.chunks(schedules) {
        let [cluster, pass, cp, transport] = [0, 1, 2, 3].map(|i| group[0][i].as_str());
        let csv = stdout(&[
            "simulate",
            "--cluster",
            cluster,
            "--pass",
            pass,
            "--cp",
            cp,
            "--transport",
            transport,
            "--seq",
            "16384",
            "--chunks",
            "2",
            "--format",
            "csv",
        ]);
        for (expected, row) in columns(&csv, &names[4..]).iter().zip(group) {
            for (a, b) in expected.iter().zip(&row[4..]) {
                let equal_numbers = a
                    .parse::<f64>()
                    .ok()
                    .zip(b.parse::<f64>().ok())
                    .is_some_and(|(a, b)| (a - b).abs() <= 1e-12 * a.abs());
                assert!(a == b || equal_numbers, "{a} in {row:?}");
            }
        }
    }
}

#[test]
fn settings_of_nccl_that_change_nothing_are_rows_with_the_reason() {
    let text = "seq = \"16Ki\"\nnccl_ctas = 8\ntransport = [\"nccl\", \"copy-engine\", \"nccl\"]\n";
    let rows = columns(&sweep(text), &["transport", "nccl_ctas", "nccl_priority", "makespan_s", "reason"]);
    for (row, reason) in rows.iter().zip([
        "it has no [[fabric.nccl.limits]]",
        "nccl_ctas and nccl_priority are for NCCL transfers",
        "it has no [[fabric.nccl.limits]]",
    ]) {
        assert!(row[1..4] == ["8", "", ""] && row[4].contains(reason), "{row:?}");
    }
    let text = "seq = \"16Ki\"\nnccl_priority = \"high\"\ntransport = [\"nccl\", \"copy-engine\"]\n";
    let rows = columns(&sweep(text), &["nccl_priority", "makespan_s", "reason"]);
    assert!(!rows[0][1].is_empty() && rows[0][2].is_empty(), "{rows:?}");
    assert!(rows[1][0] == "high" && rows[1][2].contains("are for NCCL transfers"), "{rows:?}");
}

/// P ranks that each send and compute nothing but what the closed form says: an ideal cluster with one slow link.
#[test]
fn halving_the_bandwidth_of_a_bound_ring_doubles_its_time() {
    let text = "model = \"llama-2-7b\"\nseq = \"64Ki\"\nschedule = \"ring\"\n\
                link_bandwidth = [\"1 GB/s\", \"0.5 GB/s\"]\n";
    let times: Vec<f64> =
        columns(&sweep(text), &["makespan_s"]).iter().map(|r| r[0].parse().unwrap()).collect();
    // 7 steps of 8Ki tokens, k and v of 32 heads of 128 in bf16: 128 MiB each. Computing is hidden but for the last step.
    let transfers = 7.0 * 8192.0 * 2.0 * 32.0 * 128.0 * 2.0 / 1e9;
    assert!((times[0] / transfers - 1.0).abs() < 0.01, "{} of {transfers}", times[0]);
    assert!((times[1] - times[0] - transfers).abs() < 1e-4 * transfers);
}

#[test]
fn what_cannot_be_planned_is_a_row_with_the_reason() {
    let text = "seq = [1000, 1024]\ncp = [3, 4, 16]\nschedule = [\"zigzag\"]\n";
    let rows = columns(&sweep(text), &["seq_len", "cp", "makespan_s", "fits", "reason"]);
    let reasons: Vec<&str> = rows.iter().map(|r| r[4].as_str()).collect();
    assert!(reasons[0].contains("1000"), "{reasons:?}");
    assert_eq!((rows[0][2].as_str(), rows[0][3].as_str()), ("", ""));
    assert!(reasons[5].contains("16 ranks do not fit on the 8 GPUs"), "{reasons:?}");
    for row in &rows {
        assert_ne!(row[2].is_empty(), row[4].is_empty(), "figures or a reason: {row:?}");
    }
    assert_eq!(rows.iter().filter(|r| !r[2].is_empty()).count(), 2, "1000 and 1024 tokens on 4 ranks");
}

#[test]
fn documents_and_a_sequence_that_disagree_are_rows_with_the_reason() {
    let text = "seq = [32, 64]\ncp = 2\nmask = [\"docs:16,16\", \"causal\"]\nschedule = \"ring\"\n";
    let rows = columns(&sweep(text), &["mask", "seq_len", "reason"]);
    assert_eq!(rows[0], ["docs:16,16", "32", ""]);
    assert_eq!(rows[2][..2], ["docs:16,16", "64"]);
    assert!(rows[2][2].contains("have 32 tokens, but the sequence has 64"));
    assert_eq!(rows[3], ["causal", "64", ""]);
}

#[test]
fn a_model_with_a_window_is_swept_with_it() {
    let rows = columns(&sweep("model = [\"mistral-7b\", \"llama-3-8b\"]\nseq = \"8Ki\"\n"), &["mask"]);
    assert_eq!(rows, [["window:4096"], ["causal"]]);
}

#[test]
fn disturbed_rows_are_what_simulate_says() {
    let text = "straggler = [\"none\", \"any:1.5\"]\nseq = 16384\nschedule = \"all\"\ncp = 4\njitter = \"2%\"\nrepeats = 20\n\
                seed = 5\nslow_link = \"0-1:2\"\n";
    let names = [
        "straggler",
        "makespan_s",
        "makespan_p5_s",
        "makespan_p50_s",
        "makespan_p95_s",
        "makespan_p99_s",
        "bubble_ratio",
    ];
    let rows = columns(&sweep(text), &names);
    let base = [
        "simulate",
        "--seq",
        "16384",
        "--cp",
        "4",
        "--jitter",
        "2%",
        "--repeats",
        "20",
        "--seed",
        "5",
        "--slow-link",
        "0-1:2",
        "--format",
        "csv",
    ];
    let schedules = ringlab_sim::schedule::ALL.len();
    for (group, more) in rows.chunks(schedules).zip([&[][..], &["--straggler", "any:1.5"]]) {
        let simulated = columns(&stdout(&[&base[..], more].concat()), &names[1..]);
        for (row, expected) in group.iter().zip(simulated) {
            for (a, b) in row[1..].iter().zip(&expected) {
                let (a, b): (f64, f64) = (a.parse().unwrap(), b.parse().unwrap());
                assert!((a - b).abs() <= 1e-12 * a, "{row:?} {expected:?}");
            }
            assert_eq!(row[1], row[3], "the median's figures");
        }
    }
    let at = |row: usize, column: usize| rows[row][column].parse::<f64>().unwrap();
    assert!(at(0, 2) < at(0, 3) && at(0, 3) < at(0, 5), "percentiles are in order");
    assert!(at(schedules, 3) > at(0, 3), "a straggler costs");
}

/// A full mask on a machine where nothing but computing takes time: the slowest rank decides.
#[test]
fn a_straggler_costs_its_factor() {
    let text = "cluster = \"ideal\"\nmask = \"full\"\nschedule = \"ring\"\ncp = 8\nseq = \"64Ki\"\nstraggler = [\"none\", \"3:1.25\"]\n";
    let rows = columns(&sweep(text), &["straggler", "makespan_s", "makespan_p99_s"]);
    let [calm, slow] = [&rows[0], &rows[1]].map(|r| r[1].parse::<f64>().unwrap());
    assert_eq!([&rows[0][0], &rows[1][0]], ["", "3:1.25"]);
    assert!((slow / calm - 1.25).abs() < 1e-9, "{}", slow / calm);
    assert_eq!(rows[0][2], "", "nothing to repeat");
}

#[test]
fn links_that_leave_no_way_are_rows_with_the_reason() {
    let text = "cp = 8\nseq = 8192\nschedule = \"ring\"\nfailed_link = [\"none\", \"0-1\"]\n";
    let rows = columns(&sweep(text), &["failed_link", "reason"]);
    assert_eq!(rows[0], ["", ""]);
    assert!(rows[1][1].contains("cannot reach GPU"), "{rows:?}");
}

#[test]
fn repeats_of_what_is_not_random_are_refused() {
    let output = crate::support::ringlab(&["simulate", "--repeats", "5", "--straggler", "0:2"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("repeats the same run"));
    let table =
        stdout(&["simulate", "--jitter", "3%", "--repeats", "5", "--schedule", "ring", "--seq", "8Ki"]);
    assert!(table.contains("over 5 repeats of seed 0") && table.contains("(p99)"), "{table}");
}
