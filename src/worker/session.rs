//! The life of one connection: handshake, handler, one line in the log.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Instant, SystemTime};

use tokio::time::timeout;

use crate::endpoint::secure::{Rest, SecureError, linger, secure};
use crate::endpoint::{Endpoint, Socket};
use crate::handler::raw::{self, Conversation};
use crate::metrics::access::{AccessEntry, AccessLog};
use crate::metrics::cells::{ListenerCells, WorkerCells};
use crate::pool::Magazine;
use crate::relay::{self, Moved};
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

/// Who is served. Ends in exactly one outcome, counted once and logged once, also when the session is dropped in
/// the middle.
struct Visitor {
    id: u64,
    client: SocketAddr,
    at: Instant,
    terms: Arc<SessionTerms>,
    /// Kept only if there is an access log.
    facts: Option<Box<TlsFacts>>,
    /// Which backend had it, and what has moved, once that is known.
    seen: Cell<Option<(usize, Moved)>>,
    settled: Cell<bool>,
    common: Rc<Common>,
    /// Its place under the limits, given up when this is dropped.
    _admission: Admission,
}

/// A visitor with a backend.
struct Session {
    visitor: Visitor,
    /// Taken out when it is over.
    conversation: Option<Conversation>,
}

/// Serves one connection to its end. Between its beginning and its end, which are boxed for their moment,
/// a session is one small allocation.
pub async fn run(accepted: Box<Accepted>, common: Rc<Common>) {
    let Some(mut session) = Box::pin(begin(accepted, common)).await else {
        return;
    };
    let outcome = poll_fn(|cx| match &mut session.conversation {
        Some(conversation) => Pin::new(conversation).poll(cx).map(Some),
        None => Poll::Ready(None),
    })
    .await;
    if let Some(outcome) = outcome {
        Box::pin(end(session, outcome)).await;
    }
}

/// Handshake and backend. `None`: it came to nothing, and that has been counted and logged.
async fn begin(accepted: Box<Accepted>, common: Rc<Common>) -> Option<Box<Session>> {
    let Accepted {
        fd,
        id,
        client,
        tls,
        terms,
        admission,
        at,
    } = *accepted;
    let mut visitor = Visitor {
        id,
        client,
        at,
        terms,
        facts: None,
        seen: Cell::new(None),
        settled: Cell::new(false),
        common: Rc::clone(&common),
        _admission: admission,
    };
    let cells = common
        .cells
        .listeners
        .get(usize::from(visitor.terms.id.0))?;
    let shaken = match shake(fd, &visitor, tls, cells, &common.pool).await {
        Ok(shaken) => shaken,
        Err(reason) => {
            visitor.settle("handshake_failed", reason);
            return None;
        }
    };
    if common.access.is_some() {
        visitor.facts = Some(Box::new(shaken.facts));
    }
    let terms = Arc::clone(&visitor.terms);
    let raw = raw::Terms {
        upstream: &terms.upstream,
        dial: &terms.dial,
        limits: &terms.limits,
        cells,
        worker: &common.cells,
        upstream_index: usize::from(terms.upstream_id.0),
    };
    match Conversation::open(shaken.endpoint, shaken.rest, raw, &common.pool).await {
        Ok(conversation) => Some(Box::new(Session {
            visitor,
            conversation: Some(conversation),
        })),
        Err(error) => {
            tracing::debug!(id, %client, listener = %terms.name, "session ended: no backend: {error}");
            visitor.settle("no_backend", "no_backend");
            None
        }
    }
}

/// Closes, counts and logs.
async fn end(mut session: Box<Session>, outcome: relay::Outcome) {
    let Some(conversation) = session.conversation.take() else {
        return;
    };
    let visitor = &session.visitor;
    visitor.seen.set(Some(conversation.seen()));
    let end = conversation.close(outcome).await;
    let word = end.outcome();
    if let relay::End::ClientTls(error) = &end
        && let Some(cells) = visitor.cells()
    {
        cells.record_errors.count(error.reason());
    }
    let moved = visitor
        .seen
        .get()
        .map(|(_, moved)| moved)
        .unwrap_or_default();
    tracing::debug!(
        id = visitor.id, client = %visitor.client, listener = %visitor.terms.name,
        up = moved.up, down = moved.down, "session ended: {end}"
    );
    visitor.settle(word, word);
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(conversation) = &self.conversation {
            self.visitor.seen.set(Some(conversation.seen()));
        }
    }
}

impl Drop for Visitor {
    /// Dropped in the middle: by the end of a drain, or by a fault of ours.
    fn drop(&mut self) {
        let word = if std::thread::panicking() {
            "panicked"
        } else {
            "drained"
        };
        self.settle(word, word);
    }
}

impl Visitor {
    fn cells(&self) -> Option<&Arc<ListenerCells>> {
        self.common
            .cells
            .listeners
            .get(usize::from(self.terms.id.0))
    }

    /// Counts the outcome and writes the line, the first time.
    fn settle(&self, counted: &'static str, logged: &'static str) {
        if self.settled.replace(true) {
            return;
        }
        if let Some(cells) = self.cells() {
            cells.ended.count(counted);
        }
        self.log(logged);
    }

    /// One line, if there is an access log.
    fn log(&self, outcome: &'static str) {
        let Some(log) = &self.common.access else {
            return;
        };
        let facts = self.facts.as_deref();
        let upstream = &self.terms.upstream;
        let (backend, moved) = match self.seen.get() {
            Some((backend, moved)) => (upstream.backends.get(backend), moved),
            None => (None, Moved::default()),
        };
        log.line(&AccessEntry {
            time: SystemTime::now(),
            id: self.id,
            listener: &self.terms.name,
            client: self.client,
            sni: facts.and_then(|facts| facts.sni.as_deref()),
            alpn: facts.and_then(|facts| facts.alpn.as_deref()),
            tls: facts.map(|facts| facts.version),
            suite: facts.map(|facts| facts.suite),
            resumed: facts.is_some_and(|facts| facts.resumed),
            upstream: Some(&upstream.name),
            backend: backend.map(|backend| backend.name.as_str()),
            duration: self.at.elapsed(),
            bytes_up: moved.up,
            bytes_down: moved.down,
            outcome,
        });
    }
}

/// A connection whose handshake is over.
struct Shaken {
    facts: TlsFacts,
    endpoint: Endpoint,
    rest: Rest,
}

/// The handshake under its deadline, counted and told; on a failure, down to the end of the connection.
async fn shake(
    fd: OwnedFd,
    Visitor {
        id, client, terms, ..
    }: &Visitor,
    tls: Terms,
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
                facts,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A silent connection is this much, beside two sockets' registrations and the task's own head.
    #[test]
    fn a_session_at_rest_is_small() {
        fn size_of_future<A, B, F: Future>(_: impl Fn(A, B) -> F) -> usize {
            size_of::<F>()
        }
        let future = size_of_future(run);
        let begun = size_of::<Session>();
        let records = size_of::<crate::tls::record::RecordLayer>();
        let sum = future + begun + records;
        assert!(
            sum <= 1024,
            "future {future} + begun {begun} + records {records} = {sum} bytes"
        );
    }
}
