//! Whole numbers on the command line.

use std::ops::RangeInclusive;

/// Numbers of GPUs on a machine, counted from 0.
pub const GPUS: RangeInclusive<u64> = 0..=1023;

/// A parser of whole numbers in `range`, which says what is allowed; a `T` holds all of them.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_the_range_are_refused_with_it() {
        let small = whole::<u32>(1..=64);
        assert_eq!((small("1"), small("64")), (Ok(1), Ok(64)));
        for text in ["0", "65", "-1", "1.5", "", "eight", "99999999999999999999"] {
            assert_eq!(small(text), Err("expected a whole number from 1 to 64".into()), "{text}");
        }
        assert_eq!(whole::<u64>(0..=u64::MAX)("18446744073709551615"), Ok(u64::MAX));
        assert!(whole::<u8>(0..=300)("299").is_err(), "a type that is too small refuses, it does not wrap");
    }
}
