//! The size of what a result is summed up from: what a relative error means where the sum itself cancels.
//!
//! Numbers in floating point are off by a fraction of the terms that were added, not of their sum. With `rms(x) = |x| /
//! sqrt(d)` for a row `x` of `d` elements, and terms of either sign and independent rounding, the sizes are
//!
//! ```text
//! score s_ij      t_ij = scale sqrt(d) rms(q_i) rms(k_j)
//! p_ij            p_ij a_ij,  a_ij^2 = 1 + t_ij^2 + lse_i^2            (the exponent's terms)
//! dS_ij           g_ij^2 = p_ij^2 (d rms(do_i)^2 rms(v_j)^2 + delta_i^2 + a_ij^2 (dP_ij - delta_i)^2)
//!
//! lse_i           sqrt( sum_j p_ij^2 (t_ij^2 + s_ij^2) )
//! o_i             sqrt( sum_j p_ij^2 a_ij^2 rms(v_j)^2 )
//! dq_i            scale sqrt( sum_j g_ij^2 rms(k_j)^2 )
//! dk_j            scale sqrt( sum_i g_ij^2 rms(q_i)^2 )
//! dv_j            sqrt( sum_i p_ij^2 a_ij^2 rms(do_i)^2 )
//! ```
//!
//! each one number a row, of the row's unit. Rounding to a fraction `u` of every intermediate leaves the elements of a row
//! off by about `u` times its size.

use super::{Problem, QueryStats, Row, dot};

/// What one (query, key) pair adds, squared: to the sizes of p and dS.
struct Pair {
    p: f64,
    ds: f64,
}

impl<T: Copy + Into<f64> + Sync> Problem<'_, T> {
    /// Sizes of the terms of o and lse of one query.
    pub fn forward_terms(&self, row: Row) -> (f64, f64) {
        let (q, (_, lse)) = (self.q_side(self.q, row), self.forward_row(row));
        let (mut o, mut of_lse) = (0.0, 0.0);
        for key in self.attended(row.token) {
            let (k, v) = (self.kv_side(self.k, row, key), self.kv_side(self.v, row, key));
            let (score, terms) = (self.scale * dot(q, k), self.score_terms(q, k));
            let p = (2.0 * (score - lse)).exp();
            o += p * (1.0 + terms + lse * lse) * mean_square(v);
            of_lse += p * (terms + score * score);
        }
        (o.sqrt(), of_lse.sqrt())
    }

    /// Size of the terms of dq of one query.
    pub fn query_gradient_terms(&self, d_o: &[T], row: Row) -> f64 {
        let (o, lse) = self.forward_row(row);
        let delta = super::dot_mixed(self.q_side(d_o, row), &o);
        let of_key = |key| {
            self.pair_terms(d_o, row, key, (lse, delta)).ds * mean_square(self.kv_side(self.k, row, key))
        };
        self.scale * self.attended(row.token).map(of_key).sum::<f64>().sqrt()
    }

    /// Sizes of the terms of dk and dv of one key, given the log-sum-exp and delta of every query.
    pub fn key_gradient_terms(&self, d_o: &[T], stats: QueryStats<'_>, key: Row) -> (f64, f64) {
        let (mut dk, mut dv) = (0.0, 0.0);
        self.for_each_attending(key, |row, index| {
            let pair = self.pair_terms(d_o, row, key.token, (stats.lse[index], stats.delta[index]));
            dk += pair.ds * mean_square(self.q_side(self.q, row));
            dv += pair.p * mean_square(self.q_side(d_o, row));
        });
        (self.scale * dk.sqrt(), dv.sqrt())
    }

    fn pair_terms(&self, d_o: &[T], row: Row, key: usize, (lse, delta): (f64, f64)) -> Pair {
        let (q, g) = (self.q_side(self.q, row), self.q_side(d_o, row));
        let (k, v) = (self.kv_side(self.k, row, key), self.kv_side(self.v, row, key));
        let p = (2.0 * (self.scale * dot(q, k) - lse)).exp();
        let exponent = 1.0 + self.score_terms(q, k) + lse * lse;
        let dp = self.shape.head_dim as f64 * mean_square(g) * mean_square(v);
        let difference = dot(g, v) - delta;
        Pair { p: p * exponent, ds: p * (dp + delta * delta + exponent * difference * difference) }
    }

    /// Square of the size of a score's terms.
    fn score_terms(&self, q: &[T], k: &[T]) -> f64 {
        self.scale * self.scale * self.shape.head_dim as f64 * mean_square(q) * mean_square(k)
    }
}

fn mean_square<T: Copy + Into<f64>>(x: &[T]) -> f64 {
    dot(x, x) / x.len() as f64
}
