//! Attention masks as intervals: for one query, the keys it attends are one half-open interval of token positions.
//!
//! Full, causal, sliding-window and document masks, padding, and all their combinations have this form, and the ends of
//! the interval are, piece by piece, either constant or move one to one with the query. Pair counts, tile classes and
//! proofs of coverage all follow from the pieces by arithmetic; nothing ever enumerates N^2 pairs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::units::Tokens;

/// Which keys a query attends inside its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Every key.
    Full,
    /// Keys at or before the query.
    Causal,
    /// The last `w` keys up to and including the query (sliding window), `w >= 1`.
    Window(u64),
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(f, "full"),
            Self::Causal => write!(f, "causal"),
            Self::Window(w) => write!(f, "window:{w}"),
        }
    }
}

/// A mask that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no mask {text:?}; write full, causal or window:W with W from 1 to {} tokens", u32::MAX)]
pub struct UnknownPattern {
    /// What was written.
    pub text: String,
}

impl FromStr for Pattern {
    type Err = UnknownPattern;

    fn from_str(text: &str) -> Result<Self, UnknownPattern> {
        let window = |w: &str| w.parse::<Tokens>().ok().map(|w| Self::Window(w.0));
        match text.split_once(':') {
            None if text == "full" => Some(Self::Full),
            None if text == "causal" => Some(Self::Causal),
            Some(("window", w)) => window(w),
            _ => None,
        }
        .ok_or_else(|| UnknownPattern { text: text.to_owned() })
    }
}

/// One packed document: `len` real tokens at `start`, followed by padding up to `padded` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Document {
    /// Position of the first token.
    pub start: u64,
    /// Real tokens.
    pub len: u64,
    /// Real tokens and padding; the next document starts at `start + padded`.
    pub padded: u64,
}

/// Packed documents in order, without gaps: what `cu_seqlens` says, plus padding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Documents {
    docs: Vec<Document>,
}

impl Documents {
    /// One document of `len` tokens without padding.
    pub fn single(len: u64) -> Self {
        Self::padded(&[len], 1)
    }

    /// Documents of these lengths, each padded up to a multiple of `multiple`.
    pub fn padded(lens: &[u64], multiple: u64) -> Self {
        let multiple = multiple.max(1);
        let mut start = 0;
        let docs = lens.iter().map(|&len| {
            let doc = Document { start, len, padded: len.next_multiple_of(multiple) };
            start += doc.padded;
            doc
        });
        Self { docs: docs.collect() }
    }

    /// Documents of these lengths, the last one padded so that the sum is a multiple of `multiple`.
    pub fn padded_at_end(lens: &[u64], multiple: u64) -> Self {
        let mut all = Self::padded(lens, 1);
        let padding = all.tokens().next_multiple_of(multiple.max(1)) - all.tokens();
        if let Some(last) = all.docs.last_mut() {
            last.padded += padding;
        }
        all
    }

    /// The documents, ordered by position.
    pub fn iter(&self) -> impl Iterator<Item = &Document> {
        self.docs.iter()
    }

    /// Number of documents.
    pub fn count(&self) -> usize {
        self.docs.len()
    }

    /// Tokens including padding: the sequence length that is split over ranks.
    pub fn tokens(&self) -> u64 {
        self.docs.last().map_or(0, |d| d.start + d.padded)
    }

    /// Padding tokens.
    pub fn padding(&self) -> u64 {
        self.docs.iter().map(|d| d.padded - d.len).sum()
    }

    /// The document that holds `position` (as a real or a padding token).
    pub fn at(&self, position: u64) -> Option<(usize, &Document)> {
        let i = self.docs.partition_point(|d| d.start + d.padded <= position);
        self.docs.get(i).filter(|d| position >= d.start).map(|d| (i, d))
    }
}

/// One end of a key interval as a function of the query position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bound {
    /// The same for every query of the piece.
    Const(i64),
    /// `q + shift`.
    Shift(i64),
}

impl Bound {
    /// The bound for query position `q`.
    pub fn at(self, q: u64) -> i64 {
        match self {
            Self::Const(c) => c,
            Self::Shift(s) => q as i64 + s,
        }
    }
}

/// Queries `[q_start, q_end)` attend the keys `[lo(q), end(q))`, never empty inside the piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// First query position.
    pub q_start: u64,
    /// One past the last query position.
    pub q_end: u64,
    /// First attended key.
    pub lo: Bound,
    /// One past the last attended key.
    pub end: Bound,
}

