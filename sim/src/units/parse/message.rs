//! What is wrong with the text of an amount, and how to write it instead.

use super::{Problem, Quantity, Size, UnitError, look_up, scale, split_number};

impl Quantity {
    /// The name with its article.
    fn name(self) -> &'static str {
        match self {
            Self::TokenCount => "a token count",
            Self::Memory => "a memory size",
            Self::Bandwidth => "a bandwidth",
            Self::Operations => "an operation count",
            Self::ComputeRate => "a compute rate",
            Self::Time => "a time",
        }
    }

    /// What a configuration may hold for it.
    pub fn form(self) -> &'static str {
        match self {
            Self::TokenCount => "a number of tokens",
            _ => "text with a number and a unit",
        }
    }

    /// Two spellings of `number` that would be read.
    fn spellings(self, number: &str) -> [String; 2] {
        let units = match self {
            Self::TokenCount => ["", "Ki"],
            Self::Memory => [" GB", " GiB"],
            Self::Bandwidth => [" GB/s", " Gb/s"],
            Self::Operations => [" TFLOP", " PFLOP"],
            Self::ComputeRate => [" TFLOP/s", " PFLOP/s"],
            Self::Time => [" us", " ms"],
        };
        units.map(|unit| format!("{number}{unit}"))
    }

    /// Two amounts that would be read, where the text has no number to keep.
    fn examples(self) -> [String; 2] {
        match self {
            Self::TokenCount => ["131072".to_owned(), "128Ki".to_owned()],
            _ => self.spellings("450"),
        }
    }

    /// The indivisible unit, in the plural.
    fn grain(self) -> &'static str {
        match self {
            Self::TokenCount => "tokens",
            Self::Time => "picoseconds",
            _ => "bytes",
        }
    }
}

impl UnitError {
    /// What is wrong, without the hint.
    pub fn message(&self) -> String {
        let (text, name) = (&self.text, self.quantity.name());
        match &self.problem {
            Problem::Empty => format!("expected {name}, found nothing"),
            Problem::NotANumber => format!("expected {name}, found `{text}`, which is not a number"),
            Problem::MissingUnit => format!("`{text}` has no unit, expected {name}"),
            Problem::Separator(_) => format!("`{text}` has separators between its digits, expected {name}"),
            Problem::UnknownUnit(unit) => format!("unknown unit `{unit}`, expected {name}"),
            Problem::OtherQuantity(unit, found) => {
                format!("`{unit}` is the unit of {}, expected {name}", found.name())
            }
            Problem::Negative => format!("`{text}` is negative, expected {name}"),
            Problem::Zero => format!("`{text}` is zero, expected {name} above zero"),
            Problem::TooSmall => {
                let floor = self.quantity.floor().map_or("", |(_, floor)| floor);
                format!("`{text}` is too small, expected {name} of at least {floor}")
            }
            Problem::TooLarge => {
                format!("`{text}` is too large, expected {name} of at most {}", self.quantity.limit().1)
            }
            Problem::Fraction => {
                format!("`{text}` is not whole, expected {name} in whole {}", self.quantity.grain())
            }
        }
    }

    /// How to write it instead.
    pub fn hint(&self) -> String {
        let tokens = self.quantity == Quantity::TokenCount;
        let number = split_number(&self.text).map(|(number, _)| number.trim_start_matches('-'));
        let [first, second] =
            number.map_or_else(|| self.quantity.examples(), |number| self.quantity.spellings(number));
        match &self.problem {
            Problem::UnknownUnit(unit) if tokens => token_unit_hint(number.unwrap_or("128"), unit),
            Problem::NotANumber if self.quantity.is_rate() => format!("write {first}, {second} or infinite"),
            Problem::Separator(plain) if tokens => token_hint(plain),
            Problem::Separator(plain) => separator_hint(plain, self.quantity),
            Problem::Fraction if tokens => whole_tokens_hint(&self.text),
            Problem::Negative | Problem::Zero | Problem::TooLarge if tokens => {
                "counts go from 1 to 2048Mi tokens".to_owned()
            }
            Problem::Zero => format!(
                "check the number and its prefix, as in {}, or write infinite for what takes no time",
                self.quantity.spellings("8")[0]
            ),
            Problem::TooSmall | Problem::TooLarge | Problem::Fraction => {
                format!("check the number and its prefix, as in {}", self.quantity.spellings("8")[0])
            }
            Problem::MissingUnit if self.quantity == Quantity::Time && is_zero(&self.text) => {
                format!("write {first}")
            }
            _ => format!("write {first} or {second}"),
        }
    }
}

fn is_zero(number: &str) -> bool {
    number.parse() == Ok(0.0)
}

/// `number`, times `size`, as a count of tokens; `None` where it is none.
fn count(number: &str, size: Size) -> Option<u64> {
    let value = scale(number, size)?;
    (value >= 1.0 && value.fract() == 0.0 && value <= Quantity::TokenCount.limit().0).then_some(value as u64)
}

/// For a unit that counts of tokens do not have: `128k` may mean 128000 or 131072.
fn token_unit_hint(number: &str, unit: &str) -> String {
    let [plain, binary] = Quantity::TokenCount.spellings(number);
    let letter = unit.to_ascii_uppercase();
    let (prefix, power) = match letter.as_str() {
        "K" => ("Ki", 3),
        "M" => ("Mi", 6),
        "G" | "B" => ("Gi", 9),
        "KI" => return format!("write {binary}"),
        "MI" => return format!("write {number}Mi"),
        _ => return format!("write {plain} or {binary}"),
    };
    let decimal = count(number, Size { ten: power, two: 0 }).map(|count| count.to_string());
    let binary = count(number, Size { ten: 0, two: power / 3 * 10 }).map(|_| format!("{number}{prefix}"));
    match (decimal, binary) {
        (Some(decimal), Some(binary)) => format!("write {decimal} or {binary}"),
        (Some(one), None) | (None, Some(one)) => format!("write {one}"),
        (None, None) => "counts go from 1 to 2048Mi tokens".to_owned(),
    }
}

/// For `plain`, a count whose separators are gone.
fn token_hint(plain: &str) -> String {
    match plain.parse::<crate::units::Tokens>() {
        Ok(tokens) if tokens.to_string() != plain => format!("write {plain} or {tokens}"),
        Ok(_) => format!("write {plain}"),
        Err(error) => error.hint(),
    }
}

/// For `plain`, another amount whose separators are gone.
fn separator_hint(plain: &str, quantity: Quantity) -> String {
    match split_number(plain) {
        Some((number, "")) => format!("write {}", quantity.spellings(number)[0]),
        _ => format!("write {plain}"),
    }
}

/// For a fraction of a token: the whole counts around it.
fn whole_tokens_hint(text: &str) -> String {
    let value = split_number(text).and_then(|(number, unit)| scale(number, look_up(unit)?.1)).unwrap_or(1.0);
    if value < 1.0 {
        return "write 1 or more".to_owned();
    }
    format!("write {} or {}", value.floor(), value.ceil())
}
