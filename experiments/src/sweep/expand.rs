//! Ranges: values from a first to a last one, by equal ratios or by equal differences.

use ringlab_sim::config::{ConfigError, Entry, Field, Keys, Section};

/// Keys of a range.
pub const RANGE: Keys = &[("from", "\"8Ki\""), ("to", "\"1Mi\""), ("times", "2"), ("step", "\"8Ki\"")];

/// The most values of one field.
const MOST: i32 = 1_000_000;

/// How to get from one value of a range to the next.
enum Next<T> {
    Times(f64),
    Step(T),
}

/// A kind of number that ranges are made of.
pub trait Number: Copy {
    /// As a float, exact for whole numbers up to 2^53.
    fn to_f64(self) -> f64;
    /// The value nearest to `x`, if it is one.
    fn from_f64(x: f64) -> Option<Self>;
}

impl Number for u64 {
    fn to_f64(self) -> f64 {
        self as f64
    }

    fn from_f64(x: f64) -> Option<Self> {
        ((x - x.round()).abs() < 1e-9 * x.max(1.0)).then(|| x.round() as Self)
    }
}

impl Number for f64 {
    fn to_f64(self) -> f64 {
        self
    }

    fn from_f64(x: f64) -> Option<Self> {
        Some(x)
    }
}

/// All values of a field: scalars as they are, ranges written out.
pub fn values<T: Number>(
    entries: &[Entry<'_, '_>],
    read: impl Fn(&Field<'_>) -> Result<T, ConfigError>,
) -> Result<Vec<T>, ConfigError> {
    let mut all = Vec::new();
    for entry in entries {
        match entry {
            Entry::Scalar(field) => all.push(read(field)?),
            Entry::Table(section) => all.extend(range(section, &read)?),
        }
    }
    Ok(all)
}

fn range<T: Number>(
    section: &Section<'_, '_>,
    read: impl Fn(&Field<'_>) -> Result<T, ConfigError>,
) -> Result<Vec<T>, ConfigError> {
    let (from, to) = (section.required("from")?, section.required("to")?);
    let (first, last) = (read(&from)?.to_f64(), read(&to)?.to_f64());
    let next = match (section.optional("times"), section.optional("step")) {
        (Some(times), None) => Next::Times(times.real(1.000_001..=1e6)?),
        (None, Some(step)) => Next::Step(read(&step)?),
        _ => return Err(section.error("a range needs either `times` or `step`")),
    };
    if first > last {
        return Err(to.error("`to` is less than `from`, so the range is empty"));
    }
    let mut all = Vec::new();
    for i in 0..=MOST {
        let x = match &next {
            Next::Times(factor) => first * factor.powi(i),
            Next::Step(step) => first + step.to_f64() * f64::from(i),
        };
        if x > last * (1.0 + 1e-12) {
            return Ok(all);
        }
        let whole = || section.error(format!("the range gives {x}, which is not a whole number"));
        all.push(T::from_f64(x).ok_or_else(whole)?);
    }
    Err(section.error(format!("the range has more than {MOST} values")))
}
