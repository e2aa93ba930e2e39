//! How the times of single operations spread.

use std::fmt;
use std::str::FromStr;

use super::DisturbError;
use super::random::Key;

/// The form of the spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spread {
    /// Times are multiplied by `exp(sigma z - sigma^2 / 2)`: never negative, mean 1, a longer tail upwards.
    #[default]
    Lognormal,
    /// Times are multiplied by `1 + sigma z`, and by nothing less than 0.
    Normal,
}

/// Independent factors for every operation and every message.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Jitter {
    /// Their standard deviation: exactly for normal, to first order for lognormal; 0 is none.
    pub sigma: f64,
    /// Their form.
    pub spread: Spread,
}

impl Jitter {
    /// The factor at a place of the tree of draws.
    pub(super) fn factor(&self, key: impl FnOnce() -> Key) -> f64 {
        if self.sigma == 0.0 {
            return 1.0;
        }
        let z = key().normal();
        match self.spread {
            Spread::Lognormal => libm::exp(self.sigma * z - self.sigma * self.sigma / 2.0),
            Spread::Normal => (1.0 + self.sigma * z).max(0.0),
        }
    }
}

impl FromStr for Jitter {
    type Err = DisturbError;

    /// `3%` is lognormal, `normal:3%` is normal.
    fn from_str(text: &str) -> Result<Self, DisturbError> {
        let (spread, share) = match text.split_once(':') {
            None => (Spread::Lognormal, text),
            Some(("lognormal", share)) => (Spread::Lognormal, share),
            Some(("normal", share)) => (Spread::Normal, share),
            Some(_) => (Spread::Normal, ""),
        };
        let per_cent = share.strip_suffix('%').and_then(|s| s.trim().parse::<f64>().ok());
        match per_cent.filter(|p| (0.0..=100.0).contains(p)) {
            Some(per_cent) => Ok(Self { sigma: per_cent / 100.0, spread }),
            None => Err(DisturbError::Form {
                text: text.to_owned(),
                what: "jitter",
                example: "3% or normal:3%, up to 100%",
            }),
        }
    }
}

impl fmt::Display for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.spread == Spread::Normal { "normal:" } else { "" };
        write!(f, "{name}{}%", self.sigma * 100.0)
    }
}
