//! The admin listener: metrics, health and a status page, for the operator alone.
//!
//! It listens on a loopback address or on a Unix socket of mode 0600, runs on the control thread and
//! only reads: what it shows comes from an [`AdminSource`]. Each request has its connection to itself;
//! the header, the whole exchange and the number of connections are bounded, so that nobody who can
//! reach it can make it hold anything for long.

use crate::config::AdminAddr;
use crate::metrics::render::CONTENT_TYPE as METRICS_TYPE;
use http_body_util::Full;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::fs::Mode;
use std::convert::Infallible;
use std::fmt::{self, Write as _};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{LocalSet, spawn_local};

/// From accept to the end of the request's header.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// From accept to the last byte of the answer.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(15);

/// Connections at once; the next wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 64;

/// Pause after an accept that failed (no file descriptor left), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What the admin listener shows.
pub trait AdminSource {
    /// All metrics as Prometheus text.
    fn metrics(&self) -> String;
    /// Facts for the status page.
    fn status(&self) -> Status;
    /// Whether new connections are accepted.
    fn readiness(&self) -> Readiness;
}

/// Whether new connections are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// No longer: sessions are left to end.
    Draining,
    /// Yes.
    Ready,
    /// Not yet.
    Starting,
}

impl Readiness {
    /// The word that `/readyz` answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Ready => "ready",
            Self::Starting => "starting",
        }
    }
}

/// Facts for the status page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Time since the process started.
    pub uptime: Duration,
    /// Whether new connections are accepted.
    pub readiness: Readiness,
    /// Requests of HTTP since the start and those of them that were answered with 5xx, if there were any.
    pub requests: Option<(u64, u64)>,
    /// All listeners, in the order of the settings.
    pub listeners: Vec<ListenerStatus>,
}

/// One listener on the status page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerStatus {
    /// Its name, as in the metrics.
    pub name: String,
    /// Scheme and address, as `tls://0.0.0.0:8443`.
    pub address: String,
    /// Name of its upstream.
    pub upstream: String,
    /// Connections held now.
    pub connections: u64,
    /// Connections accepted since the start.
    pub accepted: u64,
}

/// A bound admin listener. Dropping it removes its Unix socket file.
#[derive(Debug)]
pub struct AdminServer {
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        _file: SocketFile,
    },
}

impl AdminServer {
    /// Binds `addr`. A Unix socket file that a dead process left is replaced; one that somebody
    /// listens on, or a file that is no socket, is left alone. To be called within a tokio runtime.
    ///
    /// # Errors
    /// When the address cannot be bound; the message names it and the way out.
    pub fn bind(addr: &AdminAddr) -> io::Result<Self> {
        let socket = match addr {
            AdminAddr::Tcp(addr) => std::net::TcpListener::bind(addr)
                .and_then(|listener| {
                    listener.set_nonblocking(true)?;
                    TcpListener::from_std(listener)
                })
                .map(Socket::Tcp)
                .map_err(|error| {
                    let way_out = if error.kind() == io::ErrorKind::AddrInUse {
                        "stop the program that has it (ss -ltnp shows which), or choose another port"
                    } else {
                        "choose a loopback address and a free port from 1024 on"
                    };
                    explain(&addr.to_string(), &error, way_out)
                }),
            AdminAddr::Unix(path) => bind_unix(path).map_err(|error| {
                let shown = format!("unix:{}", path.display());
                explain(
                    &shown,
                    &error,
                    "choose another path in a folder that this process may write to",
                )
            }),
        }?;
        Ok(Self { socket })
    }

    /// The TCP address that it listens on; `None` for a Unix socket.
    pub fn tcp_addr(&self) -> Option<std::net::SocketAddr> {
        match &self.socket {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix { .. } => None,
        }
    }

    /// Answers requests for ever; drop the future to stop, which ends what is in flight.
    pub async fn serve(self, source: Rc<dyn AdminSource>) {
        // Its own set of local tasks: they end with this future and need nothing from the caller.
        LocalSet::new().run_until(self.accept(source)).await;
    }

