//! Parser tables, rounding and text round trips.

use proptest::prelude::*;

use super::*;

#[test]
fn rates_read_bytes_bits_and_prefixes() {
    let cases = [
        ("450 GB/s", 450e9),
        ("450GB/s", 450e9),
        ("400 Gb/s", 50e9),
        ("400 Gbit/s", 50e9),
        ("400 Gbps", 50e9),
        ("3.35 TB/s", 3.35e12),
        ("1 GiB/s", 1_073_741_824.0),
        ("  12.5   MB/s ", 12.5e6),
        ("1e6 B/s", 1e6),
        ("2.039 TB/s", 2_039_000_000_000.0),
        ("2.039e3 GB/s", 2_039_000_000_000.0),
        ("16.5e0 Mib/s", 2_162_688.0),
        ("infinite", f64::INFINITY),
    ];
    for (text, expected) in cases {
        assert_eq!(text.parse(), Ok(BytesPerSec(expected)), "{text}");
    }
    assert_eq!("989 TFLOP/s".parse(), Ok(FlopsPerSec(989e12)));
    assert_eq!("2.25 PFLOP/s".parse(), Ok(FlopsPerSec(2.25e15)));
    assert_eq!("312 TFLOPS".parse(), Ok(FlopsPerSec(312e12)));
    assert_eq!("4 GFLOP".parse(), Ok(Flops(4e9)));
}

#[test]
fn counts_and_times_read_exactly() {
    assert_eq!("128Ki".parse(), Ok(Tokens(131_072)));
    assert_eq!("131072".parse(), Ok(Tokens(131_072)));
    assert_eq!("131072 tokens".parse(), Ok(Tokens(131_072)));
    assert_eq!("128 Ki tokens".parse(), Ok(Tokens(131_072)));
    assert_eq!("1.5Mi".parse(), Ok(Tokens(1_572_864)));
    assert_eq!("80 GB".parse(), Ok(Bytes(80_000_000_000)));
    assert_eq!("141 GiB".parse(), Ok(Bytes(141 << 30)));
    assert_eq!("1.1 TB".parse(), Ok(Bytes(1_100_000_000_000)));
    assert_eq!("0 B".parse(), Ok(Bytes(0)));
    assert_eq!("2.8 us".parse(), Ok(SimTime(2_800_000)));
    assert_eq!("2.8 \u{b5}s".parse(), Ok(SimTime(2_800_000)));
    assert_eq!("1e3 ns".parse(), Ok(SimTime(1_000_000)));
    assert_eq!("0 us".parse(), Ok(SimTime::ZERO));
}

fn problem_of<T: std::str::FromStr<Err = UnitError> + fmt::Debug>(text: &str) -> Problem {
    text.parse::<T>().expect_err(text).problem
}

#[test]
fn each_wrong_bandwidth_has_its_problem() {
    let unit = |text: &str| Problem::UnknownUnit(text.to_owned());
    let cases = [
        ("", Problem::Empty),
        ("   ", Problem::Empty),
        ("450", Problem::MissingUnit),
        ("fast", Problem::NotANumber),
        ("nan GB/s", Problem::NotANumber),
        ("inf", Problem::NotANumber),
        (".5 GB/s", Problem::NotANumber),
        ("-450 GB/s", Problem::Negative),
        ("0 GB/s", Problem::Zero),
        ("1 B/s", Problem::TooSmall),
        ("999 kB/s", Problem::TooSmall),
        ("7.9 Mb/s", Problem::TooSmall),
        ("1,500 GB/s", Problem::Separator("1500 GB/s".to_owned())),
        ("3,35 TB/s", Problem::Separator("3.35 TB/s".to_owned())),
        ("1e400 GB/s", Problem::TooLarge),
        ("1e99999999999999999999 GB/s", Problem::TooLarge),
        ("1e-99999999999999999999 GB/s", Problem::Zero),
        ("18446744073709551616 GB/s", Problem::TooLarge),
        ("450 gb/s", unit("gb/s")),
        ("450 GB/s each way", unit("GB/s each way")),
        ("450. GB/s", unit(". GB/s")),
        ("450 GB", Problem::OtherQuantity("GB".to_owned(), Quantity::Memory)),
        ("450 us", Problem::OtherQuantity("us".to_owned(), Quantity::Time)),
        ("450 TFLOP/s", Problem::OtherQuantity("TFLOP/s".to_owned(), Quantity::ComputeRate)),
        ("450Ki", Problem::OtherQuantity("Ki".to_owned(), Quantity::TokenCount)),
    ];
    for (text, expected) in cases {
        assert_eq!(problem_of::<BytesPerSec>(text), expected, "{text}");
    }
}

