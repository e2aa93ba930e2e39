//! Predictions over measurements and printed numbers.

use crate::support::{Folder, columns, ringlab, stdout};

const JSON: &str = r#"{"mape":0.08,"points":[
  {"schedule":"ring","predicted_s":0.0102,"measured_s":0.011,"error":-0.073,"spread_s":0.0004},
  {"schedule":"zigzag","predicted_s":0.0202,"measured_s":0.021,"error":-0.038,"spread_s":null},
  {"schedule":"ring","predicted_s":0.11,"measured_s":0.1,"error":0.1,"spread_s":0.02}]}"#;
const CSV: &str = "schedule,predicted_s,measured_s,error,spread_s\nring,0.0102,0.011,-0.073,0.0004\n\
                   zigzag,0.0202,0.021,-0.038,\nring,0.11,0.1,0.1,0.02\n";

/// The rows of a series in the data beside `out.svg`.
fn series(folder: &Folder, name: &str) -> Vec<(f64, f64)> {
    let rows = columns(&folder.text("out.data.csv"), &["series", "x", "y"]);
    let own = rows.into_iter().filter(|r| r[0] == name);
    own.map(|r| (r[1].parse().unwrap(), r[2].parse().unwrap())).collect()
}

fn plot(folder: &Folder, kind: &str, file: &str, more: &[&str]) -> String {
    let out = folder.at("out.svg");
    stdout(&[&["plot", kind, &folder.at(file), "-o", &out], more].concat());
    folder.text("out.svg")
}

#[test]
fn measurements_lie_under_their_predictions() {
    let folder = Folder::new("");
    std::fs::write(folder.path("v.json"), JSON).unwrap();
    std::fs::write(folder.path("v.csv"), CSV).unwrap();
    let svg = plot(&folder, "validate", "v.json", &[]);
    assert_eq!(series(&folder, "ring"), [(0.011, 0.0102), (0.1, 0.11)]);
    assert_eq!(series(&folder, "zigzag"), [(0.021, 0.0202)]);
    // By hand: errors of 7.3, 3.8 and 10.0 %.
    assert!(svg.contains("3 points, median error 7.3 %, largest 10.0 %"), "{svg}");
    assert!(!svg.contains("outside the axes"));
    let spread = series(&folder, "spread of the repeats");
    let expected = [(0.0108, 0.0102), (0.0112, 0.0102), (0.09, 0.11), (0.11, 0.11)];
    assert!(
        spread.len() == 4
            && spread.iter().zip(expected).all(|(a, b)| (a.0 - b.0).abs() < 1e-12 && a.1 == b.1)
    );
    assert!(series(&folder, "exact").iter().all(|p| p.0 == p.1));
    for (measured, predicted) in series(&folder, "off by 10 %") {
        assert!(((predicted / measured - 1.0).abs() - 0.1).abs() < 1e-12);
    }
    assert_eq!(svg, plot(&folder, "validate", "v.csv", &[]), "the same from CSV");
    std::fs::write(folder.path("bom.json"), format!("\u{feff}{JSON}")).unwrap();
    assert_eq!(svg, plot(&folder, "validate", "bom.json", &[]), "the same with a byte-order mark");
}

#[test]
fn bars_end_at_the_axes() {
    let folder = Folder::new("");
    let rows = "schedule,predicted_s,measured_s,error,spread_s\nring,0.02,0.01,1,0.008\nring,0.2,0.2,0,0.1\n\
                ring,0.05,0.05,0,0.2\n";
    std::fs::write(folder.path("v.csv"), rows).unwrap();
    let svg = plot(&folder, "validate", "v.csv", &[]);
    assert!(!svg.contains("outside the axes"), "all points are drawn");
    // The axes go from 0.01 / 1.1 to 0.2 x 1.1; the bars from 0.006 to 0.014, from 0.15 to 0.25 and from
    // -0.05 to 0.15: one that reaches below zero is drawn too.
    let ends: Vec<f64> = series(&folder, "spread of the repeats").into_iter().map(|(x, _)| x).collect();
    let expected = [0.01 / 1.1, 0.014, 0.15, 0.22, 0.01 / 1.1, 0.15];
    assert!(ends.len() == 6 && ends.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{ends:?}");
}

#[test]
fn printed_numbers_lie_under_their_predictions() {
    let folder = Folder::new("");
    let rows = stdout(&["paper", "striped", "--format", "csv"]);
    std::fs::write(folder.path("rows.csv"), &rows).unwrap();
    plot(&folder, "paper", "rows.csv", &["--where", "unit=x"]);
    let table = columns(&rows, &["unit", "published", "predicted"]);
    let table = table.iter().filter(|r| r[0] == "x");
    let expected: Vec<(f64, f64)> = table.map(|r| (r[1].parse().unwrap(), r[2].parse().unwrap())).collect();
    assert_eq!(expected.len(), 137);
    assert_eq!(series(&folder, "striped"), expected);
}

#[test]
fn units_are_not_mixed_and_empty_files_are_refused() {
    let folder = Folder::new("");
    std::fs::write(folder.path("mixed.csv"), "unit,published,predicted\ns,1,1\nx,2,2\n").unwrap();
    std::fs::write(folder.path("oom.csv"), "unit,published,predicted\ns,OOM,1\n").unwrap();
    std::fs::write(folder.path("no.json"), "{\"results\":[]}").unwrap();
    std::fs::write(folder.path("empty.json"), "{\"points\":[]}").unwrap();
    for (kind, file, message) in [
        ("paper", "mixed.csv", "--where unit=s"),
        ("paper", "oom.csv", "no row has both"),
        ("validate", "oom.csv", "no column \"measured_s\""),
        ("validate", "no.json", "no list of points"),
        ("validate", "empty.json", "has no points"),
    ] {
        let output = ringlab(&["plot", kind, &folder.at(file), "-o", &folder.at("o.svg")]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(error.contains(message), "{file}: {error}");
    }
}
