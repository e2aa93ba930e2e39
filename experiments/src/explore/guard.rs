//! What every request goes through: whom it was meant for, what a browser may do with the answer, how long it takes.

use std::net::IpAddr;
use std::time::Duration;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Nothing but the page's own parts: no foreign script, frame, form or connection.
const CONTENT_SECURITY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                                img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Adds the headers that keep a browser from doing more than showing the page.
pub async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Refuses requests for another name: a foreign page whose name was pointed at this machine (DNS rebinding). An IP
/// address cannot be rebound.
pub async fn own_host(request: Request, next: Next) -> Response {
    match host(request.headers()) {
        Some(host) if is_own(&host) => next.run(request).await,
        Some(host) => {
            let text = format!("this page is served as localhost or by IP address, not as {host:?}\n");
            (StatusCode::FORBIDDEN, text).into_response()
        }
        None => (StatusCode::BAD_REQUEST, "the request has no usable Host header\n").into_response(),
    }
}

fn host(headers: &HeaderMap) -> Option<String> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (only, None) = (hosts.next()?, hosts.next()) else { return None };
    let authority: Authority = only.to_str().ok()?.parse().ok()?;
    Some(authority.host().to_ascii_lowercase())
}

fn is_own(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    host == "localhost" || address.parse::<IpAddr>().is_ok()
}

/// Ends a request that takes longer than `limit`, its body included.
pub async fn timed(limit: Duration, request: Request, next: Next) -> Response {
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let text = format!("this took longer than {} s; ask for less\n", limit.as_secs());
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_cannot_be_rebound() {
        for own in ["localhost", "127.0.0.1", "[::1]", "192.168.7.4"] {
            assert!(is_own(own), "{own}");
        }
        for foreign in ["example.org", "localhost.example.org", "127.0.0.1.example.org", "", "[::1"] {
            assert!(!is_own(foreign), "{foreign}");
        }
    }
}
