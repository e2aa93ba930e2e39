//! Text and tables as HTML.

use super::{Cell, Column, Table};

/// `text` without anything that HTML would read as its own.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c => escaped.push(c),
        }
    }
    escaped
}

/// The table, whole without its script.
pub fn table(table: &Table) -> String {
    let head: String = table.columns.iter().map(heading).collect();
    let row = |cells: &Vec<Cell>| {
        let cells: String = table.columns.iter().zip(cells).map(|(column, c)| cell(column, c)).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = table.rows.iter().map(row).collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"table\"><table class=\"sortable\">\n\
         <thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

fn heading(column: &Column) -> String {
    let class = if column.numeric { " class=\"number\"" } else { "" };
    let help = match column.help.as_str() {
        "" => String::new(),
        help => format!(" data-help=\"{}\"", escape(help)),
    };
    format!("<th scope=\"col\"{class}{help}>{}</th>", escape(&column.name))
}

fn cell(column: &Column, cell: &Cell) -> String {
    let class = if column.numeric { " class=\"number\"" } else { "" };
    let value = match cell.value {
        Some(value) if value.is_finite() => format!(" data-value=\"{value:e}\""),
        Some(_) => " data-value=\"\"".to_owned(),
        None => String::new(),
    };
    format!("<td{class}{value}>{}</td>", escape(&cell.text))
}
