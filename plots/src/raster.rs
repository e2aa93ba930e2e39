//! SVG to PNG with the embedded fonts only.

use std::sync::Arc;

use resvg::{tiny_skia, usvg};

use crate::PlotError;
use crate::font;

/// The most pixels of a PNG: four bytes each, 1 GiB.
const MAX_PIXELS: f64 = 268_435_456.0;

fn options() -> usvg::Options<'static> {
    let mut fonts = usvg::fontdb::Database::new();
    fonts.load_font_data(font::REGULAR.to_vec());
    fonts.load_font_data(font::BOLD.to_vec());
    usvg::Options { fontdb: Arc::new(fonts), font_family: "DejaVu Sans".to_owned(), ..Default::default() }
}

/// Renders `svg` with `scale` pixels per SVG pixel.
pub(crate) fn png(svg: &str, scale: f32) -> Result<Vec<u8>, PlotError> {
    if !(scale.is_finite() && scale > 0.0) {
        return Err(PlotError::Scale { scale });
    }
    let tree = usvg::Tree::from_str(svg, &options()).map_err(|e| PlotError::Raster(e.to_string()))?;
    let pixels = |length: f32| (f64::from(length) * f64::from(scale)).round().max(1.0);
    let (width, height) = (pixels(tree.size().width()), pixels(tree.size().height()));
    if width * height > MAX_PIXELS {
        return Err(PlotError::TooLarge { width, height });
    }
    let mut pixmap =
        tiny_skia::Pixmap::new(width as u32, height as u32).ok_or(PlotError::TooLarge { width, height })?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(scale, scale), &mut pixmap.as_mut());
    pixmap.encode_png().map_err(|e| PlotError::Raster(e.to_string()))
}
