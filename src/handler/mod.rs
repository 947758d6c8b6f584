//! What a connection turns out to be, from its first byte until it is joined with a backend.
//!
//! ```text
//!   accepted --> PROXY header? --> first bytes --> TLS, STARTTLS, or passed through --> backend --> Conversation
//! ```
//!
//! [`open`] is the way to a [`Conversation`]; what is on that way is a large future that the caller boxes for its moment.
//! Whatever becomes known of a connection meanwhile is in its [`Ledger`].

mod common;
pub mod conversation;
mod front;
mod http;
mod ledger;
mod raw;
mod rules;
mod xmpp;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::config::{Protocol, ProxyProtocol, Scheme, Sticky, TlsMode, UpstreamId, defaults};
use crate::endpoint::Socket;
use crate::metrics::cells::ListenerCells;
use crate::pool::Magazine;
use crate::tls::terms::Terms;
use crate::upstream::dial::{DialError, Dialed, Preface, Reached, dial};
use crate::upstream::{Pick, Upstream, Wanted, key_of};
use crate::wire::proxy;
use crate::wire::sniff::{Guess, Sniff, sniff};

pub use common::{Common, Leave, turn};
pub use conversation::Conversation;
pub use ledger::{Ledger, Phase};
pub use rules::Rules;
pub use xmpp::{NO_FEATURES, WAY_OUT};

/// Why a connection came to nothing: counted and logged by these words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The metric label `outcome` of sessions.
    pub outcome: &'static str,
    /// The same more exactly, for the access log and for streams.
    pub reason: &'static str,
}

impl Refusal {
    /// Before anything was agreed on.
    const fn opening(reason: &'static str) -> Self {
        Self {
            outcome: "opening_failed",
            reason,
        }
    }

    /// In the TLS handshake.
    const fn handshake(reason: &'static str) -> Self {
        Self {
            outcome: "handshake_failed",
            reason,
        }
    }

    /// Requests were served, or none came.
    const fn served(reason: &'static str) -> Self {
        Self {
            outcome: "closed",
            reason,
        }
    }

    /// No backend took it.
    const NO_BACKEND: Self = Self {
        outcome: "no_backend",
        reason: "no_backend",
    };
}

/// Who is served, under which rules, with what.
pub struct Guest<'a> {
    /// The listener's rules.
    pub rules: &'a Arc<Rules>,
    /// What the listener offers by TLS; none if it only passes through.
    pub tls: Option<&'a Terms>,
    /// Number of the connection.
    pub id: u64,
    /// The client.
    pub source: SocketAddr,
    /// Where it connected to; known if a backend is told.
    pub destination: Option<SocketAddr>,
    /// When it was accepted.
    pub at: Instant,
    /// Counters of the listener on this worker.
    pub cells: &'a Arc<ListenerCells>,
    /// What its worker has.
    pub common: &'a Rc<Common>,
    /// What becomes known.
    pub ledger: &'a Ledger,
}

/// What a PROXY header may tell beside addresses.
#[derive(Clone, Default)]
struct Told<'a> {
    alpn: Option<&'a [u8]>,
    authority: Option<&'a str>,
    ssl: Option<proxy::Ssl<'a>>,
    exporter: Option<&'a [u8]>,
    end_point: Option<&'a [u8]>,
}

impl Guest<'_> {
    /// Buffers.
    fn pool(&self) -> &Magazine {
        &self.common.pool
    }

    fn upstream(&self, id: UpstreamId) -> Result<&Arc<Upstream>, Refusal> {
        let upstream = self.rules.upstreams.get(usize::from(id.0));
        upstream.ok_or(Refusal::NO_BACKEND)
    }

    /// Connects to a backend of an upstream and sends it the PROXY header, if it wants one, and `first`.
    async fn dial(
        &self,
        id: UpstreamId,
        told: Told<'_>,
        first: &[u8],
    ) -> Result<Dialed, DialError> {
        self.ledger.sent_to(id);
        let nothing = |_: &Pick| None::<Infallible>;
        let upstream = self.rules.upstreams.get(usize::from(id.0));
        let wanted = upstream.map_or(Wanted::Any, |upstream| self.wanted(upstream));
        match self
            .dial_unless(id, told, (first, &[]), wanted, nothing)
            .await?
        {
            Reached::Dialed(dialed) => Ok(dialed),
            Reached::Had(never, _) => match never {},
        }
    }

    /// Which backend of an upstream the client should be sent to, by what is known of it without its words.
    fn wanted(&self, upstream: &Upstream) -> Wanted {
        match upstream.link.sticky {
            Sticky::Address => Wanted::Key(key_of(self.source.ip())),
            Sticky::Off | Sticky::Cookie => Wanted::Any,
        }
    }

    /// The same, unless `had` has something for the backend that is picked.
    async fn dial_unless<T>(
        &self,
        id: UpstreamId,
        told: Told<'_>,
        (first, alpn): (&[u8], &[u8]),
        wanted: Wanted,
        had: impl Fn(&Pick) -> Option<T>,
    ) -> Result<Reached<T>, DialError> {
        let Some(upstream) = self.rules.upstreams.get(usize::from(id.0)) else {
            return Err(DialError::NoAddress);
        };
        let header = match self.destination {
            // The destination is known if any upstream tells it, and this one need not.
            Some(destination) if upstream.link.proxy != ProxyProtocol::Off => {
                let unique_id = self.id.to_string();
                upstream.link.proxy_header(&proxy::Facts {
                    origin: proxy::Origin {
                        source: self.source,
                        destination,
                    },
                    alpn: told.alpn,
                    authority: told.authority,
                    unique_id: Some(unique_id.as_bytes()),
                    ssl: told.ssl,
                    exporter: told.exporter,
                    end_point: told.end_point,
                    crc32c: false,
                })
            }
            _ => Vec::new(),
        };
        let preface = Preface {
            header: &header,
            first,
            alpn,
        };
        let cells = self.common.cells.upstreams.get(usize::from(id.0));
        let cells = cells.map_or(&[][..], |cells| &cells[..]);
        let terms = &self.rules.dial;
        dial(upstream, terms, preface, self.pool(), cells, wanted, had).await
    }
}

