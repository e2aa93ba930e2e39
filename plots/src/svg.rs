//! Writes SVG: escaped text, two decimals, no dependence on a viewer's fonts.

use std::fmt::{self, Display, Write as _};

use crate::font::{FAMILY, Font};

/// A number with at most two decimals.
struct Num(f64);

impl Display for Num {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = (self.0 * 100.0).round() as i64;
        let sign = if hundredths < 0 { "-" } else { "" };
        let (whole, rest) = (hundredths.abs() / 100, hundredths.abs() % 100);
        match rest {
            0 => write!(f, "{sign}{whole}"),
            r if r % 10 == 0 => write!(f, "{sign}{whole}.{}", r / 10),
            r => write!(f, "{sign}{whole}.{r:02}"),
        }
    }
}

/// Text as XML content or attribute; characters that XML forbids become U+FFFD.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\n' | '\t' | '\r' => f.write_char(' ')?,
                c if c < ' ' || c == '\u{fffe}' || c == '\u{ffff}' => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A rectangle in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rect {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

/// Which point of a text its position means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// One line of text; `y` is its baseline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text<'a> {
    pub x: f64,
    pub y: f64,
    pub anchor: Anchor,
    pub font: Font,
    pub fill: &'a str,
    pub content: &'a str,
    /// Reads upwards, turned around its position.
    pub upwards: bool,
}

impl<'a> Text<'a> {
    pub fn new(x: f64, y: f64, font: Font, content: &'a str) -> Self {
        Self { x, y, anchor: Anchor::Start, font, fill: INK, content, upwards: false }
    }

    pub fn anchored(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }

    pub fn filled(self, fill: &'a str) -> Self {
        Self { fill, ..self }
    }
}

/// Colour of text and axes.
pub(crate) const INK: &str = "#222222";
/// Colour of text of second rank.
pub(crate) const FAINT_INK: &str = "#555555";

/// A picture in the making.
pub(crate) struct Svg {
    body: String,
}

impl Svg {
    pub fn new() -> Self {
        Self { body: String::new() }
    }

    fn put(&mut self, text: fmt::Arguments<'_>) {
        self.body.write_fmt(text).expect("writing to a String does not fail");
    }

    /// A rectangle with further attributes; a tooltip if `title` is not empty.
    pub fn rect(&mut self, r: Rect, fill: &str, attributes: &str, title: &str) {
        let (x, y, w, h) = (Num(r.x), Num(r.y), Num(r.width), Num(r.height));
        let space = if attributes.is_empty() { "" } else { " " };
        self.put(format_args!(
            r#"<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="{fill}"{space}{attributes}"#
        ));
        if title.is_empty() {
            self.body.push_str("/>\n");
        } else {
            self.put(format_args!("><title>{}</title></rect>\n", Escaped(title)));
        }
    }

    /// A straight line.
    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), stroke: &str, attributes: &str) {
        let (x1, y1, x2, y2) = (Num(x1), Num(y1), Num(x2), Num(y2));
        self.put(format_args!(
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"{stroke}\" {attributes}/>\n"
        ));
    }

    /// An open line through points.
    pub fn polyline(&mut self, points: &[(f64, f64)], stroke: &str, attributes: &str) {
        self.put(format_args!("<polyline points=\""));
        for (i, &(x, y)) in points.iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            self.put(format_args!("{space}{},{}", Num(x), Num(y)));
        }
        self.put(format_args!("\" fill=\"none\" stroke=\"{stroke}\" {attributes}/>\n"));
    }

    /// A path whose points are moved by `(x, y)`.
    pub fn path_at(&mut self, (x, y): (f64, f64), d: &str, attributes: &str) {
        self.put(format_args!(
            "<path transform=\"translate({} {})\" d=\"{d}\" {attributes}/>\n",
            Num(x),
            Num(y)
        ));
    }

    /// A line of text. `textLength` holds its measured width, so that other fonts take no more room.
    pub fn text(&mut self, t: Text<'_>) {
        // As XML shows it.
        let content = t.content.split_whitespace().collect::<Vec<_>>().join(" ");
        if content.is_empty() {
            return;
        }
        let (x, y, size) = (Num(t.x), Num(t.y), Num(t.font.size));
        self.put(format_args!(r#"<text x="{x}" y="{y}" font-size="{size}" fill="{}""#, t.fill));
        match t.anchor {
            Anchor::Start => {}
            Anchor::Middle => self.body.push_str(r#" text-anchor="middle""#),
            Anchor::End => self.body.push_str(r#" text-anchor="end""#),
        }
        if t.font.bold {
            self.body.push_str(r#" font-weight="bold""#);
        }
        if t.upwards {
            self.put(format_args!(r#" transform="rotate(-90 {x} {y})""#));
        }
        let width = Num(t.font.width(&content));
        let content = Escaped(&content);
        self.put(format_args!(
            " textLength=\"{width}\" lengthAdjust=\"spacingAndGlyphs\">{content}</text>\n"
        ));
    }

    /// The whole document, on white. `defs` are its patterns.
    pub fn finish(self, width: f64, height: f64, title: &str, defs: &str) -> String {
        let (w, h) = (Num(width.ceil()), Num(height.ceil()));
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" \
             font-family=\"{FAMILY}\" role=\"img\">\n"
        );
        if !title.is_empty() {
            writeln!(out, "<title>{}</title>", Escaped(title)).expect("writing to a String does not fail");
        }
        if !defs.is_empty() {
            out.push_str("<defs>\n");
            out.push_str(defs);
            out.push_str("</defs>\n");
        }
        writeln!(out, "<rect width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>")
            .expect("writing to a String does not fail");
        out.push_str(&self.body);
        out.push_str("</svg>\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_two_decimals() {
        let cases =
            [(0.0, "0"), (-0.001, "0"), (1.5, "1.5"), (1.005, "1"), (-2.25, "-2.25"), (0.049, "0.05")];
        for (value, text) in cases {
            assert_eq!(Num(value).to_string(), text);
        }
    }

    #[test]
    fn text_is_escaped() {
        let mut svg = Svg::new();
        svg.text(Text::new(1.0, 2.0, Font::bold(10.0), "a<b & \"c\"\u{1}"));
        let document = svg.finish(10.0, 10.0, "<&>", "");
        let document = roxmltree::Document::parse(&document).unwrap();
        let text = |name| document.descendants().find(|n| n.has_tag_name(name)).unwrap().text();
        assert_eq!(text("text"), Some("a<b & \"c\"\u{fffd}"));
        assert_eq!(text("title"), Some("<&>"));
    }
}
