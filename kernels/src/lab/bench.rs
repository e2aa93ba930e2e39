use std::fmt;
use std::ops::RangeInclusive;

use cudarc::driver::sys::CUevent_flags;

use crate::gpu::{Backward, Device, Forward, GpuError};
use crate::spec::HeadDim;

use super::setup::Setup;
use super::{LabError, Layout, Mask};

/// Heads times head dimension of every point: a model width of 2048.
pub const WIDTH: usize = 2048;
/// Launches before the timed ones.
const WARM_UP: usize = 3;

/// Which keys a timed launch reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those of all ranks: a forward in one launch, a backward in a launch a segment, with the steps around them.
    Whole,
    /// Those of the rank so many places behind, as in one step of a ring: the forward reads and writes the carried
    /// state, the backward is its launch alone.
    Step(usize),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.pad("whole"),
            Self::Step(distance) => f.pad(&format!("step{distance}")),
        }
    }
}

/// One shape to time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Elements of one head; heads follow from a width of 2048.
    pub head_dim: HeadDim,
    /// Query heads that share a kv head.
    pub group: usize,
    /// Tokens of a sequence, over all ranks.
    pub len: usize,
    /// Sequences.
    pub batch: usize,
    /// The mask.
    pub mask: Mask,
    /// Who holds what.
    pub layout: Layout,
    /// Ranks; the one with the most work is timed, over the segments of all.
    pub ranks: usize,
    /// Over which keys.
    pub scope: Scope,
}

/// The times of one pass at one point.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// The shape.
    pub point: Point,
    /// `forward` or `backward`.
    pub pass: &'static str,
    /// The kernel that ran.
    pub kernel: String,
    /// Milliseconds of each launch, rising.
    pub milliseconds: Vec<f32>,
    /// Floating-point operations of one launch, from the mask's area.
    pub flops: f64,
}

impl Timing {
    /// The middle time, in milliseconds.
    pub fn median(&self) -> f32 {
        self.milliseconds[self.milliseconds.len() / 2]
    }

    /// TFLOP/s of the middle time.
    pub fn tflops(&self) -> f64 {
        self.flops / f64::from(self.median()) / 1e9
    }
}

/// The points of the comparison with other implementations (16Ki tokens in all, or one longer sequence), of the layouts
/// and of single ring steps, as far as their sequences are of such `lengths`.
pub fn points(lengths: &RangeInclusive<usize>) -> Vec<Point> {
    let mut points = Vec::new();
    for head_dim in HeadDim::ALL.into_iter().rev() {
        for len in [1024, 2048, 4096, 8192, 16384, 32768, 65536] {
            for mask in [Mask::Full, Mask::Causal] {
                points.push(Point { mask, batch: (16384 / len).max(1), ..Point::causal(head_dim, len) });
            }
        }
    }
    let causal = |layout, ranks, len| Point { layout, ranks, ..Point::causal(HeadDim::D128, len) };
    points.push(Point { group: 4, ..Point::causal(HeadDim::D128, 16384) });
    let layouts = [Layout::Contiguous, Layout::Zigzag, Layout::Striped(1), Layout::Striped(128)];
    points.extend(layouts.map(|layout| causal(layout, 4, 32768)));
    points.push(Point { mask: Mask::Window(4096), ..causal(Layout::Zigzag, 4, 32768) });
    points.push(Point { mask: Mask::Documents, ..causal(Layout::Zigzag, 4, 32768) });
    for len in [2048, 4096, 8192, 16384, 32768] {
        let layouts = [Layout::Contiguous, Layout::Zigzag, Layout::Striped(1)];
        points.extend(layouts.map(|layout| Point { scope: Scope::Step(1), ..causal(layout, 2, len) }));
    }
    points.retain(|point| lengths.contains(&point.len));
    points
}

impl Point {
    /// One causal sequence of `len` tokens on one rank, as many kv heads as query heads.
    pub fn causal(head_dim: HeadDim, len: usize) -> Self {
        Self {
            head_dim,
            group: 1,
            len,
            batch: 1,
            mask: Mask::Causal,
            layout: Layout::Contiguous,
            ranks: 1,
            scope: Scope::Whole,
        }
    }
}

/// Times forward and backward at `point`, `repeats` launches each.
///
/// A whole backward is everything between `do` and rounded `dq`: the row sums of `o * do` and zeroed `dq`, one launch a
/// segment that writes its fp32 `dk` and `dv`, the rounding of `dq`. The launch of a ring step adds to them.
pub fn bench(device: &Device, point: Point, repeats: usize) -> Result<Vec<Timing>, LabError> {
    let setup = Setup::new(device, point)?;
    let launches = Launches::prepare(device, &setup)?;
    let forward_ms = time(device, (WARM_UP, repeats), || launches.forward(device))?;
    let backward_ms = time(device, (WARM_UP, repeats), || launches.backward(device))?;
    Ok(vec![
        setup.timing(point, "forward", launches.forward.kernel().to_string(), forward_ms),
        setup.timing(point, "backward", launches.backward_kernel(), backward_ms),
    ])
}

/// What is launched at one point.
pub(super) struct Launches<'a> {
    setup: &'a Setup,
    pub forward: Forward,
    backwards: Vec<Backward>,
}

impl<'a> Launches<'a> {
    pub fn prepare(device: &Device, setup: &'a Setup) -> Result<Self, GpuError> {
        let specs = (0..setup.sources()).map(|source| setup.backward(source));
        Ok(Self {
            setup,
            forward: Forward::prepare(device, &setup.forward())?,
            backwards: specs.map(|spec| Backward::prepare(device, &spec)).collect::<Result<_, _>>()?,
        })
    }

    pub fn backward_kernel(&self) -> String {
        self.backwards.first().map(|backward| backward.kernel().to_string()).unwrap_or_default()
    }

    pub fn forward(&self, device: &Device) -> Result<(), GpuError> {
        self.forward.launch(&device.context().default_stream())
    }

    pub fn backward(&self, device: &Device) -> Result<(), GpuError> {
        let stream = device.context().default_stream();
        if self.setup.whole {
            self.setup.before_backward(device, &stream)?;
        }
        self.backwards.iter().try_for_each(|backward| backward.launch(&stream))?;
        if self.setup.whole { self.setup.after_backward(device, &stream) } else { Ok(()) }
    }
}

/// Milliseconds of each of `repeats` launches after `warm_up` others, rising, between device events.
pub(super) fn time(
    device: &Device,
    (warm_up, repeats): (usize, usize),
    mut launch: impl FnMut() -> Result<(), GpuError>,
) -> Result<Vec<f32>, GpuError> {
    let driver = |source| GpuError::Driver { doing: "time a launch", source };
    let stream = device.context().default_stream();
    let mark = || stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver);
    (0..warm_up).try_for_each(|_| launch())?;
    let mut events = Vec::with_capacity(repeats);
    for _ in 0..repeats.max(1) {
        let start = mark()?;
        launch()?;
        events.push((start, mark()?));
    }
    let mut times = events
        .iter()
        .map(|(start, end)| start.elapsed_ms(end).map_err(driver))
        .collect::<Result<Vec<f32>, _>>()?;
    times.sort_by(f32::total_cmp);
    Ok(times)
}
