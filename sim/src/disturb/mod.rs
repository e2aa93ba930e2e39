//! Stragglers, jitter, and links that are slow or have failed: what one run meets, drawn from a seed.
//!
//! A [`Disturbance`] says what may happen, [`Disturbance::draw`] what happens in one repeat, as [`Conditions`] that
//! [`crate::engine::Machine::disturb`] takes. Every factor is a function of seed, repeat, rank and operation, so the
//! order in which they are asked for decides nothing, and arithmetic is that of `libm`, equal on every machine.

mod faults;
mod jitter;
mod percentiles;
mod random;
mod straggler;

use thiserror::Error;

use crate::plan::{MessageId, OpId, Rank};
use crate::units::Bytes;

pub use faults::{Condition, LinkFault};
pub use jitter::{Jitter, Spread};
pub use percentiles::Percentiles;
pub use straggler::{Straggler, Who};

use random::Key;

/// The largest factor by which anything may slow down.
pub const LARGEST_FACTOR: f64 = 1e6;

/// Why a disturbance is refused.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum DisturbError {
    /// Text that does not have the form of what it should be.
    #[error("{text:?} is no {what}; write {example}")]
    Form {
        /// What was written.
        text: String,
        /// What it should be.
        what: &'static str,
        /// How that looks.
        example: &'static str,
    },
    /// A rank or GPU that does not take part.
    #[error("{what} {number} does not exist; there are {count}, counted from 0")]
    Absent {
        /// Rank or GPU.
        what: &'static str,
        /// Which was named.
        number: u32,
        /// How many there are.
        count: u32,
    },
}

/// What may happen to a run. The default is nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Disturbance {
    /// Ranks that compute slowly in every repeat.
    pub stragglers: Vec<Straggler>,
    /// How the times of single operations spread.
    pub jitter: Jitter,
    /// Links that are not as they should be.
    pub links: Vec<LinkFault>,
}

impl Disturbance {
    /// Whether nothing happens at all.
    pub fn is_calm(&self) -> bool {
        self.stragglers.is_empty() && self.jitter.sigma == 0.0 && self.links.is_empty()
    }

    /// Whether repeats differ from each other.
    pub fn is_random(&self) -> bool {
        self.jitter.sigma > 0.0 || self.stragglers.iter().any(|s| s.who == Who::Any)
    }

    /// What happens to `ranks` ranks in one repeat.
    ///
    /// # Errors
    /// [`DisturbError::Absent`] for a straggler that does not take part.
    pub fn draw(&self, ranks: u32, seed: u64, repeat: u64) -> Result<Conditions, DisturbError> {
        let key = Key::new(seed).with(repeat);
        let mut slowness = vec![1.0; ranks as usize];
        for (i, straggler) in self.stragglers.iter().enumerate() {
            let rank = match straggler.who {
                Who::Rank(rank) => rank,
                Who::Any => key.with(STRAGGLER).with(i as u64).below(u64::from(ranks)) as Rank,
            };
            let slot = slowness.get_mut(rank as usize);
            *slot.ok_or(DisturbError::Absent { what: "rank", number: rank, count: ranks })? *=
                straggler.factor;
        }
        Ok(Conditions { slowness, jitter: self.jitter, key, links: self.links.clone() })
    }
}

// Numbers that keep independent draws apart.
const STRAGGLER: u64 = 1;
const OPERATION: u64 = 2;
const MESSAGE: u64 = 3;

/// What happens in one repeat.
#[derive(Debug, Clone, PartialEq)]
pub struct Conditions {
    /// By rank.
    slowness: Vec<f64>,
    jitter: Jitter,
    key: Key,
    links: Vec<LinkFault>,
}

impl Conditions {
    /// How much longer than usual an operation computes: the rank's slowness times the operation's jitter.
    pub fn of_operation(&self, rank: Rank, op: OpId) -> f64 {
        let slowness = self.slowness.get(rank as usize).copied().unwrap_or(1.0);
        slowness * self.jitter.factor(|| self.key.with(OPERATION).with(u64::from(rank)).with(u64::from(op)))
    }

    /// What a message of `bytes` weighs: jitter makes it move as long as so many bytes.
    pub fn of_message(&self, message: MessageId, bytes: Bytes) -> Bytes {
        let factor = self.jitter.factor(|| self.key.with(MESSAGE).with(u64::from(message)));
        if factor == 1.0 { bytes } else { Bytes((bytes.0 as f64 * factor).round() as u64) }
    }

    /// Links that are not as they should be.
    pub fn links(&self) -> &[LinkFault] {
        &self.links
    }
}

/// A factor from text: a number from 0.001 to [`LARGEST_FACTOR`].
fn factor(text: &str) -> Option<f64> {
    text.parse().ok().filter(|f| (1e-3..=LARGEST_FACTOR).contains(f))
}