    async fn accept(self, source: Rc<dyn AdminSource>) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        // The semaphore is never closed, so this ends only with the future.
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let source = Rc::clone(&source);
            let accepted = match &self.socket {
                Socket::Tcp(listener) => listener
                    .accept()
                    .await
                    .map(|(io, _)| spawn_local(exchange(io, source, place))),
                Socket::Unix { listener, .. } => listener
                    .accept()
                    .await
                    .map(|(io, _)| spawn_local(exchange(io, source, place))),
            };
            if let Err(error) = accepted {
                tracing::warn!(%error, "admin listener cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves the one request of a connection, then gives back its place.
async fn exchange(
    io: impl AsyncRead + AsyncWrite + Unpin + 'static,
    source: Rc<dyn AdminSource>,
    _place: OwnedSemaphorePermit,
) {
    let answering = service_fn(move |request| {
        let response = answer(&request, &*source);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(io), answering);
    match tokio::time::timeout(EXCHANGE_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "admin request failed"),
        Err(_) => tracing::debug!("admin request took too long"),
    }
}

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

fn answer(request: &Request<Incoming>, source: &dyn AdminSource) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
        refusal
            .headers_mut()
            .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    if !request.body().is_end_stream() {
        return reply(
            StatusCode::PAYLOAD_TOO_LARGE,
            TEXT,
            "a request here has no body\n",
        );
    }
    // A HEAD answer goes through here like any other; hyper leaves its body away.
    match request.uri().path() {
        "/" => reply(StatusCode::OK, HTML, page(&source.status())),
        "/healthz" => reply(StatusCode::OK, TEXT, "ok\n"),
        "/metrics" => reply(StatusCode::OK, METRICS_TYPE, source.metrics()),
        "/readyz" => {
            let readiness = source.readiness();
            let code = match readiness {
                Readiness::Ready => StatusCode::OK,
                Readiness::Draining | Readiness::Starting => StatusCode::SERVICE_UNAVAILABLE,
            };
            reply(code, TEXT, format!("{}\n", readiness.as_str()))
        }
        _ => reply(
            StatusCode::NOT_FOUND,
            TEXT,
            "not found; try /, /metrics, /healthz, /readyz\n",
        ),
    }
}

fn reply(
    code: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        ),
    );
    response
}

/// The status page: no script, nothing loaded from elsewhere.
fn page(status: &Status) -> String {
    let mut rows = String::new();
    for listener in &status.listeners {
        let _ = writeln!(
            rows,
            "<tr><td>{}<td><code>{}</code><td>{}<td class=\"n\">{}<td class=\"n\">{}",
            Escaped(&listener.name),
            Escaped(&listener.address),
            Escaped(&listener.upstream),
            listener.connections,
            listener.accepted
        );
    }
    let values = [
        ("version", Escaped(&status.version).to_string()),
        ("uptime", uptime(status.uptime)),
        ("readiness", status.readiness.as_str().to_owned()),
        (
            "connections",
            status
                .listeners
                .iter()
                .map(|l| l.connections)
                .sum::<u64>()
                .to_string(),
        ),
        ("requests", requests(status.requests)),
        ("rows", rows),
    ];
    // One place after the other and never back, so that a value cannot be taken for a place.
    let mut page = String::with_capacity(PAGE.len() + 1024);
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        page.push_str(before);
        let Some((name, after)) = after.split_once("}}") else {
            break;
        };
        if let Some((_, value)) = values.iter().find(|(place, _)| *place == name) {
            page.push_str(value);
        }
        rest = after;
    }
    page.push_str(rest);
    page
}

/// A fact of its own, where there is HTTP.
fn requests(counts: Option<(u64, u64)>) -> String {
    let fact = |text| format!("    <div><dt>HTTP requests</dt><dd>{text}</dd></div>\n");
    match counts {
        None => String::new(),
        Some((all, 0)) => fact(all.to_string()),
        Some((all, failed)) => fact(format!("{all} ({failed} failed)")),
    }
}

const PAGE: &str = include_str!("admin.html");

/// `3 d 4 h`, `4 h 12 min`, `12 min 5 s`, `5 s`: the two units that matter.
fn uptime(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        (_, _, _) => format!("{days} d {hours} h"),
    }
}

/// Text put safely into HTML.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

fn explain(shown: &str, error: &io::Error, way_out: &str) -> io::Error {
    // The caller names the flag.
    let text = error.to_string();
    let problem = text
        .split_once(" (os error")
        .map_or(&*text, |(text, _)| text);
    io::Error::new(error.kind(), format!("{shown}: {problem}; {way_out}"))
}

fn bind_unix(path: &Path) -> io::Result<Socket> {
    remove_stale(path)?;
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    // Linux gives the file the mode of the socket, so no moment is left in which others may connect.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    let file = SocketFile::new(path)?;
    socket.listen(CONNECTIONS_MAX as i32)?;
    socket.set_nonblocking(true)?;
    let listener = UnixListener::from_std(socket.into())?;
    Ok(Socket::Unix {
        listener,
        _file: file,
    })
}

