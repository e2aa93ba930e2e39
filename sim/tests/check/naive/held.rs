//! What buffers hold: nothing, garbage, inputs, or what has gone into a result.

use std::collections::{BTreeMap, BTreeSet};

/// A token and a head.
pub type Point = (u64, u32);
/// For each token and head of a result, how often each partner went into it: keys with their kv head for o and dq,
/// queries with their head for dk and dv.
pub type Counts = BTreeMap<Point, BTreeMap<Point, u32>>;

/// What a buffer holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Held {
    Nothing,
    Garbage,
    Data(BTreeSet<Point>),
    Result(Counts),
    /// A state that a softmax has begun.
    Begun(Counts),
}

/// What several buffers hold together; a result only if it is in one.
pub fn together(held: impl Iterator<Item = Held>) -> Held {
    held.reduce(|a, b| match (a, b) {
        (Held::Data(mut a), Held::Data(b)) => {
            a.extend(b);
            Held::Data(a)
        }
        _ => Held::Garbage,
    })
    .unwrap_or(Held::Nothing)
}

pub fn zeros(points: BTreeSet<Point>) -> Counts {
    points.into_iter().map(|p| (p, BTreeMap::new())).collect()
}

pub fn counts(held: &Held) -> Option<Counts> {
    match held {
        Held::Result(counts) => Some(counts.clone()),
        _ => None,
    }
}

pub fn sum(from: &Counts, mut into: Counts) -> Counts {
    for (point, row) in &mut into {
        for (&partner, &n) in from.get(point).into_iter().flatten() {
            *row.entry(partner).or_default() += n;
        }
    }
    into
}

/// What is held of these points; garbage if one is missing.
pub fn restrict(held: &Held, points: &BTreeSet<Point>) -> Held {
    match held {
        Held::Data(data) if points.is_subset(data) => Held::Data(points.clone()),
        Held::Result(counts) if points.iter().all(|p| counts.contains_key(p)) => {
            Held::Result(points.iter().map(|p| (*p, counts[p].clone())).collect())
        }
        Held::Begun(counts) if points.iter().all(|p| counts.contains_key(p)) => {
            Held::Begun(points.iter().map(|p| (*p, counts[p].clone())).collect())
        }
        _ => Held::Garbage,
    }
}
