//! Reports and clusters that are refused, each with its place.

use super::*;

#[test]
fn clusters_of_other_devices_are_refused() {
    let files = two_h200s("sixth");
    let with = |cluster: &str, change: &dyn Fn(&mut Value)| {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("report.json");
        let mut recorded = read(&files.report);
        change(&mut recorded);
        std::fs::write(&report, recorded.to_string()).unwrap();
        let (code, _, error) = predict(&Files { cluster: cluster.into(), report }, &["--seq", "8Ki"]);
        (code, error)
    };
    let own = files.cluster.to_str().unwrap();
    for (cluster, machine, said) in [
        ("dgx-h100", "2 x NVIDIA H200 (1)", "dgx-h100 is of another device: NVIDIA H100-SXM5-80GB, and "),
        (own, "4 x NVIDIA H200 (1)", "was measured on another machine: 2 x NVIDIA H200 (CUDA 13.0"),
        (own, "2 x NVIDIA H200 NVL (1)", "measured on another machine"),
        (own, "", "measured on another machine"),
    ] {
        let (code, error) = with(cluster, &|report| report["machine"] = json!(machine));
        assert!(code == Some(2) && error.contains(said), "{cluster} {machine}: {error}");
    }
    let (code, error) = with(own, &|report| report["machine"] = json!("2 x NVIDIA H200 (CUDA 14)"));
    assert!(code == Some(0) && error.contains("versions differ"), "{error}");
    let (code, error) =
        with("dgx-h100", &|report| report["machine"] = json!("8 x NVIDIA H100-SXM5-80GB (1)"));
    assert!(code == Some(0) && error.contains("its predictions have no intervals"), "{error}");
    assert!(error.contains("dgx-h100 has no [device.power]"), "{error}");
}

/// What is said of a file of this content, and the file's name.
fn refused(content: &str) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    std::fs::write(&report, content).unwrap();
    let label = report.display().to_string();
    let (code, _, error) = predict(&Files { report, ..two_h200s("sixth") }, &[]);
    assert_eq!(code, Some(2), "{error}");
    (error, label)
}

#[test]
fn what_is_no_report_is_refused_with_its_place() {
    let (error, label) = refused(" ");
    assert_eq!(error, format!("error: {label}: the file is empty\n"));
    let (error, label) = refused("{\"version\": 1,\n  nonsense");
    assert!(error.contains("not valid JSON: key must be a string"), "{error}");
    assert!(error.contains(&format!("--> {label}:2:3\n")), "{error}");
    for (content, said) in [
        ("[]", "expected a report"),
        ("{\"version\": 2}", "the report is of version 2, and this program reads version 1"),
        ("{\"version\": 1}", "missing field"),
        (r#"{"version": 1, "cluster": "a", "machine": "b", "points": []}"#, "the report has no points"),
    ] {
        let (error, _) = refused(content);
        assert!(error.contains(said), "{content}: {error}");
    }
}

#[test]
fn fields_that_mean_nothing_are_refused_with_their_place() {
    let recorded = read(&two_h200s("sixth").report);
    for (key, value, said) in [
        ("schedule", json!("rung"), "there is no schedule \"rung\""),
        ("pass", json!("sideways"), "expected one of \"forward\", \"backward\""),
        ("dtype", json!("bf17"), "expected one of \"bf16\""),
        ("transport", json!("pigeon"), "expected `copy-engine` or `nccl`"),
        ("launching", json!("late"), "expected one of `stepwise`"),
        ("load", json!("heavy"), "expected one of `sustained`"),
        ("load", Value::Null, "older than points that say how the devices were loaded"),
        ("measured_s", json!(0.0), "expected a time of 1e-12 to 1e6 seconds"),
        ("measured_s", json!("1"), "found the text \"1\", expected a time of 1e-12 to 1e6 seconds"),
        ("chunks", json!("2"), "found the text \"2\", expected a whole number from 0 to 4294967295"),
        ("transport", json!(7), "error: expected a name in quotes"),
        ("cp", json!([2]), "found a list, expected a whole number from 1 to 1024"),
        ("cp", json!(0), "expected a whole number from 1 to 1024"),
        ("seq_len", json!(u64::MAX), "expected a whole number from 1 to 2147483648"),
        ("heads", json!(-1), "found -1, expected a whole number from 1 to 65536"),
        ("calls", json!([{ "rank": 0, "step": 0, "measured_s": -1.0 }]), "expected a time"),
        ("calls", json!([7]), "expected an attention call"),
        ("spread", json!(-0.1), "expected a number from 0 to 1e6"),
        ("measured_exposed_s", json!(1e308), "expected a number from 0 to 1e6"),
        ("loaded_s", json!(-1), "found -1.0, expected a number from 0 to 1e6"),
        ("duty", json!(-0.5), "expected a number from 0 to 1e6"),
        ("measured_bubble_ratio", json!(1.5), "expected a number from 0 to 1"),
    ] {
        let mut changed = recorded.clone();
        let point = changed["points"][0].as_object_mut().unwrap();
        if value.is_null() {
            point.remove(key);
        } else {
            point.insert(key.into(), value);
        }
        let (error, label) = refused(&serde_json::to_string_pretty(&changed).unwrap());
        assert!(error.contains(said) && error.contains(&format!("--> {label}:")), "{key}: {error}");
    }
}
