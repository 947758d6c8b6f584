//! What is known of a connection while it lives, and the counters that follow an XMPP stream.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::config::UpstreamId;
use crate::metrics::cells::{ListenerCells, StreamPhase};
use crate::tls::handshake::TlsFacts;

pub use crate::metrics::cells::StreamPhase as Phase;

/// One connection's. Written by its handler, read when it ends.
pub struct Ledger {
    cells: Arc<ListenerCells>,
    /// Whether somebody will read names and facts: there is an access log.
    keeps: bool,
    notes: RefCell<Option<Box<Notes>>>,
    upstream: Cell<Option<UpstreamId>>,
    /// Domain and phase of an XMPP stream.
    stream: Cell<Option<(u16, StreamPhase)>>,
}

/// What the access log tells.
#[derive(Default)]
pub struct Notes {
    /// Of the handshake.
    pub facts: Option<TlsFacts>,
    /// The domain that an XMPP stream is for.
    pub domain: Option<Box<str>>,
}

impl Ledger {
    /// Nothing yet.
    pub fn new(cells: Arc<ListenerCells>, keeps: bool) -> Self {
        Self {
            cells,
            keeps,
            notes: RefCell::default(),
            upstream: Cell::default(),
            stream: Cell::default(),
        }
    }

    /// The handshake is over.
    pub(super) fn shaken(&self, facts: &TlsFacts) {
        if self.keeps {
            let facts = TlsFacts {
                client: None,
                bindings: None,
                ..facts.clone()
            };
            self.notes.borrow_mut().get_or_insert_default().facts = Some(facts);
        }
    }

    /// Where it goes.
    pub(super) fn sent_to(&self, upstream: UpstreamId) {
        self.upstream.set(Some(upstream));
    }

    /// The upstream, if it got that far.
    pub fn upstream(&self) -> Option<UpstreamId> {
        self.upstream.get()
    }

    /// What the access log tells.
    pub fn notes<T>(&self, read: impl FnOnce(Option<&Notes>) -> T) -> T {
        read(self.notes.borrow().as_deref())
    }

    /// An XMPP stream enters a phase; its first makes the connection one.
    pub fn enter(&self, phase: StreamPhase) {
        let domain = match self.stream.get() {
            Some((domain, _)) => domain,
            None => self.cells.streams.other(),
        };
        self.move_to(domain, phase);
    }

    /// It is no XMPP stream after all.
    pub(super) fn no_stream(&self) {
        if let Some((domain, phase)) = self.stream.take() {
            self.cells.streams.now(domain, phase, -1);
        }
    }

    /// The domain of an XMPP stream is known: its index among the listener's.
    pub(super) fn names(&self, index: usize, domain: Option<&str>) {
        if self.keeps {
            self.notes.borrow_mut().get_or_insert_default().domain = domain.map(Into::into);
        }
        if let Some((_, phase)) = self.stream.get() {
            let index = u16::try_from(index).unwrap_or(u16::MAX);
            self.move_to(index, phase);
        }
    }

    fn move_to(&self, domain: u16, phase: StreamPhase) {
        if let Some((domain, phase)) = self.stream.replace(Some((domain, phase))) {
            self.cells.streams.now(domain, phase, -1);
        }
        self.cells.streams.now(domain, phase, 1);
    }

    /// Whether it is an XMPP stream that is not authenticated yet.
    #[inline]
    pub fn awaits_authentication(&self) -> bool {
        matches!(self.stream.get(), Some((_, StreamPhase::Authentication)))
    }

    /// The end, once.
    pub fn close(&self, reason: &'static str) {
        if let Some((domain, phase)) = self.stream.take() {
            self.cells.streams.now(domain, phase, -1);
            self.cells.streams.ended(domain, phase, reason);
        }
    }
}
