use std::fmt;

use crate::gpu::Device;
use crate::reference::{Gradients, Output, relative_l2};
use crate::spec::{Dims, Dtype, HeadDim};
use crate::variant::ForwardTiles;

use super::ranks::{HostGradients, HostOutput, Mode, Ranks};
use super::tensors::Inputs;
use super::{LabError, Layout, Mask, huge, long, rounds, special};

/// Relative L2 error that a bf16 output may have; fp16 carries three more bits.
const OUTPUT_BOUND: f64 = 4e-3;
/// Relative L2 error that a bf16 gradient may have.
const GRADIENT_BOUND: f64 = 8e-3;
/// Absolute error of the fp32 log-sum-exp.
const LSE_BOUND: f64 = 5e-4;

/// How much is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckOptions {
    /// Tokens of a sequence; an odd number puts tails everywhere.
    pub len: usize,
    /// Ranks, one group after the other.
    pub ranks: &'static [usize],
    /// Backward too.
    pub backward: bool,
    /// Also inputs that random cases do not reach, long sequences and far rows.
    pub special: bool,
    /// Also launches with a few work items beyond a round.
    pub rounds: bool,
    /// Of the problems, every so many.
    pub every: usize,
}

impl CheckOptions {
    /// Everything, on sequences whose tiles all have tails.
    pub const FULL: Self =
        Self { len: 1021, ranks: &[1, 2, 3, 4, 8], backward: true, special: true, rounds: true, every: 1 };
    /// A few minutes' worth less.
    pub const QUICK: Self =
        Self { len: 517, ranks: &[1, 3], backward: true, special: true, rounds: true, every: 1 };
    /// Each kernel a few times, for a memory checker.
    pub const SMALL: Self =
        Self { len: 261, ranks: &[2], backward: true, special: false, rounds: true, every: 1 };
    /// Less still, for a race checker.
    pub const TINY: Self =
        Self { len: 197, ranks: &[2], backward: true, special: false, rounds: false, every: 8 };
}

/// One checked case.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// What was run.
    pub name: String,
    /// Each compared quantity, its error and the most it may be.
    pub errors: Vec<(&'static str, f64, f64)>,
}

impl Outcome {
    /// Whether every error is within its bound; `NaN` never is.
    pub fn passed(&self) -> bool {
        self.errors.iter().all(|&(_, error, bound)| error <= bound)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", if self.passed() { "ok  " } else { "FAIL" }, self.name)?;
        self.errors.iter().try_for_each(|(what, error, _)| write!(f, " {what} {error:.1e}"))
    }
}

/// One family of cases: a problem and its f64 results, shared by all layouts.
struct Family {
    inputs: Inputs,
    output: Output,
    gradients: Option<Gradients>,
    name: String,
}

/// Runs every case and hands each outcome to `report`; the number of failures.
pub fn check(
    device: &Device,
    options: CheckOptions,
    report: &mut dyn FnMut(&Outcome),
) -> Result<usize, LabError> {
    let mut failures = 0;
    let mut count = |outcome: &Outcome| {
        failures += usize::from(!outcome.passed());
        report(outcome);
    };
    for problem in problems(options).into_iter().step_by(options.every) {
        let family = Family::new(&problem)?;
        for &layout in problem.layouts {
            for &ranks in options.ranks {
                family.run(device, layout, ranks, &mut count)?;
            }
        }
    }
    if options.rounds {
        rounds::check(device, &mut count)?;
    }
    if options.special {
        special::check(device, &mut count)?;
        long::check(device, &mut count)?;
        huge::check(device, &mut count)?;
    }
    Ok(failures)
}

const ALL_LAYOUTS: &[Layout] = &[Layout::Contiguous, Layout::Zigzag, Layout::Striped(1), Layout::Striped(16)];
const SOME_LAYOUTS: &[Layout] = &[Layout::Contiguous, Layout::Striped(1)];
const ZIGZAG: &[Layout] = &[Layout::Zigzag];

