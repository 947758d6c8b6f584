//! Connecting to a backend of an upstream.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpSocket, UnixStream};
use tokio::time::timeout;

use crate::endpoint::dialogue::{Dialogue, DialogueError};
use crate::endpoint::secure::{Rest, SecureError, secure, write_all};
use crate::endpoint::{Endpoint, Socket};
use crate::metrics::cells::BackendCells;
use crate::pool::Magazine;
use crate::sys::socket::{Options, for_connect};
use crate::tls::handshake::Handshake;

use super::{Pick, Target, Upstream, Wanted};

/// Most backends of one upstream that one connection tries.
pub const ATTEMPTS_MAX: usize = 64;

/// How long to wait for a place in a Unix socket's accept queue before the next look, at first and at most.
const UNIX_REST: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// How to connect.
#[derive(Clone, Copy, Debug)]
pub struct DialTerms {
    /// Socket settings of the back.
    pub options: Options,
    /// For one attempt on one backend, all its addresses and its TLS handshake included. Zero: no limit of ours.
    pub timeout: Duration,
}

/// A connected backend.
pub struct Dialed {
    /// Its endpoint.
    pub endpoint: Endpoint,
    /// Bytes that came behind its TLS handshake.
    pub rest: Rest,
    /// Which backend; keep it as long as the connection.
    pub pick: Pick,
}

/// Why one attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The connection could not be made.
    #[error("connect: {0}")]
    Connect(io::Error),
    /// It took too long.
    #[error("no connection in time")]
    Timeout,
    /// The backend's TLS failed.
    #[error("TLS: {0}")]
    Tls(SecureError),
    /// It was connected, and did not take the first bytes.
    #[error("first bytes: {0}")]
    Preface(DialogueError),
    /// It does not speak HTTP/2, which it is set to.
    #[error("the backend does not offer HTTP/2 (h2) by ALPN; set http2 = false for its upstream")]
    Protocol,
    /// Its name has no address at present.
    #[error("the name has no address")]
    NoAddress,
}

impl DialError {
    /// Whether this process lacks something, and the backend is not to blame.
    fn is_ours(&self) -> bool {
        use rustix::io::Errno;
        let Self::Connect(error) = self else {
            return false;
        };
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        matches!(
            errno,
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL)
        )
    }

    /// One word for the metric label `outcome`.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Connect(e) if e.kind() == io::ErrorKind::ConnectionRefused => "refused",
            Self::Connect(_) if self.is_ours() => "no_resources",
            Self::Connect(_) | Self::Preface(_) => "error",
            Self::Timeout => "timeout",
            Self::Tls(_) | Self::Protocol => "tls_error",
            Self::NoAddress => "no_address",
        }
    }
}

/// What a backend is sent as soon as it is connected.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preface<'a> {
    /// A PROXY header: before everything, TLS included. ejabberd accepts nobody else until it has it.
    pub header: &'a [u8],
    /// The client's first bytes; with the header in one write where there is no TLS.
    pub first: &'a [u8],
    /// The protocol that is asked for by ALPN where there is TLS, and insisted on if the backend answers. Empty: none.
    pub alpn: &'a [u8],
}

/// A backend that can be spoken to.
pub enum Reached<T> {
    /// By what was there already.
    Had(T, Pick),
    /// By a new connection.
    Dialed(Dialed),
}

/// Connects to one of the backends: the one that is wanted or the best, else the others in turn, each once; unless `had` has
/// something for the backend that is picked. It has been sent the preface then. Whoever was sent client bytes is the last
/// that is tried.
///
/// # Errors
/// The last attempt's, when all have failed.
pub async fn dial<T>(
    upstream: &Arc<Upstream>,
    terms: &DialTerms,
    preface: Preface<'_>,
    pool: &Magazine,
    cells: &[BackendCells],
    wanted: Wanted,
    had: impl Fn(&Pick) -> Option<T>,
) -> Result<Reached<T>, DialError> {
    let mut tried = 0_u64;
    let mut last = DialError::NoAddress;
    for _ in 0..upstream.backends.len().min(ATTEMPTS_MAX) {
        let Some(pick) = upstream.pick(tried, wanted) else {
            break;
        };
        if pick.index() < 64 {
            tried |= 1 << pick.index();
        }
        if let Some(had) = had(&pick) {
            return Ok(Reached::Had(had, pick));
        }
        // Boxed: it may be a handshake, and whoever waits for it shall be small.
        let result = Box::pin(attempt(&pick, terms, preface, pool)).await;
        let count = |outcome: &str| {
            if let Some(cells) = cells.get(pick.index()) {
                cells.dials.count(outcome);
            }
        };
        match result {
            Ok((endpoint, rest)) => {
                count("ok");
                pick.welcome();
                return Ok(Reached::Dialed(Dialed {
                    endpoint,
                    rest,
                    pick,
                }));
            }
            Err(error) => {
                count(error.outcome());
                if !error.is_ours() {
                    pick.shun();
                }
                tracing::warn!(
                    upstream = %upstream.name,
                    backend = %pick.backend().name,
                    %error,
                    "backend cannot be connected to"
                );
                let sent = matches!(error, DialError::Preface(_));
                last = error;
                if sent {
                    break;
                }
            }
        }
    }
    Err(last)
}

