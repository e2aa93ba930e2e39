//! Every paper has its folder, every row its verdict, and the same question the same answer.

use std::path::Path;

use ringlab_experiments::papers::{self, Cell, Verdict, names, render, run};

#[test]
fn every_paper_has_a_folder_with_provenance_and_tables() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("papers");
    for name in names() {
        let folder = root.join(name);
        assert!(folder.join("setup.toml").is_file(), "{name}");
        let provenance = std::fs::read_to_string(folder.join("provenance.md")).expect(name);
        assert!(provenance.starts_with("# What th"), "{name}");
        let tables = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path());
        assert!(tables.filter(|p| p.extension().is_some_and(|e| e == "csv")).count() > 0, "{name}");
    }
    assert!(root.join("NOTES.md").is_file());
}

#[test]
fn verdicts_agree_with_numbers() {
    for paper in run("all").unwrap().papers {
        for row in &paper.rows {
            let place = format!("{} {} {}", paper.name, row.case, row.quantity);
            if let (Cell::Number(p), Cell::Number(q), Some(error)) = (row.published, row.predicted, row.error)
            {
                assert!((error - (q / p - 1.0)).abs() < 1e-12, "{place}");
            }
            match row.verdict {
                Verdict::Reproduced => {
                    let within = f64::from(row.within_percent.expect(&place));
                    assert!(row.error.is_none_or(|e| 100.0 * e.abs() <= within), "{place}");
                    assert!(row.reason.is_none(), "{place}");
                }
                Verdict::Explained | Verdict::Inconsistent => assert!(row.reason.is_some(), "{place}"),
                Verdict::Impossible => {
                    assert!(row.published.number() > row.bound, "{place}");
                }
                Verdict::Fitted => assert!(!row.counts(), "{place}"),
                Verdict::Missed => {}
            }
        }
        let fitted = paper.rows.iter().filter(|r| r.verdict == Verdict::Fitted).count();
        let constants = paper.assumptions.iter().filter(|a| a.fitted_on.is_some()).count();
        assert!(fitted >= constants, "{}: a fitted constant without its row", paper.name);
        assert!(fitted == 0 || constants > 0, "{}: a fitted row without its constant", paper.name);
    }
}

#[test]
fn what_contradicts_itself_or_arithmetic_is_named() {
    let report = run("all").unwrap();
    let of = |verdict| {
        let rows = report.papers.iter().flat_map(|p| p.rows.iter().map(move |r| (p.name, r)));
        rows.filter(|(_, r)| r.verdict == verdict).map(|(n, r)| (n, r.published)).collect::<Vec<_>>()
    };
    assert_eq!(
        of(Verdict::Inconsistent),
        [("distflashattn", Cell::Number(1.21)), ("ring-attention", Cell::Number(24.5))]
    );
    let impossible: Vec<f64> = of(Verdict::Impossible).iter().filter_map(|(_, cell)| cell.number()).collect();
    // Above 2 - 1/64 for the one guide; above 2 - 1/P for P = 8, 16 and 32 for the other.
    assert_eq!(impossible, [2.13, 3.05, 4.21, 4.45, 1.94, 1.96, 1.98]);
}

#[test]
fn the_same_run_gives_the_same_bytes() {
    let json = || serde_json::to_string(&run("all").unwrap()).unwrap();
    assert_eq!(json(), json());
}

#[test]
fn json_has_the_documented_fields() {
    let value = serde_json::to_value(run("ulysses").unwrap()).unwrap();
    assert_eq!(value["version"], 1);
    let paper = &value["papers"][0];
    assert_eq!(paper["name"], "ulysses");
    assert!(paper["median_abs_error"].as_f64().unwrap() > 0.0);
    let rows = paper["rows"].as_array().unwrap();
    for key in ["published", "predicted", "error", "bound", "verdict"] {
        assert!(rows.iter().all(|r| r.get(key).is_some()), "{key}");
    }
    assert!(rows.iter().any(|r| r["published"] == "OOM" && r["predicted"] == "OOM"));
}

#[test]
fn an_unknown_paper_names_the_nearest() {
    let error = run("stripped").unwrap_err().to_string();
    assert!(error.contains("did you mean striped?"), "{error}");
    assert!(error.contains("distflashattn"), "{error}");
}

#[test]
fn tables_say_what_was_assumed() {
    let text = render(&run("ring-attention").unwrap().papers);
    assert!(text.contains("FITTED on TPUv4-1024 7B"), "{text}");
    assert!(text.contains("inconsistent"));
    assert_eq!(papers::list().unwrap().len(), names().len());
}