/// What a family of cases is made from.
struct Problem {
    dims: Dims,
    mask: Mask,
    layouts: &'static [Layout],
    len: usize,
    backward: bool,
}

/// Every mask with every layout at D = 128 in bf16; the other sizes and dtypes where they could differ. Last, forwards at
/// D = 64 around the most keys that short launches have, a few more and as many: of the former, a launch over the keys of one of
/// several ranks is short, and one over all is not.
fn problems(options: CheckOptions) -> Vec<Problem> {
    let problem =
        |dims, mask, layouts| Problem { dims, mask, layouts, len: options.len, backward: options.backward };
    let dims = Dims { dtype: Dtype::Bf16, head_dim: HeadDim::D128, heads: 4, kv_heads: 2, batch: 1 };
    let small = Dims { head_dim: HeadDim::D64, heads: 3, kv_heads: 3, batch: 2, ..dims };
    let fp16 = |dims| Dims { dtype: Dtype::F16, ..dims };
    let masks =
        [Mask::Full, Mask::Causal, Mask::Window(100), Mask::Documents, Mask::WholeDocuments, Mask::Gap];
    let mut problems: Vec<Problem> = masks.map(|mask| problem(dims, mask, ALL_LAYOUTS)).into();
    problems.extend(masks.map(|mask| problem(small, mask, ZIGZAG)));
    problems.push(problem(fp16(dims), Mask::Causal, ZIGZAG));
    problems.push(problem(fp16(small), Mask::Window(100), ZIGZAG));
    problems.push(problem(Dims { kv_heads: 1, ..small }, Mask::Causal, ZIGZAG));
    let pair = Dims { head_dim: HeadDim::D64, heads: 2, kv_heads: 1, ..dims };
    for len in [ForwardTiles::SHORT_MAX_KEYS + 77, ForwardTiles::SHORT_MAX_KEYS] {
        problems.extend(
            [(pair, Mask::Causal), (pair, Mask::Full), (fp16(pair), Mask::Full)]
                .map(|(dims, mask)| Problem { len, backward: false, ..problem(dims, mask, SOME_LAYOUTS) }),
        );
    }
    problems
}

impl Family {
    fn new(problem: &Problem) -> Result<Self, LabError> {
        let &Problem { dims, mask, len, backward, .. } = problem;
        let inputs = Inputs::random(dims, len, mask, 7);
        let problem = inputs.problem();
        let output = problem.forward()?;
        let gradients = backward.then(|| problem.backward(&inputs.d_o)).transpose()?;
        let Dims { dtype, head_dim, heads, kv_heads, batch } = dims;
        let name = format!(
            "{dtype} d{} {heads}/{kv_heads} heads batch {batch} {len} tokens {mask}",
            head_dim.elements()
        );
        Ok(Self { inputs, output, gradients, name })
    }

    fn run(
        &self,
        device: &Device,
        layout: Layout,
        count: usize,
        report: &mut impl FnMut(&Outcome),
    ) -> Result<(), LabError> {
        let ranks = Ranks::new(device, &self.inputs, layout, count)?;
        let name = |what: &str| format!("{} {layout} x{count} {what}", self.name);
        let modes = [
            (Mode::Carried, "carried"),
            (Mode::Merged, "merged"),
            (Mode::Fused, "fused"),
            (Mode::SegmentMajor, "segment by segment"),
        ];
        for (mode, what) in modes {
            let output = ranks.forward(mode)?;
            report(&Outcome { name: name(what), errors: self.output_errors(&output) });
        }
        let again = ranks.forward(Mode::Fused)?;
        let same = bits_differ(&again.o, &ranks.forward(Mode::Fused)?.o);
        report(&Outcome { name: name("twice"), errors: vec![("bits", same, 0.0)] });
        let Some(expected) = &self.gradients else { return Ok(()) };
        let gradients = ranks.backward(false)?;
        report(&Outcome { name: name("backward"), errors: self.gradient_errors(&gradients, expected) });
        let ordered = ranks.backward(true)?;
        let mut errors = self.gradient_errors(&ordered, expected);
        let repeated = ranks.backward(true)?;
        let differ = [(&ordered.dq, &repeated.dq), (&ordered.dk, &repeated.dk), (&ordered.dv, &repeated.dv)];
        errors.push(("bits", differ.map(|(a, b)| bits_differ(a, b)).iter().sum(), 0.0));
        report(&Outcome { name: name("backward deterministic"), errors });
        Ok(())
    }

