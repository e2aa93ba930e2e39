//! Units as types: counts of tokens, bytes and operations, their rates, and simulated time.
//!
//! Only sensible operators exist: [`Bytes`] / [`BytesPerSec`] and [`Flops`] / [`FlopsPerSec`] give a
//! [`SimTime`], equal units add, a unit scales by a plain number. Counts saturate instead of wrapping.
//! Text carries its unit (`450 GB/s`, `400 Gb/s` for bits, `2.8 us`, `128Ki`); `{}` prints four significant digits with the fitting prefix and
//! `{:#}` prints text that parses back to the same value. `Serialize` writes the `{:#}` text.

mod parse;
#[cfg(test)]
mod tests;

use std::fmt::{self, Display, Formatter};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul};

use serde::{Serialize, Serializer};

pub use parse::{Amount, Problem, Quantity, UnitError};

/// A count of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(pub u64);

/// A count of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A count of floating-point operations; a multiply-add counts as two.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Flops(pub f64);

/// Bytes a second; infinite for an ideal link.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct BytesPerSec(pub f64);

/// Floating-point operations a second; infinite for an ideal device.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct FlopsPerSec(pub f64);

/// Simulated time in whole picoseconds: an instant since the start, or a duration.
///
/// 2^64 ps are 213 days. Sums saturate at [`SimTime::NEVER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimTime(pub u64);

const PS_PER_SEC: f64 = 1e12;

impl SimTime {
    /// The start of a simulation, and the empty duration.
    pub const ZERO: Self = Self(0);
    /// Later than every event; what a positive amount takes at rate zero.
    pub const NEVER: Self = Self(u64::MAX);

    /// Whole picoseconds of `seconds`, rounded up; [`SimTime::NEVER`] past the range or for NaN, zero for
    /// negative values.
    pub fn from_secs_f64(seconds: f64) -> Self {
        Self::quotient(seconds, 1.0)
    }

    /// Seconds, to the precision of an `f64`.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / PS_PER_SEC
    }

    /// Time from `earlier` to `self`, zero when `earlier` is later.
    pub fn saturating_sub(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Time from `earlier` to `self`, `None` when `earlier` is later.
    pub fn checked_sub(self, earlier: Self) -> Option<Self> {
        self.0.checked_sub(earlier.0).map(Self)
    }

    /// `amount / rate` in whole picoseconds, rounded up.
    ///
    /// A quotient within the rounding error of two `f64` operations of a whole number counts as that number,
    /// so 3 bytes at 3 GB/s take 1000 ps and not 1001. Nothing takes no time at any rate; anything else takes
    /// no time at an infinite rate and [`SimTime::NEVER`] at a rate of zero.
    pub(crate) fn quotient(amount: f64, rate: f64) -> Self {
        if amount <= 0.0 {
            return Self::ZERO;
        }
        let exact = amount * PS_PER_SEC / rate;
        if exact.is_nan() || rate <= 0.0 {
            return Self::NEVER;
        }
        let nearest = exact.round();
        let is_whole = (exact - nearest).abs() <= exact * (2.0 * f64::EPSILON);
        // A float-to-integer cast saturates.
        Self(if is_whole { nearest } else { exact.ceil() } as u64)
    }
}

impl Div<BytesPerSec> for Bytes {
    type Output = SimTime;
    /// Time to move the bytes, rounded up to a picosecond.
    fn div(self, rate: BytesPerSec) -> SimTime {
        SimTime::quotient(self.0 as f64, rate.0)
    }
}

impl Div<FlopsPerSec> for Flops {
    type Output = SimTime;
    /// Time to do the operations, rounded up to a picosecond.
    fn div(self, rate: FlopsPerSec) -> SimTime {
        SimTime::quotient(self.0, rate.0)
    }
}

