//! The explorer: a page served to this machine's browser, and the predictions it asks for.
//!
//! It serves its own assets and answers about set-ups; it reads no file, keeps no state and asks nobody. Work per
//! request is bounded before it starts ([`limits`]).

mod api;
mod assets;
mod coverage;
mod guard;
pub mod limits;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Router, middleware};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Serves the page at `address` until the process is interrupted; port 0 takes a free one.
///
/// # Errors
/// If the address cannot be listened on.
pub fn serve(address: IpAddr, port: u16) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the server")?;
    runtime.block_on(listen(SocketAddr::new(address, port)))
}

async fn listen(address: SocketAddr) -> Result<()> {
    let cannot = || format!("cannot listen on {address}; give another --port or --listen");
    let listener = TcpListener::bind(address).await.with_context(cannot)?;
    announce(listener.local_addr().with_context(cannot)?)?;
    axum::serve(listener, router()).await.context("the server stopped")
}

/// The address on standard output, so that a program can read it; everything else on standard error.
fn announce(address: SocketAddr) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "http://{address}/")?;
    out.flush()?;
    if !address.ip().is_loopback() {
        say!("warning: whoever reaches {address} can use this page; it has no password");
    }
    say!("stop with Ctrl-C");
    Ok(())
}

/// Everything that is served.
fn router() -> Router {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let simulations = Arc::new(Semaphore::new(workers));
    let api = Router::new()
        .route("/api/presets", get(api::presets))
        .route("/api/preset/{name}", get(api::preset))
        .route("/api/simulate", post(api::simulate))
        .with_state(simulations)
        .layer(DefaultBodyLimit::max(limits::BODY_BYTES));
    assets::routes(api)
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is nothing at this address\n") })
        .layer(middleware::from_fn(|request, next| guard::timed(Duration::from_secs(20), request, next)))
        .layer(middleware::from_fn(guard::own_host))
        .layer(middleware::from_fn(guard::headers))
}
