//! What a layer's attention is computed from, in global token order.

use ringlab_sim::problem::{Dtype, Problem, Shape, ShapeError};
use thiserror::Error;

use crate::outcome::Forward;
use crate::parallel::for_chunks;

/// q, k, v and the gradient of o of a whole problem, in f32.
///
/// Query-side tensors are `[batch][tokens][heads][head_dim]`, key-side ones `[batch][tokens][kv_heads][head_dim]`, both
/// dense. Tokens are the real ones in order; padding belongs to a layout and has no row here.
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs {
    /// Heads and sizes.
    pub shape: Shape,
    /// Real tokens N.
    pub tokens: usize,
    /// Tokens that are stored, after which the tensors repeat themselves; `None` for all. What is measured and not compared
    /// need not be as long as a sequence.
    pub period: Option<usize>,
    /// Queries.
    pub q: Vec<f32>,
    /// Keys.
    pub k: Vec<f32>,
    /// Values.
    pub v: Vec<f32>,
    /// Gradient of the loss by o, shaped like `q`.
    pub d_o: Vec<f32>,
    /// Result of the forward, which a backward needs.
    pub forward: Option<Forward>,
}

/// Why inputs do not fit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InputError {
    /// The heads do not fit each other.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A tensor of another size than the shape asks for.
    #[error("`{name}` has {actual} elements, the shape needs {expected}")]
    Length {
        /// The tensor.
        name: &'static str,
        /// Elements by the shape.
        expected: usize,
        /// Elements given.
        actual: usize,
    },
    /// Inputs of another problem.
    #[error("the plan is for {plan}, the inputs are {inputs}; make both from one problem")]
    Problem {
        /// Sizes of the plan.
        plan: String,
        /// Sizes of the inputs.
        inputs: String,
    },
    /// A backward without its forward.
    #[error("a backward needs o and lse of the forward; run the forward plan first and give its result")]
    NoForward,
}

impl Inputs {
    /// Independent standard normal values. The same seed gives the same values on every machine of one libm.
    ///
    /// # Errors
    /// A shape that makes no sense.
    pub fn random(seed: u64, problem: &Problem) -> Result<Self, InputError> {
        let shape = problem.shape;
        shape.validate()?;
        let tokens = problem.tokens() as usize;
        let mut streams = SplitMix64(seed);
        let mut tensor = |heads: u32| {
            let stream = SplitMix64(streams.next());
            normal(&stream, elements(&shape, tokens, heads))
        };
        let (q, k) = (tensor(shape.heads), tensor(shape.kv_heads));
        let (v, d_o) = (tensor(shape.kv_heads), tensor(shape.heads));
        Ok(Self { shape, tokens, q, k, v, d_o, period: None, forward: None })
    }

    /// The same inputs rounded to the shape's element type, as GPUs get them: what a run is to be compared with must be
    /// computed from these. fp32 stays as it is.
    pub fn rounded(mut self) -> Self {
        let dtype = self.shape.dtype;
        for tensor in [&mut self.q, &mut self.k, &mut self.v, &mut self.d_o] {
            match dtype {
                Dtype::Bf16 => for_chunks(tensor, 1, |_, x| x[0] = half::bf16::from_f32(x[0]).to_f32()),
                Dtype::Fp16 => for_chunks(tensor, 1, |_, x| x[0] = half::f16::from_f32(x[0]).to_f32()),
                Dtype::Fp8 | Dtype::Tf32 | Dtype::Fp32 => {}
            }
        }
        self
    }

    /// The same inputs with the result of their forward, ready for a backward.
    pub fn with_forward(self, forward: Forward) -> Self {
        Self { forward: Some(forward), ..self }
    }

    /// Tokens whose rows the tensors have.
    pub(crate) fn stored(&self) -> usize {
        self.period.unwrap_or(self.tokens)
    }

    /// Checks every length against the shape.
    ///
    /// # Errors
    /// The first tensor that does not fit.
    pub fn validate(&self) -> Result<(), InputError> {
        self.shape.validate()?;
        let q = elements(&self.shape, self.stored(), self.shape.heads);
        let kv = elements(&self.shape, self.stored(), self.shape.kv_heads);
        length("q", q, &self.q)?;
        length("k", kv, &self.k)?;
        length("v", kv, &self.v)?;
        length("d_o", q, &self.d_o)?;
        if let Some(forward) = &self.forward {
            length("o", q, &forward.o)?;
            length("lse", q / self.shape.head_dim as usize, &forward.lse)?;
        }
        Ok(())
    }
}

fn elements(shape: &Shape, tokens: usize, heads: u32) -> usize {
    shape.batch as usize * tokens * heads as usize * shape.head_dim as usize
}

fn length(name: &'static str, expected: usize, tensor: &[f32]) -> Result<(), InputError> {
    let actual = tensor.len();
    if actual == expected { Ok(()) } else { Err(InputError::Length { name, expected, actual }) }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). Test data needs to be repeatable, not unpredictable: ten lines
/// instead of a dependency whose streams change between versions.
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    /// What the generator adds at each step.
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

    /// The same stream after so many numbers.
    pub(crate) fn after(&self, numbers: u64) -> Self {
        Self(self.0.wrapping_add(numbers.wrapping_mul(Self::GAMMA)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::GAMMA);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `(0, 1]`.
    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// Standard normal values by Box and Muller, two numbers of the stream each, on all cores.
fn normal(stream: &SplitMix64, count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    for_chunks(&mut values, 1, |i, value| {
        let mut own = stream.after(2 * i as u64);
        let (radius, angle) = (own.uniform(), own.uniform());
        value[0] = ((-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()) as f32;
    });
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_splitmix_sequence() {
        let mut stream = SplitMix64(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| stream.next()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn values_have_the_moments_of_a_normal_distribution() {
        let x = normal(&SplitMix64(7), 200_000);
        let moment = |p: i32| x.iter().map(|&v| f64::from(v).powi(p)).sum::<f64>() / x.len() as f64;
        assert!(moment(1).abs() < 0.01, "mean {}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.02, "variance {}", moment(2));
        assert!((moment(4) - 3.0).abs() < 0.1, "fourth moment {}", moment(4));
    }
}
