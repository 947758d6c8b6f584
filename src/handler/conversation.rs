//! Client and backend, joined.
//!
//! A [`Conversation`] has three parts of life, so that the long one is small: what leads to it and
//! [`Conversation::close`] are futures with large states that the caller boxes for their moment; in
//! between it is a future itself, no larger than its relay.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use memchr::memmem;
use tokio::time::Instant;

use crate::endpoint::Endpoint;
use crate::endpoint::dialogue::{Dialogue, Heard};
use crate::endpoint::secure::{Rest, abort, linger};
use crate::metrics::cells::ListenerCells;
use crate::pool::Magazine;
use crate::relay::stream::Stream;
use crate::relay::{End, Moved, Outcome, Relay};
use crate::sys::socket::reset_on_close;
use crate::upstream::Pick;
use crate::upstream::dial::Dialed;

use crate::wire::xmpp::CLOSE;

use super::{Guest, by};

/// How long a client that was told a stream error may take to end its stream.
const GOODBYE: Duration = Duration::from_secs(1);
/// Most bytes of what it says meanwhile.
const GOODBYE_MAX: usize = 64 * 1024;

/// Client and backend, joined.
pub struct Conversation {
    relay: Relay,
    /// The backend's count of connections.
    pick: Pick,
    pool: Magazine,
    count: Count,
}

/// What is spoken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Any protocol.
    Bytes,
    /// XMPP.
    Stream,
    /// WebSocket.
    Tunnel,
}

/// Where it is counted. A WebSocket is counted while it lives, however it ends.
struct Count {
    cells: Arc<ListenerCells>,
    kind: Kind,
}

impl Count {
    fn new(kind: Kind, guest: &Guest<'_>) -> Self {
        if kind == Kind::Tunnel {
            let routes = guest.rules.routes.http_routes().len();
            guest.cells.http(routes).tunnels.add(1);
        }
        Self {
            cells: Arc::clone(guest.cells),
            kind,
        }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        if let (Kind::Tunnel, Some(http)) = (self.kind, self.cells.past_http()) {
            http.tunnels.add(-1);
        }
    }
}

impl Conversation {
    /// Joins a client, with what was read from it and not opened, and a backend.
    pub(super) fn join(front: (Endpoint, Rest), dialed: Dialed, guest: &Guest<'_>) -> Self {
        Self::of(front, dialed, Kind::Bytes, guest, |relay| relay)
    }

    /// The same for a WebSocket, of which some bytes have passed already.
    pub(super) fn join_websocket(
        front: (Endpoint, Rest),
        dialed: Dialed,
        begun: Moved,
        guest: &Guest<'_>,
    ) -> Self {
        guest.cells.up_bytes.add(begun.up);
        guest.cells.down_bytes.add(begun.down);
        Self::of(front, dialed, Kind::Tunnel, guest, |relay| {
            relay.begun(begun)
        })
    }

    /// The same for an XMPP stream, which is watched as it passes. `begun` has passed already.
    pub(super) fn join_stream(
        front: (Endpoint, Rest),
        dialed: Dialed,
        stream: Stream,
        begun: Moved,
        guest: &Guest<'_>,
    ) -> Self {
        guest.cells.up_bytes.add(begun.up);
        guest.cells.down_bytes.add(begun.down);
        Self::of(front, dialed, Kind::Stream, guest, |relay| {
            relay.watching(stream, begun)
        })
    }

    fn of(
        front: (Endpoint, Rest),
        dialed: Dialed,
        kind: Kind,
        guest: &Guest<'_>,
        watch: impl FnOnce(Relay) -> Relay,
    ) -> Self {
        let relay = Relay::new(
            front,
            (dialed.endpoint, dialed.rest),
            guest.pool().clone(),
            Arc::clone(&guest.rules.limits),
            Arc::clone(guest.cells),
        );
        Self {
            relay: watch(relay),
            pick: dialed.pick,
            pool: guest.pool().clone(),
            count: Count::new(kind, guest),
        }
    }

    /// Whether it is an XMPP stream, and if so, whether its client is authenticated.
    #[inline]
    pub fn authenticated(&self) -> Option<bool> {
        self.relay.authenticated()
    }

    /// Whether a drain ends it before its own end: clients of XMPP and WebSocket come back by themselves.
    pub fn leaves_early(&self) -> bool {
        self.count.kind != Kind::Bytes
    }

    /// Ends it for a drain; see [`Relay::drain`].
    pub fn drain(&mut self, words: Option<&str>, patience: Duration) {
        self.relay.drain(words, patience);
    }

    /// Which backend has it, and the payload bytes that have moved so far.
    pub fn seen(&self) -> (usize, Moved) {
        (self.pick.index(), self.relay.moved())
    }

    /// Ends both connections in the way that `outcome` asks for, and says how it ended.
    pub async fn close(self, outcome: Outcome) -> End {
        let (received, sent) = self.relay.key_updates();
        self.count.cells.updates_received.add(received.into());
        self.count.cells.updates_sent.add(sent.into());
        let ((front, rest), back) = self.relay.into_endpoints();
        if outcome.parting {
            drop(back);
            part(Dialogue::new(front, rest), &self.pool).await;
        } else if outcome.abort_back {
            drop(front);
            abort(back.into_socket()).await;
        } else {
            drop(back);
            if outcome.front_stalled {
                reset_on_close(front.socket());
            } else if !outcome.front_ended {
                linger(front.socket()).await;
            }
        }
        outcome.end
    }
}

/// The client was told a stream error. Some answer with the end of their stream, and take it ill if they cannot (RFC 6120
/// section 4.4 has both sides close).
async fn part(mut front: Dialogue, pool: &Magazine) {
    let goodbye = async {
        let mut said = Vec::new();
        loop {
            match front.read(pool, &mut said).await {
                Ok(Heard::Bytes) if said.len() < GOODBYE_MAX => {
                    if memmem::find(&said, CLOSE.as_bytes()).is_some() {
                        break;
                    }
                }
                _ => break,
            }
        }
    };
    by(Some(Instant::now() + GOODBYE), goodbye).await;
    front.finish().await;
}

impl Future for Conversation {
    type Output = Outcome;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        Pin::new(&mut self.relay).poll(cx)
    }
}
