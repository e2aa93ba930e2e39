use crate::picture::{check, keep, rects, size};
use crate::timelines::{bubble, plan, plans, simulate};
use ringlab_plots::{Panel, gantt};
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::timeline::Timeline;
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
        let title = format!("Causal attention, {ranks} ranks, {pass}");
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
    for schedule in [Schedule::Ring, Schedule::DistFlash] {
        let plan = plan(schedule, 1024, Pass::Forward, 64);
        let timeline = simulate(&plan);
        let panels = [Panel::new(plan.name.clone(), &timeline).with_plan(&plan)];
        let svg = gantt::svg("", &panels);
        assert!(svg.len() < 8_000_000, "{} bytes", svg.len());
        assert!(svg.matches("<rect").count() < 42_000);
        assert!(svg.contains("spans are drawn as"));
        keep(&format!("gantt-1024-{schedule}.png"), &gantt::png("", &panels, 1.0).unwrap());
    }
}
