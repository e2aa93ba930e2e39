//! The state of online softmax (Milakov and Gimelshein, arXiv 1805.02867): for one query and head the unnormalised
//! output o, the running maximum m of the scores and the sum l of `exp(score - m)`. `m = -inf` marks a query that has
//! met no key.

use super::math::{add_combination, dot};

/// Keys that one pass over a state takes in.
pub(super) const TILE: usize = 64;

/// The state of one query of one head.
pub(super) struct StateRow<'a> {
    pub o: &'a mut [f32],
    pub m: &'a mut f32,
    pub l: &'a mut f32,
}

impl StateRow<'_> {
    /// Takes in at most [`TILE`] keys with their values, both `[keys][head_dim]`.
    pub fn absorb(&mut self, scale: f32, q: &[f32], keys: &[f32], values: &[f32]) {
        let mut scores = [0.0; TILE];
        let n = keys.len() / q.len();
        let scores = &mut scores[..n];
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(q.len())) {
            *score = scale * dot(q, key);
        }
        let max = scores.iter().copied().fold(*self.m, larger);
        if max == f32::NEG_INFINITY {
            return;
        }
        self.rescale(max);
        for score in scores.iter_mut() {
            *score = (*score - max).exp();
        }
        *self.l += scores.iter().sum::<f32>();
        add_combination(self.o, scores, values);
    }

    /// Merges another state of the same query, over other keys.
    pub fn merge(&mut self, o: &[f32], m: f32, l: f32) {
        let max = larger(*self.m, m);
        if max == f32::NEG_INFINITY {
            return;
        }
        self.rescale(max);
        let factor = (m - max).exp();
        *self.l += factor * l;
        for (total, o) in self.o.iter_mut().zip(o) {
            *total += factor * o;
        }
    }

    /// Moves the maximum to `max`, which is not less, and not `-inf`.
    fn rescale(&mut self, max: f32) {
        if *self.m != max {
            let factor = (*self.m - max).exp();
            *self.l *= factor;
            self.o.iter_mut().for_each(|o| *o *= factor);
            *self.m = max;
        }
    }
}

/// The larger number; NaN if one is NaN, where `f32::max` would lose it and leave a row that looks empty.
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || b <= a { a } else { b }
}

/// Writes `o / l` to `out` and returns the log-sum-exp; 0 and `-inf` for a query without keys.
pub(super) fn finish(out: &mut [f32], o: &[f32], m: f32, l: f32) -> f32 {
    if m == f32::NEG_INFINITY {
        out.fill(0.0);
        return f32::NEG_INFINITY;
    }
    for (out, o) in out.iter_mut().zip(o) {
        *out = o / l;
    }
    m + l.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A partial result over one key of score `m` and value `v`.
    fn merged(parts: &[(f32, f32)]) -> (f32, f32) {
        let (mut o, mut m, mut l) = ([0.0], f32::NEG_INFINITY, 0.0);
        let mut state = StateRow { o: &mut o, m: &mut m, l: &mut l };
        for &(score, value) in parts {
            let l = if score == f32::NEG_INFINITY { 0.0 } else { 1.0 };
            state.merge(&[value * l], score, l);
        }
        let mut out = [f32::NAN];
        let lse = finish(&mut out, &o, m, l);
        (out[0], lse)
    }

    #[test]
    fn differences_of_any_size_merge_as_in_f64() {
        for difference in [0.0f32, 1.0, -1.0, 88.0, 89.0, 100.0, -100.0, 1e4, -1e4, 3e38, -3e38] {
            let (a, b) = (f64::from(difference), 0.0f64);
            let max = a.max(b);
            let (p, q) = ((a - max).exp(), (b - max).exp());
            let (o, lse) = ((2.0 * p - q) / (p + q), max + (p + q).ln());
            let (x, y) = merged(&[(difference, 2.0), (0.0, -1.0)]);
            assert!((f64::from(x) - o).abs() <= 1e-6 * o.abs(), "o {x} for {difference}, not {o}");
            assert!((f64::from(y) - lse).abs() <= 1e-6 * lse.abs().max(1.0), "lse {y} for {difference}");
        }
    }

    #[test]
    fn empty_states_leave_no_trace() {
        let empty = (f32::NEG_INFINITY, 5.0);
        assert_eq!(merged(&[]), (0.0, f32::NEG_INFINITY));
        assert_eq!(merged(&[empty, empty]), (0.0, f32::NEG_INFINITY));
        assert_eq!(merged(&[empty, (3.0, 2.0)]), (2.0, 3.0));
        assert_eq!(merged(&[(3.0, 2.0), empty]), (2.0, 3.0));
        assert_eq!(merged(&[(-3e38, 2.0), empty]), (2.0, -3e38));
    }

    #[test]
    fn nan_is_never_lost() {
        for parts in [[(f32::NAN, 1.0), (2.0, 1.0)], [(2.0, 1.0), (f32::NAN, 1.0)]] {
            let (o, lse) = merged(&parts);
            assert!(o.is_nan() && lse.is_nan(), "{o} {lse}");
        }
        let (mut o, mut m, mut l) = ([0.0], f32::NEG_INFINITY, 0.0);
        StateRow { o: &mut o, m: &mut m, l: &mut l }.absorb(1.0, &[f32::NAN], &[1.0, 2.0], &[1.0, 1.0]);
        assert!(finish(&mut [0.0], &o, m, l).is_nan());
    }

    #[test]
    fn absorbing_in_any_order_gives_the_softmax() {
        let scores: Vec<f32> = (0u16..20).map(|i| f32::from(i * 37 % 20) * 30.0 - 300.0).collect();
        let values: Vec<f32> = (0u8..20).map(f32::from).collect();
        let (mut o, mut m, mut l) = ([0.0], f32::NEG_INFINITY, 0.0);
        let mut state = StateRow { o: &mut o, m: &mut m, l: &mut l };
        for (score, value) in scores.chunks(3).zip(values.chunks(3)) {
            state.absorb(1.0, &[1.0], score, value);
        }
        let mut out = [f32::NAN];
        let lse = finish(&mut out, &o, m, l);
        let sum: f64 = scores.iter().map(|&s| (f64::from(s) - 270.0).exp()).sum();
        let weighted = scores.iter().zip(&values).map(|(&s, &v)| (f64::from(s) - 270.0).exp() * f64::from(v));
        assert!((f64::from(lse) - 270.0 - sum.ln()).abs() < 1e-4);
        assert!((f64::from(out[0]) - weighted.sum::<f64>() / sum).abs() < 1e-6);
    }
}
