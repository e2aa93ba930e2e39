use crate::picture::{Placed, check, keep, pixels, rects, size, texts};
use crate::timelines::{bubble, plan, plans, simulate};
use ringlab_plots::{Panel, PlotError, gantt};
use ringlab_sim::plan::{Lane, MaskId, OpKind, Plan};
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::timeline::{Span, SpanKind, Timeline};
use ringlab_sim::units::{Bytes, SimTime};
use roxmltree::Document;

fn panels<'a>(plans: &'a [Plan], timelines: &'a [Timeline]) -> Vec<Panel<'a>> {
    let panel = |(plan, timeline): (&'a Plan, &'a Timeline)| {
        Panel::new(plan.name.clone(), timeline).with_plan(plan).with_bubble(bubble(timeline))
    };
    plans.iter().zip(timelines).map(panel).collect()
}

#[test]
fn schedules_of_every_size_are_legible() {
    for (ranks, pass) in [
        (1, Pass::Forward),
        (4, Pass::Forward),
        (8, Pass::Forward),
        (8, Pass::Backward),
        (16, Pass::Forward),
        (64, Pass::Forward),
    ] {
        let plans = plans(ranks, pass);
        let timelines: Vec<Timeline> = plans.iter().map(simulate).collect();
        let panels = panels(&plans, &timelines);
        let title = format!("Causal attention, cp {ranks}, {pass}");
        let svg = gantt::svg(&title, &panels);
        check(&svg);
        let (width, height) = size(&Document::parse(&svg).unwrap());
        let png = gantt::png(&title, &panels, 1.5).unwrap();
        let (w, h) = keep(&format!("gantt-{ranks}-{pass}.png"), &png);
        assert_eq!((f64::from(w), f64::from(h)), ((width * 1.5).round(), (height * 1.5).round()));
    }
}

#[test]
fn a_thousand_ranks_stay_small() {
    for (schedule, tokens) in [(Schedule::Ring, 1024), (Schedule::DistFlash, 64)] {
        let plan = plan(schedule, 1024, Pass::Forward, tokens);
        let timeline = simulate(&plan);
        let panels = [Panel::new(plan.name.clone(), &timeline).with_plan(&plan)];
        let svg = gantt::svg("", &panels);
        assert!(svg.len() < 8_000_000, "{} bytes", svg.len());
        assert!(svg.matches("<rect").count() < 62_000);
        assert!(svg.contains("spans are drawn as"));
        assert!(svg.contains("Sends and receives are left out"));
        keep(&format!("gantt-1024-{schedule}.png"), &gantt::png("", &panels, 1.0).unwrap());
    }
}

/// What a span is painted with, from the plan alone.
fn paint(plan: &Plan, span: &Span) -> &'static str {
    match plan.programs[span.rank as usize].ops[span.op as usize].kind {
        OpKind::Send { .. } => "#D55E00",
        OpKind::Recv { .. } => "#7ACBB1",
        OpKind::Merge { .. } | OpKind::Accumulate { .. } => "#000000",
        OpKind::Finish { .. } | OpKind::Preprocess { .. } | OpKind::Project(_) => "url(#row-wise)",
        ref kind => {
            let Some((q_block, _, mask)) = kind.attended() else { return "url(#row-wise)" };
            let owner = plan.block(q_block).slots[0].rank;
            match (owner == span.rank, mask == MaskId::NONE) {
                (true, true) => "#0072B2",
                (true, false) => "url(#own-masked)",
                (false, _) => "#E69F00",
            }
        }
    }
}

/// Where the ticks say that picoseconds are: pixels at zero, and pixels a picosecond.
fn time_scale(texts: &[Placed], unit: f64) -> (f64, f64) {
    let bottom = texts.iter().find(|t| t.what.starts_with("time since the start")).unwrap().y0;
    let ticks = texts.iter().filter(|t| t.y1 < bottom && t.y1 > bottom - 12.0);
    let mut ticks: Vec<(f64, f64)> =
        ticks.map(|t| (t.what.parse().unwrap(), f64::midpoint(t.x0, t.x1))).collect();
    ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
    assert_eq!(first.0, 0.0);
    (first.1, (last.1 - first.1) / (last.0 * unit))
}

#[test]
fn every_span_is_where_and_what_it_should_be() {
    for (pass, unit) in [(Pass::Forward, 1e6), (Pass::Backward, 1e6)] {
        let plans = plans(4, pass);
        let timelines: Vec<Timeline> = plans.iter().map(simulate).collect();
        let svg = gantt::svg("", &panels(&plans, &timelines));
        let texts = texts(&svg);
        let bars = rects(&Document::parse(&svg).unwrap());
        let (zero, pixels) = time_scale(&texts, unit);
        let rank_labels: Vec<&Placed> = texts.iter().filter(|t| t.x1 < zero && t.what != "rank").collect();
        assert_eq!(rank_labels.len(), 16);
        for (i, (plan, timeline)) in plans.iter().zip(&timelines).enumerate() {
            for span in &timeline.spans {
                let label = rank_labels[4 * i + span.rank as usize];
                assert_eq!(label.what, span.rank.to_string());
                let (x0, x1) = (zero + span.start.0 as f64 * pixels, zero + span.end.0 as f64 * pixels);
                let middle = f64::midpoint(label.y0, label.y1);
                let near = |b: &&Placed| (b.x0 - x0).abs() < 0.7 && (b.x1 - x1).abs() < 0.7;
                let in_strip = |b: &&Placed| b.y1 > middle && b.y0 < middle + 20.0;
                let found = bars.iter().filter(near).filter(in_strip).find(|b| b.what == paint(plan, span));
                assert!(x1 - x0 < 1.0 || found.is_some(), "{}: {span:?} at {x0}..{x1}", plan.name);
            }
        }
    }
}