impl Div<SimTime> for Bytes {
    type Output = BytesPerSec;
    /// Mean rate over the duration; infinite over no time.
    fn div(self, time: SimTime) -> BytesPerSec {
        BytesPerSec(mean_rate(self.0 as f64, time))
    }
}

impl Div<SimTime> for Flops {
    type Output = FlopsPerSec;
    /// Mean rate over the duration; infinite over no time.
    fn div(self, time: SimTime) -> FlopsPerSec {
        FlopsPerSec(mean_rate(self.0, time))
    }
}

fn mean_rate(amount: f64, time: SimTime) -> f64 {
    if time == SimTime::ZERO { f64::INFINITY } else { amount / time.as_secs_f64() }
}

macro_rules! saturating_count {
    ($($name:ident),*) => {$(
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }
        impl Mul<u64> for $name {
            type Output = Self;
            fn mul(self, times: u64) -> Self {
                Self(self.0.saturating_mul(times))
            }
        }
        sums!($name, 0);
    )*};
}

macro_rules! real_amount {
    ($($name:ident),*) => {$(
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl Mul<f64> for $name {
            type Output = Self;
            fn mul(self, times: f64) -> Self {
                Self(self.0 * times)
            }
        }
        sums!($name, 0.0);
    )*};
}

macro_rules! sums {
    ($name:ident, $zero:literal) => {
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                values.fold(Self($zero), Add::add)
            }
        }
    };
}

saturating_count!(Tokens, Bytes, SimTime);
real_amount!(Flops, BytesPerSec, FlopsPerSec);

/// Prefixes with their power of ten, largest first.
type Scale = &'static [(&'static str, i32)];

const DECIMAL: Scale = &[("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3), ("", 0)];
/// In picoseconds.
const TIME: Scale = &[("", 12), ("m", 9), ("u", 6), ("n", 3), ("p", 0)];

/// Writes `value` with the largest prefix that leaves at least one unit.
fn write_scaled(f: &mut Formatter<'_>, value: f64, scale: Scale, base: &str) -> fmt::Result {
    if value.is_infinite() {
        return f.write_str("infinite");
    }
    let plain = scale[scale.len() - 1];
    let fitting = scale.iter().copied().find(|(_, power)| value >= 10_f64.powi(*power)).unwrap_or(plain);
    let scaled = value / 10_f64.powi(fitting.1);
    if !f.alternate() {
        return write!(f, "{} {}{base}", four_digits(scaled), fitting.0);
    }
    let reads_back = format!("{scaled}e{}", fitting.1).parse() == Ok(value);
    let (prefix, exact) = if reads_back { (fitting.0, scaled) } else { (plain.0, value) };
    write!(f, "{exact} {prefix}{base}")
}

/// Four significant digits without trailing zeros, for values of at least one.
fn four_digits(value: f64) -> String {
    let whole_digits = value.abs().max(1.0).log10() as usize + 1;
    let text = format!("{value:.*}", 4_usize.saturating_sub(whole_digits));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

impl Display for Tokens {
    /// `128Ki` for a multiple of 1024, the plain count otherwise.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("0"),
            n if n.is_multiple_of(1 << 20) => write!(f, "{}Mi", n >> 20),
            n if n.is_multiple_of(1 << 10) => write!(f, "{}Ki", n >> 10),
            n => write!(f, "{n}"),
        }
    }
}

impl Display for Bytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0 as f64, DECIMAL, "B")
    }
}

impl Display for Flops {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, DECIMAL, "FLOP")
    }
}

impl Display for BytesPerSec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, DECIMAL, "B/s")
    }
}

impl Display for FlopsPerSec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, DECIMAL, "FLOP/s")
    }
}

impl Display for SimTime {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return f.write_str("never");
        }
        write_scaled(f, self.0 as f64, TIME, "s")
    }
}

macro_rules! serialize_as_text {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&format_args!("{self:#}"))
            }
        }
    )*};
}

serialize_as_text!(Tokens, Bytes, Flops, BytesPerSec, FlopsPerSec, SimTime);
