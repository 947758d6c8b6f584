//! What sessions need to know of the settings: immutable, and pinned by each session from birth on, so that a
//! reload never touches a live connection.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{ListenerId, UpstreamId};
use crate::relay::Limits;
use crate::tls::terms::Terms;
use crate::upstream::Upstream;
use crate::upstream::dial::DialTerms;

/// One generation of the settings, published to the acceptor.
#[derive(Debug)]
pub struct Snapshot {
    /// By [`ListenerId`].
    pub listeners: Vec<Offer>,
}

impl Snapshot {
    /// What a listener offers.
    pub fn listener(&self, id: ListenerId) -> Option<&Offer> {
        self.listeners.get(usize::from(id.0))
    }
}

/// What a new connection of one listener is given.
#[derive(Clone, Debug)]
pub struct Offer {
    /// For the handshake, then let go: a long session must not pin certificates.
    pub tls: Terms,
    /// For the whole session.
    pub session: Arc<SessionTerms>,
}

/// What the sessions of one listener need all their life.
#[derive(Debug)]
pub struct SessionTerms {
    /// Which listener.
    pub id: ListenerId,
    /// Its name; a metric label.
    pub name: String,
    /// From accept to the end of the handshake. Zero: no limit.
    pub handshake_timeout: Duration,
    /// Where its connections go.
    pub upstream: Arc<Upstream>,
    /// Index of that upstream.
    pub upstream_id: UpstreamId,
    /// How to connect there.
    pub dial: DialTerms,
    /// Bounds of its relays.
    pub limits: Arc<Limits>,
}
