//! Softmax attention by its formula, in f64: the reference that every faster path is held against.
//!
//! Nothing here is tiled, online or merged, and nothing is shared with the kernels or the runtimes. For query `i` and
//! key `j` of one head, with `S = scale * q k^T` over the keys that `i` attends:
//!
//! ```text
//! P = softmax(S)      o = P v                  lse_i = ln sum_j exp(S_ij)
//! dv = P^T do         dP = do v^T              delta_i = sum_d do_id o_id
//! dS = P * (dP - delta)                        dq = scale * dS k,  dk = scale * dS^T q
//! ```
//!
//! A query without keys has `o = 0`, `lse = -inf` and takes no part in any gradient. With grouped-query attention
//! head `h` reads kv head `h / (heads / kv_heads)`, and `dk`, `dv` are sums over the heads of a group.
//!
//! A whole problem costs `O(q_len * kv_len * heads * head_dim)`; for long sequences ask for single rows instead
//! ([`Problem::forward_row`], [`Problem::query_gradient`], [`Problem::key_gradient`]).

mod parallel;
mod terms;
#[cfg(test)]
mod tests;

use parallel::map_rows;

/// Sizes of one attention problem.
///
/// Query-side tensors are `[batch][q_len][heads][head_dim]`, key-side ones `[batch][kv_len][kv_heads][head_dim]`, both
/// dense and row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Independent sequences of equal length.
    pub batch: usize,
    /// Queries of one sequence.
    pub q_len: usize,
    /// Keys of one sequence.
    pub kv_len: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
}

impl Shape {
    /// Elements of a query-side tensor.
    pub fn q_elements(&self) -> usize {
        self.batch * self.q_len * self.heads * self.head_dim
    }

    /// Elements of a key-side tensor.
    pub fn kv_elements(&self) -> usize {
        self.batch * self.kv_len * self.kv_heads * self.head_dim
    }

    /// Rows of `lse`, laid out `[batch][heads][q_len]`.
    pub fn lse_rows(&self) -> usize {
        self.batch * self.heads * self.q_len
    }
}

/// Why a problem makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// A slice has another length than the shape asks for.
    #[error("`{name}` has {actual} elements, the shape needs {expected}")]
    Length {
        /// The argument.
        name: &'static str,
        /// Elements by the shape.
        expected: usize,
        /// Elements given.
        actual: usize,
    },
    /// The query heads do not fall into equal groups.
    #[error("{heads} query heads cannot share {kv_heads} kv heads; the second must divide the first")]
    Heads {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
    },
}

/// One attention problem: tensors of `f32` or `f64`, and the mask as one interval of key positions per query.
///
/// Query `i` attends key `j` iff `lo[i] <= key_pos[j] <= hi[i]`. The positions need no order. The mask is the same for
/// every sequence of the batch.
#[derive(Debug, Clone, Copy)]
pub struct Problem<'a, T> {
    /// Sizes.
    pub shape: Shape,
    /// Queries, `[batch][q_len][heads][head_dim]`.
    pub q: &'a [T],
    /// Keys, `[batch][kv_len][kv_heads][head_dim]`.
    pub k: &'a [T],
    /// Values, shaped like `k`.
    pub v: &'a [T],
    /// First key position that each query attends, `[q_len]`.
    pub lo: &'a [i32],
    /// Last key position that each query attends, `[q_len]`; an interval with `lo > hi` is empty.
    pub hi: &'a [i32],
    /// Position of each key, `[kv_len]`.
    pub key_pos: &'a [i32],
    /// Factor on the scores, `1 / sqrt(head_dim)` by custom.
    pub scale: f64,
}

/// Result of a forward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Attention output, shaped like `q`.
    pub o: Vec<f64>,
    /// Natural logarithm of the softmax denominator, `[batch][heads][q_len]`; `-inf` for a query without keys.
    pub lse: Vec<f64>,
}

/// Result of a backward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients {
    /// Shaped like `q`.
    pub dq: Vec<f64>,
    /// Shaped like `k`.
    pub dk: Vec<f64>,
    /// Shaped like `v`.
    pub dv: Vec<f64>,
}

/// One row of a tensor: token `token` of head `head` (a kv head on the key side) of sequence `batch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Sequence.
    pub batch: usize,
    /// Head, or kv head where the row belongs to `k` or `v`.
    pub head: usize,
    /// Query or key.
    pub token: usize,
}

/// Per-query numbers that the key side of a backward pass needs, both `[batch][heads][q_len]`.
#[derive(Debug, Clone, Copy)]
pub struct QueryStats<'a> {
    /// As in [`Output::lse`].
    pub lse: &'a [f64],
    /// Row sums of `o * do`.
    pub delta: &'a [f64],
}

