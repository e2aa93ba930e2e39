//! The longest sequence that fits a GPU.

use serde::Serialize;

use super::memory::attention_buffers;
use super::{Training, TrainingError, memory_with};
use crate::config::cluster::Cluster;
use crate::config::model::Model;
use crate::units::Bytes;

/// Longest sequence to look for, in tokens.
pub const LONGEST: u64 = 1 << 30;

/// The longest sequences that fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Longest {
    /// The largest power of two; 0 if none fits.
    pub power_of_two: u64,
    /// The largest multiple of `multiple`; 0 if none fits.
    pub exact: u64,
    /// What the sequence must be a multiple of.
    pub multiple: u64,
}

/// The longest sequences of at most 1024Mi tokens that fit the device, all else equal.
///
/// # Errors
/// What the schedule refuses.
pub fn longest(model: &Model, cluster: &Cluster, training: &Training) -> Result<Longest, TrainingError> {
    let multiple = 2 * training.grid.cp * training.grid.tp;
    let of = |seq: u64| Training { seq, ..*training };
    let fits = |seq: u64, staging: Bytes| memory_with(model, cluster, &of(seq), staging).over.is_none();
    let staging = |seq: u64| attention_buffers(model, &of(seq));
    let most = LONGEST / multiple;
    let found = search(most, |n, with| fits(n * multiple, with), |n| staging(n * multiple))?;
    let exact = found * multiple;
    let least_power = multiple.next_power_of_two();
    let below = exact.checked_ilog2().map_or(0, |log| 1 << log);
    let next = (2 * below).max(least_power);
    // A power that is no multiple is padded to one, so it may fit although it is longer.
    let padded = exact > 0 && next < exact + multiple && next <= LONGEST && fits(next, staging(next)?);
    let power_of_two = match below {
        _ if padded => next,
        below if below < least_power => 0,
        below => below,
    };
    Ok(Longest { power_of_two, exact, multiple })
}

/// The largest n of at most `most` that fits; 0 if none does. `fits(n, staging)` is arithmetic; `staging(n)` builds a
/// plan, so it is asked as rarely as possible. Staging grows with n: what fits with the staging of a longer sequence fits
/// with its own, and what does not fit with that of a shorter one does not.
fn search(
    most: u64,
    fits: impl Fn(u64, Bytes) -> bool,
    mut staging: impl FnMut(u64) -> Result<Bytes, TrainingError>,
) -> Result<u64, TrainingError> {
    // The largest n in [low, high) that fits with this much staging, where `low` is known to, or is 0.
    let largest = |with: Bytes, mut low: u64, mut high: u64| {
        while low + 1 < high {
            let middle = low.midpoint(high);
            if fits(middle, with) { low = middle } else { high = middle }
        }
        low
    };
    let mut low = 0;
    let mut high = largest(Bytes(0), 0, most + 1) + 1;
    let mut n = high - 1;
    while low + 1 < high {
        let needed = staging(n)?;
        if fits(n, needed) {
            (low, high) = (n, largest(needed, n, high) + 1);
        } else {
            (low, high) = (largest(needed, low, n), n);
        }
        n = low.midpoint(high);
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Growth = fn(u64) -> u64;

    /// Staging of any growth, against trying every n, with the number of times that it was asked for.
    #[test]
    fn the_search_finds_what_trying_everything_finds_and_asks_rarely() {
        let growths: [(Growth, u64); 5] =
            [(|_| 0, 1), (|n| n / 100, 3), (|n| 3 * n, 10), (|n| n * n, 17), (|n| 1000 * (n / 1000), 12)];
        for (growth, asked_at_most) in growths {
            for capacity in [0, 1, 2, 999, 1000, 1001, 54_321, 1 << 40] {
                let most = 20_000;
                let fits = |n: u64, with: Bytes| 2 * n + with.0 <= capacity;
                let best = (1..=most).rev().find(|&n| fits(n, Bytes(growth(n)))).unwrap_or(0);
                let mut asked = 0;
                let found = search(most, fits, |n| {
                    asked += 1;
                    Ok(Bytes(growth(n)))
                });
                assert_eq!(found, Ok(best), "capacity {capacity}");
                assert!(asked <= asked_at_most, "{asked} plans for capacity {capacity}");
            }
        }
    }
}
