//! Amounts from text: a number and its unit, `450 GB/s`, `400 Gb/s` (bits), `141 GiB`, `2.8 us`,
//! `989 TFLOP/s`; token counts as `131072` or `128Ki`.
//!
//! A lower-case `b` is a bit and an upper-case `B` a byte, so units keep their case. Prefixes k, M, G, T and P
//! are powers of 1000; Ki, Mi, Gi and Ti, powers of 1024, go with bytes, bits and tokens. A rate may be
//! `infinite`; one below 1 MB/s or 1 GFLOP/s is taken for a mistake, since times over it leave 64 bits.

mod message;

use std::str::FromStr;

use super::{Bytes, BytesPerSec, Flops, FlopsPerSec, SimTime, Tokens};

/// What a text was expected to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Tokens.
    TokenCount,
    /// Bytes.
    Memory,
    /// Bytes or bits a second.
    Bandwidth,
    /// Floating-point operations.
    Operations,
    /// Floating-point operations a second.
    ComputeRate,
    /// Seconds.
    Time,
}

impl Quantity {
    /// The largest amount that is read, in the base unit, and how to say it.
    ///
    /// Token counts stay small enough for their square to fit 64 bits, bytes and picoseconds for an exact `f64`.
    fn limit(self) -> (f64, &'static str) {
        match self {
            Self::TokenCount => (2_147_483_648.0, "2048Mi tokens"),
            Self::Memory => (9_007_199_254_740_992.0, "8192 TiB"),
            Self::Bandwidth => (1e18, "1000 PB/s"),
            Self::Operations => (1e30, "1e15 PFLOP"),
            Self::ComputeRate => (1e21, "1e6 PFLOP/s"),
            Self::Time => (3.6e15, "3600 s"),
        }
    }

    /// The smallest rate that is read, in the base unit, and how to say it.
    fn floor(self) -> Option<(f64, &'static str)> {
        match self {
            Self::Bandwidth => Some((1e6, "1 MB/s")),
            Self::ComputeRate => Some((1e9, "1 GFLOP/s")),
            _ => None,
        }
    }

    fn is_whole(self) -> bool {
        matches!(self, Self::TokenCount | Self::Memory | Self::Time)
    }

    fn is_rate(self) -> bool {
        matches!(self, Self::Bandwidth | Self::ComputeRate)
    }
}

/// What is wrong with the text of an amount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No text at all.
    Empty,
    /// The text does not start with a decimal number.
    NotANumber,
    /// A number without the unit that it needs.
    MissingUnit,
    /// Digits in groups, or a decimal comma; how it is to be written comes with it.
    Separator(String),
    /// A unit that no quantity has.
    UnknownUnit(String),
    /// A unit of something else.
    OtherQuantity(String, Quantity),
    /// Below zero.
    Negative,
    /// Zero where only a positive amount makes sense.
    Zero,
    /// A rate above zero, but below what any link or device has.
    TooSmall,
    /// Above what is read, or not finite.
    TooLarge,
    /// A fraction of something indivisible: a byte, a token, a picosecond.
    Fraction,
}

/// Text that is no amount of the expected quantity. `Display` gives message and hint in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", self.message(), self.hint())]
pub struct UnitError {
    /// The text as given.
    pub text: String,
    /// What was expected.
    pub quantity: Quantity,
    /// What is wrong.
    pub problem: Problem,
}

/// Splits `text` into a leading decimal number and the trimmed rest.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut end = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
    let whole = digits(end);
    end += whole;
    if bytes.get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        end += if fraction > 0 { fraction + 1 } else { 0 };
    }
    if whole == 0 {
        return None;
    }
    // An exponent only when digits follow, so that the E of a unit stays with the unit.
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(bytes.len().min(end + 1 + sign));
        end += if exponent > 0 { 1 + sign + exponent } else { 0 };
    }
    Some((&text[..end], text[end..].trim_start()))
}

/// `text` with the separators between its digits gone, or its decimal comma turned to a point; `None` where it has
/// neither.
fn without_separators(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && !"+-_,' ".contains(c)).unwrap_or(text.len());
    let (number, rest) = text.split_at(text[..end].trim_end().len());
    let groups: Vec<&str> = number.trim_start_matches(['+', '-']).split(['_', ',', '\'', ' ']).collect();
    let are_digits = |group: &&str| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit());
    let spaced_apart = number.contains(' ') && groups[1..].iter().any(|group| group.len() != 3);
    if groups.len() < 2 || !groups.iter().all(are_digits) || spaced_apart {
        return None;
    }
    let decimal = groups.len() == 2 && number.contains(',') && groups[1].len() != 3;
    let digits = groups.join(if decimal { "." } else { "" });
    Some(format!("{digits}{rest}"))
}

/// The size of a unit in the base unit: a power of ten times a power of two, so that amounts stay exact.
#[derive(Clone, Copy)]
struct Size {
    ten: i32,
    two: i32,
}

