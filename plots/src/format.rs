//! Numbers as tick labels: `fn(f64) -> String`, one per quantity.

use ringlab_sim::units::{Bytes, BytesPerSec, FlopsPerSec, SimTime};

/// Up to four significant digits: `0.25`, `12`, `1200`, `3.5e9`.
pub fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let exponent = value.abs().log10().floor() as i32;
    if !(-4..6).contains(&exponent) {
        let text = format!("{value:.3e}");
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{power}", trim(digits));
    }
    let decimals = (3 - exponent).max(0) as usize;
    trim(&format!("{value:.decimals$}")).to_owned()
}

fn trim(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

/// A count of tokens with a binary suffix: `512`, `8Ki`, `1Mi`, `1.5Mi`.
pub fn tokens(value: f64) -> String {
    const SUFFIXES: [(f64, &str); 4] =
        [(1_099_511_627_776.0, "Ti"), (1_073_741_824.0, "Gi"), (1_048_576.0, "Mi"), (1024.0, "Ki")];
    let fitting = SUFFIXES.iter().find(|(factor, _)| value.abs() >= *factor);
    fitting.map_or_else(|| number(value), |(factor, suffix)| format!("{}{suffix}", number(value / factor)))
}

/// A share as per cent: 0.25 is `25 %`.
pub fn percent(value: f64) -> String {
    format!("{} %", number(value * 100.0))
}

/// A ratio: `1.5x`.
pub fn ratio(value: f64) -> String {
    format!("{}x", number(value))
}

/// Seconds with the fitting prefix: 0.0015 is `1.5 ms`.
pub fn seconds(value: f64) -> String {
    signed(value, |v| SimTime::from_secs_f64(v).to_string())
}

/// Bytes with the fitting prefix.
pub fn bytes(value: f64) -> String {
    signed(value, |v| Bytes(v as u64).to_string())
}

/// Bytes a second with the fitting prefix.
pub fn bytes_per_sec(value: f64) -> String {
    signed(value, |v| BytesPerSec(v).to_string())
}

/// FLOP a second with the fitting prefix.
pub fn flops_per_sec(value: f64) -> String {
    signed(value, |v| FlopsPerSec(v).to_string())
}

fn signed(value: f64, positive: impl Fn(f64) -> String) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let text = positive(value.abs());
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_suffixes() {
        let cases = [
            (512.0, "512"),
            (8192.0, "8Ki"),
            (131_072.0, "128Ki"),
            (1_048_576.0, "1Mi"),
            (1_572_864.0, "1.5Mi"),
            (0.0, "0"),
        ];
        for (value, text) in cases {
            assert_eq!(tokens(value), text);
        }
    }

    #[test]
    fn numbers_keep_four_digits() {
        let cases = [
            (0.25, "0.25"),
            (0.1 + 0.2, "0.3"),
            (1200.0, "1200"),
            (-3.5, "-3.5"),
            (2.5e9, "2.5e9"),
            (1e-7, "1e-7"),
            (999_999.0, "999999"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn quantities_carry_their_unit() {
        assert_eq!(seconds(0.0015), "1.5 ms");
        assert_eq!(seconds(-2e-6), "-2 us");
        assert_eq!(bytes(8e10), "80 GB");
        assert_eq!(percent(0.25), "25 %");
        assert_eq!(ratio(1.5), "1.5x");
        assert_eq!(flops_per_sec(9.89e14), "989 TFLOP/s");
        assert_eq!(bytes_per_sec(4.5e11), "450 GB/s");
    }
}
