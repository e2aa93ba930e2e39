use crate::picture::{check, keep};
use ringlab_plots::chart::{Axis, Chart, Line, Reference, Scale, Series, Style, lines, png};
use ringlab_plots::format;

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