const DECIMAL: &[(&str, i32)] = &[("", 0), ("k", 3), ("K", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15)];
const BINARY: &[(&str, i32)] = &[("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)];
/// In picoseconds.
const TIME: &[(&str, i32)] =
    &[("", 12), ("m", 9), ("u", 6), ("\u{b5}", 6), ("\u{3bc}", 6), ("n", 3), ("p", 0)];

/// Spellings of each base unit; the longer of two that end alike comes first.
const BASES: &[(&str, Quantity)] = &[
    ("bit/s", Quantity::Bandwidth),
    ("b/s", Quantity::Bandwidth),
    ("bps", Quantity::Bandwidth),
    ("B/s", Quantity::Bandwidth),
    ("FLOP/s", Quantity::ComputeRate),
    ("FLOPS", Quantity::ComputeRate),
    ("FLOP", Quantity::Operations),
    ("B", Quantity::Memory),
    ("tokens", Quantity::TokenCount),
    ("s", Quantity::Time),
    ("", Quantity::TokenCount),
];

/// The quantity a unit measures and its size.
fn look_up(unit: &str) -> Option<(Quantity, Size)> {
    BASES.iter().find_map(|&(base, quantity)| {
        let prefix = unit.strip_suffix(base)?.trim_end();
        let bits = if base.starts_with('b') { -3 } else { 0 };
        let power = |table: &[(&str, i32)]| table.iter().find(|(name, _)| *name == prefix).map(|(_, p)| *p);
        let ten = |power| Size { ten: power, two: bits };
        let two = |power| Size { ten: 0, two: power + bits };
        let size = match quantity {
            Quantity::Time => power(TIME).map(ten),
            Quantity::TokenCount => power(BINARY).map(two).or_else(|| prefix.is_empty().then(|| ten(0))),
            Quantity::Memory | Quantity::Bandwidth => {
                power(DECIMAL).map(ten).or_else(|| power(BINARY).map(two))
            }
            Quantity::Operations | Quantity::ComputeRate => power(DECIMAL).map(ten),
        };
        size.map(|size| (quantity, size))
    })
}

/// `number`, a decimal as [`split_number`] finds it, times `size`, rounded once.
fn scale(number: &str, size: Size) -> Option<f64> {
    let (digits, power) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    // An exponent past 32 bits is as good as infinite, or as nothing.
    let limit = if power.starts_with('-') { i32::MIN / 2 } else { i32::MAX / 2 };
    let power = power.parse().unwrap_or(limit).clamp(i32::MIN / 2, i32::MAX / 2) + size.ten;
    let scaled: f64 = format!("{digits}e{power}").parse().ok()?;
    Some(scaled * 2_f64.powi(size.two))
}

/// Reads `text` as an amount of `quantity` in its base unit (bytes, tokens, operations, picoseconds).
fn amount(text: &str, quantity: Quantity) -> Result<f64, UnitError> {
    let text = text.trim();
    let fail = |problem| Err(UnitError { text: text.to_owned(), quantity, problem });
    if text.is_empty() {
        return fail(Problem::Empty);
    }
    if quantity.is_rate() && text == "infinite" {
        return Ok(f64::INFINITY);
    }
    if let Some(plain) = without_separators(text) {
        return fail(Problem::Separator(plain));
    }
    let Some((number, unit)) = split_number(text) else { return fail(Problem::NotANumber) };
    let size = match look_up(unit) {
        Some((found, size)) if found == quantity => size,
        Some((Quantity::TokenCount, _)) if unit.is_empty() => return fail(Problem::MissingUnit),
        Some((found, _)) => return fail(Problem::OtherQuantity(unit.to_owned(), found)),
        None => return fail(Problem::UnknownUnit(unit.to_owned())),
    };
    let Some(value) = scale(number, size) else { return fail(Problem::NotANumber) };
    check(value, quantity).or_else(fail)
}

/// Holds the range of `quantity`.
fn check(value: f64, quantity: Quantity) -> Result<f64, Problem> {
    if value < 0.0 {
        Err(Problem::Negative)
    } else if value == 0.0 && (quantity.is_rate() || quantity == Quantity::TokenCount) {
        Err(Problem::Zero)
    } else if quantity.floor().is_some_and(|(floor, _)| value < floor) {
        Err(Problem::TooSmall)
    } else if value.is_nan() || value > quantity.limit().0 {
        Err(Problem::TooLarge)
    } else if quantity.is_whole() && value.fract() != 0.0 {
        Err(Problem::Fraction)
    } else {
        Ok(value)
    }
}

/// A type that is read from text with a unit.
pub trait Amount: FromStr<Err = UnitError> {
    /// What it measures.
    const QUANTITY: Quantity;
}

macro_rules! from_text {
    ($($name:ident: $quantity:ident),*) => {$(
        impl Amount for $name {
            const QUANTITY: Quantity = Quantity::$quantity;
        }
        impl FromStr for $name {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                amount(text, Quantity::$quantity).map(|value| Self(value as _))
            }
        }
    )*};
}

from_text!(
    Tokens: TokenCount, Bytes: Memory, Flops: Operations,
    BytesPerSec: Bandwidth, FlopsPerSec: ComputeRate, SimTime: Time
);