#[test]
fn counts_refuse_fractions_zero_and_overflow() {
    let cases = [
        ("0", Problem::Zero),
        ("-1", Problem::Negative),
        ("1.5", Problem::Fraction),
        ("9223372036854775808", Problem::TooLarge),
        ("18446744073709551616", Problem::TooLarge),
        ("4096Mi", Problem::TooLarge),
        ("128K", Problem::UnknownUnit("K".to_owned())),
        ("128 GB", Problem::OtherQuantity("GB".to_owned(), Quantity::Memory)),
    ];
    for (text, expected) in cases {
        assert_eq!(problem_of::<Tokens>(text), expected, "{text}");
    }
    assert_eq!(problem_of::<Bytes>("0.5 B"), Problem::Fraction);
    assert_eq!(problem_of::<Bytes>("18446744073709551616 B"), Problem::TooLarge);
    assert_eq!(problem_of::<SimTime>("0.5 ps"), Problem::Fraction);
    assert_eq!(problem_of::<SimTime>("3 Ms"), Problem::UnknownUnit("Ms".to_owned()));
    assert_eq!(problem_of::<SimTime>("infinite"), Problem::NotANumber);
}

#[test]
fn messages_say_what_to_write() {
    let says = |error: UnitError| error.to_string();
    assert_eq!(
        says("450".parse::<BytesPerSec>().unwrap_err()),
        "`450` has no unit, expected a bandwidth: write 450 GB/s or 450 Gb/s"
    );
    assert_eq!(
        says("128K".parse::<Tokens>().unwrap_err()),
        "unknown unit `K`, expected a token count: write 128000 or 128Ki"
    );
    assert_eq!(
        says("nan".parse::<FlopsPerSec>().unwrap_err()),
        "expected a compute rate, found `nan`, which is not a number: \
         write 450 TFLOP/s, 450 PFLOP/s or infinite"
    );
    assert_eq!(
        says("-2 us".parse::<SimTime>().unwrap_err()),
        "`-2 us` is negative, expected a time: write 2 us or 2 ms"
    );
}

#[test]
fn rates_start_where_times_stay_in_range() {
    assert_eq!("1 MB/s".parse(), Ok(BytesPerSec(1e6)));
    assert_eq!("8 Mb/s".parse(), Ok(BytesPerSec(1e6)));
    assert_eq!("1 GFLOP/s".parse(), Ok(FlopsPerSec(1e9)));
    assert_eq!(
        "1 FLOP/s".parse::<FlopsPerSec>().unwrap_err().to_string(),
        "`1 FLOP/s` is too small, expected a compute rate of at least 1 GFLOP/s: \
         check the number and its prefix, as in 8 TFLOP/s"
    );
}

#[test]
fn hints_for_tokens_can_be_typed() {
    let hint = |text: &str| text.parse::<Tokens>().expect_err(text).hint();
    let range = "counts go from 1 to 2048Mi tokens";
    let cases = [
        ("131_072", "write 131072 or 128Ki"),
        ("131,072", "write 131072 or 128Ki"),
        ("131 072 tokens", "write 131072 tokens or 128Ki"),
        ("1'000'000", "write 1000000"),
        ("4,294,967,296", range),
        ("1,5", "write 1 or 2"),
        ("128k", "write 128000 or 128Ki"),
        ("1.5M", "write 1500000 or 1.5Mi"),
        ("0.001k", "write 1"),
        ("4G", range),
        ("128ki", "write 128Ki"),
        ("0", range),
        ("4096Mi", range),
        ("1.5", "write 1 or 2"),
        ("0.3Ki", "write 307 or 308"),
        ("0.25", "write 1 or more"),
        ("-1", range),
        ("many", "write 131072 or 128Ki"),
    ];
    for (text, expected) in cases {
        assert_eq!(hint(text), expected, "{text}");
    }
}

#[test]
fn hints_for_other_amounts_keep_the_number() {
    assert_eq!("0".parse::<SimTime>().unwrap_err().hint(), "write 0 us");
    assert_eq!("5".parse::<SimTime>().unwrap_err().hint(), "write 5 us or 5 ms");
    assert_eq!("3,35 TB/s".parse::<BytesPerSec>().unwrap_err().hint(), "write 3.35 TB/s");
    assert_eq!("1_500".parse::<BytesPerSec>().unwrap_err().hint(), "write 1500 GB/s");
    assert_eq!(
        "0 GB/s".parse::<BytesPerSec>().unwrap_err().hint(),
        "check the number and its prefix, as in 8 GB/s, or write infinite for what takes no time"
    );
}