impl<T: Copy + Into<f64> + Sync> Problem<'_, T> {
    /// Checks every length against the shape.
    pub fn validate(&self) -> Result<(), ReferenceError> {
        let Shape { heads, kv_heads, q_len, kv_len, .. } = self.shape;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(ReferenceError::Heads { heads, kv_heads });
        }
        let (q, kv) = (self.shape.q_elements(), self.shape.kv_elements());
        length("q", q, self.q.len())?;
        length("k", kv, self.k.len())?;
        length("v", kv, self.v.len())?;
        length("lo", q_len, self.lo.len())?;
        length("hi", q_len, self.hi.len())?;
        length("key_pos", kv_len, self.key_pos.len())
    }

    /// Output and log-sum-exp of every query.
    pub fn forward(&self) -> Result<Output, ReferenceError> {
        self.validate()?;
        let d = self.shape.head_dim;
        let mut out = Output { o: vec![0.0; self.q.len()], lse: vec![0.0; self.shape.lse_rows()] };
        let rows = map_rows(self.shape.lse_rows(), |index| self.forward_row(self.query_row(index)));
        for (index, (o, lse)) in rows.into_iter().enumerate() {
            let start = self.q_start(self.query_row(index));
            out.o[start..start + d].copy_from_slice(&o);
            out.lse[index] = lse;
        }
        Ok(out)
    }

    /// Gradients of `sum(o * d_o)` by `q`, `k` and `v`; `d_o` is shaped like `q`.
    pub fn backward(&self, d_o: &[T]) -> Result<Gradients, ReferenceError> {
        self.validate()?;
        length("d_o", self.q.len(), d_o.len())?;
        let Shape { batch, kv_len, kv_heads, head_dim: d, .. } = self.shape;
        let mut grad = Gradients {
            dq: vec![0.0; self.q.len()],
            dk: vec![0.0; self.k.len()],
            dv: vec![0.0; self.k.len()],
        };
        let queries = map_rows(self.shape.lse_rows(), |index| {
            let row = self.query_row(index);
            let (o, lse) = self.forward_row(row);
            let delta = dot_mixed(self.q_side(d_o, row), &o);
            (self.query_gradient_with(d_o, row, lse, delta), lse, delta)
        });
        let lse: Vec<f64> = queries.iter().map(|(_, lse, _)| *lse).collect();
        let delta: Vec<f64> = queries.iter().map(|(.., delta)| *delta).collect();
        for (index, (dq, ..)) in queries.into_iter().enumerate() {
            let start = self.q_start(self.query_row(index));
            grad.dq[start..start + d].copy_from_slice(&dq);
        }
        let stats = QueryStats { lse: &lse, delta: &delta };
        let keys =
            map_rows(batch * kv_len * kv_heads, |index| self.key_gradient(d_o, stats, self.key_row(index)));
        for (index, (dk, dv)) in keys.into_iter().enumerate() {
            grad.dk[index * d..(index + 1) * d].copy_from_slice(&dk);
            grad.dv[index * d..(index + 1) * d].copy_from_slice(&dv);
        }
        Ok(grad)
    }

    /// Output (`[head_dim]`) and log-sum-exp of one query.
    pub fn forward_row(&self, row: Row) -> (Vec<f64>, f64) {
        let q = self.q_side(self.q, row);
        let keys: Vec<usize> = self.attended(row.token).collect();
        let scores: Vec<f64> =
            keys.iter().map(|&key| self.scale * dot(q, self.kv_side(self.k, row, key))).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut o = vec![0.0; self.shape.head_dim];
        if keys.is_empty() {
            return (o, f64::NEG_INFINITY);
        }
        let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
        for (&key, score) in keys.iter().zip(&scores) {
            add_scaled(&mut o, (score - max).exp() / sum, self.kv_side(self.v, row, key));
        }
        (o, max + sum.ln())
    }

    /// `dq` (`[head_dim]`) of one query.
    pub fn query_gradient(&self, d_o: &[T], row: Row) -> Vec<f64> {
        let (o, lse) = self.forward_row(row);
        let delta = dot_mixed(self.q_side(d_o, row), &o);
        self.query_gradient_with(d_o, row, lse, delta)
    }

    /// `dk` and `dv` (`[head_dim]` each) of one key, given the log-sum-exp and delta of every query.
    pub fn key_gradient(&self, d_o: &[T], stats: QueryStats<'_>, key: Row) -> (Vec<f64>, Vec<f64>) {
        let mut dk = vec![0.0; self.shape.head_dim];
        let mut dv = dk.clone();
        self.for_each_attending(key, |row, index| {
            let (q, g) = (self.q_side(self.q, row), self.q_side(d_o, row));
            let score = self.scale * dot(q, self.kv_side(self.k, row, key.token));
            let p = (score - stats.lse[index]).exp();
            let dp = dot(g, self.kv_side(self.v, row, key.token));
            add_scaled(&mut dv, p, g);
            add_scaled(&mut dk, self.scale * p * (dp - stats.delta[index]), q);
        });
        (dk, dv)
    }

    /// Calls `f` with every query that attends a key, and with the query's index in [`QueryStats`].
    fn for_each_attending(&self, key: Row, mut f: impl FnMut(Row, usize)) {
        let group = self.shape.heads / self.shape.kv_heads;
        let position = self.key_pos[key.token];
        for head in key.head * group..(key.head + 1) * group {
            let rows = (key.batch * self.shape.heads + head) * self.shape.q_len;
            for token in 0..self.shape.q_len {
                if self.lo[token] <= position && position <= self.hi[token] {
                    f(Row { batch: key.batch, head, token }, rows + token);
                }
            }
        }
    }

    fn query_gradient_with(&self, d_o: &[T], row: Row, lse: f64, delta: f64) -> Vec<f64> {
        let (q, g) = (self.q_side(self.q, row), self.q_side(d_o, row));
        let mut dq = vec![0.0; self.shape.head_dim];
        for key in self.attended(row.token) {
            let k = self.kv_side(self.k, row, key);
            let p = (self.scale * dot(q, k) - lse).exp();
            let dp = dot(g, self.kv_side(self.v, row, key));
            add_scaled(&mut dq, self.scale * p * (dp - delta), k);
        }
        dq
    }

    fn attended(&self, query: usize) -> impl Iterator<Item = usize> {
        let (lo, hi) = (self.lo[query], self.hi[query]);
        (0..self.shape.kv_len).filter(move |&key| lo <= self.key_pos[key] && self.key_pos[key] <= hi)
    }

    fn query_row(&self, index: usize) -> Row {
        let Shape { heads, q_len, .. } = self.shape;
        Row { batch: index / (heads * q_len), head: index / q_len % heads, token: index % q_len }
    }

    fn key_row(&self, index: usize) -> Row {
        let Shape { kv_heads, kv_len, .. } = self.shape;
        Row { batch: index / (kv_heads * kv_len), head: index % kv_heads, token: index / kv_heads % kv_len }
    }

    fn q_start(&self, row: Row) -> usize {
        ((row.batch * self.shape.q_len + row.token) * self.shape.heads + row.head) * self.shape.head_dim
    }

    fn q_side<'t>(&self, tensor: &'t [T], row: Row) -> &'t [T] {
        let start = self.q_start(row);
        &tensor[start..start + self.shape.head_dim]
    }

    /// Row `key` of a key-side tensor, of the kv head that the query row's head reads.
    fn kv_side<'t>(&self, tensor: &'t [T], query: Row, key: usize) -> &'t [T] {
        let Shape { kv_len, heads, kv_heads, head_dim, .. } = self.shape;
        let head = query.head / (heads / kv_heads);
        let start = ((query.batch * kv_len + key) * kv_heads + head) * head_dim;
        &tensor[start..start + head_dim]
    }
}

