//! Exact work: how many unmasked (query, key) pairs two token sets have under a mask, in closed form.
//!
//! For one query the attended keys are an interval, so the pairs are `sum over q of F(end(q)) - F(lo(q))`, where `F(x)`
//! counts the keys before `x`. Over progressions both sums have closed forms; the cost is the number of blocks (or the
//! block size, if that is less), never the number of tokens squared.

use crate::mask::{Bound, Mask, Piece};
use crate::tokens::{Progression, TokenSet};

/// Unmasked pairs between the queries `q` and the keys `kv`.
pub fn pairs(mask: &Mask, q: &TokenSet, kv: &TokenSet) -> u128 {
    let mut walk = Walk::new(mask, kv);
    q.runs().iter().map(|run| walk.pairs_of(run)).sum::<i128>() as u128
}

/// Whether there is any unmasked pair: [`pairs`] is not zero.
pub fn any_pair(mask: &Mask, q: &TokenSet, kv: &TokenSet) -> bool {
    let mut walk = Walk::new(mask, kv);
    q.runs().iter().any(|run| walk.pairs_of(run) > 0)
}

/// A walk over queries in order: the keys before the first that a query attends are not looked at again.
struct Walk<'a> {
    mask: &'a Mask,
    keys: &'a [Progression],
    /// Room to work in.
    clipped: Vec<Progression>,
}

impl<'a> Walk<'a> {
    fn new(mask: &'a Mask, kv: &'a TokenSet) -> Self {
        Self { mask, keys: kv.runs(), clipped: Vec::new() }
    }

    /// Pairs of one progression of queries, which comes after those before.
    fn pairs_of(&mut self, run: &Progression) -> i128 {
        let mut total = 0;
        for piece in self.mask.pieces_in(run.first, run.last() + 1) {
            let mut clipped = std::mem::take(&mut self.clipped);
            clipped.clear();
            let (a, b) = (run.count_before(piece.q_start as i64), run.count_before(piece.q_end as i64));
            run.slice(a, b, &mut clipped);
            total += clipped.iter().map(|queries| self.pairs_in_piece(piece, queries)).sum::<i128>();
            self.clipped = clipped;
        }
        total
    }

    /// Pairs of queries that all lie in one piece of the mask.
    fn pairs_in_piece(&mut self, piece: &Piece, q: &Progression) -> i128 {
        let (lo, end) = (piece.lo.at(q.first), piece.end.at(q.last()));
        // Bounds never go back as queries go on.
        let passed = self.keys.iter().take_while(|k| (k.last() as i64) < lo).count();
        self.keys = &self.keys[passed..];
        let reachable = self.keys.iter().take_while(|k| (k.first as i64) < end);
        reachable.map(|k| sum_before(piece.end, q, k) - sum_before(piece.lo, q, k)).sum()
    }
}

/// Sum over the queries of the number of keys before `bound(q)`.
fn sum_before(bound: Bound, q: &Progression, k: &Progression) -> i128 {
    match bound {
        Bound::Const(c) => i128::from(k.count_before(c)) * i128::from(q.len()),
        Bound::Shift(s) if q.count > 1 && q.stride == k.stride && q.block < q.count => {
            (0..q.block).map(|u| sum_same_stride(q.first + u, q.count, s, k)).sum()
        }
        Bound::Shift(s) => {
            let run = |i: u64| {
                let start = (q.first + i * q.stride) as i64 + s;
                prefix_sum(k, start + q.block as i64) - prefix_sum(k, start)
            };
            (0..q.count).map(run).sum()
        }
    }
}

/// Sum of `F(first + shift + i * stride)` over `i < count`, where the keys have the same stride: linear in `i` between
/// none and all keys.
fn sum_same_stride(first: u64, count: u64, shift: i64, k: &Progression) -> i128 {
    let d = i128::from(first) + i128::from(shift) - i128::from(k.first);
    let stride = i128::from(k.stride);
    let (full, rest) = (d.div_euclid(stride), d.rem_euclid(stride).min(i128::from(k.block)));
    let (n, keys, block) = (i128::from(count), i128::from(k.count), i128::from(k.block));
    let from = (-full).clamp(0, n);
    let to = (keys - full).clamp(from, n);
    let terms = to - from;
    let linear = block * (full * terms + (from + to - 1) * terms / 2) + rest * terms;
    linear + (n - to) * keys * block
}

/// Sum of `F(y)` over all positions `y < x`.
fn prefix_sum(k: &Progression, x: i64) -> i128 {
    let d = i128::from(x) - i128::from(k.first);
    if d <= 0 {
        return 0;
    }
    if k.count == 1 {
        let inside = d.min(i128::from(k.block));
        return inside * (inside - 1) / 2 + (d - inside) * i128::from(k.block);
    }
    let (block, stride, count) = (i128::from(k.block), i128::from(k.stride), i128::from(k.count));
    let ramp = |r: i128| {
        let rise = r.min(block);
        rise * (rise - 1) / 2 + (r - rise) * block
    };
    let inside = d.min(count * stride);
    let (periods, rest) = (inside / stride, inside % stride);
    let whole = block * stride * (periods * (periods - 1) / 2) + periods * ramp(stride);
    whole + periods * block * rest + ramp(rest) + (d - inside) * block * count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::{Documents, Pattern};
    use crate::tokens::tests::progression;
    use proptest::prelude::*;

    fn brute(mask: &Mask, q: &TokenSet, kv: &TokenSet) -> u128 {
        q.iter().flat_map(|i| kv.iter().map(move |k| (i, k))).filter(|&(i, k)| mask.allows(i, k)).count()
            as u128
    }

    proptest! {
        #[test]
        fn pairs_equal_enumeration(
            a in progression(), b in progression(), w in 1u64..40, lens in prop::collection::vec(0u64..40, 1..4),
            shape in 0usize..3, diagonal in -2i64..3, same in any::<bool>()
        ) {
            let pattern = [Pattern::Full, Pattern::Causal, Pattern::Window(w)][shape];
            let mask = Mask::shifted(pattern, &Documents::padded(&lens, 3), diagonal);
            let b = if same && b.count > 1 { Progression::new(b.first, b.block.min(a.block), a.stride, b.count) } else { b };
            let (q, kv) = (TokenSet::new([a]), TokenSet::new([b]));
            prop_assert_eq!(pairs(&mask, &q, &kv), brute(&mask, &q, &kv));
        }
    }

    #[test]
    fn a_million_tokens_causal() {
        let n = 1u64 << 20;
        let all = TokenSet::new([Progression::contiguous(0, n)]);
        let mask = Mask::new(Pattern::Causal, &Documents::single(n));
        assert_eq!(pairs(&mask, &all, &all), u128::from(n) * u128::from(n + 1) / 2);
    }

    #[test]
    fn token_stripes_have_the_published_counts() {
        let (p, c) = (8, 1024);
        let mask = Mask::new(Pattern::Causal, &Documents::single(p * c));
        let stripe = |r| TokenSet::new([Progression::new(r, 1, p, c)]);
        let with_diagonal = u128::from(c * (c + 1) / 2);
        let strictly_lower = u128::from(c * (c - 1) / 2);
        for r in 0..p {
            for s in 0..p {
                let expected = if s <= r { with_diagonal } else { strictly_lower };
                assert_eq!(pairs(&mask, &stripe(r), &stripe(s)), expected, "q stripe {r}, kv stripe {s}");
            }
        }
    }
}