#[test]
fn quotients_round_up_to_a_picosecond() {
    assert_eq!(Bytes(3) / BytesPerSec(3e9), SimTime(1000));
    assert_eq!(Bytes(1) / BytesPerSec(3e12), SimTime(1));
    assert_eq!(Bytes(10) / BytesPerSec(3e12), SimTime(4));
    // Exactly 1000000001125 ps, but a little more in plain f64.
    assert_eq!(Bytes(48_000_000_054) / BytesPerSec(48e9), SimTime(1_000_000_001_125));
    assert_eq!(Bytes(450_000_000_000) / BytesPerSec(450e9), SimTime(1_000_000_000_000));
    assert_eq!(Flops(989e12) / FlopsPerSec(989e12), SimTime(1_000_000_000_000));
    assert_eq!(SimTime::from_secs_f64(2.8e-6), SimTime(2_800_000));
}

#[test]
fn limits_of_rates_and_time() {
    assert_eq!(Bytes(1) / BytesPerSec(f64::INFINITY), SimTime::ZERO);
    assert_eq!(Bytes(1) / BytesPerSec(0.0), SimTime::NEVER);
    assert_eq!(Bytes(1) / BytesPerSec(f64::NAN), SimTime::NEVER);
    assert_eq!(Bytes(0) / BytesPerSec(0.0), SimTime::ZERO);
    assert_eq!(Bytes(u64::MAX) / BytesPerSec(1e-300), SimTime::NEVER);
    assert_eq!(SimTime::NEVER + SimTime(1), SimTime::NEVER);
    assert_eq!(Bytes(1) / SimTime::ZERO, BytesPerSec(f64::INFINITY));
    assert_eq!(SimTime(3).checked_sub(SimTime(4)), None);
}

#[test]
fn display_picks_the_prefix() {
    let cases = [
        (BytesPerSec(3.35e12).to_string(), "3.35 TB/s"),
        (BytesPerSec(50e9).to_string(), "50 GB/s"),
        (BytesPerSec(f64::INFINITY).to_string(), "infinite"),
        (FlopsPerSec(989.4e12).to_string(), "989.4 TFLOP/s"),
        (SimTime(2_700_000).to_string(), "2.7 us"),
        (SimTime(0).to_string(), "0 ps"),
        (SimTime::NEVER.to_string(), "never"),
        (Bytes(1_234_567).to_string(), "1.235 MB"),
        (Bytes(0).to_string(), "0 B"),
        (Tokens(131_072).to_string(), "128Ki"),
        (Tokens(1 << 20).to_string(), "1Mi"),
        (Tokens(3000).to_string(), "3000"),
        (format!("{:#}", Bytes(1_234_567)), "1.234567 MB"),
    ];
    for (text, expected) in cases {
        assert_eq!(text, expected);
    }
}

proptest! {
    #[test]
    fn any_text_parses_or_says_why(text in "\\PC*") {
        let explained = |error: UnitError| !error.message().is_empty() && !error.hint().is_empty();
        prop_assert!(text.parse::<Tokens>().map_or_else(explained, |t| t.0 > 0));
        prop_assert!(text.parse::<Bytes>().map_or_else(explained, |_| true));
        prop_assert!(text.parse::<BytesPerSec>().map_or_else(explained, |r| r.0 > 0.0));
        prop_assert!(text.parse::<SimTime>().map_or_else(explained, |_| true));
    }

    #[test]
    fn numbers_with_any_ending_never_panic(number in "[+-]?[0-9]{0,25}[.]?[0-9]{0,5}([eE][+-]?[0-9]{0,4})?", unit in "\\PC{0,8}") {
        let text = format!("{number}{unit}");
        if let Ok(rate) = text.parse::<FlopsPerSec>() {
            prop_assert!(rate.0 > 0.0);
        }
        let _outcome = (text.parse::<Tokens>().is_ok(), text.parse::<SimTime>().is_ok());
    }

    #[test]
    fn exact_text_reads_back(bytes in 0_u64..1 << 53, ps in 0_u64..3_600_000_000_000_000, rate in 1e6_f64..1e18) {
        prop_assert_eq!(format!("{:#}", Bytes(bytes)).parse(), Ok(Bytes(bytes)));
        prop_assert_eq!(format!("{:#}", SimTime(ps)).parse(), Ok(SimTime(ps)));
        prop_assert_eq!(format!("{:#}", BytesPerSec(rate)).parse(), Ok(BytesPerSec(rate)));
    }

    #[test]
    fn time_is_the_smallest_that_suffices(bytes in 1_u64..1 << 40, rate in 1_u64..1 << 40) {
        let exact = (u128::from(bytes) * 1_000_000_000_000).div_ceil(u128::from(rate));
        let exact = exact.min(u128::from(u64::MAX));
        let time = u128::from((Bytes(bytes) / BytesPerSec(rate as f64)).0);
        // The remainder is at least 1/rate, so an f64 tells it from zero while time * rate < 2^51.
        let slack = if exact * u128::from(rate) < 1 << 51 { 0 } else { 1 + exact / 1_000_000_000_000_000 };
        prop_assert!(time.abs_diff(exact) <= slack, "{time} {exact}");
    }
}
