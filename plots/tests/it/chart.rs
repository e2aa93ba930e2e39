use crate::picture::{check, keep};
use ringlab_plots::chart::{Axis, Chart, Line, Reference, Scale, Series, Style, lines, png};
use ringlab_plots::{PlotError, format};
use roxmltree::Document;

fn example() -> Chart {
    let names = ["ring", "zigzag", "striped", "dist-flash", "ulysses", "zigzag, measured on 8 x H100"];
    let series = names.iter().enumerate().map(|(i, name)| {
        let points = (13..=20).map(|k| {
            let tokens = f64::from(k).exp2();
            let y = 60.0 * (1.0 + i as f64) * (tokens / (tokens + 60_000.0));
            (tokens, if i == 4 && k == 17 { f64::NAN } else { y * 1e12 })
        });
        let style = if i == 5 { Style::nth(1).with_line(Line::None) } else { Style::nth(i) };
        Series { name: (*name).to_owned(), points: points.collect(), style }
    });
    Chart {
        title: "Throughput of a causal forward, Llama-3-8B on 8 GPUs".to_owned(),
        x: Axis::new("sequence length (tokens)", Scale::Log2, format::tokens),
        y: Axis::new("throughput a GPU", Scale::Linear, format::flops_per_sec),
        series: series.collect(),
        references: vec![
            Reference::Horizontal { label: "one GPU".to_owned(), y: 3.4e14 },
            Reference::Horizontal { label: "bound of the schedule".to_owned(), y: 3.45e14 },
            Reference::Vertical { label: "Llama 3's length".to_owned(), x: 131_072.0 },
        ],
    }
}

#[test]
fn a_chart_over_tokens() {
    let chart = example();
    let svg = lines(&chart).unwrap();
    let texts = check(&svg);
    for label in ["8Ki", "128Ki", "1Mi", "200 TFLOP/s", "one GPU", "zigzag, measured on 8 x H100"] {
        assert!(texts.iter().any(|t| t.what == label), "{label}");
    }
    keep("chart.png", &png(&chart, 2.0).unwrap());
}

fn one(points: Vec<(f64, f64)>) -> Chart {
    Chart {
        title: String::new(),
        x: Axis::new("x", Scale::Log2, format::tokens),
        y: Axis::new("y", Scale::Log10, format::seconds),
        series: vec![Series { name: "s".to_owned(), points, style: Style::nth(0) }],
        references: Vec::new(),
    }
}

#[test]
fn charts_that_cannot_be_drawn_are_refused() {
    assert_eq!(lines(&one(vec![])), Err(PlotError::NoPoints { title: String::new() }));
    assert!(matches!(lines(&one(vec![(1.0, f64::NAN)])), Err(PlotError::NoPoints { .. })));
    let zero = PlotError::NotPositive { series: "s".to_owned(), axis: "y".to_owned(), value: 0.0 };
    assert_eq!(lines(&one(vec![(1.0, 0.0)])), Err(zero));
    let mut chart = one(vec![(1.0, 1.0)]);
    chart.references.push(Reference::Vertical { label: "r".to_owned(), x: -1.0 });
    assert!(matches!(lines(&chart), Err(PlotError::NotPositive { series, .. }) if series == "r"));
    for (from, to) in [(2.0, 1.0), (0.0, 1.0), (f64::NAN, 1.0), (1.0, f64::INFINITY)] {
        let mut chart = one(vec![(1.0, 1.0)]);
        chart.y = chart.y.over(from, to);
        assert!(matches!(lines(&chart), Err(PlotError::Range { .. })), "{from} {to}");
    }
}

#[test]
fn markers_lie_where_the_ticks_say() {
    let points = vec![(1024.0, 1e-3), (4096.0, 1e-2), (65_536.0, 1e-1)];
    let svg = lines(&one(points)).unwrap();
    let texts = check(&svg);
    let document = Document::parse(&svg).unwrap();
    let marks: Vec<(f64, f64)> = document
        .descendants()
        .filter(|n| n.has_tag_name("path"))
        .map(|n| {
            let at = n.attribute("transform").unwrap().trim_start_matches("translate(").trim_end_matches(')');
            let (x, y) = at.split_once(' ').unwrap();
            (x.parse().unwrap(), y.parse().unwrap())
        })
        .collect();
    let tick = |label: &str| texts.iter().find(|t| t.what == label).unwrap_or_else(|| panic!("{label}"));
    for ((x, y), (x_label, y_label)) in
        marks[1..].iter().zip([("1Ki", "1 ms"), ("4Ki", "10 ms"), ("64Ki", "100 ms")])
    {
        let (a, b) = (tick(x_label), tick(y_label));
        assert!((f64::midpoint(a.x0, a.x1) - x).abs() < 1.5, "{x_label}");
        assert!((f64::midpoint(b.y0, b.y1) - y).abs() < 3.0, "{y_label}");
    }
}

#[test]
fn values_that_no_axis_can_hold_are_refused() {
    for value in [1e308, 1e101, 1e-310] {
        for points in [vec![(1.0, value), (2.0, 2.0)], vec![(value, 1.0), (2.0, 2.0)]] {
            let log = one(points);
            let mut linear = log.clone();
            (linear.x.scale, linear.y.scale) = (Scale::Linear, Scale::Linear);
            for chart in [log, linear] {
                let refused = lines(&chart).unwrap_err();
                assert!(matches!(refused, PlotError::Extreme { value: v, .. } if v == value), "{refused}");
            }
        }
    }
    assert!(lines(&one(vec![(1.0, 1e99), (2.0, 1e-99)])).is_ok());
}

#[test]
fn a_gap_breaks_the_line_and_points_outside_are_said() {
    let nan = f64::NAN;
    let points = vec![(1.0, 1.0), (2.0, 2.0), (4.0, nan), (8.0, 3.0), (16.0, 4.0), (32.0, nan), (64.0, 9.0)];
    let mut chart = one(points);
    chart.y = chart.y.over(0.5, 5.0);
    let svg = lines(&chart).unwrap();
    check(&svg);
    let lines = svg.matches("clip-path=\"url(#plot-area)\"").count();
    assert_eq!(lines, 2, "a run of one point is no line");
    assert_eq!(svg.matches("<path").count(), 1 + 4, "legend, and points inside");
    assert!(svg.contains("1 point lies outside the axes."));
}

#[test]
fn many_references_and_long_names_do_not_overlap() {
    let mut chart = example();
    let long = "a reference with a name that is far too long to stand beside a plot";
    chart.y.format = |v| format!("{v} of something with a very long name indeed");
    for i in 0..40 {
        let y = 2e14 + f64::from(i) * 1e12;
        chart.references.push(Reference::Horizontal { label: format!("{i} {long}"), y });
        chart
            .references
            .push(Reference::Vertical { label: format!("{i} {long}"), x: 9000.0 * f64::from(i + 1) });
    }
    chart.series[0].name = long.repeat(4);
    chart.title = long.repeat(4);
    chart.x.label = long.repeat(4);
    chart.y.label = long.repeat(4);
    check(&lines(&chart).unwrap());
    keep("chart-crowded.png", &png(&chart, 1.0).unwrap());
}
