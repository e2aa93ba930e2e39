//! The page's parts, which ship inside the binary.

use axum::Router;
use axum::http::header;
use axum::routing::get;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// Path, type and content.
type Asset = (&'static str, &'static str, &'static str);

macro_rules! assets {
    ($($kind:ident: $($name:literal),*;)*) => {
        &[$($((concat!("/", $name), $kind, include_str!(concat!("../../web/", $name))),)*)*]
    };
}

const ASSETS: &[Asset] = assets![
    CSS: "base.css", "explore.css";
    SCRIPT: "api.js", "app.js", "canvas.js", "controls.js", "detail.js", "format.js", "matrix.js", "palette.js",
        "ring.js", "state.js", "steps.js", "summary.js", "timeline.js";
    IMAGE: "icon.svg";
];

const PAGE: &str = include_str!("../../web/index.html");

/// `router` with the page.
pub fn routes(router: Router) -> Router {
    let page = get(|| async { ([(header::CONTENT_TYPE, HTML)], PAGE) });
    ASSETS.iter().fold(router.route("/", page), |router, &(path, kind, text)| {
        router.route(path, get(move || async move { ([(header::CONTENT_TYPE, kind)], text) }))
    })
}
