//! Reports whose NCCL transfers had a limit on their CTAs.

use std::path::Path;

use ringlab_sim::config::cluster::{Cluster, NcclLimit};
use ringlab_sim::units::BytesPerSec;
use serde_json::{Value, json};

use super::super::{assert_described, number};
use super::{Files, points, predict, read, two_h200s};

/// A report of at most 8 CTAs is predicted by what the cluster says of these: as one without a limit where NCCL has their figures.
#[test]
fn nccl_is_predicted_with_the_settings_of_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let sixth = two_h200s("sixth");
    let mut plain = Cluster::parse("sixth", &std::fs::read_to_string(&sixth.cluster).unwrap()).unwrap();
    let (bandwidth, sms, slowed_by_calls) = (BytesPerSec(140e9), 8, 0.25);
    let mut limited = plain.clone();
    limited.fabric.nccl.limits =
        vec![NcclLimit { ctas: 8, bandwidth, sms, slowed_by_calls, source: "test".into() }];
    let nccl = &mut plain.fabric.nccl;
    (nccl.bandwidth, nccl.sms, nccl.slowed_by_calls) = (bandwidth, sms, slowed_by_calls);
    let (plain, limited) =
        (written("plain.toml", &plain.to_toml()), written("limited.toml", &limited.to_toml()));
    let mut report = read(&sixth.report);
    report["points"].as_array_mut().unwrap().retain(|point| point["transport"] == "nccl");
    let predicted = |cluster: &Path, nccl: Value| {
        let mut report = report.clone();
        report["nccl"] = nccl;
        let files =
            Files { cluster: cluster.to_owned(), report: written("report.json", &report.to_string()) };
        predict(&files, &["--format", "json"])
    };
    let times = |(code, found, error): (Option<i32>, String, String)| {
        assert_eq!(code, Some(0), "{error}");
        let found: Value = serde_json::from_str(&found).unwrap();
        assert_described(&found);
        let times = points(&found).iter().map(|point| number(point, "predicted_s")).collect::<Vec<_>>();
        (found["nccl"].clone(), times)
    };
    let eight = json!({ "ctas": 8, "priority": "normal" });
    let (shown, of_limit) = times(predicted(&limited, eight.clone()));
    assert_eq!((shown, of_limit.len()), (eight, 10));
    let (shown, expected) = times(predicted(&plain, Value::Null));
    assert_eq!((shown, &of_limit), (Value::Null, &expected));
    let (_, unlimited) = times(predicted(&limited, Value::Null));
    assert!(unlimited.iter().zip(&of_limit).all(|(fast, slow)| fast < slow), "{unlimited:?} {of_limit:?}");
    for (nccl, message) in [
        (
            json!({ "ctas": 6, "priority": "high" }),
            "report.json was measured with a limit on NCCL's CTAs: hgx",
        ),
        (json!({ "ctas": 6, "priority": "high" }), "with at most 6 CTAs; it has limits of 8"),
        (json!({ "ctas": 0, "priority": "high" }), "expected a whole number from 1 to 64"),
        (
            json!({ "ctas": 8, "priority": "highest" }),
            "found the text \"highest\", expected one of \"normal\", \"high\"",
        ),
        (json!({ "ctas": -8, "priority": "high" }), "found -8, expected a whole number from 1 to 64"),
    ] {
        let (code, _, error) = predicted(&limited, nccl);
        assert!(code == Some(2) && error.contains(message), "{error}");
    }
}

#[test]
fn a_limit_on_nccl_is_needed_where_points_went_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let sixth = two_h200s("sixth");
    let mut report = read(&sixth.report);
    report["nccl"] = json!({ "ctas": 8, "priority": "normal" });
    let path = folder.path().join("report.json");
    std::fs::write(&path, report.to_string()).unwrap();
    // Neither cluster has limits.
    let files = Files { report: path, ..sixth };
    let copies = ["--transport", "copy-engine", "--links-of", "pcie-8x-a100"];
    let (code, _, error) = predict(&files, &copies);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(predict(&files, &["--links-of", "pcie-8x-a100"]).0, Some(2));
}