/// A mask over one sequence. Queries in no piece attend nothing: padding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mask {
    pieces: Vec<Piece>,
}

impl Mask {
    /// The mask `pattern` inside each document; padding attends nothing and is attended by nobody.
    pub fn new(pattern: Pattern, docs: &Documents) -> Self {
        Self::shifted(pattern, docs, 0)
    }

    /// As [`Mask::new`] with the diagonal moved: keys up to `q + diagonal` instead of `q`. `-1` is strictly lower.
    pub fn shifted(pattern: Pattern, docs: &Documents, diagonal: i64) -> Self {
        let mut pieces = Vec::with_capacity(docs.count());
        for doc in docs.iter().filter(|d| d.len > 0) {
            let (start, end) = (doc.start as i64, (doc.start + doc.len) as i64);
            let whole =
                Self::of_piece(doc.start, doc.start + doc.len, Bound::Const(start), Bound::Const(end));
            let upper = match pattern {
                Pattern::Full => Bound::Const(end),
                Pattern::Causal | Pattern::Window(_) => Bound::Shift(diagonal + 1),
            };
            let lower = match pattern {
                Pattern::Window(w) => Bound::Shift(diagonal + 1 - w.min(1 << 60) as i64),
                _ => Bound::Const(start),
            };
            let inside = Self::of_piece(doc.start, doc.start + doc.len, lower, upper);
            pieces.extend(whole.intersect(&inside).pieces);
        }
        Self { pieces }
    }

    /// No mask at all: every one of `tokens` queries attends all `tokens` keys.
    pub fn none(tokens: u64) -> Self {
        Self::of_piece(0, tokens, Bound::Const(0), Bound::Const(tokens as i64))
    }

    fn of_piece(q_start: u64, q_end: u64, lo: Bound, end: Bound) -> Self {
        Self { pieces: vec![Piece { q_start, q_end, lo, end }] }
    }

    /// The pieces, ordered by query position, disjoint.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The pieces that touch the queries `[from, to)`.
    pub fn pieces_in(&self, from: u64, to: u64) -> &[Piece] {
        let a = self.pieces.partition_point(|p| p.q_end <= from);
        let b = self.pieces.partition_point(|p| p.q_start < to);
        &self.pieces[a..b.max(a)]
    }

    /// The keys `[lo, end)` that query `q` attends; `None` for a query without keys.
    pub fn interval(&self, q: u64) -> Option<(u64, u64)> {
        let piece = self.pieces_in(q, q + 1).first()?;
        Some((piece.lo.at(q) as u64, piece.end.at(q) as u64))
    }

    /// Whether query `q` attends key `k`.
    pub fn allows(&self, q: u64, k: u64) -> bool {
        self.interval(q).is_some_and(|(lo, end)| lo <= k && k < end)
    }

    /// The pairs that both masks allow.
    pub fn intersect(&self, other: &Self) -> Self {
        let mut pieces = Vec::new();
        for a in &self.pieces {
            for b in other.pieces_in(a.q_start, a.q_end) {
                let (from, to) = (a.q_start.max(b.q_start), a.q_end.min(b.q_end));
                intersect_pieces(a, b, from, to, &mut pieces);
            }
        }
        Self { pieces }
    }
}

/// Pushes the intersection of two pieces over the queries `[from, to)`, cut where the tighter bound changes.
fn intersect_pieces(a: &Piece, b: &Piece, from: u64, to: u64, out: &mut Vec<Piece>) {
    let pairs = [(a.lo, b.lo), (a.end, b.end), (a.lo, a.end), (a.lo, b.end), (b.lo, a.end), (b.lo, b.end)];
    let mut cuts: Vec<u64> =
        pairs.iter().flat_map(|&(x, y)| crossing(x, y)).filter(|&c| c > from && c < to).collect();
    cuts.push(to);
    cuts.sort_unstable();
    let mut start = from;
    for cut in cuts {
        if cut > start {
            let last = out.last().filter(|p| p.q_end == start).copied();
            let lo = tighter(a.lo, b.lo, start, cut - 1, last.map(|p| p.lo), i64::max);
            let end = tighter(a.end, b.end, start, cut - 1, last.map(|p| p.end), i64::min);
            push_piece(Piece { q_start: start, q_end: cut, lo, end }, out);
            start = cut;
        }
    }
}

