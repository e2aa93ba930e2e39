//! Rings of ranks in windows, around which keys and values travel: inside a window from neighbour to neighbour, and from
//! the start of one window to the start of the next.
//!
//! A ring's n = W w places are W windows of w; place (g, l) is the l-th of window g. At step (j, i) it holds the keys of
//! place `((g - j) mod W, (l - i) mod w)`. What it holds at (j, 0) it sends to place (g + 1, l) for step (j + 1, 0), all
//! through window j; what it holds at (j, i) it sends to (g, l + 1) for step (j, i + 1). One window is a plain ring.

mod backward;
mod forward;
mod keys;

pub(super) use backward::backward;
pub(super) use forward::forward;

use crate::plan::{BlockId, Buf, Bufs, Rank};

/// The rings of all ranks.
pub(super) struct Tour {
    /// Places of a window, w.
    pub window: u32,
    /// Windows of a ring, W.
    pub windows: u32,
    rings: Vec<Vec<Rank>>,
    /// Each rank's ring and place.
    places: Vec<(usize, u32)>,
}

/// A step (j, i).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Window.
    pub j: u32,
    /// Step in the window.
    pub i: u32,
    /// Steps before it.
    pub t: u32,
}

impl Tour {
    /// These rings, of equal lengths that `window` divides, of all ranks, each once.
    pub fn new(rings: Vec<Vec<Rank>>, window: u32) -> Self {
        let length = rings[0].len() as u32;
        let mut places = vec![(0, 0); rings.len() * length as usize];
        for (i, ring) in rings.iter().enumerate() {
            for (place, &rank) in (0..).zip(ring) {
                places[rank as usize] = (i, place);
            }
        }
        Self { window, windows: length / window, rings, places }
    }

    /// Number of steps n.
    pub fn length(&self) -> u32 {
        self.window * self.windows
    }

    /// The steps in order.
    pub fn steps(&self) -> impl Iterator<Item = Step> + use<> {
        let w = self.window;
        (0..self.length()).map(move |t| Step { j: t / w, i: t % w, t })
    }

    /// The rank `j` windows and `i` places behind rank `r`.
    pub fn behind(&self, r: Rank, j: u32, i: u32) -> Rank {
        let (ring, place) = self.places[r as usize];
        let (g, l) = (place / self.window, place % self.window);
        let window = (g + self.windows - j % self.windows) % self.windows;
        self.rings[ring][(window * self.window + (l + self.window - i % self.window) % self.window) as usize]
    }

    /// Whose keys rank `r` holds at a step.
    pub fn owner(&self, r: Rank, step: Step) -> Rank {
        self.behind(r, step.j, step.i)
    }

    /// The next rank of r's window.
    pub fn next(&self, r: Rank) -> Rank {
        self.behind(r, 0, self.window - 1)
    }

    /// The rank at r's place in the next window.
    pub fn next_window(&self, r: Rank) -> Rank {
        self.behind(r, self.windows - 1, 0)
    }
}

/// What a rank brings along.
pub(super) struct Site {
    /// q for a forward; q, lse and do for a backward.
    pub q: Bufs,
    /// All its queries.
    pub q_block: BlockId,
    /// Its keys and values.
    pub kv: Bufs,
    /// All its keys.
    pub kv_block: BlockId,
}

/// Where a rank's gradients go.
pub(super) struct Gradients {
    /// delta of all its queries, already computed.
    pub delta: Buf,
    /// dq of all its queries.
    pub dq: Buf,
    /// dk and dv of all its keys.
    pub dkv: Buf,
}

/// The queries of rank r and keys of rank s that r attends when it holds those of s.
pub(super) type Rule<'a> = dyn Fn(Rank, Rank) -> (BlockId, BlockId) + 'a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_owners() {
        for (p, w) in [(8, 2), (8, 4), (12, 3), (6, 6), (5, 1)] {
            let tour = Tour::new(vec![(0..p).collect()], w);
            let windows = p / w;
            for r in 0..p {
                let (g, l) = (r / w, r % w);
                let mut met: Vec<Rank> = Vec::new();
                for step in tour.steps() {
                    let s = (g + windows - step.j) % windows * w + (l + w - step.i) % w;
                    assert_eq!(tour.owner(r, step), s, "rank {r} at {step:?}");
                    met.push(s);
                }
                met.sort_unstable();
                assert_eq!(met, (0..p).collect::<Vec<_>>());
                assert_eq!(tour.next(r), g * w + (l + 1) % w);
                assert_eq!(tour.next_window(r), (g + 1) % windows * w + l);
            }
        }
    }
}
