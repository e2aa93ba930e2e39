//! Links that are slow or have failed.

use std::fmt;

use super::{DisturbError, factor};

/// What is wrong with a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Condition {
    /// Its rate is divided by this.
    Slowed(f64),
    /// Nothing moves over it; transfers go around it where there is a way.
    Failed,
}

/// The links on the route between two GPUs, both ways. Behind a switch these are the ports of the two GPUs, so their
/// transfers with other GPUs meet the same links.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkFault {
    /// One GPU.
    pub a: u32,
    /// The other.
    pub b: u32,
    /// What is wrong between them.
    pub condition: Condition,
}

impl LinkFault {
    /// Reads `0-1:4`, a link four times as slow.
    ///
    /// # Errors
    /// [`DisturbError::Form`].
    pub fn slowed(text: &str) -> Result<Self, DisturbError> {
        let read = || {
            let (ends, times) = text.split_once(':')?;
            let (a, b) = ends_of(ends)?;
            Some(Self { a, b, condition: Condition::Slowed(factor(times)?) })
        };
        let example = "A-B:FACTOR with two GPUs, such as 0-1:4";
        read().ok_or_else(|| DisturbError::Form { text: text.to_owned(), what: "slow link", example })
    }

    /// Reads `0-1`, a link that has failed.
    ///
    /// # Errors
    /// [`DisturbError::Form`].
    pub fn failed(text: &str) -> Result<Self, DisturbError> {
        let example = "A-B with two GPUs, such as 0-1";
        let (a, b) = ends_of(text).ok_or_else(|| DisturbError::Form {
            text: text.to_owned(),
            what: "failed link",
            example,
        })?;
        Ok(Self { a, b, condition: Condition::Failed })
    }
}

fn ends_of(text: &str) -> Option<(u32, u32)> {
    let (a, b) = text.split_once('-')?;
    let (a, b) = (a.parse().ok()?, b.parse().ok()?);
    (a != b).then_some((a, b))
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.condition {
            Condition::Slowed(factor) => write!(f, "{}-{}:{factor}", self.a, self.b),
            Condition::Failed => write!(f, "{}-{}", self.a, self.b),
        }
    }
}
