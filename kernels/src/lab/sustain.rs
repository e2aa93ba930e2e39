//! How a kernel's rate falls under lasting load, as the chip meets its power limit and lowers its clock.

mod load;
mod series;
mod smi;

pub use series::{Rate, Sample, Series};
pub use smi::SmiLog;

use std::thread::sleep;
use std::time::Duration;

use crate::gpu::Device;
use crate::spec::HeadDim;

use super::bench::{Launches, time};
use super::setup::Setup;
use super::{LabError, Mask, Point};
use load::Load;

/// Launches before a load that nothing is measured of; their time says how long a burst is.
const WARM_UP: (usize, usize) = (1, 2);

/// How a load is put on: idle first, so that the chip cools and raises its clock, then launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Share of the time that the GPU is left idle between bursts of launches, in percent; 0: back to back.
    pub idle_percent: u32,
    /// Pause before the first launch.
    pub rest: Duration,
    /// How long launches are posted.
    pub load: Duration,
}

/// Back to back, and with a tenth and three tenths of the time idle.
pub const PLANS: [Plan; 3] = [
    Plan { idle_percent: 0, rest: Duration::from_millis(1500), load: Duration::from_millis(1200) },
    Plan { idle_percent: 10, rest: Duration::from_millis(400), load: Duration::from_millis(400) },
    Plan { idle_percent: 30, rest: Duration::from_millis(400), load: Duration::from_millis(400) },
];

/// The shapes put under load, and which passes of each.
pub fn cases() -> [(Point, &'static [&'static str]); 4] {
    let full = |head_dim, len| Point { mask: Mask::Full, ..Point::causal(head_dim, len) };
    let both: &[&str] = &["forward", "backward"];
    let forward = &both[..1];
    [
        (full(HeadDim::D128, 16384), both),
        (Point::causal(HeadDim::D128, 16384), both),
        (full(HeadDim::D128, 4096), forward),
        (full(HeadDim::D64, 16384), forward),
    ]
}

/// Puts each of `passes` at `point` under load by each of [`PLANS`], and hands on what was measured.
///
/// A backward includes the row sums before it and the rounding after it, as in [`bench`](super::bench()).
pub fn measure(
    device: &Device,
    (point, passes): (Point, &[&'static str]),
    report: &mut dyn FnMut(&Series),
) -> Result<(), LabError> {
    let setup = Setup::new(device, point)?;
    let launches = Launches::prepare(device, &setup)?;
    // A backward reads the log-sum-exp of a forward.
    launches.forward(device)?;
    for &pass in passes {
        let forward = pass == "forward";
        let launch = || if forward { launches.forward(device) } else { launches.backward(device) };
        let kernel = if forward { launches.forward.kernel().to_string() } else { launches.backward_kernel() };
        let warm = time(device, WARM_UP, launch)?;
        let flops = setup.timing(point, pass, String::new(), Vec::new()).flops;
        for plan in PLANS {
            sleep(plan.rest);
            let (began_unix_ms, samples) = Load::of(plan, f64::from(warm[0])).put(device, launch)?;
            report(&Series { point, pass, kernel: kernel.clone(), plan, began_unix_ms, flops, samples });
        }
    }
    Ok(())
}
