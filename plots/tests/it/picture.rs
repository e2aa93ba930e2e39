//! Reads an SVG back: where its texts and rectangles are.

use resvg::usvg;
use roxmltree::{Document, Node};
use std::path::Path;
use std::sync::Arc;

/// A box in pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    pub x0: f64,
    pub y0: f64,
    pub x1: f64,
    pub y1: f64,
    /// Text, or the fill of a rectangle.
    pub what: String,
}

impl Placed {
    pub fn overlaps(&self, other: &Self) -> bool {
        self.x0 < other.x1 && other.x0 < self.x1 && self.y0 < other.y1 && other.y0 < self.y1
    }
}

pub fn number(node: &Node, name: &str) -> f64 {
    node.attribute(name).map_or(0.0, |v| v.parse().unwrap())
}

/// Width and height of the view box.
pub fn size(document: &Document) -> (f64, f64) {
    let view: Vec<f64> = document
        .root_element()
        .attribute("viewBox")
        .unwrap()
        .split(' ')
        .map(|v| v.parse().unwrap())
        .collect();
    assert_eq!(view[..2], [0.0, 0.0]);
    (view[2], view[3])
}

/// All rectangles with a position.
pub fn rects(document: &Document) -> Vec<Placed> {
    let rects = document.root_element().children().filter(|n| n.has_tag_name("rect") && n.has_attribute("x"));
    rects
        .map(|n| {
            let (x0, y0) = (number(&n, "x"), number(&n, "y"));
            let (x1, y1) = (x0 + number(&n, "width"), y0 + number(&n, "height"));
            Placed { x0, y0, x1, y1, what: n.attribute("fill").unwrap().to_owned() }
        })
        .collect()
}

/// All texts with the boxes of their glyphs, as the embedded fonts set them without the widths that the SVG claims.
pub fn texts(svg: &str) -> Vec<Placed> {
    let mut fonts = usvg::fontdb::Database::new();
    for name in ["DejaVuSans-latin.ttf", "DejaVuSans-Bold-latin.ttf"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets").join(name);
        fonts.load_font_data(std::fs::read(path).unwrap());
    }
    let options = usvg::Options { fontdb: Arc::new(fonts), ..Default::default() };
    let tree = usvg::Tree::from_str(&svg.replace("textLength", "data-length"), &options).unwrap();
    let mut placed = Vec::new();
    collect(tree.root(), &mut placed);
    placed
}

fn collect(group: &usvg::Group, placed: &mut Vec<Placed>) {
    for node in group.children() {
        match node {
            usvg::Node::Group(group) => collect(group, placed),
            usvg::Node::Text(text) => {
                let b = text.abs_bounding_box();
                let [x0, y0, x1, y1] = [b.left(), b.top(), b.right(), b.bottom()].map(f64::from);
                let what = text.chunks().iter().map(usvg::TextChunk::text).collect();
                placed.push(Placed { x0, y0, x1, y1, what });
            }
            _ => {}
        }
    }
}

/// Checks what holds for every picture; returns its texts.
pub fn check(svg: &str) -> Vec<Placed> {
    let document = Document::parse(svg).unwrap();
    let (width, height) = size(&document);
    let texts = texts(svg);
    let nodes: Vec<Node> = document.descendants().filter(|n| n.has_tag_name("text")).collect();
    assert_eq!(texts.len(), nodes.len());
    for (t, node) in texts.iter().zip(&nodes) {
        assert_eq!(Some(t.what.as_str()), node.text());
        let along = if node.has_attribute("transform") { t.y1 - t.y0 } else { t.x1 - t.x0 };
        let (claimed, size) = (number(node, "textLength"), number(node, "font-size"));
        assert!((-0.1..0.35).contains(&((claimed - along) / size)), "{t:?} claims {claimed}");
    }
    for t in &texts {
        assert!(t.x0 >= 0.0 && t.y0 >= 0.0 && t.x1 <= width && t.y1 <= height, "{t:?} in {width} x {height}");
    }
    for r in rects(&document) {
        assert!(r.x0 >= 0.0 && r.y0 >= 0.0 && r.x1 <= width && r.y1 <= height, "{r:?} in {width} x {height}");
    }
    for (i, a) in texts.iter().enumerate() {
        for b in &texts[i + 1..] {
            assert!(!a.overlaps(b), "{a:?} and {b:?}");
        }
    }
    texts
}

/// Keeps a PNG under the build's temporary files for people to look at; returns its size in pixels.
pub fn keep(name: &str, png: &[u8]) -> (u32, u32) {
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), png).unwrap();
    let reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    (reader.info().width, reader.info().height)
}

/// Width and pixels of a PNG, as RGB.
pub fn pixels(png: &[u8]) -> (usize, Vec<[u8; 3]>) {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgba, png::BitDepth::Eight));
    (info.width as usize, bytes.chunks_exact(4).map(|p| [p[0], p[1], p[2]]).collect())
}
