//! A validation for people.

use ringlab_runtime::machine::Launching;
use ringlab_runtime::validate::{Class, Compared, Report};
use ringlab_sim::units::SimTime;

use super::Json;
use crate::grid::grid;
use crate::nccl::Nccl;

/// The heading, every point, and what they come to.
pub fn table(json: &Json<'_>) -> String {
    let report = json.report;
    let mut text = heading(json);
    if report.points.is_empty() {
        text += "  no point was compared\n";
    } else {
        text += &points(report);
        text += &figures(report);
    }
    for line in &report.left_out {
        text += &format!("  left out: {line}\n");
    }
    if !report.not_reached.is_empty() {
        let broke =
            report.broke.as_ref().map_or(String::new(), |error| format!("; the runs broke at {error}"));
        let not_done = if json.measured_in.is_some() { "NOT PREDICTED" } else { "NOT RUN" };
        text += &format!("  {not_done}, {}{broke}:\n", several(report.not_reached.len(), "point"));
        report.not_reached.iter().for_each(|point| text += &format!("    {point}\n"));
    }
    if report.points.is_empty() {
        return text;
    }
    text += &loads(report);
    text + &classes(&report.classes)
        + "  steps: median error of single attention calls; p/m: predicted / measured\n"
}

/// `1 point`, `2 points`.
pub fn several(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// What is held against what; and, of measurements that were made earlier, where they and the links of virtual ranks are from.
fn heading(json: &Json<'_>) -> String {
    let (cluster, machine) = (json.cluster, json.machine);
    let settings = json.nccl.as_ref().map_or(String::new(), Nccl::text);
    let Some(origin) = json.measured_in else {
        return format!("{cluster} against {machine}{settings}\n\n");
    };
    let mut text = format!("{cluster} against {machine}{settings}, as measured earlier ({})\n", origin.file);
    if json.report.points.iter().any(|p| p.point.launching == Launching::Virtual) {
        text += &format!(
            "virtual points: measured computations on the links of {}, which measured them; predicted on those of {}\n",
            origin.cluster, origin.links_of
        );
    }
    text + "\n"
}

/// Every point that was run.
fn points(report: &Report) -> String {
    let time = |s: f64| SimTime::from_secs_f64(s).to_string();
    let percent = |x: f64| format!("{:.1}%", 100.0 * x);
    let cells = report.points.iter().map(|p| {
        // The lower end is cut off at zero.
        let half = p.predicted_high_s.map(|high| high / p.predicted_s - 1.0);
        [
            p.point.to_string(),
            time(p.predicted_s),
            half.map_or("-".into(), |h| format!("±{:.1}%", 100.0 * h)),
            time(p.measured_s),
            percent(p.spread),
            format!("{:+.1}%", 100.0 * p.error),
            format!("{} / {}", percent(p.predicted_bubble_ratio), percent(p.measured_bubble_ratio)),
            format!("{} / {}", time(p.predicted_exposed_s), time(p.measured_exposed_s)),
            p.median_step_error.map_or("-".into(), percent),
        ]
    });
    let header =
        ["point", "predicted", "90%", "measured", "spread", "error", "bubble p/m", "exposed p/m", "steps"];
    format!("{}\n", grid(header, 1, cells))
}

/// What the points come to.
fn figures(report: &Report) -> String {
    let percent = |x: f64| format!("{:.1}%", 100.0 * x);
    let mut text = format!(
        "  {}: MAPE {}, worst {}, bias {:+.1}%\n",
        several(report.points.len(), "point"),
        percent(report.mape),
        percent(report.max_error),
        100.0 * report.bias
    );
    if let Some(coverage) = report.coverage {
        text += &format!("  inside their 90% interval: {}\n", percent(coverage));
    }
    if let Some((mean, worst)) = report.speedup_mape.zip(report.speedup_max_error) {
        text += &format!("  speed-ups over ring: mean error {}, worst {}\n", percent(mean), percent(worst));
    }
    text
}

/// How much load was before and between the measured repeats.
fn loads(report: &Report) -> String {
    let loaded = report.points.iter().filter(|p| p.loaded_s > 0.0);
    let least = |of: fn(&Compared) -> f64| loaded.clone().map(of).reduce(f64::min);
    least(|p| p.loaded_s).zip(least(|p| p.duty)).map_or(String::new(), |(loaded, duty)| {
        let loaded = SimTime::from_secs_f64(loaded);
        format!("  each point was measured after {loaded} of load or more; devices worked {:.0}% of the time or more\n", 100.0 * duty)
    })
}

/// Errors by what points have in common.
fn classes(classes: &[Class]) -> String {
    if classes.is_empty() {
        return String::new();
    }
    let percent = |x: f64| format!("{:.1}%", 100.0 * x);
    let cells = classes.iter().map(|c| {
        [
            c.by.to_owned(),
            c.value.clone(),
            c.points.to_string(),
            percent(c.mape),
            format!("{:+.1}%", 100.0 * c.bias),
            percent(c.max_error),
        ]
    });
    format!("\n{}\n", grid(["by", "value", "points", "MAPE", "bias", "worst"], 2, cells))
}

#[cfg(test)]
mod tests {
    use super::several;

    #[test]
    fn one_is_not_several() {
        assert_eq!([0, 1, 2].map(|n| several(n, "point")), ["0 points", "1 point", "2 points"]);
    }
}
