//! The client's side before there is a backend: first bytes, what a ClientHello asks for, the handshake.

use tokio::time::Instant;

use crate::config::{Protocol, defaults};
use crate::endpoint::dialogue::read_into;
use crate::endpoint::secure::{Rest, SecureError, linger, secure, write_all};
use crate::endpoint::{Endpoint, Socket};
use crate::metrics::cells::ListenerCells;
use crate::tls::TlsError;
use crate::tls::alert::{Alert, Level};
use crate::tls::handshake::{Handshake, TlsFacts};
use crate::wire::hello::{Hello, Parsed};
use crate::wire::proxy;

use super::{Guest, Refusal, Told, by, deadline};

/// A connection whose handshake is over.
pub(super) struct Shaken {
    pub(super) facts: TlsFacts,
    pub(super) endpoint: Endpoint,
    pub(super) rest: Rest,
}

/// What a ClientHello asks for.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// By SNI.
    pub(super) name: Option<String>,
    /// By ALPN.
    pub(super) protocol: Option<Protocol>,
}

/// The client that was accepted at `at` must say something before long.
pub(super) async fn first_byte(
    socket: &Socket,
    early: &mut Vec<u8>,
    guest: &Guest<'_>,
) -> Result<(), Refusal> {
    if !early.is_empty() {
        return Ok(());
    }
    let deadline = deadline(guest.at, guest.rules.first_byte);
    match by(deadline, read_into(socket, guest.pool(), early)).await {
        None => Err(Refusal::opening("first_byte_timeout")),
        Some(Ok(0)) => Err(Refusal::opening("silent")),
        Some(Ok(_)) => Ok(()),
        Some(Err(_)) => Err(Refusal::opening("client_gone")),
    }
}

/// Further bytes, where a few have not told enough.
pub(super) async fn more(
    socket: &Socket,
    early: &mut Vec<u8>,
    guest: &Guest<'_>,
) -> Result<(), Refusal> {
    let deadline = deadline(guest.at, guest.rules.first_byte);
    match by(deadline, read_into(socket, guest.pool(), early)).await {
        None => Err(Refusal::opening("first_byte_timeout")),
        Some(Ok(0)) => Err(Refusal::opening("closed")),
        Some(Ok(_)) => Ok(()),
        Some(Err(_)) => Err(Refusal::opening("client_gone")),
    }
}

/// Reads a whole ClientHello without consuming it. What is none asks for nothing; the handshake then says why.
pub(super) async fn hello(
    socket: &Socket,
    early: &mut Vec<u8>,
    deadline: Option<Instant>,
    guest: &Guest<'_>,
) -> Result<Asked, Refusal> {
    let mut at_least = 1;
    loop {
        if early.len() >= at_least {
            match Hello::parse(early) {
                Ok(Parsed::Hello(hello)) => return Ok(asked(&hello)),
                Ok(Parsed::NeedMore { at_least: more }) => at_least = more,
                Err(_) => return Ok(Asked::default()),
            }
        }
        let silent = early.is_empty();
        let reason = match by(deadline, read_into(socket, guest.pool(), early)).await {
            None => "timeout",
            Some(Ok(0)) if silent => "silent",
            Some(Ok(0)) => "closed",
            Some(Ok(_)) => continue,
            Some(Err(_)) => "client_gone",
        };
        guest.cells.handshake_failures.count(reason);
        return Err(Refusal::handshake(reason));
    }
}

fn asked(hello: &Hello<'_>) -> Asked {
    let offers = |name: &str| hello.alpn().any(|offer| *offer == *name.as_bytes());
    let protocol = if offers(defaults::XMPPS_ALPN) {
        Some(Protocol::XmppClient)
    } else if offers(defaults::XMPPS_SERVER_ALPN) {
        Some(Protocol::XmppServer)
    } else if defaults::HTTPS_ALPN.into_iter().any(offers) {
        Some(Protocol::Http)
    } else {
        None
    };
    Asked {
        name: hello.server_name().map(str::to_ascii_lowercase),
        protocol,
    }
}

