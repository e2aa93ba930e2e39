use std::fmt::{self, Write as _};

use super::super::Point;
use super::Plan;

/// One launch under load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Milliseconds from the start of the load to the start of the launch.
    pub start_ms: f32,
    /// Milliseconds that it took.
    pub ms: f32,
}

/// The launches of one load.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The shape.
    pub point: Point,
    /// `forward` or `backward`.
    pub pass: &'static str,
    /// The kernel that ran.
    pub kernel: String,
    /// How the load was put on.
    pub plan: Plan,
    /// Milliseconds since 1970, by the host's clock, when the load began: the start of the launches' times.
    pub began_unix_ms: f64,
    /// Floating-point operations of one launch, from the mask's area.
    pub flops: f64,
    /// Every launch in turn.
    pub samples: Vec<Sample>,
}

/// TFLOP/s at one time of a load; displays as `-` where the load ended before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate(pub Option<f64>);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.map_or_else(|| "-".into(), |rate| format!("{rate:.1}"));
        f.pad(&text)
    }
}

impl Series {
    /// Heads of [`csv`](Self::csv)'s columns.
    pub const COLUMNS: &'static str =
        "kernel,pass,head_dim,len,mask,duty,launch,start_ms,duration_ms,tflops,load_began_unix_ms\n";

    /// TFLOP/s over the launches that started in the first `ms` milliseconds.
    pub fn rate_within(&self, ms: f32) -> Rate {
        self.rate_of(self.samples.iter().filter(|sample| sample.start_ms < ms))
    }

    /// TFLOP/s over the launches that started within a tenth of `ms` milliseconds around it, or of the last one before.
    /// None where the load was over by then.
    pub fn rate_at(&self, ms: f32) -> Rate {
        if self.samples.last().is_none_or(|last| last.start_ms + last.ms < ms) {
            return Rate(None);
        }
        let near = |sample: &&Sample| (sample.start_ms - ms).abs() <= 0.1 * ms;
        if self.samples.iter().any(|sample| near(&sample)) {
            return self.rate_of(self.samples.iter().filter(near));
        }
        self.rate_of(self.samples.iter().rfind(|sample| sample.start_ms <= ms).into_iter())
    }

    fn rate_of<'s>(&self, samples: impl Iterator<Item = &'s Sample>) -> Rate {
        let (launches, ms) = samples.fold((0, 0.0), |(n, ms), sample| (n + 1, ms + f64::from(sample.ms)));
        Rate((launches > 0).then(|| self.flops * f64::from(launches) / ms / 1e9))
    }

    /// The share of the load's time, in percent, that no launch was running.
    pub fn idle_percent(&self) -> f64 {
        let (Some(first), Some(last)) = (self.samples.first(), self.samples.last()) else { return 0.0 };
        let busy: f64 = self.samples.iter().map(|sample| f64::from(sample.ms)).sum();
        let whole = f64::from(last.start_ms + last.ms - first.start_ms);
        100.0 * (1.0 - busy / whole)
    }

    /// A line a launch. `duty` is the share of the time that the GPU was to work, in percent.
    pub fn csv(&self) -> String {
        let Point { head_dim, len, mask, .. } = self.point;
        let duty = 100 - self.plan.idle_percent;
        let start = format!("{},{},{},{len},{mask},{duty}", self.kernel, self.pass, head_dim.elements());
        let mut lines = String::new();
        for (index, Sample { start_ms, ms }) in self.samples.iter().enumerate() {
            let tflops = self.flops / f64::from(*ms) / 1e9;
            // Writing to a String does not fail.
            let _ = writeln!(lines, "{start},{index},{start_ms},{ms},{tflops:.1},{:.0}", self.began_unix_ms);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::super::PLANS;
    use super::*;
    use crate::lab::Mask;
    use crate::spec::HeadDim;

    /// Launches of 1e9 operations: 1 TFLOP/s is one a millisecond.
    fn series(samples: &[(f32, f32)]) -> Series {
        Series {
            point: Point { mask: Mask::Full, ..Point::causal(HeadDim::D64, 4096) },
            pass: "forward",
            kernel: "k".into(),
            plan: PLANS[1],
            began_unix_ms: 1e12,
            flops: 1e9,
            samples: samples.iter().map(|&(start_ms, ms)| Sample { start_ms, ms }).collect(),
        }
    }

    #[test]
    fn rates_are_those_of_the_launches_around_a_time() {
        let series = series(&[(0.0, 1.0), (1.0, 3.0), (5.0, 10.0), (19.0, 2.0), (22.0, 2.0), (24.0, 9.0)]);
        // Two launches in 4 ms; two in 4 ms around 20 ms; the one that began at 24 ms is the last before 30.
        assert_eq!(series.rate_within(5.0), Rate(Some(0.5)));
        assert_eq!(series.rate_at(20.0), Rate(Some(0.5)));
        assert_eq!(series.rate_at(30.0), Rate(Some(1.0 / 9.0)));
        assert_eq!(series.rate_at(34.0), Rate(None));
        // 27 of 33 ms.
        assert!((series.idle_percent() - 100.0 * 6.0 / 33.0).abs() < 1e-9);
    }

    #[test]
    fn a_load_without_launches_has_no_rate() {
        let empty = series(&[]);
        assert_eq!((empty.rate_within(5.0), empty.rate_at(20.0)), (Rate(None), Rate(None)));
        assert_eq!((empty.rate_at(1.0).to_string(), empty.idle_percent()), ("-".to_string(), 0.0));
        assert_eq!(empty.csv(), "");
    }

    #[test]
    fn lines_have_every_column() {
        let series = series(&[(0.0, 0.5), (0.5, 0.25)]);
        let expected = "k,forward,64,4096,full,90,0,0,0.5,2.0,1000000000000\n\
                        k,forward,64,4096,full,90,1,0.5,0.25,4.0,1000000000000\n";
        assert_eq!(series.csv(), expected);
        let columns = |line: &str| line.matches(',').count();
        assert_eq!(columns(Series::COLUMNS), columns(expected.lines().next().unwrap()));
    }
}