    fn output_errors(&self, actual: &HostOutput) -> Vec<(&'static str, f64, f64)> {
        let bound = dtype_bound(self.inputs.dims.dtype, OUTPUT_BOUND);
        vec![
            ("o", relative_l2(&actual.o, &self.output.o), bound),
            ("lse", lse_error(&actual.lse, &self.output.lse), LSE_BOUND),
        ]
    }

    fn gradient_errors(&self, actual: &HostGradients, expected: &Gradients) -> Vec<(&'static str, f64, f64)> {
        let bound = dtype_bound(self.inputs.dims.dtype, GRADIENT_BOUND);
        vec![
            ("dq", relative_l2(&actual.dq, &expected.dq), bound),
            ("dk", relative_l2(&actual.dk, &expected.dk), bound),
            ("dv", relative_l2(&actual.dv, &expected.dv), bound),
        ]
    }
}

/// fp16 rounds eight times finer than bf16; half of that is granted to what is summed.
fn dtype_bound(dtype: Dtype, bf16: f64) -> f64 {
    match dtype {
        Dtype::Bf16 => bf16,
        Dtype::F16 => bf16 / 4.0,
    }
}

/// The largest difference; `-inf` must be `-inf`, and anything else beside it is infinitely wrong.
pub(super) fn lse_error(actual: &[f64], expected: &[f64]) -> f64 {
    let difference = |(a, e): (&f64, &f64)| if a == e { 0.0 } else { (a - e).abs() };
    actual
        .iter()
        .zip(expected)
        .map(difference)
        .fold(0.0, |worst: f64, x| if x.is_nan() { x } else { worst.max(x) })
}

/// How many of the values differ in any bit.
pub(super) fn bits_differ(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_on_both_sides_of_the_short_ones_are_checked_at_64() {
        for options in [CheckOptions::FULL, CheckOptions::QUICK, CheckOptions::SMALL, CheckOptions::TINY] {
            let checked = problems(options).into_iter().step_by(options.every);
            let all: Vec<usize> =
                checked.filter(|p| p.dims.head_dim == HeadDim::D64).map(|p| p.len).collect();
            assert!(all.iter().any(|&len| len <= 1024) && all.iter().any(|&len| len > 1024), "{options:?}");
        }
    }

    #[test]
    fn a_wrong_or_missing_number_never_passes() {
        let outcome = |error: f64| Outcome { name: String::new(), errors: vec![("o", error, 1e-3)] };
        assert!(outcome(1e-3).passed());
        assert!(!outcome(1.1e-3).passed());
        assert!(!outcome(f64::NAN).passed());
        assert_eq!(outcome(f64::NAN).to_string(), "FAIL  o NaN");
    }

    #[test]
    fn lse_of_queries_without_keys_is_compared_exactly() {
        let empty = f64::NEG_INFINITY;
        assert_eq!(lse_error(&[1.0, empty], &[1.5, empty]), 0.5);
        assert_eq!(lse_error(&[empty], &[0.0]), f64::INFINITY);
        assert!(
            lse_error(&[f64::NAN, 3.0], &[empty, 0.0]) > 0.0 || lse_error(&[f64::NAN], &[empty]).is_nan()
        );
    }
}
