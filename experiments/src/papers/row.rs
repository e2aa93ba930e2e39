//! What a reproduction says: published beside predicted, the bound, and a verdict.

use serde::{Serialize, Serializer};

use super::setup::Assumption;

/// A table cell: a number, or the remark that memory ran out.
#[derive(Debug, Clone, Copy, PartialEq, schemars::JsonSchema)]
#[schemars(untagged)]
pub enum Cell {
    /// A number.
    Number(f64),
    /// Out of memory.
    #[schemars(with = "OutOfMemory")]
    Oom,
}

/// How [`Cell::Oom`] is written.
#[derive(schemars::JsonSchema)]
enum OutOfMemory {
    #[schemars(rename = "OOM")]
    #[expect(dead_code, reason = "only its name is of use")]
    Oom,
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(x) => serializer.serialize_f64(*x),
            Self::Oom => serializer.serialize_str("OOM"),
        }
    }
}

impl Cell {
    /// The number, if it is one.
    pub fn number(self) -> Option<f64> {
        match self {
            Self::Number(x) => Some(x),
            Self::Oom => None,
        }
    }

    /// Reads a printed cell: `OOM`, or a number.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == "OOM" {
            return Some(Self::Oom);
        }
        text.parse().ok().map(Self::Number)
    }

    /// As a person reads it.
    pub fn text(self) -> String {
        match self {
            Self::Oom => "OOM".to_owned(),
            Self::Number(x) if x != 0.0 && x.abs() < 0.1 => format!("{x:.4}"),
            Self::Number(x) if x.abs() < 10.0 => format!("{x:.2}"),
            Self::Number(x) if x.abs() < 1000.0 => format!("{x:.1}"),
            Self::Number(x) => format!("{x:.0}"),
        }
    }
}

/// What became of a printed number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The prediction is within `within_percent` of it.
    Reproduced,
    /// It differs, and the mechanism is named.
    Explained,
    /// It differs, and nothing accounts for that.
    Missed,
    /// It exceeds what any machine could reach.
    Impossible,
    /// The row contradicts itself.
    Inconsistent,
    /// A constant was fitted on it.
    Fitted,
}

impl Verdict {
    /// The word in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Explained => "explained",
            Self::Missed => "missed",
            Self::Impossible => "impossible",
            Self::Inconsistent => "inconsistent",
            Self::Fitted => "fitted",
        }
    }
}

/// One printed number beside its prediction.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Row {
    /// The table it is from.
    pub table: String,
    /// Machine, model, length.
    pub case: String,
    /// What is printed.
    pub quantity: String,
    /// Its unit.
    pub unit: &'static str,
    /// As printed.
    pub published: Cell,
    /// As predicted.
    pub predicted: Cell,
    /// `predicted / published - 1`; none where one of them ran out of memory.
    pub error: Option<f64>,
    /// What balance or arithmetic allows at most (for a time: at least).
    pub bound: Option<f64>,
    /// What became of it.
    pub verdict: Verdict,
    /// For a reproduced number, the smallest of 1, 2, 5, 10 and 15 percent that holds it.
    pub within_percent: Option<u32>,
    /// Why it differs, contradicts itself or is impossible.
    pub reason: Option<String>,
}

const TOLERANCES: [u32; 5] = [1, 2, 5, 10, 15];

impl Row {
    /// A number of `table` for `case`.
    pub fn of(table: &str, case: impl Into<String>, quantity: &str, unit: &'static str) -> Draft {
        Draft(Self {
            table: table.to_owned(),
            case: case.into(),
            quantity: quantity.to_owned(),
            unit,
            published: Cell::Oom,
            predicted: Cell::Oom,
            error: None,
            bound: None,
            verdict: Verdict::Missed,
            within_percent: None,
            reason: None,
        })
    }

    /// Whether the row counts in error statistics.
    pub fn counts(&self) -> bool {
        !matches!(self.verdict, Verdict::Fitted | Verdict::Impossible)
    }
}

/// A row being put together.
#[derive(Debug, Clone)]
pub struct Draft(Row);

impl Draft {
    /// The upper bound.
    pub fn bound(mut self, bound: f64) -> Self {
        self.0.bound = Some(bound);
        self
    }