#[test]
fn a_png_shows_the_colours_and_the_text() {
    let plan = plan(Schedule::Ring, 4, Pass::Forward, 1024);
    let timeline = simulate(&plan);
    let panels = [Panel::new("ring", &timeline).with_plan(&plan)];
    let svg = gantt::svg("Title", &panels);
    let (width, rgb) = pixels(&gantt::png("Title", &panels, 1.0).unwrap());
    let at = |x: f64, y: f64| rgb[y as usize * width + x as usize];
    for bar in rects(&Document::parse(&svg).unwrap()).iter().filter(|b| b.x1 - b.x0 > 100.0) {
        if let Some(hex) = bar.what.strip_prefix('#').filter(|hex| *hex != "F9DDD3") {
            let expected = [0, 2, 4].map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap());
            assert_eq!(at(bar.x0 + 8.0, f64::midpoint(bar.y0, bar.y1)), expected, "{bar:?}");
        }
    }
    let title = texts(&svg).into_iter().find(|t| t.what == "Title").unwrap();
    let dark = (title.y0 as usize..title.y1 as usize)
        .flat_map(|y| (title.x0 as usize..title.x1 as usize).map(move |x| (x, y)))
        .filter(|&(x, y)| at(x as f64, y as f64)[0] < 100)
        .count();
    assert!(dark > 50, "{dark} dark pixels in the title");
}

#[test]
fn nothing_is_clipped_whatever_the_texts() {
    let plans = plans(4, Pass::Forward);
    let timelines: Vec<Timeline> = plans.iter().map(simulate).collect();
    let mut panels = panels(&plans, &timelines);
    let long = "a very long name <of> \"something\" & more ".repeat(9);
    panels[0].title.clone_from(&long);
    panels[1].note.clone_from(&long);
    let texts = check(&gantt::svg(&long, &panels));
    assert!(texts.iter().filter(|t| t.what.ends_with('…')).count() >= 3);
}

fn span(rank: u32, kind: SpanKind, start: u64, end: u64) -> Span {
    let lane = if kind.is_transfer() { Lane::comm(0) } else { Lane::COMPUTE };
    let (start, end) = (SimTime(start), SimTime(end));
    Span { rank, lane, op: 0, step: 0, kind, start, end, bytes: Bytes(0), flops: 0.0 }
}

#[test]
fn odd_timelines_are_drawn_too() {
    check(&gantt::svg("", &[]));
    let empty = Timeline { ranks: 3, ..Timeline::default() };
    check(&gantt::svg("empty", &[Panel::new("nothing", &empty)]));
    let spans = vec![
        span(0, SpanKind::Attend, 0, 0),
        span(7, SpanKind::Attend, 5, 3),
        span(1, SpanKind::Send, 0, u64::MAX),
    ];
    let odd = Timeline { ranks: 2, spans, makespan: SimTime(10) };
    let plan = plan(Schedule::Ring, 2, Pass::Forward, 64);
    let svg = gantt::svg("odd", &[Panel::new("odd", &odd).with_plan(&plan)]);
    let texts = check(&svg);
    let footer = texts.iter().find(|t| t.what.contains("not in the plan")).unwrap();
    assert!(footer.what.starts_with("2 spans"), "{}", footer.what);
    assert!(texts.iter().any(|t| t.what == "7"), "rank 7 has a row");
}

#[test]
fn ranks_beyond_the_rows_are_thinned_and_said() {
    let spans = (0..5000).map(|r| span(r, SpanKind::Attend, 0, u64::from(r))).collect();
    let timeline = Timeline { ranks: 5000, spans, makespan: SimTime(4999) };
    let svg = gantt::svg("", &[Panel::new("many", &timeline)]);
    let texts = check(&svg);
    assert!(texts.iter().any(|t| t.what == "Of the ranks, every 5th is drawn."));
    assert!(size(&Document::parse(&svg).unwrap()).1 < 1300.0);
}

#[test]
fn scales_that_make_no_picture_are_refused() {
    let timeline = Timeline { ranks: 1, ..Timeline::default() };
    let png = |scale| gantt::png("", &[Panel::new("", &timeline)], scale);
    for scale in [0.0, -1.0, f32::INFINITY] {
        assert_eq!(png(scale), Err(PlotError::Scale { scale }));
    }
    assert!(matches!(png(f32::NAN), Err(PlotError::Scale { .. })));
    assert!(matches!(png(1000.0), Err(PlotError::TooLarge { .. })));
}

#[test]
fn a_tiny_picture_is_as_reviewed() {
    let spans = vec![
        span(0, SpanKind::Attend, 0, 1_000_000),
        span(1, SpanKind::Attend, 0, 2_000_000),
        span(0, SpanKind::Send, 1_000_000, 1_500_000),
        span(1, SpanKind::Recv, 1_000_000, 1_500_000),
        span(1, SpanKind::Finish, 2_000_000, 2_250_000),
    ];
    let timeline = Timeline { ranks: 2, spans, makespan: SimTime(2_250_000) };
    let panels = [Panel::new("by hand", &timeline).with_bubble(0.278)];
    let svg = gantt::svg("Tiny", &panels);
    keep("tiny.png", &gantt::png("Tiny", &panels, 1.0).unwrap());
    let actual = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("tiny.svg");
    std::fs::write(&actual, &svg).unwrap();
    let golden = include_str!("../golden/tiny.svg");
    assert!(svg == golden, "look at {} and, if it is right, make it golden/tiny.svg", actual.display());
}
