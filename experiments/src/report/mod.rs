//! Results as one HTML file to read, sort and zoom: no network, no other file.

mod bundle;
mod html;
pub mod view;

use html::escape;
use view::View;

/// Spans above which a timeline is not drawn.
pub const SPANS: usize = 120_000;

/// A table's column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its heading, with the unit where there is one.
    pub name: String,
    /// What it means; shown on hover and focus.
    pub help: String,
    /// Whether it is right-aligned and sorted by value.
    pub numeric: bool,
}

/// A table's cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// As it is shown.
    pub text: String,
    /// What it is sorted by, if not by its text.
    pub value: Option<f64>,
}

impl Cell {
    /// Sorted by its text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), value: None }
    }

    /// Sorted by `value`; a value that is missing or no number goes last.
    pub fn number(value: impl Into<Option<f64>>, text: impl Into<String>) -> Self {
        Self { text: text.into(), value: value.into().or(Some(f64::NAN)) }
    }
}

/// Rows that sort by any column.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// By column.
    pub columns: Vec<Column>,
    /// By row; every row has a cell for each column.
    pub rows: Vec<Vec<Cell>>,
}

/// What a section shows below its heading.
pub enum Body {
    /// Paragraphs.
    Text(Vec<String>),
    /// Text as it is, such as a command.
    Code(String),
    /// Figures.
    Table(Table),
    /// Timelines that zoom.
    Timelines(Vec<View>),
}

/// A part of the page.
pub struct Section {
    /// Its heading.
    pub title: String,
    /// A sentence below it; may be empty.
    pub intro: String,
    /// The rest.
    pub body: Body,
    /// Whether it is closed until the reader opens it.
    pub folded: bool,
}

impl Section {
    /// An open section.
    pub fn new(title: impl Into<String>, intro: impl Into<String>, body: Body) -> Self {
        Self { title: title.into(), intro: intro.into(), body, folded: false }
    }

    /// The same section, closed.
    pub fn folded(self) -> Self {
        Self { folded: true, ..self }
    }
}

/// The page of `sections` below each other.
pub fn page(title: &str, subtitle: &str, sections: &[Section]) -> String {
    let mut scripts = 0;
    let body: String = sections.iter().map(|s| section(s, &mut scripts)).collect();
    let (title, subtitle) = (escape(title), escape(subtitle));
    let (style, script) = (bundle::style(), bundle::script());
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; \
         style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{style}</style>\n</head>\n<body class=\"report\">\n<header class=\"masthead\">\n\
         <p class=\"brand\">ringlab</p>\n<h1>{title}</h1>\n<p class=\"subtitle\">{subtitle}</p>\n</header>\n\
         <main>\n{body}</main>\n<script type=\"module\">\n{script}</script>\n</body>\n</html>\n"
    )
}

fn section(section: &Section, scripts: &mut usize) -> String {
    let title = escape(&section.title);
    let intro = match section.intro.as_str() {
        "" => String::new(),
        intro => format!("<p class=\"intro\">{}</p>\n", escape(intro)),
    };
    let body = match &section.body {
        Body::Text(paragraphs) => paragraphs.iter().map(|p| format!("<p>{}</p>\n", escape(p))).collect(),
        Body::Code(code) => format!("<pre><code>{}</code></pre>\n", escape(code)),
        Body::Table(table) => html::table(table),
        Body::Timelines(views) => views.iter().map(|v| timeline(v, scripts)).collect(),
    };
    if section.folded {
        return format!(
            "<section class=\"panel\"><details><summary><h2>{title}</h2></summary>\n{intro}{body}</details></section>\n"
        );
    }
    format!("<section class=\"panel\"><h2>{title}</h2>\n{intro}{body}</section>\n")
}

/// A timeline's data, and the place where the script draws it.
fn timeline(view: &View, scripts: &mut usize) -> String {
    let name = escape(&format!("{} {}", view.name, view.pass));
    if view.spans.len() > SPANS {
        let spans = view.spans.len();
        return format!(
            "<h3>{name}</h3>\n<p>{spans} spans are too many to draw here; --trace writes them all.</p>\n"
        );
    }
    *scripts += 1;
    let json = serde_json::to_string(view).unwrap_or_default().replace('<', "\\u003c");
    format!(
        "<h3>{name}</h3>\n<div class=\"timeline\" data-view=\"view-{scripts}\"></div>\n\
         <script type=\"application/json\" id=\"view-{scripts}\">{json}</script>\n"
    )
}

#[cfg(test)]
mod tests;