    /// The reason to give if the prediction is off by more than the widest tolerance.
    pub fn because(mut self, reason: &str) -> Self {
        self.0.reason = Some(reason.to_owned());
        self
    }

    /// A constant was fitted on this row.
    pub fn fitted(mut self, is_fitted: bool) -> Self {
        if is_fitted {
            self.0.verdict = Verdict::Fitted;
        }
        self
    }

    /// The row contradicts itself.
    pub fn inconsistent(mut self, reason: Option<String>) -> Self {
        if let Some(reason) = reason {
            self.0.verdict = Verdict::Inconsistent;
            self.0.reason = Some(reason);
        }
        self
    }

    /// Judges the prediction.
    pub fn judge(self, published: Cell, predicted: Cell) -> Row {
        let mut row = self.0;
        (row.published, row.predicted) = (published, predicted);
        row.error = match (published, predicted) {
            (Cell::Number(p), Cell::Number(q)) if p != 0.0 => Some(q / p - 1.0),
            _ => None,
        };
        if row.verdict != Verdict::Missed {
            return row;
        }
        if let (Cell::Number(p), Some(bound)) = (published, row.bound)
            && p > bound * (1.0 + ROUNDING)
        {
            row.verdict = Verdict::Impossible;
            row.reason.get_or_insert_with(|| format!("{p} exceeds the bound {bound:.3}"));
            return row;
        }
        let agrees = match row.error {
            Some(error) => TOLERANCES.into_iter().find(|&t| error.abs() * 100.0 <= f64::from(t)),
            None => (published == predicted).then_some(1),
        };
        match agrees {
            Some(_) => (row.verdict, row.within_percent, row.reason) = (Verdict::Reproduced, agrees, None),
            None if row.reason.is_some() => row.verdict = Verdict::Explained,
            None => {}
        }
        row
    }

    /// As [`Draft::judge`], for two numbers.
    pub fn numbers(self, published: f64, predicted: f64) -> Row {
        self.judge(Cell::Number(published), Cell::Number(predicted))
    }
}

/// A printed two-decimal ratio may exceed its bound by its last digit.
const ROUNDING: f64 = 0.004;

/// Errors of one table, or of one quantity of it.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Summary {
    /// The table.
    pub table: String,
    /// The quantity.
    pub quantity: String,
    /// Rows.
    pub rows: usize,
    /// Median of the absolute relative errors of the rows that count.
    pub median_abs_error: Option<f64>,
    /// The largest.
    pub max_abs_error: Option<f64>,
}

/// One paper.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Paper {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is.
    pub title: String,
    /// Where it is.
    pub source: String,
    /// Over all rows that count.
    pub median_abs_error: Option<f64>,
    /// By table and quantity.
    pub tables: Vec<Summary>,
    /// The numbers.
    pub rows: Vec<Row>,
    /// What was assumed or fitted.
    pub assumptions: Vec<Assumption>,
}

/// Papers, as JSON.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Report {
    /// Version of the format.
    pub version: u32,
    /// The papers.
    pub papers: Vec<Paper>,
}

/// Median of the absolute errors of rows that count.
pub fn median_abs_error<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Option<f64> {
    let errors = rows.into_iter().filter(|r| r.counts()).filter_map(|r| r.error);
    let mut errors: Vec<f64> = errors.map(f64::abs).collect();
    errors.sort_by(f64::total_cmp);
    let n = errors.len();
    match n {
        0 => None,
        n if n % 2 == 1 => Some(errors[n / 2]),
        _ => Some(errors[n / 2 - 1].midpoint(errors[n / 2])),
    }
}

/// Summaries in order of first appearance.
pub fn summaries(rows: &[Row]) -> Vec<Summary> {
    let mut keys: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        let key = (row.table.as_str(), row.quantity.as_str());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.into_iter()
        .map(|(table, quantity)| {
            let of = || rows.iter().filter(|r| r.table == table && r.quantity == quantity);
            let errors = of().filter(|r| r.counts()).filter_map(|r| r.error).map(f64::abs);
            Summary {
                table: table.to_owned(),
                quantity: quantity.to_owned(),
                rows: of().count(),
                median_abs_error: median_abs_error(of()),
                max_abs_error: errors.max_by(f64::total_cmp),
            }
        })
        .collect()
}
