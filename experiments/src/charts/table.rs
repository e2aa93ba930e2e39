//! The rows of a CSV file, by the names of their columns.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use ringlab_sim::config::nearest;

/// Rows with named columns.
#[derive(Debug, Clone)]
pub struct Table {
    label: String,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// One row of a table.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    table: &'a Table,
    cells: &'a [String],
}

impl Table {
    /// Reads CSV with a header, or JSON with a list of `points`; `label` is the file's name in messages.
    ///
    /// # Errors
    /// Text that is neither, or has no rows.
    pub fn parse(label: &str, text: &str) -> Result<Self> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.trim_start().starts_with('{') {
            return Self::of_points(label, text);
        }
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let cannot = || format!("{label} is no CSV with a header");
        let header = reader.headers().with_context(cannot)?.iter().map(str::to_owned).collect();
        let mut rows = Vec::new();
        for record in reader.records() {
            rows.push(record.with_context(cannot)?.iter().map(str::to_owned).collect());
        }
        if rows.is_empty() {
            bail!("{label} has no rows");
        }
        Ok(Self { label: label.to_owned(), header, rows })
    }

    /// The objects of `points`, their members as columns.
    fn of_points(label: &str, text: &str) -> Result<Self> {
        let json: serde_json::Value =
            serde_json::from_str(text).with_context(|| format!("{label} is no JSON"))?;
        let points = json["points"].as_array().with_context(|| format!("{label} has no list of points"))?;
        let points: Vec<_> = points.iter().filter_map(serde_json::Value::as_object).collect();
        let mut header: Vec<String> = Vec::new();
        for key in points.iter().flat_map(|point| point.keys()) {
            if !header.contains(key) {
                header.push(key.clone());
            }
        }
        let cell = |value: Option<&serde_json::Value>| match value {
            None | Some(serde_json::Value::Null) => String::new(),
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let rows: Vec<Vec<String>> =
            points.iter().map(|point| header.iter().map(|key| cell(point.get(key))).collect()).collect();
        if rows.is_empty() {
            bail!("{label} has no points");
        }
        Ok(Self { label: label.to_owned(), header, rows })
    }

    /// The file's name in messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Where a column is.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn column(&self, name: &str) -> Result<usize> {
        if let Some(i) = self.header.iter().position(|h| h == name) {
            return Ok(i);
        }
        let label = &self.label;
        match nearest(name, self.header.iter().map(String::as_str)) {
            Some(near) => bail!("{label} has no column {name:?}; did you mean {near}?"),
            None => bail!("{label} has no column {name:?}; it has {}", self.header.join(", ")),
        }
    }

    /// Whether there is a column of this name.
    pub fn has(&self, name: &str) -> bool {
        self.header.iter().any(|h| h == name)
    }

    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| Row { table: self, cells })
    }

    /// The rows whose column `name` is `value`, as text or as numbers.
    ///
    /// # Errors
    /// No such column, or no such row.
    pub fn only(mut self, name: &str, value: &str) -> Result<Self> {
        let column = self.column(name)?;
        let wanted = number(value);
        let kept = |cell: &String| cell == value || (wanted.is_some() && number(cell) == wanted);
        let values: BTreeSet<String> = self.rows.iter().map(|r| r[column].clone()).collect();
        self.rows.retain(|row| kept(&row[column]));
        if self.rows.is_empty() {
            let values: Vec<String> = values.into_iter().take(12).collect();
            bail!("{}: {name} is never {value}; its values are {}", self.label, values.join(", "));
        }
        Ok(self)
    }

    /// Holds that each of `columns` has one value, so that rows differ only in what is drawn.
    ///
    /// # Errors
    /// The first column that has more.
    pub fn require_one_value(&self, columns: &[&str]) -> Result<()> {
        for name in columns.iter().filter(|c| self.has(c)) {
            let column = self.column(name)?;
            let first = &self.rows[0][column];
            if let Some(other) = self.rows.iter().map(|r| &r[column]).find(|v| *v != first) {
                bail!(
                    "{}: {name} is {first} in some rows and {other} in others; choose with --where {name}={first}, or draw \
                     it with --x or --by",
                    self.label
                );
            }
        }
        Ok(())
    }
}

impl<'a> Row<'a> {
    /// The text of a column; empty if there is none.
    pub fn text(self, name: &str) -> &'a str {
        self.table.header.iter().position(|h| h == name).map_or("", |i| &self.cells[i])
    }

    /// The number in a column; `None` if it is empty or no number.
    pub fn number(self, name: &str) -> Option<f64> {
        number(self.text(name))
    }
}

/// A number, or a count with a binary suffix.
fn number(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse::<f64>() {
        return Some(number);
    }
    let suffix = ["Ki", "Mi"].iter().position(|s| text.ends_with(s))?;
    text[..text.len() - 2].parse::<f64>().ok().map(|n| n * [1024.0, 1_048_576.0][suffix])
}
