//! What is served, to whom, and with which headers.

use crate::server::Server;

#[test]
fn the_page_and_its_parts_come_from_here_and_nothing_else_may() {
    let server = Server::start();
    let page = server.get("/");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-type: text/html"));
    assert!(page.head.contains("content-security-policy: default-src 'none'; script-src 'self'"));
    assert!(
        page.head.contains("frame-ancestors 'none'") && page.head.contains("x-content-type-options: nosniff")
    );
    assert!(!page.head.contains("access-control-allow-origin"));
    for foreign in ["http:", "https:", "<style", "style=", "onclick", "javascript:"] {
        assert!(!page.body.contains(foreign), "{foreign}");
    }
    let named = page.body.split(['"']).filter(|w| [".js", ".css", ".svg"].iter().any(|e| w.ends_with(e)));
    let mut parts: Vec<String> = named.map(str::to_owned).collect();
    assert!(parts.len() >= 4, "{parts:?}");
    let mut seen = Vec::new();
    while let Some(part) = parts.pop() {
        let response = server.get(&format!("/{part}"));
        assert_eq!(response.status, 200, "{part}");
        let kind = match part.rsplit('.').next() {
            Some("js") => "text/javascript",
            Some("css") => "text/css",
            _ => "image/svg+xml",
        };
        assert!(response.head.contains(kind), "{part}: {}", response.head);
        for line in response.body.lines().filter(|l| l.starts_with("import ")) {
            let name = line.split('"').nth(1).unwrap().trim_start_matches("./").to_owned();
            if !seen.contains(&name) {
                seen.push(name.clone());
                parts.push(name);
            }
        }
    }
    assert!(seen.len() > 8, "{seen:?}");
}

#[test]
fn there_is_nothing_but_the_page() {
    let server = Server::start();
    let absent = [
        "/nothing",
        "/index.html/",
        "/../Cargo.toml",
        "/%2e%2e/Cargo.toml",
        "/etc/passwd",
        "/api",
        "//app.js",
    ];
    for path in absent {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    assert_eq!(server.get("/api/preset/no-such").status, 404);
    assert_eq!(server.get("/api/preset/..%2f..%2fCargo.toml").status, 404);
    assert!(server.get("/api/preset/dgx-h100").body.contains("[fabric.copy]"));
    assert_eq!(server.get("/api/simulate").status, 405);
    assert_eq!(server.post("/", "text/plain", "x").status, 405);
    let host = &server.address;
    for method in ["PUT", "DELETE", "PATCH"] {
        let request = format!("{method} /api/presets HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(server.raw(request.as_bytes()).status, 405, "{method}");
    }
}

#[test]
fn a_name_pointed_at_this_machine_is_refused() {
    let server = Server::start();
    let port = server.address.rsplit(':').next().unwrap();
    let status = |hosts: &[String]| {
        let lines: String = hosts.iter().flat_map(|h| ["Host: ", h, "\r\n"]).collect();
        server.raw(format!("GET /api/presets HTTP/1.1\r\n{lines}Connection: close\r\n\r\n").as_bytes()).status
    };
    assert_eq!(status(&[format!("127.0.0.1:{port}")]), 200);
    assert_eq!(status(&[format!("localhost:{port}")]), 200);
    assert_eq!(status(&["LOCALHOST".into()]), 200);
    assert_eq!(status(&[format!("[::1]:{port}")]), 200);
    assert_eq!(status(&[format!("rebound.example:{port}")]), 403);
    assert_eq!(status(&[format!("127.0.0.1.rebound.example:{port}")]), 403);
    assert_eq!(status(&[]), 400);
    assert_eq!(status(&["localhost".into(), "rebound.example".into()]), 400);
}

#[test]
fn a_foreign_form_cannot_ask() {
    let server = Server::start();
    let question = "{\"run\":{}}";
    assert_eq!(server.post("/api/simulate", "application/json", question).status, 200);
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        assert_eq!(server.post("/api/simulate", kind, question).status, 415, "{kind}");
    }
}