/// Appends a piece unless it is empty, joined to the piece before where that goes on with the same bounds.
fn push_piece(piece: Piece, out: &mut Vec<Piece>) {
    let (first, last) = (piece.q_start, piece.q_end - 1);
    if piece.lo.at(first) >= piece.end.at(first) || piece.lo.at(last) >= piece.end.at(last) {
        return;
    }
    match out.last_mut() {
        Some(p) if p.q_end == piece.q_start && p.lo == piece.lo && p.end == piece.end => {
            p.q_end = piece.q_end;
        }
        _ => out.push(piece),
    }
}

/// The tighter of two bounds over `[first, last]`, where their order does not change; `keep` if it is as tight.
fn tighter(
    x: Bound,
    y: Bound,
    first: u64,
    last: u64,
    keep: Option<Bound>,
    pick: fn(i64, i64) -> i64,
) -> Bound {
    let tight = |c: Bound| [first, last].iter().all(|&q| c.at(q) == pick(x.at(q), y.at(q)));
    keep.filter(|&k| (k == x || k == y) && tight(k)).unwrap_or(if tight(x) { x } else { y })
}

/// The queries around which a constant and a moving bound change order.
fn crossing(x: Bound, y: Bound) -> Vec<u64> {
    match (x, y) {
        (Bound::Const(c), Bound::Shift(s)) | (Bound::Shift(s), Bound::Const(c)) => {
            [c - s, c - s + 1].into_iter().filter_map(|q| u64::try_from(q).ok()).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, pair by pair.
    fn by_definition(pattern: Pattern, docs: &Documents, diagonal: i64, q: u64, k: u64) -> bool {
        let real = |x: u64| docs.at(x).filter(|(_, d)| x < d.start + d.len).map(|(i, _)| i);
        let (qi, ki) = (q as i64 + diagonal, k as i64);
        real(q).is_some()
            && real(q) == real(k)
            && match pattern {
                Pattern::Full => true,
                Pattern::Causal => ki <= qi,
                Pattern::Window(w) => ki <= qi && qi - ki < w as i64,
            }
    }

    fn pattern() -> impl Strategy<Value = Pattern> {
        prop_oneof![Just(Pattern::Full), Just(Pattern::Causal), (1u64..12).prop_map(Pattern::Window)]
    }

    fn documents() -> impl Strategy<Value = Documents> {
        (prop::collection::vec(0u64..14, 1..5), 1u64..6).prop_map(|(lens, m)| Documents::padded(&lens, m))
    }

    proptest! {
        #[test]
        fn intervals_equal_the_definition(p in pattern(), docs in documents(), diagonal in -3i64..3) {
            let mask = Mask::shifted(p, &docs, diagonal);
            for q in 0..docs.tokens() {
                for k in 0..docs.tokens() {
                    prop_assert_eq!(mask.allows(q, k), by_definition(p, &docs, diagonal, q, k), "q {} k {}", q, k);
                }
            }
        }

        #[test]
        fn intersection_is_pairwise_and(
            p in pattern(), q in pattern(), d in documents(), e in documents(), x in -2i64..3, y in -2i64..3
        ) {
            let (a, b) = (Mask::shifted(p, &d, x), Mask::shifted(q, &e, y));
            let both = a.intersect(&b);
            for i in 0..d.tokens().max(e.tokens()) {
                for k in 0..d.tokens().max(e.tokens()) {
                    prop_assert_eq!(both.allows(i, k), a.allows(i, k) && b.allows(i, k), "q {} k {}", i, k);
                }
            }
        }
    }

    #[test]
    fn causal_is_one_piece_a_document() {
        let mask = Mask::new(Pattern::Causal, &Documents::padded(&[5, 9], 4));
        assert_eq!(mask.pieces().len(), 2);
        assert_eq!(mask.interval(9), Some((8, 10)));
        assert_eq!(mask.interval(6), None, "padding attends nothing");
    }

    #[test]
    fn documents_pad_each_to_the_multiple() {
        let docs = Documents::padded(&[9, 8, 8, 12, 8, 12], 4);
        let starts: Vec<u64> = docs.iter().map(|d| d.start).collect();
        assert_eq!((starts, docs.tokens(), docs.padding()), (vec![0, 12, 20, 28, 40, 48], 60, 3));
    }
}
