use serde_json::Value;

use crate::support::{columns, command, ringlab, stdout};

fn json(args: &[&str]) -> Value {
    let mut all = vec!["tune", "--format", "json"];
    all.extend(args);
    serde_json::from_str(&stdout(&all)).unwrap()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"))
}

const SMALL: [&str; 8] =
    ["--cluster", "h100-2x4-rail", "--model", "llama-3-8b", "--seq", "128Ki", "--sequences", "8"];

#[test]
fn the_number_of_threads_shows_nowhere() {
    let run = |threads: &str| {
        let mut all = vec!["tune", "--format", "json"];
        all.extend(SMALL);
        let output = command(&all).env("RAYON_NUM_THREADS", threads).output().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    assert!(run("1") == run("5"));
}

#[test]
fn figures_add_up_and_the_best_is_first() {
    let answer = json(&SMALL);
    let rows = answer["results"].as_array().unwrap();
    assert_eq!(rows[0]["kind"], "best");
    let best = number(&rows[0], "time_s");
    for row in rows {
        let parts = [
            "matmul_s",
            "elementwise_s",
            "attention_s",
            "exposed_context_s",
            "exposed_tensor_s",
            "exposed_experts_s",
            "exposed_data_s",
            "exposed_pipeline_s",
            "recompute_s",
            "host_s",
            "optimizer_s",
            "bubble_s",
        ];
        let sum: f64 = parts.iter().map(|p| number(row, p)).sum();
        assert!((sum / number(row, "time_s") - 1.0).abs() < 1e-9);
        let degrees: f64 = ["tp", "ulysses", "ring", "pp", "dp"].iter().map(|d| number(row, d)).product();
        assert_eq!(degrees, 8.0);
        // 8 sequences of 128Ki tokens on 8 GPUs.
        let rate = 131_072.0 / number(row, "time_s");
        assert!((number(row, "tokens_per_s_per_gpu") / rate - 1.0).abs() < 1e-9);
        let large = row["kind"] == "too large";
        assert_eq!(large, number(row, "over_memory_bytes") > 0.0);
        assert_eq!(large, number(row, "time_s") < best, "{row}");
        assert_eq!(row["kind"] == "best", row["loses_by"] == "");
    }
    let mut csv = vec!["tune", "--format", "csv", "--no-outlook"];
    csv.extend(SMALL);
    let times = columns(&stdout(&csv), &["time_s"]);
    assert_eq!(times.len(), rows.len());
    assert_eq!(times[0][0].parse::<f64>().unwrap(), best);
}

/// 8 GPUs; 8 sequences of 128Ki tokens an iteration.
#[test]
fn costs_are_gpu_hours_times_the_price() {
    let answer =
        json(&[&SMALL[..], &["--no-outlook", "--price-per-gpu-hour", "2.5", "--tokens", "1B"]].concat());
    let time = number(&answer["results"][0], "time_s");
    let hours = 8.0 * time / 3600.0 / (8.0 * 131_072.0) * 1e9;
    let price = &answer["price"];
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
    close(number(price, "gpu_hours"), hours);
    close(number(price, "run"), hours * 2.5);
    close(number(price, "days"), hours / 8.0 / 24.0);
    close(number(price, "per_million_tokens"), hours * 2.5 / 1000.0);
}

#[test]
fn faster_links_never_slow_the_best_and_longer_sequences_always_do() {
    let answer = json(&SMALL);
    let before = number(&answer["results"][0], "tokens_per_s_per_gpu");
    let shifts = answer["sensitivity"].as_array().unwrap();
    let best = |change: &str| {
        let shift = shifts.iter().find(|s| s["change"] == change).unwrap();
        let (best, same) =
            (number(&shift["best"], "tokens_per_s_per_gpu"), &shift["same_tokens_per_s_per_gpu"]);
        assert!(same.as_f64().is_none_or(|same| same <= best));
        best
    };
    assert!(best("links inside a node x 1/2") <= before && before <= best("links inside a node x 2"));
    assert!(best("links between nodes x 1/2") <= before && before <= best("links between nodes x 2"));
    assert!(best("sequence x 1/2") > before && before > best("sequence x 2"));
}

#[test]
fn from_a_length_on_sharing_pays() {
    let answer = json(&SMALL);
    let crossover = &answer["crossover"];
    let from = number(crossover, "pays_from");
    let lengths = crossover["lengths"].as_array().unwrap();
    assert_eq!(number(lengths.last().unwrap(), "seq_len"), 131_072.0);
    for length in lengths.iter().filter(|l| number(l, "seq_len") >= from) {
        let shared = number(length, "shared_tokens_per_s_per_gpu");
        assert!(length["whole_tokens_per_s_per_gpu"].as_f64().is_none_or(|whole| shared > whole));
    }
    let below = lengths.iter().rev().find(|l| number(l, "seq_len") < from).unwrap();
    assert!(number(below, "whole_tokens_per_s_per_gpu") >= number(below, "shared_tokens_per_s_per_gpu"));
}

/// What the refusal names does fit, and half of the step does not.
#[test]
fn when_nothing_fits_it_says_what_would() {
    let base = ["tune", "--no-outlook", "--cluster", "h100-1x4-rail", "--model", "llama-3-70b"];
    let output = ringlab(&base);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(output.stdout.is_empty() && error.contains("too much a GPU"), "{error}");
    let between =
        |from: &str, to: &str| error.split(from).nth(1).unwrap().split(to).next().unwrap().to_owned();
    let nodes: u32 =
        error.split(" nodes (--nodes)").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    let fits = |nodes: u32| ringlab(&[&base[..], &["--nodes", &nodes.to_string()]].concat()).status.code();
    assert_eq!((fits(nodes), fits(nodes / 2)), (Some(0), Some(1)));
    let memory: f64 = between("GPUs with ", " GB (--memory)").parse().unwrap();
    let with = |gb: f64| ringlab(&[&base[..], &["--memory", &format!("{gb:.1} GB")]].concat()).status.code();
    assert_eq!((with(memory + 0.1), with(memory - 0.2)), (Some(0), Some(1)));
}

#[test]
fn wrong_requests_say_what_is_wrong() {
    let cases: [(&[&str], &str); 8] = [
        (&["--schedule", "ulysses"], "divides heads"),
        (&["--schedule", "ring-self-attention"], "keeps whole score rows"),
        (&["--tp", "3"], "no grid of 8 GPUs is left"),
        (&["--nodes", "2", "--cluster", "pcie-8x-a100"], "has no network"),
        (&["--price-per-gpu-hour=-1"], "not negative"),
        (&["--tokens", "many"], "such as 15T"),
        (&["--seq", "1"], "from 2 tokens"),
        (&["--memory", "80"], "unit"),
    ];
    for (args, message) in cases {
        let output = ringlab(&[&["tune"], args].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(message), "{args:?}: {error}");
    }
}
