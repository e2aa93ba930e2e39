//! Durations on the command line: a number of the option's own unit, or a text with a unit.

use std::time::Duration;

use ringlab_sim::units::SimTime;

/// Longest duration that is taken: a day.
const LONGEST: f64 = 86_400.0;

/// `240`, `240 s` or `4 min`.
pub fn seconds(text: &str) -> Result<Duration, String> {
    duration(text, 1.0)
}

/// `300`, `300 ms` or `0.3 s`.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    duration(text, 1e-3)
}

fn duration(text: &str, unit: f64) -> Result<Duration, String> {
    let seconds = match text.trim().parse::<f64>() {
        Ok(number) => number * unit,
        Err(_) => text.parse::<SimTime>().map_err(|error| error.to_string())?.as_secs_f64(),
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if seconds <= LONGEST => Ok(duration),
        _ => Err(format!("a duration of 0 s to {LONGEST} s is needed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_numbers_have_the_options_unit() {
        assert_eq!(seconds("240"), Ok(Duration::from_secs(240)));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(milliseconds("300"), Ok(Duration::from_millis(300)));
        assert_eq!(milliseconds("0.3 s"), Ok(Duration::from_millis(300)));
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["-1", "nan", "inf", "1e9", "soon", "3 GB", ""] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