/// From accept to a conversation. `early` was read already.
///
/// # Errors
/// It came to nothing; the connection has been closed as its protocol asks for.
pub async fn open(
    socket: Socket,
    mut early: Vec<u8>,
    guest: &Guest<'_>,
) -> Result<Conversation, Refusal> {
    match guest.rules.scheme {
        Scheme::Tls | Scheme::Https => direct(socket, early, None, guest).await,
        Scheme::Http => Box::pin(http::redirect(socket, &early, guest)).await,
        Scheme::Xmpps => direct(socket, early, Some(Protocol::XmppClient), guest).await,
        Scheme::XmppsServer => direct(socket, early, Some(Protocol::XmppServer), guest).await,
        Scheme::Xmpp | Scheme::XmppServer => {
            front::first_byte(&socket, &mut early, guest).await?;
            Box::pin(xmpp::plain(socket, early, guest)).await
        }
        Scheme::Auto => loop {
            front::first_byte(&socket, &mut early, guest).await?;
            match sniff(&early) {
                Sniff::Is(Guess::Tls) => return direct(socket, early, None, guest).await,
                Sniff::Is(Guess::Http) if guest.rules.routes.serves_http() => {
                    return Box::pin(http::redirect(socket, &early, guest)).await;
                }
                // Whatever it is, XMPP is what it is told in.
                Sniff::Is(_) => return Box::pin(xmpp::plain(socket, early, guest)).await,
                Sniff::NeedMore => front::more(&socket, &mut early, guest).await?,
            }
        },
    }
}

/// TLS from the first byte on: ended here, or passed through.
async fn direct(
    socket: Socket,
    mut early: Vec<u8>,
    protocol: Option<Protocol>,
    guest: &Guest<'_>,
) -> Result<Conversation, Refusal> {
    let rules = guest.rules;
    if rules.scheme.carries_xmpp() {
        guest.ledger.enter(Phase::Handshake);
    }
    let deadline = deadline(guest.at, rules.handshake);
    if rules.routes.passes() {
        let hello = front::hello(&socket, &mut early, deadline, guest).await?;
        let host = hello.name.as_deref();
        let choice = rules.routes.choose(host, protocol.or(hello.protocol));
        if let Some(choice) = choice
            && choice.tls == TlsMode::Passthrough
        {
            let served = host.and_then(|host| rules.routes.serves(host));
            if served == Some(false) {
                return Err(front::unknown_name(&socket, deadline, guest).await);
            }
            let passed = raw::pass(socket, &early, host, choice.upstream, guest);
            return Box::pin(passed).await;
        }
    }
    let shaken = front::shake(socket, &early, None, guest.at, guest).await?;
    drop(early);
    let spoken = shaken.facts.alpn.as_deref();
    let is_http = rules.scheme == Scheme::Https
        || rules.scheme == Scheme::Auto
            && defaults::HTTPS_ALPN
                .iter()
                .any(|name| spoken == Some(name.as_bytes()));
    if is_http {
        guest.ledger.no_stream();
        let front::Shaken {
            facts,
            endpoint,
            rest,
        } = shaken;
        Box::pin(http::serve((endpoint, rest), &[], facts, guest)).await
    } else if rules.scheme.carries_xmpp() {
        Box::pin(xmpp::secured(shaken, None, guest)).await
    } else {
        Box::pin(raw::open(shaken, guest)).await
    }
}

/// The end of a time that began at `from`. Zero is never.
fn deadline(from: Instant, limit: Duration) -> Option<Instant> {
    (!limit.is_zero()).then(|| from + limit)
}

/// The result, or none if it is not there by then. What is waited for has an allocation of its own, so that whoever waits
/// stays small: thousands may wait at once.
fn by<T>(
    deadline: Option<Instant>,
    future: impl Future<Output = T>,
) -> impl Future<Output = Option<T>> {
    let future = Box::pin(future);
    async move {
        match deadline {
            None => Some(future.await),
            Some(deadline) => timeout_at(deadline, future).await.ok(),
        }
    }
}
