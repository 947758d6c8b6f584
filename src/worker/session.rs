//! The life of one connection: from accept to a conversation, the conversation, and one line in the log.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, Sleep, sleep};

use crate::endpoint::Socket;
use crate::endpoint::dialogue::read_into;
use crate::handler::{self, Common, Conversation, Guest, Ledger, Phase, Refusal, Rules};
use crate::metrics::access::AccessEntry;
use crate::metrics::cells::ListenerCells;
use crate::relay::{self, Moved};
use crate::tls::terms::Terms;
use crate::wire::proxy;

use super::listener::Admission;

/// A connection that was accepted and admitted, on its way to a worker.
#[derive(Debug)]
pub struct Accepted {
    /// The socket, non-blocking.
    pub fd: OwnedFd,
    /// Number of the connection since the start.
    pub id: u64,
    /// Who connected.
    pub client: SocketAddr,
    /// What it is offered by TLS.
    pub tls: Option<Terms>,
    /// The rules it lives by.
    pub rules: Arc<Rules>,
    /// Its place under the limits, given up at its end.
    pub admission: Admission,
    /// When.
    pub at: Instant,
}

/// Who is served. Ends in exactly one outcome, counted once and logged once, also when the session is dropped in
/// the middle.
struct Visitor {
    id: u64,
    client: SocketAddr,
    at: Instant,
    rules: Arc<Rules>,
    ledger: Ledger,
    /// Which backend had it, and what has moved; known at the end.
    seen: Cell<Option<Box<(usize, Moved)>>>,
    settled: Cell<bool>,
    common: Rc<Common>,
    /// Its place under the limits, given up when this is dropped.
    admission: Admission,
}

/// A visitor with a backend.
struct Session {
    visitor: Visitor,
    /// Taken out when it is over.
    conversation: Option<Conversation>,
    /// Until its turn to leave has come, once the worker drains.
    leaving: Option<Box<Leaving>>,
}

/// When a visitor's turn to leave comes.
struct Leaving {
    turn: Pin<Box<Sleep>>,
    /// How long it may then take to be between two stanzas.
    patience: Duration,
}

/// Serves one connection to its end. Between its beginning and its end, which are boxed for their moment,
/// a session is one small allocation.
pub async fn run(accepted: Box<Accepted>, common: Rc<Common>) {
    let Some(mut session) = Box::pin(begin(accepted, Rc::clone(&common))).await else {
        return;
    };
    let mut told = pin!(common.leave.told());
    let mut staying = true;
    let outcome = poll_fn(|cx| {
        if staying && let Poll::Ready(limit) = told.as_mut().poll(cx) {
            staying = false;
            session.take_leave(limit);
        }
        session.poll(cx)
    })
    .await;
    if let Some(outcome) = outcome {
        Box::pin(end(session, outcome)).await;
    }
}

impl Session {
    /// Lets the conversation go on. `None`: there is none.
    #[inline]
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<relay::Outcome>> {
        let Some(conversation) = &mut self.conversation else {
            return Poll::Ready(None);
        };
        if let Some(leaving) = &mut self.leaving
            && leaving.turn.as_mut().poll(cx).is_ready()
        {
            let words = self.visitor.rules.drain_words();
            let authenticated = conversation.authenticated() == Some(true);
            let words = words.as_deref().filter(|_| authenticated);
            conversation.drain(words, leaving.patience);
            // Far away: it is on its way.
            let never = Instant::now() + Duration::from_secs(3600);
            leaving.turn.as_mut().reset(never);
        }
        let outcome = Pin::new(&mut *conversation).poll(cx);
        let ledger = &self.visitor.ledger;
        if ledger.awaits_authentication() && conversation.authenticated() == Some(true) {
            ledger.enter(Phase::Established);
        }
        Poll::Ready(Some(ready!(outcome)))
    }

    /// XMPP streams and WebSockets end one by one while their worker drains, so that not all come back at once; others
    /// have until the end of it.
    fn take_leave(&mut self, limit: Duration) {
        let conversation = self.conversation.as_ref();
        if limit.is_zero() || !conversation.is_some_and(Conversation::leaves_early) {
            return;
        }
        let (wait, patience) = handler::turn(self.visitor.id, limit);
        self.leaving = Some(Box::new(Leaving {
            turn: Box::pin(sleep(wait)),
            patience,
        }));
    }
}

/// From accept to a conversation. `None`: it came to nothing, and that has been counted and logged.
async fn begin(accepted: Box<Accepted>, common: Rc<Common>) -> Option<Box<Session>> {
    let Accepted {
        fd,
        id,
        client,
        tls,
        rules,
        admission,
        at,
    } = *accepted;
    let cells = common.cells.listeners.get(usize::from(rules.id.0))?;
    let cells = Arc::clone(cells);
    let mut visitor = Visitor {
        id,
        client,
        at,
        rules,
        ledger: Ledger::new(Arc::clone(&cells), common.access.is_some()),
        seen: Cell::new(None),
        settled: Cell::new(false),
        common: Rc::clone(&common),
        admission,
    };
    match visitor.serve(fd, tls.as_ref(), &cells).await {
        Ok(conversation) => Some(Box::new(Session {
            visitor,
            conversation: Some(conversation),
            leaving: None,
        })),
        Err(Refusal { outcome, reason }) => {
            visitor.settle(outcome, reason);
            None
        }
    }
}