/// `||actual - expected|| / ||expected||`; `NaN` if any number is `NaN`, and the plain norm where `expected` is all 0.
pub fn relative_l2(actual: &[f64], expected: &[f64]) -> f64 {
    let square = |sum: f64, x: f64| x.mul_add(x, sum);
    let error = actual.iter().zip(expected).map(|(a, e)| a - e).fold(0.0, square).sqrt();
    let norm = expected.iter().copied().fold(0.0, square).sqrt();
    if actual.len() != expected.len() {
        return f64::NAN;
    }
    if norm == 0.0 { error } else { error / norm }
}

fn length(name: &'static str, expected: usize, actual: usize) -> Result<(), ReferenceError> {
    if expected == actual { Ok(()) } else { Err(ReferenceError::Length { name, expected, actual }) }
}

fn dot<T: Copy + Into<f64>>(a: &[T], b: &[T]) -> f64 {
    a.iter().zip(b).map(|(&x, &y)| x.into() * y.into()).sum()
}

fn dot_mixed<T: Copy + Into<f64>>(a: &[T], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(&x, y)| x.into() * y).sum()
}

fn add_scaled<T: Copy + Into<f64>>(sum: &mut [f64], factor: f64, row: &[T]) {
    for (total, &x) in sum.iter_mut().zip(row) {
        *total += factor * x.into();
    }
}
