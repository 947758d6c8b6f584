//! The life of one connection: handshake, handler, one line in the log.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::time::timeout;

use crate::endpoint::secure::{SecureError, linger, secure};
use crate::endpoint::{Endpoint, Socket};
use crate::handler::raw;
use crate::metrics::access::{AccessEntry, AccessLog};
use crate::metrics::cells::{ListenerCells, WorkerCells};
use crate::pool::{Lease, Magazine};
use crate::relay::Moved;
use crate::tls::TlsError;
use crate::tls::handshake::{Handshake, TlsFacts};
use crate::tls::terms::Terms;

use super::listener::Admission;
use super::snapshot::SessionTerms;

/// A connection that was accepted and admitted, on its way to a worker.
#[derive(Debug)]
pub struct Accepted {
    /// The socket, non-blocking.
    pub fd: OwnedFd,
    /// Number of the connection since the start.
    pub id: u64,
    /// Who connected.
    pub client: SocketAddr,
    /// What it is offered.
    pub tls: Terms,
    /// The settings it lives by.
    pub terms: Arc<SessionTerms>,
    /// Its place under the limits, given up at its end.
    pub admission: Admission,
    /// When.
    pub at: Instant,
}

/// What all sessions of a worker use.
pub struct Common {
    /// The worker's magazine.
    pub pool: Magazine,
    /// The worker's counters.
    pub cells: WorkerCells,
    /// The access log, if there is one.
    pub access: Option<Arc<AccessLog>>,
}

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Secure(#[from] SecureError),
    #[error("not complete in time")]
    Timeout,
}

impl Failure {
    /// One word for the metric label `reason` and the access log.
    fn reason(&self) -> &'static str {
        match self {
            Self::Secure(SecureError::Tls(error)) => error.reason(),
            Self::Secure(SecureError::Io(_)) => "client_gone",
            Self::Secure(SecureError::Closed { silent: true }) => "silent",
            Self::Secure(SecureError::Closed { silent: false }) => "closed",
            Self::Timeout => "timeout",
        }
    }
}

/// The line that a session leaves in the access log.
struct Line<'a> {
    id: u64,
    client: SocketAddr,
    at: Instant,
    terms: &'a SessionTerms,
    facts: Option<&'a TlsFacts>,
    backend: Option<usize>,
    moved: Moved,
    outcome: &'static str,
}

/// Serves one connection to its end.
pub async fn run(accepted: Accepted, common: &Common) {
    let Accepted {
        fd,
        id,
        client,
        tls,
        terms,
        admission,
        at,
    } = accepted;
    let Some(cells) = common.cells.listeners.get(usize::from(terms.id.0)) else {
        return;
    };
    // Boxed: rustls' state is large, and is freed before the long life begins.
    let shaken = Box::pin(shake(fd, id, client, tls, &terms, cells, &common.pool)).await;
    let (facts, report) = match shaken {
        Err(reason) => {
            cells.ended.count("handshake_failed");
            (None, Err(reason))
        }
        Ok(Shaken {
            facts,
            endpoint,
            rest,
        }) => {
            // Kept for the log's line alone.
            let facts = common.access.is_some().then_some(facts);
            let raw = raw::Terms {
                upstream: &terms.upstream,
                dial: &terms.dial,
                limits: &terms.limits,
                cells,
                worker: &common.cells,
                upstream_index: usize::from(terms.upstream_id.0),
            };
            (
                facts,
                Ok(raw::serve(endpoint, rest, raw, &common.pool).await),
            )
        }
    };
    let mut line = Line {
        id,
        client,
        at,
        terms: &terms,
        facts: facts.as_deref(),
        backend: None,
        moved: Moved::default(),
        outcome: "handshake_failed",
    };
    match report {
        Err(reason) => line.outcome = reason,
        Ok(report) => {
            line.outcome = report.end.outcome();
            line.backend = report.backend;
            line.moved = report.moved;
            cells.ended.count(line.outcome);
            let raw::Report { end, moved, .. } = report;
            tracing::debug!(
                id, %client, listener = %terms.name, up = moved.up, down = moved.down,
                "session ended: {end}"
            );
        }
    }
    if let Some(log) = &common.access {
        line.write(log);
    }
    drop(admission);
}

impl Line<'_> {
    fn write(&self, log: &AccessLog) {
        let backend = self
            .backend
            .and_then(|at| self.terms.upstream.backends.get(at));
        log.line(&AccessEntry {
            time: SystemTime::now(),
            id: self.id,
            listener: &self.terms.name,
            client: self.client,
            sni: self.facts.and_then(|facts| facts.sni.as_deref()),
            alpn: self.facts.and_then(|facts| facts.alpn.as_deref()),
            tls: self.facts.map(|facts| facts.version),
            suite: self.facts.map(|facts| facts.suite),
            resumed: self.facts.is_some_and(|facts| facts.resumed),
            upstream: Some(&self.terms.upstream.name),
            backend: backend.map(|backend| backend.name.as_str()),
            duration: self.at.elapsed(),
            bytes_up: self.moved.up,
            bytes_down: self.moved.down,
            outcome: self.outcome,
        });
    }
}

/// A connection whose handshake is over.
struct Shaken {
    facts: Box<TlsFacts>,
    endpoint: Endpoint,
    rest: Option<Lease>,
}

/// The handshake under its deadline, counted and told; on a failure, down to the end of the connection.
async fn shake(
    fd: OwnedFd,
    id: u64,
    client: SocketAddr,
    tls: Terms,
    terms: &SessionTerms,
    cells: &ListenerCells,
    pool: &Magazine,
) -> Result<Shaken, &'static str> {
    let socket = match Socket::tcp(fd) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!(%error, "the event loop does not take a connection");
            return Err("internal");
        }
    };
    let handshake = secure(&socket, Handshake::server(&tls), Vec::new(), pool);
    let limit = terms.handshake_timeout;
    let result = if limit.is_zero() {
        handshake.await.map_err(Failure::from)
    } else {
        match timeout(limit, handshake).await {
            Ok(result) => result.map_err(Failure::from),
            Err(_) => Err(Failure::Timeout),
        }
    };
    match result {
        Ok(secured) => {
            let facts = secured.established.facts;
            count(cells, &facts);
            tracing::debug!(
                id, %client, listener = %terms.name, version = facts.version, suite = facts.suite,
                resumed = facts.resumed, sni = facts.sni.as_deref(), "handshake complete"
            );
            Ok(Shaken {
                facts: Box::new(facts),
                endpoint: Endpoint::secured(socket, secured.established.records),
                rest: secured.rest,
            })
        }
        Err(failure) => {
            let reason = failure.reason();
            cells.handshake_failures.count(reason);
            tracing::debug!(id, %client, listener = %terms.name, reason, "handshake failed: {failure}");
            if let Failure::Secure(SecureError::Tls(error)) = &failure
                && !matches!(error, TlsError::AlertReceived(_))
            {
                linger(&socket).await; // so that the alert arrives
            }
            Err(reason)
        }
    }
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
