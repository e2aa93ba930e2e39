//! Where Prometheus metrics of a run go: into a file, or to whoever asks an address for them.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use ringlab_runtime::metrics;
use tokio::runtime::Runtime;

use crate::args::MetricsArgs;
use crate::output;

/// Where metrics go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Written when the run ends, whole.
    File(PathBuf),
    /// Served from the start of the run on.
    Address(SocketAddr),
}

impl Target {
    /// What the arguments ask for, checked as far as it can be before the run.
    ///
    /// # Errors
    /// A file that cannot be written; an address that other machines reach and that was not allowed.
    pub fn of(args: &MetricsArgs) -> Result<Option<Self>> {
        let Some(text) = &args.metrics else { return Ok(None) };
        let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        if let Ok(address) = local.as_ref().unwrap_or(text).parse::<SocketAddr>() {
            if !address.ip().is_loopback() && !args.metrics_public {
                bail!(
                    "other machines reach {address}, and metrics have no password; use 127.0.0.1:{} or add \
                     --metrics-public",
                    address.port()
                );
            }
            return Ok(Some(Self::Address(address)));
        }
        if args.hold || args.metrics_public {
            bail!(
                "{text:?} is no address, such as 127.0.0.1:9464; --hold and --metrics-public are for addresses"
            );
        }
        if is_nearly_an_address(text) {
            bail!(
                "{text:?} is no address, such as 127.0.0.1:9464: an IP address or localhost, and a port up to \
                 65535; a file of that name is ./{text}"
            );
        }
        let path = PathBuf::from(text);
        output::check_target(&path)?;
        Ok(Some(Self::File(path)))
    }
}

/// What somebody writes who wants to serve, not a file's name: an IP address, or anything before a colon and a number.
fn is_nearly_an_address(text: &str) -> bool {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.contains('/')).map(|(_, port)| port);
    text.parse::<IpAddr>().is_ok() || port.is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

/// What receives the metrics of a run as it goes on.
pub enum Scrape {
    /// Kept for the end.
    File(PathBuf, String),
    /// Served.
    Server(Server),
}

impl Scrape {
    /// Starts to serve, if the target is an address.
    ///
    /// # Errors
    /// An address that cannot be listened on.
    pub fn start(target: Target) -> Result<Self> {
        Ok(match target {
            Target::File(path) => Self::File(path, String::new()),
            Target::Address(address) => {
                let server = Server::start(address)?;
                say!("metrics: http://{}/metrics", server.address);
                Self::Server(server)
            }
        })
    }

    /// Puts `text` in the place of what was there.
    pub fn update(&mut self, text: String) {
        match self {
            Self::File(_, kept) => *kept = text,
            Self::Server(server) => server.update(text),
        }
    }

    /// Writes the file; a server goes on until it is dropped.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn finish(&self) -> Result<()> {
        match self {
            Self::File(path, text) => output::write_file(path, text.as_bytes()),
            Self::Server(_) => Ok(()),
        }
    }
}

/// Answers `GET /metrics` until it is dropped.
pub struct Server {
    address: SocketAddr,
    text: Arc<RwLock<String>>,
    runtime: Option<Runtime>,
}

impl Server {
    fn start(address: SocketAddr) -> Result<Self> {
        let cannot = || format!("cannot serve metrics on {address}; give --metrics another address");
        let listener = TcpListener::bind(address).with_context(cannot)?;
        listener.set_nonblocking(true).with_context(cannot)?;
        let address = listener.local_addr().with_context(cannot)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start the metrics' server")?;
        let text = Arc::new(RwLock::new(String::new()));
        let router = Router::new().route("/metrics", get(answer)).with_state(Arc::clone(&text));
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).with_context(cannot)?
        };
        runtime.spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, text, runtime: Some(runtime) })
    }

    fn update(&self, text: String) {
        // A panic while the lock was held leaves text that is whole all the same.
        *self.text.write().unwrap_or_else(std::sync::PoisonError::into_inner) = text;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn answer(State(text): State<Arc<RwLock<String>>>) -> impl IntoResponse {
    let text = text.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn target(metrics: &str, metrics_public: bool, hold: bool) -> Result<Option<Target>> {
        Target::of(&MetricsArgs { metrics: Some(metrics.into()), metrics_public, hold })
    }

    fn request(address: SocketAddr, line: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_get_is_answered_with_the_latest_text() {
        let server = Server::start("127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(request(server.address, "GET /metrics").ends_with("\r\n\r\n"), "nothing yet");
        server.update("a 1\n".into());
        server.update("a 2\n".into());
        let answer = request(server.address, "GET /metrics").to_lowercase();
        assert!(answer.starts_with("http/1.1 200 ok\r\n"), "{answer}");
        assert!(answer.contains("content-type: text/plain; version=0.0.4\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\na 2\n"), "{answer}");
        assert!(request(server.address, "GET /").starts_with("HTTP/1.1 404"));
        assert!(request(server.address, "POST /metrics").starts_with("HTTP/1.1 405"));
        let address = server.address;
        let taken = Server::start(address).err().unwrap();
        assert!(format!("{taken:#}").contains("another address"), "{taken:#}");
    }

    #[test]
    fn only_loopback_unless_told_otherwise() {
        let address = |text: &str| Some(Target::Address(text.parse().unwrap()));
        assert_eq!(target("127.0.0.1:9464", false, true).unwrap(), address("127.0.0.1:9464"));
        assert_eq!(target("[::1]:9464", false, false).unwrap(), address("[::1]:9464"));
        assert_eq!(target("localhost:80", false, false).unwrap(), address("127.0.0.1:80"));
        let refused = target("0.0.0.0:9464", false, false).unwrap_err().to_string();
        assert!(refused.contains("--metrics-public") && refused.contains("127.0.0.1:9464"), "{refused}");
        assert_eq!(target("0.0.0.0:9464", true, false).unwrap(), address("0.0.0.0:9464"));
        assert_eq!(target("run.prom", false, false).unwrap(), Some(Target::File("run.prom".into())));
        assert!(target("run.prom", false, true).unwrap_err().to_string().contains("no address"));
        for typo in ["127.0.0.1", "127.0.0.1:99999", "example.com:80", ":9464", "localhost:", "::1"] {
            let refused = target(typo, false, false).unwrap_err().to_string();
            assert!(
                refused.contains("127.0.0.1:9464") && refused.contains(&format!("./{typo}")),
                "{refused}"
            );
        }
        assert_eq!(target("./a:80", false, false).unwrap(), Some(Target::File("./a:80".into())));
        assert!(target("no/such/folder/run.prom", false, false).is_err());
    }
}
