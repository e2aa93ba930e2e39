//! What buffers and messages hold, array by array.

use serde::Serialize;

use crate::problem::Shape;
use crate::units::Bytes;

/// What a buffer or a message holds, per token and head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tensor {
    /// q.
    Query,
    /// k and v.
    KeyValue,
    /// k alone.
    Key,
    /// v alone.
    Value,
    /// Unnormalised o, running maximum m and sum l, fp32.
    State,
    /// o, and lse in fp32.
    Output,
    /// What the backward needs of the query side: q, o, do, and lse in fp32.
    QuerySide,
    /// do.
    OutputGrad,
    /// What a backward call reads of its queries, but for delta: q, do, and lse in fp32.
    BackwardQuery,
    /// rowsum(o * do), fp32.
    Delta,
    /// dq, fp32.
    QueryGrad,
    /// dk and dv, fp32.
    KeyValueGrad,
    /// dk alone, fp32.
    KeyGrad,
    /// dv alone, fp32.
    ValueGrad,
    /// Scores, probabilities or gradients of them, fp32: a row of `keys` numbers.
    Scores {
        /// Keys of the whole problem, padding included.
        keys: u32,
    },
    /// The layer's input x, as wide as all query heads. On the CPU q stands for x; k and v, which follow from x, go along
    /// for nothing.
    Hidden,
    /// A rank's part of the layer's output, of all heads' width, to be summed up over the ranks. On the CPU the output
    /// projection is the identity: o at the rank's own heads and 0 at the others. lse goes along for nothing.
    LayerOutput,
    /// A rank's part of the gradient of x, to be summed up over the ranks. On the CPU dq stands for it; dk and dv go along
    /// for nothing.
    HiddenGrad,
}

/// One array of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// q.
    Query,
    /// k.
    Key,
    /// v.
    Value,
    /// o.
    Output,
    /// Logarithm of the softmax denominator.
    Lse,
    /// do.
    OutputGrad,
    /// Unnormalised o.
    Sum,
    /// Running maximum m of the scores.
    Max,
    /// Running softmax denominator l.
    Denominator,
    /// rowsum(o * do).
    Delta,
    /// dq.
    QueryGrad,
    /// dk.
    KeyGrad,
    /// dv.
    ValueGrad,
    /// dq in the element type, in place of the gradient of x.
    HiddenGrad,
    /// The k of each query head, of no bytes.
    CarriedKey,
    /// The v of each query head, of no bytes.
    CarriedValue,
    /// lse, of no bytes.
    CarriedLse,
    /// dk of each kv head, at the first of its query heads, of no bytes.
    CarriedKeyGrad,
    /// dv, likewise.
    CarriedValueGrad,
    /// Scores, probabilities or gradients of them; [`Tensor::width`] knows how many.
    Score,
}

impl Part {
    /// Numbers a token and head: the head dimension, or one. For score rows see [`Tensor::width`].
    pub fn width(self, shape: &Shape) -> u64 {
        match self {
            Self::Lse | Self::CarriedLse | Self::Max | Self::Denominator | Self::Delta | Self::Score => 1,
            _ => u64::from(shape.head_dim),
        }
    }

    /// Whether it is a partial result or gradient, which may travel in the element type.
    pub fn is_partial(self) -> bool {
        matches!(self, Self::Sum | Self::QueryGrad | Self::KeyGrad | Self::ValueGrad)
    }

    /// Size of one of its numbers: the problem's element type for tensors of the model, none for what is carried along to
    /// stand for something that is computed, else fp32.
    pub fn element_bytes(self, shape: &Shape) -> u64 {
        match self {
            Self::Query | Self::Key | Self::Value | Self::Output | Self::OutputGrad | Self::HiddenGrad => {
                shape.dtype.size().0
            }
            Self::CarriedKey
            | Self::CarriedValue
            | Self::CarriedLse
            | Self::CarriedKeyGrad
            | Self::CarriedValueGrad => 0,
            _ => 4,
        }
    }
}

impl Tensor {
    /// Its arrays.
    pub fn parts(self) -> &'static [Part] {
        match self {
            Self::Query => &[Part::Query],
            Self::KeyValue => &[Part::Key, Part::Value],
            Self::Key => &[Part::Key],
            Self::Value => &[Part::Value],
            Self::State => &[Part::Sum, Part::Max, Part::Denominator],
            Self::Output => &[Part::Output, Part::Lse],
            Self::QuerySide => &[Part::Query, Part::Output, Part::OutputGrad, Part::Lse],
            Self::OutputGrad => &[Part::OutputGrad],
            Self::BackwardQuery => &[Part::Query, Part::OutputGrad, Part::Lse],
            Self::Delta => &[Part::Delta],
            Self::QueryGrad => &[Part::QueryGrad],
            Self::KeyValueGrad => &[Part::KeyGrad, Part::ValueGrad],
            Self::KeyGrad => &[Part::KeyGrad],
            Self::ValueGrad => &[Part::ValueGrad],
            Self::Scores { .. } => &[Part::Score],
            Self::Hidden => &[Part::Query, Part::CarriedKey, Part::CarriedValue],
            Self::LayerOutput => &[Part::Output, Part::CarriedLse],
            Self::HiddenGrad => &[Part::HiddenGrad, Part::CarriedKeyGrad, Part::CarriedValueGrad],
        }
    }

    /// Numbers of one of its arrays, a token and head.
    pub fn width(self, part: Part, shape: &Shape) -> u64 {
        match self {
            Self::Scores { keys } => u64::from(keys),
            _ => part.width(shape),
        }
    }

    /// Whether it holds this result: o, dq, dk and dv, or one of those.
    pub fn holds(self, result: Self) -> bool {
        self == result
            || match self {
                Self::LayerOutput => result == Self::Output,
                Self::HiddenGrad => {
                    matches!(result, Self::QueryGrad | Self::KeyValueGrad | Self::KeyGrad | Self::ValueGrad)
                }
                Self::KeyValueGrad => matches!(result, Self::KeyGrad | Self::ValueGrad),
                _ => false,
            }
    }

    /// Whether attention calls go into it. What is no such result can be sent from several buffers, or from one that has
    /// more parts.
    pub fn is_result(self) -> bool {
        !matches!(
            self,
            Self::Query
                | Self::KeyValue
                | Self::Key
                | Self::Value
                | Self::QuerySide
                | Self::OutputGrad
                | Self::BackwardQuery
                | Self::Delta
                | Self::Hidden
        )
    }

    /// Whether its heads are kv heads.
    pub fn is_key_side(self) -> bool {
        matches!(
            self,
            Self::KeyValue | Self::Key | Self::Value | Self::KeyValueGrad | Self::KeyGrad | Self::ValueGrad
        )
    }

    /// Bytes of `tokens` tokens and `heads` heads of every sequence of the batch.
    pub fn bytes(self, shape: &Shape, tokens: u64, heads: u32) -> Bytes {
        let each: u64 = self.parts().iter().map(|&p| self.width(p, shape) * p.element_bytes(shape)).sum();
        Bytes(each) * tokens * u64::from(heads) * u64::from(shape.batch)
    }
}