/// Removes the socket file that a dead process left at `path`.
fn remove_stale(path: &Path) -> io::Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !kind.is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is not a socket is there already",
        ));
    }
    match UnixStream::connect(path) {
        // Nobody listens: its process is gone.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another process listens there",
        )),
    }
}

/// A socket file of ours, removed on drop if it is still the same one.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            inode: (metadata.dev(), metadata.ino()),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A newer process may have put its own there.
        let same = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.inode);
        if same {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::os::unix::fs::PermissionsExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    struct Fixed(Cell<Readiness>);

    impl AdminSource for Fixed {
        fn metrics(&self) -> String {
            "vestibule_ready 1\n".into()
        }
        fn status(&self) -> Status {
            Status {
                version: "1.2.3".into(),
                uptime: Duration::from_secs(3 * 86_400 + 4 * 3600),
                readiness: self.0.get(),
                requests: Some((6789, 21)),
                listeners: vec![ListenerStatus {
                    name: "<b>&\"{{version}}".into(),
                    address: "tls://127.0.0.1:8443".into(),
                    upstream: "chat".into(),
                    connections: 12,
                    accepted: 345,
                }],
            }
        }
        fn readiness(&self) -> Readiness {
            self.0.get()
        }
    }

    fn run<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(future)
    }

    /// Runs `client` against a server on a loopback port.
    fn with_server<C, F>(client: C) -> F::Output
    where
        C: FnOnce(std::net::SocketAddr, Rc<Fixed>) -> F,
        F: Future,
    {
        run(async {
            let server =
                AdminServer::bind(&AdminAddr::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
            let addr = server.tcp_addr().unwrap();
            let source = Rc::new(Fixed(Cell::new(Readiness::Ready)));
            tokio::select! {
                () = server.serve(Rc::clone(&source) as Rc<dyn AdminSource>) => unreachable!(),
                output = client(addr, source) => output,
            }
        })
    }

    async fn talk(addr: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn get(addr: std::net::SocketAddr, path: &str) -> String {
        talk(addr, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
    }

    #[test]
    fn metrics_and_health_answer() {
        with_server(|addr, _| async move {
            let metrics = get(addr, "/metrics").await;
            assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
            assert!(
                metrics.contains("content-type: text/plain; version=0.0.4"),
                "{metrics}"
            );
            assert!(
                metrics.ends_with("\r\n\r\nvestibule_ready 1\n"),
                "{metrics}"
            );
            let health = get(addr, "/healthz?from=probe").await;
            assert!(health.starts_with("HTTP/1.1 200 OK\r\n") && health.ends_with("\r\n\r\nok\n"));
        });
    }

    #[test]
    fn readiness_follows_the_source() {
        with_server(|addr, source| async move {
            for (readiness, code) in [
                (Readiness::Starting, 503),
                (Readiness::Ready, 200),
                (Readiness::Draining, 503),
            ] {
                source.0.set(readiness);
                let answer = get(addr, "/readyz").await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
                assert!(
                    answer.ends_with(&format!("\r\n\r\n{}\n", readiness.as_str())),
                    "{answer}"
                );
            }
        });
    }

    #[test]
    fn head_has_the_length_and_no_body() {
        with_server(|addr, _| async move {
            let answer = talk(addr, "HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
            assert!(answer.contains("content-length: 3\r\n"), "{answer}");
            assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        });
    }

    #[test]
    fn other_paths_methods_and_bodies_are_refused() {
        with_server(|addr, _| async move {
            assert!(get(addr, "/etc/passwd").await.starts_with("HTTP/1.1 404 "));
            let post = talk(
                addr,
                "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
            )
            .await;
            assert!(
                post.starts_with("HTTP/1.1 405 ") && post.contains("allow: GET, HEAD\r\n"),
                "{post}"
            );
            let body = talk(
                addr,
                "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
            )
            .await;
            assert!(body.starts_with("HTTP/1.1 413 "), "{body}");
            assert!(
                talk(addr, "hello\r\n\r\n")
                    .await
                    .starts_with("HTTP/1.1 400 ")
            );
        });
    }

    #[test]
    fn the_status_page_shows_the_facts_escaped() {
        with_server(|addr, _| async move {
            let page = get(addr, "/").await;
            for part in [
                "1.2.3",
                "3 d 4 h",
                "ready",
                "tls://127.0.0.1:8443",
                ">345",
                ">6789 (21 failed)<",
                "/metrics",
            ] {
                assert!(page.contains(part), "{part}");
            }
            assert!(
                page.contains("&lt;b&gt;&amp;&quot;{{version}}"),
                "a value is text, not a place"
            );
            assert!(!page.contains("<script") && !page.contains("<b>"));
        });
    }

    #[test]
    fn connections_over_the_bound_wait_for_a_place() {
        with_server(|addr, _| async move {
            let mut silent = Vec::new();
            for _ in 0..CONNECTIONS_MAX {
                silent.push(TcpStream::connect(addr).await.unwrap());
            }
            let mut late = TcpStream::connect(addr).await.unwrap();
            late.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                .await
                .unwrap();
            // All that came before hold their places; one leaves.
            drop(silent.pop());
            let mut answer = String::new();
            late.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("ok\n"));
        });
    }

    #[test]
    fn a_silent_client_is_closed_at_the_header_deadline() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(LocalSet::new().run_until(async {
            let (mut near, far) = tokio::io::duplex(64);
            let place = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
            let source = Rc::new(Fixed(Cell::new(Readiness::Ready)));
            let start = tokio::time::Instant::now();
            spawn_local(exchange(far, source, place));
            near.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
            let mut answer = Vec::new();
            near.read_to_end(&mut answer).await.unwrap();
            assert!(start.elapsed() >= HEADER_TIMEOUT);
            assert!(start.elapsed() < HEADER_TIMEOUT + Duration::from_secs(1));
        }));
    }

    #[test]
    fn a_client_that_does_not_read_is_closed_at_the_exchange_deadline() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (mut near, far) = tokio::io::duplex(64);
            let places = Arc::new(Semaphore::new(1));
            let place = Arc::clone(&places).acquire_owned().await.unwrap();
            let source = Rc::new(Fixed(Cell::new(Readiness::Ready)));
            near.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                .await
                .unwrap();
            let start = tokio::time::Instant::now();
            exchange(far, source, place).await;
            assert_eq!(start.elapsed().as_secs(), EXCHANGE_TIMEOUT.as_secs());
            assert_eq!(places.available_permits(), 1);
        });
    }

    /// A folder of its own below the system's temporary one, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("vestibule-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_unix_socket_is_for_its_owner_alone_and_gone_afterwards() {
        let scratch = Scratch::new("admin-mode");
        let path = scratch.0.join("admin.sock");
        run(async {
            let server = AdminServer::bind(&AdminAddr::Unix(path.clone())).unwrap();
            assert_eq!(
                fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777,
                0o600
            );
            let source = Rc::new(Fixed(Cell::new(Readiness::Ready)));
            tokio::select! {
                () = server.serve(source) => unreachable!(),
                answer = async {
                    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
                    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
                    let mut answer = String::new();
                    stream.read_to_string(&mut answer).await.unwrap();
                    answer
                } => assert!(answer.ends_with("ready\n")),
            }
        });
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_socket_file_is_replaced_and_a_live_one_is_a_fault() {
        let scratch = Scratch::new("admin-stale");
        let path = scratch.0.join("admin.sock");
        run(async {
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            assert!(path.exists(), "the standard library leaves the file");
            let server = AdminServer::bind(&AdminAddr::Unix(path.clone())).unwrap();
            let error = AdminServer::bind(&AdminAddr::Unix(path.clone())).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            assert!(error.to_string().starts_with("unix:"), "{error}");
            assert!(path.exists(), "the live one stays");
            drop(server);
        });
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let scratch = Scratch::new("admin-file");
        let path = scratch.0.join("precious");
        fs::write(&path, "data").unwrap();
        run(async {
            let error = AdminServer::bind(&AdminAddr::Unix(path.clone())).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        });
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }

    #[test]
    fn a_port_in_use_is_a_fault_that_says_how_to_find_who_has_it() {
        run(async {
            let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = taken.local_addr().unwrap();
            let error = AdminServer::bind(&AdminAddr::Tcp(addr)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            assert_eq!(
                error.to_string(),
                format!(
                    "{addr}: Address already in use; stop the program that has it (ss -ltnp shows which), or choose another port"
                )
            );
        });
    }

    #[test]
    fn uptime_shows_the_two_units_that_matter() {
        let shown = |seconds| uptime(Duration::from_secs(seconds));
        assert_eq!(shown(5), "5 s");
        assert_eq!(shown(725), "12 min 5 s");
        assert_eq!(shown(4 * 3600 + 60), "4 h 1 min");
        assert_eq!(shown(86_400), "1 d 0 h");
    }
}
