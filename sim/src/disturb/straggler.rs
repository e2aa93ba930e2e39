//! A rank that computes slowly.

use std::fmt;
use std::str::FromStr;

use super::{DisturbError, factor};
use crate::plan::Rank;

/// Which rank it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The same one in every repeat.
    Rank(Rank),
    /// Each repeat draws one.
    Any,
}

/// A rank whose every kernel takes `factor` times as long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Straggler {
    /// Which rank.
    pub who: Who,
    /// Times as long.
    pub factor: f64,
}

impl FromStr for Straggler {
    type Err = DisturbError;

    /// `3:1.1`, or `any:1.1`.
    fn from_str(text: &str) -> Result<Self, DisturbError> {
        let read = || {
            let (who, times) = text.split_once(':')?;
            let who = if who == "any" { Who::Any } else { Who::Rank(who.parse().ok()?) };
            Some(Self { who, factor: factor(times)? })
        };
        read().ok_or_else(|| DisturbError::Form {
            text: text.to_owned(),
            what: "straggler",
            example: "RANK:FACTOR, such as 3:1.1 or any:1.1",
        })
    }
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.who {
            Who::Rank(rank) => write!(f, "{rank}:{}", self.factor),
            Who::Any => write!(f, "any:{}", self.factor),
        }
    }
}