impl Visitor {
    async fn serve(
        &mut self,
        fd: OwnedFd,
        tls: Option<&Terms>,
        cells: &Arc<ListenerCells>,
    ) -> Result<Conversation, Refusal> {
        let rules = Arc::clone(&self.rules);
        let common = Rc::clone(&self.common);
        let socket = Socket::tcp(fd).map_err(|error| {
            tracing::warn!(%error, "the event loop does not take a connection");
            Refusal {
                outcome: "handshake_failed",
                reason: "internal",
            }
        })?;
        let mut destination = if rules.tells_addresses() {
            socket.local_addr()
        } else {
            None
        };
        let mut early = Vec::new();
        if rules.trusts(self.client.ip()) {
            let origin = self.introduce(&socket, &mut early).await?;
            if let Some(origin) = origin {
                self.client = origin.source;
                destination = destination.map(|_| origin.destination);
            }
            let admitted = self.admission.attribute(self.client.ip());
            admitted.map_err(|reason| Refusal {
                outcome: "opening_failed",
                reason,
            })?;
        }
        let guest = Guest {
            rules: &rules,
            tls,
            id: self.id,
            source: self.client,
            destination,
            at: self.at,
            cells,
            common: &common,
            ledger: &self.ledger,
        };
        handler::open(socket, early, &guest).await
    }

    /// Reads the PROXY header that a balancer in front must send. What lies behind it stays in `early`.
    async fn introduce(
        &self,
        socket: &Socket,
        early: &mut Vec<u8>,
    ) -> Result<Option<proxy::Origin>, Refusal> {
        let refusal = |reason| Refusal {
            outcome: "opening_failed",
            reason,
        };
        let read = async {
            loop {
                match proxy::read(early) {
                    Ok(proxy::Read::Header { origin, consumed }) => {
                        early.drain(..consumed);
                        return Ok(origin);
                    }
                    Ok(proxy::Read::NeedMore) => {}
                    Err(_) => {
                        let listener = &self.rules.name;
                        tracing::warn!(
                            %listener, balancer = %self.client,
                            "no PROXY header from an address in accept_proxy_protocol; closed"
                        );
                        return Err(refusal("proxy_header"));
                    }
                }
                match read_into(socket, &self.common.pool, early).await {
                    Ok(0) if early.is_empty() => return Err(refusal("silent")),
                    Ok(0) => return Err(refusal("proxy_header")),
                    Ok(_) => {}
                    Err(_) => return Err(refusal("client_gone")),
                }
            }
        };
        let limit = self.rules.first_byte;
        if limit.is_zero() {
            read.await
        } else {
            let read = tokio::time::timeout_at(self.at + limit, read).await;
            read.unwrap_or_else(|_| Err(refusal("first_byte_timeout")))
        }
    }
}

/// Closes, counts and logs.
async fn end(mut session: Box<Session>, outcome: relay::Outcome) {
    let Some(conversation) = session.conversation.take() else {
        return;
    };
    let visitor = &session.visitor;
    let (backend, moved) = conversation.seen();
    visitor.seen.set(Some(Box::new((backend, moved))));
    let end = conversation.close(outcome).await;
    if let relay::End::ClientTls(error) = &end
        && let Some(cells) = visitor.cells()
    {
        cells.record_errors.count(error.reason());
    }
    tracing::debug!(
        id = visitor.id, client = %visitor.client, listener = %visitor.rules.name,
        up = moved.up, down = moved.down, "session ended: {end}"
    );
    visitor.settle(end.outcome(), end.reason());
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(conversation) = &self.conversation {
            self.visitor.seen.set(Some(Box::new(conversation.seen())));
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
            .get(usize::from(self.rules.id.0))
    }

    /// Counts the outcome and writes the line, the first time.
    fn settle(&self, counted: &'static str, logged: &'static str) {
        if self.settled.replace(true) {
            return;
        }
        if let Some(cells) = self.cells() {
            cells.ended.count(counted);
        }
        self.ledger.close(if counted == "handshake_failed" {
            counted
        } else {
            logged
        });
        self.log(logged);
    }

    /// One line, if there is an access log.
    fn log(&self, outcome: &'static str) {
        let Some(log) = &self.common.access else {
            return;
        };
        let upstream = self.ledger.upstream();
        let upstream = upstream.and_then(|id| self.rules.upstreams.get(usize::from(id.0)));
        let seen = self.seen.take().map(|seen| *seen);
        let backend = upstream
            .zip(seen)
            .and_then(|(upstream, (backend, _))| upstream.backends.get(backend));
        let moved = seen.map_or_else(Moved::default, |(_, moved)| moved);
        self.ledger.notes(|notes| {
            let facts = notes.and_then(|notes| notes.facts.as_ref());
            log.line(&AccessEntry {
                time: SystemTime::now(),
                id: self.id,
                listener: &self.rules.name,
                client: self.client,
                domain: notes.and_then(|notes| notes.domain.as_deref()),
                sni: facts.and_then(|facts| facts.sni.as_deref()),
                alpn: facts.and_then(|facts| facts.alpn.as_deref()),
                tls: facts.map(|facts| facts.version),
                suite: facts.map(|facts| facts.suite),
                resumed: facts.is_some_and(|facts| facts.resumed),
                upstream: upstream.map(|upstream| upstream.name.as_str()),
                backend: backend.map(|backend| backend.name.as_str()),
                duration: self.at.elapsed(),
                bytes_up: moved.up,
                bytes_down: moved.down,
                outcome,
            });
        });
    }
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
