//! Numbers on the command line.

use std::ffi::OsString;
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

/// The arguments, a negative number joined with the option before it: `--cp -1` is a wrong value of `--cp`, not an option
/// that nobody knows.
pub fn with_negative_values(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut all: Vec<OsString> = Vec::new();
    for argument in arguments {
        match all.last_mut().filter(|option| is_negative(&argument) && takes_next(option)) {
            Some(option) => {
                option.push("=");
                option.push(argument);
            }
            None => all.push(argument),
        }
    }
    all
}

fn is_negative(argument: &OsString) -> bool {
    let after = argument.to_str().and_then(|text| text.strip_prefix('-'));
    after.is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
}

fn takes_next(option: &OsString) -> bool {
    option.to_str().is_some_and(|text| text.len() > 2 && text.starts_with("--") && !text.contains('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_numbers_belong_to_the_option_before_them() {
        let joined =
            |line: &str| with_negative_values(line.split(' ').map(OsString::from)).join(" ".as_ref());
        for (line, expected) in [
            ("ringlab run --cp -1 --seq 8", "ringlab run --cp=-1 --seq 8"),
            ("--jitter -3% --timeout -.5", "--jitter=-3% --timeout=-.5"),
            ("--cp=4 -1", "--cp=4 -1"),
            ("-- -1", "-- -1"),
            ("--seq --cp 4 -o -1", "--seq --cp 4 -o -1"),
        ] {
            assert_eq!(joined(line).to_str(), Some(expected));
        }
    }

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
