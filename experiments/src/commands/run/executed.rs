//! A pass that was executed, whatever executed it.

use ringlab_runtime::cuda;
use ringlab_runtime::outcome::{Outcome, Typical};
use ringlab_sim::units::{Bytes, SimTime};

/// Tensors, timeline and times of one pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Executed {
    /// Tensors, bytes, and the timeline that stands for all repeats.
    pub outcome: Outcome,
    /// How one time is made of those of the repeats.
    pub typical: Typical,
    /// Time of each repeat that timed every operation.
    pub recorded: Vec<SimTime>,
    /// Time of each repeat that timed nothing else; empty where operations are timed at no cost.
    pub unrecorded: Vec<SimTime>,
    /// What only GPUs have.
    pub gpu: Option<Gpu>,
    /// What a user must be told.
    pub notes: Vec<String>,
}

/// What only a run on GPUs has.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// By which two ranks' clocks may differ.
    pub alignment_error: SimTime,
    /// How long runs had followed each other when the measured ones began, in seconds.
    pub loaded_s: f64,
    /// Makespans over the wall time of the measured runs.
    pub duty: f64,
    /// Longest time that a host took to post one run.
    pub posting: SimTime,
    /// Memory besides the ranks' tensors, on the fullest GPU.
    pub context_bytes: Bytes,
    /// Name of each rank's GPU.
    pub device_names: Vec<String>,
    /// Version of the driver's CUDA.
    pub driver: String,
    /// How attention was launched.
    pub mode: String,
    /// Whether the ranks took turns on one GPU.
    pub is_virtual: bool,
}

impl Executed {
    /// Of the repeats without recording where there are some, else of those with: what a user would wait for.
    fn timed(&self) -> &[SimTime] {
        if self.unrecorded.is_empty() { &self.recorded } else { &self.unrecorded }
    }

    /// Time of a pass: the median repeat, or the mean of those under lasting load.
    pub fn time(&self) -> SimTime {
        self.typical.of(self.timed())
    }

    /// Shortest and longest repeat.
    pub fn extremes(&self) -> (SimTime, SimTime) {
        let times = self.timed();
        let end = |t: Option<&SimTime>| t.copied().unwrap_or(SimTime::ZERO);
        (end(times.iter().min()), end(times.iter().max()))
    }

    /// `(longest - shortest) / time`.
    pub fn spread(&self) -> f64 {
        let (low, high) = self.extremes();
        match self.time().as_secs_f64() {
            time if time > 0.0 => (high.as_secs_f64() - low.as_secs_f64()) / time,
            _ => 0.0,
        }
    }

    /// Time that recording an event around every operation adds, over the time without; `None` where it was not measured.
    pub fn recording_cost(&self) -> Option<f64> {
        let seconds = |times: &[SimTime]| self.typical.of(times).as_secs_f64();
        let (with, without) = (seconds(&self.recorded), seconds(&self.unrecorded));
        (!self.recorded.is_empty() && without > 0.0).then(|| with / without - 1.0)
    }

    /// Whether the ranks took turns on one GPU, so that its times say nothing about several.
    pub fn is_virtual(&self) -> bool {
        self.gpu.as_ref().is_some_and(|g| g.is_virtual)
    }
}

impl From<cuda::Run> for Executed {
    fn from(run: cuda::Run) -> Self {
        let m = run.measured;
        Self {
            outcome: run.outcome,
            typical: m.typical,
            recorded: m.makespans,
            unrecorded: m.unrecorded,
            gpu: Some(Gpu {
                alignment_error: m.alignment_error,
                loaded_s: m.loaded_s,
                duty: m.duty,
                posting: m.posting,
                context_bytes: m.context_bytes,
                device_names: m.device_names,
                driver: m.driver,
                mode: mode_name(m.mode).into(),
                is_virtual: m.is_virtual,
            }),
            notes: m.notes,
        }
    }
}

fn mode_name(mode: cuda::Mode) -> &'static str {
    match mode {
        cuda::Mode::Auto => "auto",
        cuda::Mode::Stepwise => "stepwise",
        cuda::Mode::FusedQueries => "fused-queries",
        cuda::Mode::FusedSegments => "fused",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringlab_runtime::outcome::{Gradients, Results};
    use ringlab_sim::timeline::Timeline;

    fn executed(recorded: &[u64], unrecorded: &[u64]) -> Executed {
        let gradients = Gradients { dq: Vec::new(), dk: Vec::new(), dv: Vec::new() };
        let outcome = Outcome {
            results: Results::Backward(gradients),
            wrong_padding_rows: 0,
            bytes_moved: Bytes(0),
            wall_time: std::time::Duration::ZERO,
            timeline: Timeline::default(),
            peak_bytes: Vec::new(),
        };
        let times = |all: &[u64]| all.iter().map(|&t| SimTime(t)).collect();
        Executed {
            outcome,
            typical: Typical::Median,
            recorded: times(recorded),
            unrecorded: times(unrecorded),
            gpu: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn times_are_those_without_recording_where_there_are_some() {
        let both = executed(&[110, 121, 132], &[100, 90, 130, 110]);
        assert_eq!(both.time(), SimTime(100), "the lower of the two in the middle");
        assert_eq!(both.extremes(), (SimTime(90), SimTime(130)));
        assert!((both.spread() - 0.4).abs() < 1e-12);
        assert!((both.recording_cost().unwrap() - 0.21).abs() < 1e-12);
        // 430 / 4 and 363 / 3; 107.5 is rounded up.
        let mean = Executed { typical: Typical::Mean, ..both };
        assert_eq!(mean.time(), SimTime(108));
        assert!((mean.recording_cost().unwrap() - (121.0 / 108.0 - 1.0)).abs() < 1e-12);
        let one = executed(&[7], &[]);
        assert_eq!((one.time(), one.spread(), one.recording_cost()), (SimTime(7), 0.0, None));
        assert_eq!(executed(&[], &[]).spread(), 0.0);
    }
}
