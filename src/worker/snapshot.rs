//! One generation of the settings as the acceptor hands them out: immutable, and pinned by each session from birth on, so
//! that a reload never touches a live connection.

use std::sync::Arc;

use crate::config::ListenerId;
use crate::handler::Rules;
use crate::tls::certs::Certificates;
use crate::tls::terms::Terms;

/// One generation of the settings, published to the acceptor.
#[derive(Debug)]
pub struct Snapshot {
    /// By [`ListenerId`].
    pub listeners: Vec<Offer>,
    /// All certificates; none where nothing is terminated.
    pub certificates: Option<Arc<Certificates>>,
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
    /// For the handshake, then let go: a long session must not pin certificates. None where there are none.
    pub tls: Option<Terms>,
    /// For the whole session.
    pub rules: Arc<Rules>,
}
