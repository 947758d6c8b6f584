//! Any protocol: choose a backend, and relay bytes.
//!
//! A [`Conversation`] has three parts of life, so that the long one is small: [`Conversation::open`] and
//! [`Conversation::close`] are futures with large states that the caller boxes for their moment; in
//! between it is a future itself, no larger than its relay.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::endpoint::Endpoint;
use crate::endpoint::secure::{Rest, abort, linger};
use crate::metrics::cells::{ListenerCells, WorkerCells};
use crate::pool::Magazine;
use crate::relay::{End, Limits, Moved, Outcome, Relay};
use crate::upstream::dial::{DialError, DialTerms, dial};
use crate::upstream::{Pick, Upstream};

/// What a conversation needs of its listener.
pub struct Terms<'a> {
    /// Where it goes.
    pub upstream: &'a Arc<Upstream>,
    /// How to connect there.
    pub dial: &'a DialTerms,
    /// Bounds of the relay.
    pub limits: &'a Arc<Limits>,
    /// Counters of the listener on this worker.
    pub cells: &'a Arc<ListenerCells>,
    /// Counters of this worker.
    pub worker: &'a WorkerCells,
    /// Index of the upstream in them.
    pub upstream_index: usize,
}

/// Client and backend, joined.
pub struct Conversation {
    relay: Relay,
    /// The backend's count of connections.
    pick: Pick,
    cells: Arc<ListenerCells>,
}

impl Conversation {
    /// Connects `front` to a backend. `rest` was read from the front behind the handshake.
    ///
    /// # Errors
    /// When no backend takes it; the client has then been sent the end, and no close_notify: nothing
    /// that it could take for the backend's own end.
    pub async fn open(
        front: Endpoint,
        rest: Rest,
        terms: Terms<'_>,
        pool: &Magazine,
    ) -> Result<Self, DialError> {
        let cells = terms.worker.upstreams.get(terms.upstream_index);
        let cells = cells.map_or(&[][..], |cells| &cells[..]);
        let dialed = match dial(terms.upstream, terms.dial, pool, cells).await {
            Ok(dialed) => dialed,
            Err(error) => {
                linger(front.socket()).await;
                return Err(error);
            }
        };
        let relay = Relay::new(
            (front, rest),
            (dialed.endpoint, dialed.rest),
            pool.clone(),
            Arc::clone(terms.limits),
            Arc::clone(terms.cells),
        );
        Ok(Self {
            relay,
            pick: dialed.pick,
            cells: Arc::clone(terms.cells),
        })
    }

    /// Which backend has it, and the payload bytes that have moved so far.
    pub fn seen(&self) -> (usize, Moved) {
        (self.pick.index(), self.relay.moved())
    }

    /// Ends both connections in the way that `outcome` asks for, and says how it ended.
    pub async fn close(self, outcome: Outcome) -> End {
        let (received, sent) = self.relay.key_updates();
        self.cells.updates_received.add(received.into());
        self.cells.updates_sent.add(sent.into());
        let (front, back) = self.relay.into_endpoints();
        if outcome.abort_back {
            drop(front);
            abort(back.into_socket()).await;
        } else {
            drop(back);
            if !outcome.front_ended {
                linger(front.socket()).await;
            }
        }
        outcome.end
    }
}

impl Future for Conversation {
    type Output = Outcome;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        Pin::new(&mut self.relay).poll(cx)
    }
}
