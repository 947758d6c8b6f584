//! What all requests of one client's connection have in common.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use hyper::header::HeaderValue;
use tokio::time::Instant;

use crate::metrics::cells::ListenerCells;
use crate::metrics::http::HttpCells;
use crate::tls::handshake::TlsFacts;
use crate::tls::terms::Terms;

use super::super::{Common, Guest, Ledger, Rules, Told};
use super::streams::Streams;
use super::upgrade::Upgraded;

/// One connection's.
pub(super) struct Visit {
    pub(super) rules: Arc<Rules>,
    pub(super) common: Rc<Common>,
    pub(super) cells: Arc<ListenerCells>,
    pub(super) id: u64,
    pub(super) client: SocketAddr,
    destination: Option<SocketAddr>,
    at: Instant,
    /// Until the end of the connection: requests are held against the certificates that it began with.
    terms: Option<Terms>,
    /// Of its TLS, if it has any.
    facts: Option<TlsFacts>,
    ledger: Ledger,
    /// Whether what the client says of those before it is believed.
    pub(super) trusted: bool,
    /// The client's address, as a header has it.
    pub(super) address: HeaderValue,
    /// The same as `Forwarded` has it (RFC 7239 section 6).
    pub(super) forwarded: HeaderValue,
    /// Requests so far.
    pub(super) requests: Cell<u64>,
    /// Requests that have not ended.
    pub(super) open: Cell<u32>,
    /// The last answer has not come to its end, or lasts until the end of the connection.
    pub(super) nothing_follows: Cell<bool>,
    /// Streams of HTTP/2 with an answer under way.
    pub(super) streams: Streams,
    /// A backend that has changed the protocol.
    pub(super) upgraded: RefCell<Option<Upgraded>>,
}

impl Visit {
    pub(super) fn new(guest: &Guest<'_>, facts: Option<TlsFacts>) -> Rc<Self> {
        let ip = guest.source.ip().to_canonical();
        let forwarded = if ip.is_ipv6() {
            format!("for=\"[{ip}]\";proto=https")
        } else {
            format!("for={ip};proto=https")
        };
        // An address is always a header value.
        let value = |text: String| {
            HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
        };
        let rules = Arc::clone(guest.rules);
        let trusted = rules.trusted_proxies.iter().any(|net| net.contains(&ip));
        Rc::new(Self {
            trusted,
            rules,
            common: Rc::clone(guest.common),
            cells: Arc::clone(guest.cells),
            id: guest.id,
            client: guest.source,
            destination: guest.destination,
            at: guest.at,
            terms: guest.tls.cloned(),
            facts,
            ledger: Ledger::new(Arc::clone(guest.cells), false),
            address: value(ip.to_string()),
            forwarded: value(forwarded),
            requests: Cell::default(),
            open: Cell::default(),
            nothing_follows: Cell::default(),
            streams: Streams::default(),
            upgraded: RefCell::default(),
        })
    }

    /// The connection as others know it.
    pub(super) fn guest(&self) -> Guest<'_> {
        Guest {
            rules: &self.rules,
            tls: self.terms.as_ref(),
            id: self.id,
            source: self.client,
            destination: self.destination,
            at: self.at,
            cells: &self.cells,
            common: &self.common,
            ledger: &self.ledger,
        }
    }

    /// Counters of HTTP.
    pub(super) fn http(&self) -> &HttpCells {
        self.cells.http(self.rules.routes.http_routes().len())
    }

    /// Whether this connection may ask for `host` (RFC 9110 section 7.4): the name of its handshake, or one that the
    /// certificates cover as well.
    pub(super) fn may_ask_for(&self, host: &str) -> bool {
        let Some(sni) = self.server_name() else {
            return true;
        };
        sni.eq_ignore_ascii_case(host)
            || self
                .terms
                .as_ref()
                .is_some_and(|terms| terms.certificates().covering(host).is_some())
    }

    /// The name that the handshake was for.
    pub(super) fn server_name(&self) -> Option<&str> {
        self.facts.as_ref()?.sni.as_deref()
    }

    /// What a backend's PROXY header may tell.
    pub(super) fn told(&self) -> Told<'_> {
        let facts = self.facts.as_ref();
        facts.map_or_else(Told::default, |facts| facts.told(None))
    }

    /// The request's number, unique in this process: the connection's and its own.
    pub(super) fn request_id(&self) -> String {
        format!("{}-{}", self.id, self.requests.get())
    }
}

/// Something of this connection is not at its end.
pub(super) struct Open(Rc<Visit>, u64);

impl Open {
    pub(super) fn new(visit: &Rc<Visit>) -> Self {
        visit.open.set(visit.open.get() + 1);
        Self(Rc::clone(visit), visit.requests.get())
    }

    /// Number of the request.
    pub(super) fn number(&self) -> u64 {
        self.1
    }

    pub(super) fn visit(&self) -> &Rc<Visit> {
        &self.0
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
    }
}
