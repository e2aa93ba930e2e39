use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};

use crate::gpu::{Device, GpuError};

use super::{Plan, Sample};

/// Milliseconds of work that are queued ahead of the GPU, so that it never waits for the host.
const AHEAD_MS: f64 = 10.0;
/// Milliseconds of a burst between two pauses.
const BURST_MS: f64 = 2.0;
/// Before the end of a pause the host stops sleeping, which ends late, and spins.
const SPIN: Duration = Duration::from_millis(1);

/// How launches are posted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// How long.
    length: Duration,
    /// Launches in the queue behind the running one, at most.
    ahead: usize,
    /// Launches of a burst, and the pause after it as a share of its time; `None`: back to back.
    burst: Option<(usize, f64)>,
}

impl Load {
    /// By `plan`, where one launch takes about `launch_ms`.
    pub fn of(plan: Plan, launch_ms: f64) -> Self {
        let launches = |ms: f64| (ms / launch_ms.max(1e-3)).ceil();
        let idle = f64::from(plan.idle_percent.min(99));
        Self {
            length: plan.load,
            ahead: (launches(AHEAD_MS) as usize).clamp(1, 256),
            burst: (idle > 0.0).then(|| (launches(BURST_MS) as usize, idle / (100.0 - idle))),
        }
    }

    /// Launches until its time is over; milliseconds since 1970 at the first launch, and the time of each.
    pub fn put(
        self,
        device: &Device,
        launch: impl Fn() -> Result<(), GpuError>,
    ) -> Result<(f64, Vec<Sample>), GpuError> {
        let stream = device.context().default_stream();
        stream.synchronize().map_err(driver)?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut marks = Marks { stream: &stream, events: Vec::new(), launches: Vec::new() };
        match self.burst {
            None => self.back_to_back(&mut marks, launch)?,
            Some(burst) => self.in_bursts(burst, &mut marks, launch)?,
        }
        Ok((unix.as_secs_f64() * 1e3, marks.samples()?))
    }

    fn back_to_back(
        self,
        marks: &mut Marks<'_>,
        launch: impl Fn() -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let start = Instant::now();
        marks.start()?;
        while start.elapsed() < self.length {
            launch()?;
            marks.end_launch()?;
            if let Some(behind) = marks.events.len().checked_sub(self.ahead + 2) {
                marks.events[behind].synchronize().map_err(driver)?;
            }
        }
        Ok(())
    }

    fn in_bursts(
        self,
        (launches, pause): (usize, f64),
        marks: &mut Marks<'_>,
        launch: impl Fn() -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let start = Instant::now();
        while start.elapsed() < self.length {
            let first = marks.events.len();
            marks.start()?;
            for _ in 0..launches {
                launch()?;
                marks.end_launch()?;
            }
            let busy_ms = marks.between(first, marks.events.len() - 1)?;
            idle_until(Instant::now() + Duration::from_secs_f64(f64::from(busy_ms) * pause / 1e3));
        }
        Ok(())
    }
}

fn idle_until(end: Instant) {
    sleep(end.saturating_duration_since(Instant::now()).saturating_sub(SPIN));
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn driver(source: cudarc::driver::DriverError) -> GpuError {
    GpuError::Driver { doing: "time launches under load", source }
}

/// Events on the stream, and between which of them each launch lies.
struct Marks<'s> {
    stream: &'s CudaStream,
    events: Vec<CudaEvent>,
    launches: Vec<[usize; 2]>,
}

impl Marks<'_> {
    fn start(&mut self) -> Result<(), GpuError> {
        let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
        self.events.push(self.stream.record_event(flags).map_err(driver)?);
        Ok(())
    }

    /// Ends the launch after the last event.
    fn end_launch(&mut self) -> Result<(), GpuError> {
        self.start()?;
        let end = self.events.len() - 1;
        self.launches.push([end - 1, end]);
        Ok(())
    }

    /// Milliseconds between two events, once both have passed.
    fn between(&self, start: usize, end: usize) -> Result<f32, GpuError> {
        self.events[start].elapsed_ms(&self.events[end]).map_err(driver)
    }

    fn samples(&self) -> Result<Vec<Sample>, GpuError> {
        let sample = |&[start, end]: &[usize; 2]| {
            Ok(Sample { start_ms: self.between(0, start)?, ms: self.between(start, end)? })
        };
        self.launches.iter().map(sample).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::sustain::PLANS;

    #[test]
    fn bursts_of_two_milliseconds_and_ten_queued() {
        let [whole, tenth, three_tenths] = PLANS.map(|plan| Load::of(plan, 0.3));
        assert_eq!((whole.ahead, whole.burst), (34, None));
        // 2 ms are seven launches of 0.3 ms. A pause of 1/9 of the work is a tenth of the whole.
        assert_eq!(tenth.burst, Some((7, 10.0 / 90.0)));
        assert_eq!(three_tenths.burst, Some((7, 30.0 / 70.0)));
        assert_eq!(Load::of(PLANS[1], 12.0), Load { ahead: 1, burst: Some((1, 10.0 / 90.0)), ..tenth });
        assert_eq!(Load::of(PLANS[0], 0.01).ahead, 256);
    }

    #[test]
    fn a_pause_lasts_as_long_as_asked() {
        for ms in [0.2, 3.0] {
            let start = Instant::now();
            idle_until(start + Duration::from_secs_f64(ms / 1e3));
            assert!(start.elapsed().as_secs_f64() * 1e3 >= ms);
        }
    }
}
