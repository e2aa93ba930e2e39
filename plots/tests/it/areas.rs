//! Maps and bar charts.

use crate::picture::{check, keep, rects};
use ringlab_plots::bars::{self, Bars};
use ringlab_plots::heatmap::{self, Categories, Cell, HeatMap};
use ringlab_plots::{PlotError, format};
use roxmltree::Document;

fn map(columns: usize, rows: usize) -> HeatMap {
    let names = |n: usize| (0..n).map(|i| format::tokens((1u64 << (i % 20 + 10)) as f64)).collect();
    let cell = |i: usize| Cell {
        kind: (i % 7 != 6).then_some(i % 4),
        texts: vec!["dist-flash 1.87x".into(), "1.87x".into(), "2".into()],
    };
    HeatMap {
        title: "The fastest schedule".into(),
        x: Categories { label: "sequence length (tokens)".into(), names: names(columns) },
        y: Categories { label: "ranks".into(), names: names(rows) },
        kinds: ["ring", "zigzag", "striped", "dist-flash"].map(str::to_owned).into(),
        cells: (0..columns * rows).map(cell).collect(),
    }
}

#[test]
fn maps_of_any_size_have_a_cell_for_each_pair_and_clip_nothing() {
    for (columns, rows) in [(1, 1), (5, 3), (8, 6), (40, 2), (100, 1)] {
        let map = map(columns, rows);
        let svg = heatmap::svg(&map).unwrap();
        let texts = check(&svg);
        let document = Document::parse(&svg).unwrap();
        let cells = rects(&document).iter().filter(|r| (r.y1 - r.y0 - 34.0).abs() < 1e-6).count();
        assert_eq!(cells, columns * rows);
        for name in &map.y.names {
            assert!(texts.iter().any(|t| &t.what == name));
        }
        assert!(texts.iter().any(|t| t.what == map.x.names[0]));
    }
    keep("map.png", &heatmap::png(&map(8, 6), 2.0).unwrap());
}

#[test]
fn the_first_row_is_at_the_bottom() {
    let mut map = map(1, 2);
    map.cells[0].texts = vec!["low".into()];
    map.cells[1].texts = vec!["high".into()];
    map.y.names = vec!["four".into(), "five".into()];
    let texts = check(&heatmap::svg(&map).unwrap());
    let y = |what: &str| texts.iter().find(|t| t.what == what).unwrap().y0;
    assert!(y("low") > y("high"));
    assert!((y("low") - y(&map.y.names[0])).abs() < 5.0 && (y("high") - y(&map.y.names[1])).abs() < 5.0);
}

#[test]
fn maps_that_do_not_add_up_are_refused() {
    let mut short = map(3, 3);
    short.cells.pop();
    assert!(matches!(heatmap::svg(&short), Err(PlotError::Cells { expected: 9, found: 8, .. })));
    let mut unknown = map(2, 2);
    unknown.cells[0].kind = Some(4);
    assert!(matches!(heatmap::svg(&unknown), Err(PlotError::Cells { kinds: 5, known: 4, .. })));
    assert!(matches!(heatmap::svg(&map(0, 3)), Err(PlotError::Cells { .. })));
}

fn chart() -> Bars {
    Bars {
        title: "Kernel rates".into(),
        label: "TFLOP/s".into(),
        format: format::number,
        groups: ["forward, full", "forward, causal", "backward, full"].map(str::to_owned).into(),
        series: ["ours", "theirs"].map(str::to_owned).into(),
        values: vec![Some(100.0), Some(200.0), Some(50.0), None, Some(400.0), Some(f64::NAN)],
    }
}

#[test]
fn bars_are_as_high_as_their_values() {
    let svg = bars::svg(&chart()).unwrap();
    let texts = check(&svg);
    let document = Document::parse(&svg).unwrap();
    let heights: Vec<f64> =
        rects(&document).iter().filter(|r| (r.y1 - r.y0 - 11.0).abs() > 1e-6).map(|r| r.y1 - r.y0).collect();
    let ratios: Vec<f64> = heights.iter().map(|h| (h / heights[2] * 10.0).round() / 10.0).collect();
    assert_eq!(ratios, [2.0, 4.0, 1.0, 8.0], "values without a bar have none");
    for label in ["400", "forward, causal", "theirs", "–"] {
        assert!(texts.iter().any(|t| t.what == label), "{label}");
    }
    keep("bars.png", &bars::png(&chart(), 2.0).unwrap());
}

#[test]
fn bars_that_cannot_be_drawn_are_refused() {
    let chart = chart();
    assert!(matches!(bars::svg(&Bars { values: vec![], ..chart.clone() }), Err(PlotError::Cells { .. })));
    let nothing = Bars { values: vec![Some(0.0), None, None, None, None, None], ..chart };
    assert!(matches!(bars::svg(&nothing), Err(PlotError::NoPoints { .. })));
}
