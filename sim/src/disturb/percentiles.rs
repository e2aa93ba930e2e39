//! Percentiles of makespans over repeats.

use serde::Serialize;

use crate::units::SimTime;

/// Nearest-rank percentiles: each is the makespan of some repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// One repeat in twenty is as fast.
    pub p5: SimTime,
    /// The median.
    pub p50: SimTime,
    /// One repeat in twenty is slower.
    pub p95: SimTime,
    /// One repeat in a hundred is slower.
    pub p99: SimTime,
}

impl Percentiles {
    /// Of the makespans of all repeats; `None` if there are none.
    pub fn of(makespans: &[SimTime]) -> Option<Self> {
        let mut sorted = makespans.to_vec();
        sorted.sort_unstable();
        let at = |per_cent: usize| sorted.get((per_cent * sorted.len()).div_ceil(100).max(1) - 1).copied();
        Some(Self { p5: at(5)?, p50: at(50)?, p95: at(95)?, p99: at(99)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_ranks_by_hand() {
        let times = |n: u64| (1..=n).rev().map(SimTime).collect::<Vec<_>>();
        let of = |n| Percentiles::of(&times(n)).map(|p| [p.p5.0, p.p50.0, p.p95.0, p.p99.0]);
        assert_eq!(of(100), Some([5, 50, 95, 99]));
        assert_eq!(of(20), Some([1, 10, 19, 20]));
        assert_eq!(of(3), Some([1, 2, 3, 3]));
        assert_eq!(of(1), Some([1; 4]));
        assert_eq!(of(0), None);
    }
}