/// One attempt on one backend.
async fn attempt(
    pick: &Pick,
    terms: &DialTerms,
    preface: Preface<'_>,
    pool: &Magazine,
) -> Result<(Endpoint, Rest), DialError> {
    let connected = connect(&pick.backend().target, &terms.options, preface, pool);
    if terms.timeout.is_zero() {
        return connected.await;
    }
    let connected = timeout(terms.timeout, connected).await;
    connected.unwrap_or(Err(DialError::Timeout))
}

/// One attempt on one backend, without a deadline. It has been sent the preface.
///
/// # Errors
/// As [`dial`]'s.
pub async fn connect(
    target: &Target,
    options: &Options,
    preface: Preface<'_>,
    pool: &Magazine,
) -> Result<(Endpoint, Rest), DialError> {
    match target {
        Target::Unix(path) => open_plain(unix(path).await?, preface).await,
        Target::Tcp { addrs, tls } => {
            let addrs = addrs.load_full();
            let mut result = Err(DialError::NoAddress);
            for addr in addrs.iter() {
                result = tcp(*addr, options).await.map_err(DialError::Connect);
                if result.is_ok() {
                    break;
                }
            }
            let socket = result?;
            let Some((terms, name)) = tls else {
                return open_plain(socket, preface).await;
            };
            let sent = write_all(&socket, preface.header).await;
            sent.map_err(|e| DialError::Preface(e.into()))?;
            let mut hello = Vec::new();
            let alpn = [preface.alpn];
            let alpn = if preface.alpn.is_empty() {
                &[]
            } else {
                &alpn[..]
            };
            let handshake = Handshake::client(terms, name.clone(), alpn, &mut hello)
                .map_err(|e| DialError::Tls(e.into()))?;
            let secured = secure(&socket, handshake, hello, &[], pool)
                .await
                .map_err(DialError::Tls)?;
            // HTTP/1.1 is what a server without ALPN speaks.
            let agreed = secured.established.facts.alpn.as_deref();
            if preface.alpn == b"h2" && agreed != Some(b"h2") {
                return Err(DialError::Protocol);
            }
            let endpoint = Endpoint::secured(socket, secured.established.records);
            let mut dialogue = Dialogue::new(endpoint, secured.rest);
            let sent = dialogue.write(preface.first).await;
            sent.map_err(DialError::Preface)?;
            Ok(dialogue.into_parts())
        }
    }
}

async fn open_plain(socket: Socket, preface: Preface<'_>) -> Result<(Endpoint, Rest), DialError> {
    let sent = if preface.header.is_empty() || preface.first.is_empty() {
        let bytes = if preface.header.is_empty() {
            preface.first
        } else {
            preface.header
        };
        write_all(&socket, bytes).await
    } else {
        write_all(&socket, &[preface.header, preface.first].concat()).await
    };
    sent.map_err(|e| DialError::Preface(e.into()))?;
    Ok((Endpoint::plain(socket), None))
}

/// A Unix socket whose accept queue is full refuses at once, where TCP would wait; so the waiting is done here, under
/// the caller's deadline.
async fn unix(path: &Path) -> Result<Socket, DialError> {
    let mut rest = UNIX_REST.0;
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => return Ok(Socket::Unix(stream)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(rest).await;
                rest = (rest * 2).min(UNIX_REST.1);
            }
            Err(error) => return Err(DialError::Connect(error)),
        }
    }
}

async fn tcp(addr: SocketAddr, options: &Options) -> io::Result<Socket> {
    let fd = for_connect(addr, options)?;
    let socket = TcpSocket::from_std_stream(fd.into());
    Ok(Socket::Tcp(socket.connect(addr).await?))
}
