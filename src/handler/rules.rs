//! What the sessions of one listener live by.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Http, IpNet, ListenerId, OnDrain, ProxyProtocol, Scheme, Xmpp, defaults};
use crate::relay::Limits;
use crate::route::RouteTable;
use crate::sys;
use crate::upstream::Upstream;
use crate::upstream::dial::DialTerms;
use crate::wire::xmpp::{Caps, Condition, Role, header, stream_error};

/// Immutable, and pinned by each session from birth on, so that a reload never touches a live connection.
#[derive(Debug)]
pub struct Rules {
    /// Which listener.
    pub id: ListenerId,
    /// Its name; a metric label.
    pub name: String,
    /// What clients speak there.
    pub scheme: Scheme,
    /// From accept to the first byte where the client speaks first, and to the end of a PROXY header. Zero: no limit, as
    /// for all of these.
    pub first_byte: Duration,
    /// From accept to the start of TLS on a STARTTLS stream.
    pub starttls: Duration,
    /// From accept, or from the start of TLS on a STARTTLS stream, to the end of the handshake.
    pub handshake: Duration,
    /// From the end of the handshake to SASL success on an XMPP stream.
    pub authentication: Duration,
    /// Where its connections go.
    pub routes: RouteTable,
    /// By `UpstreamId`.
    pub upstreams: Arc<[Arc<Upstream>]>,
    /// How to connect there.
    pub dial: DialTerms,
    /// Bounds of its relays.
    pub limits: Arc<Limits>,
    /// What holds for HTTP.
    pub http: Http,
    /// From the first byte of a request to the end of its head.
    pub request: Duration,
    /// Silence of a client within a request's body.
    pub request_body: Duration,
    /// From the end of a request to its answer.
    pub answer: Duration,
    /// The same for a wish to upgrade.
    pub upgrade: Duration,
    /// A client that takes nothing of an answer.
    pub write: Duration,
    /// Silence between two requests.
    pub keep_alive: Duration,
    /// Port that clients of plain HTTP are sent to.
    pub https_port: u16,
    /// Balancers in front that say whom they speak for.
    pub trusted_proxies: Vec<IpNet>,
    /// What holds for XMPP streams.
    pub xmpp: Xmpp,
    /// Balancers in front.
    pub accept_proxy_protocol: Vec<IpNet>,
}

impl Rules {
    /// Whether a PROXY header is demanded of this address, and believed.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let mut nets = self.accept_proxy_protocol.iter();
        nets.any(|net| net.contains(&address))
    }

    /// Whether any backend is told the client's address.
    pub fn tells_addresses(&self) -> bool {
        let mut upstreams = self.upstreams.iter();
        upstreams.any(|upstream| upstream.link.proxy != ProxyProtocol::Off)
    }

    /// Caps on what a stream sends before it is authenticated. Our own parser is bounded where the server's need
    /// not be guarded, too.
    pub(super) fn caps(&self) -> Caps {
        match self.xmpp.guard {
            Some(guard) => Caps {
                element_size: guard.element_size,
                bytes: guard.bytes,
                elements: guard.elements,
                depth: guard.depth,
            },
            None => Caps {
                element_size: *defaults::GUARD_ELEMENT_SIZES.end(),
                bytes: *defaults::GUARD_BYTES_RANGE.end(),
                elements: *defaults::GUARD_ELEMENTS_RANGE.end(),
                depth: *defaults::GUARD_DEPTHS.end(),
            },
        }
    }

    /// What a client that there is no room for is told, where it cannot be anything but an XMPP client before TLS. It costs
    /// one write, and the client backs off better than from a reset.
    pub fn no_room(&self) -> Option<String> {
        let role = match self.scheme {
            Scheme::Xmpp => Role::Client,
            Scheme::XmppServer => Role::Server,
            _ => return None,
        };
        let answer = header(role, None, None, Some(&sys::random::id()), "en");
        Some(answer + &stream_error(Condition::ResourceConstraint, None, None))
    }

    /// What an authenticated stream is told when a drain ends it.
    pub fn drain_words(&self) -> Option<String> {
        match &self.xmpp.on_drain {
            OnDrain::Close => None,
            OnDrain::SystemShutdown => Some(stream_error(Condition::SystemShutdown, None, None)),
            OnDrain::SeeOtherHost(host) => {
                Some(stream_error(Condition::SeeOtherHost, None, Some(host)))
            }
        }
    }
}