/// Why a handshake came to nothing: one word for the metric label `reason` and the access log.
fn reason(error: &SecureError) -> &'static str {
    match error {
        SecureError::Tls(error) => error.reason(),
        SecureError::Io(_) => "client_gone",
        SecureError::Closed { silent: true } => "silent",
        SecureError::Closed { silent: false } => "closed",
    }
}

/// The handshake that the client could begin at `since`, under its deadline, counted and told; on a failure, down to the
/// end of the connection. `host` is what a client without SNI has asked for in another way.
pub(super) async fn shake(
    socket: Socket,
    early: &[u8],
    host: Option<&str>,
    since: Instant,
    guest: &Guest<'_>,
) -> Result<Shaken, Refusal> {
    let deadline = deadline(since, guest.rules.handshake);
    let (id, client, listener) = (guest.id, guest.source, guest.rules.name.as_str());
    let Some(terms) = guest.tls else {
        // Only passed through here, and nobody to pass it to.
        return Err(unknown_name(&socket, deadline, guest).await);
    };
    let handshake = Handshake::server(terms).told(host);
    let secured = secure(&socket, handshake, Vec::new(), early, guest.pool());
    let (reason, failure) = match by(deadline, secured).await {
        Some(Ok(secured)) => {
            let facts = secured.established.facts;
            count(guest.cells, &facts);
            guest.cells.handshakes.count(since.elapsed());
            guest.ledger.shaken(&facts);
            tracing::debug!(
                id, %client, listener, version = facts.version, suite = facts.suite,
                resumed = facts.resumed, sni = facts.sni.as_deref(), "handshake complete"
            );
            return Ok(Shaken {
                facts,
                endpoint: Endpoint::secured(socket, secured.established.records),
                rest: secured.rest,
            });
        }
        Some(Err(error)) => (reason(&error), Some(error)),
        None => ("timeout", None),
    };
    guest.cells.handshake_failures.count(reason);
    match &failure {
        Some(error) => {
            tracing::debug!(id, %client, listener, reason, "handshake failed: {error}");
        }
        None => {
            tracing::debug!(id, %client, listener, reason, "handshake failed: not complete in time");
        }
    }
    if let Some(SecureError::Tls(error)) = &failure
        && !matches!(error, TlsError::AlertReceived(_))
    {
        linger(&socket).await; // so that the alert arrives
    }
    Err(Refusal::handshake(reason))
}

/// Nobody here answers to the name that a ClientHello asks for (RFC 6066 section 3): tells it so, and closes.
pub(super) async fn unknown_name(
    socket: &Socket,
    deadline: Option<Instant>,
    guest: &Guest<'_>,
) -> Refusal {
    let reason = "unknown_name";
    guest.cells.handshake_failures.count(reason);
    let (id, client, listener) = (guest.id, guest.source, guest.rules.name.as_str());
    tracing::debug!(id, %client, listener, reason, "handshake failed: the name is not served");
    let alert = Alert::UNRECOGNIZED_NAME.plain_record(Level::Fatal);
    if by(deadline, write_all(socket, &alert)).await.is_some() {
        linger(socket).await; // so that the alert arrives
    }
    Refusal::handshake(reason)
}

fn count(cells: &ListenerCells, facts: &TlsFacts) {
    let counter = match (facts.version, facts.resumed) {
        ("TLSv1.3", false) => &cells.tls13_full,
        ("TLSv1.3", true) => &cells.tls13_resumed,
        (_, false) => &cells.tls12_full,
        (_, true) => &cells.tls12_resumed,
    };
    counter.add(1);
}

impl TlsFacts {
    /// What a backend may be told of them. `certificate`: what is known of the client's.
    pub(super) fn told<'a>(&'a self, certificate: Option<proxy::Certificate<'a>>) -> Told<'a> {
        let bindings = self.bindings.as_deref();
        Told {
            alpn: self.alpn.as_deref(),
            authority: self.sni.as_deref(),
            ssl: Some(proxy::Ssl {
                version: self.version,
                cipher: self.suite,
                certificate,
            }),
            exporter: bindings.map(|bindings| &bindings.exporter[..]),
            end_point: bindings.and_then(|bindings| bindings.end_point.as_deref()),
        }
    }
}
