//! Any protocol: choose a backend, and relay bytes.

use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::endpoint::secure::{abort, linger};
use crate::metrics::cells::{ListenerCells, WorkerCells};
use crate::pool::{Lease, Magazine};
use crate::relay::{End, Limits, Moved, Relay};
use crate::upstream::Upstream;
use crate::upstream::dial::{DialError, DialTerms, dial};

/// What a raw conversation needs of its listener.
pub struct Terms<'a> {
    /// Where it goes.
    pub upstream: &'a Arc<Upstream>,
    /// How to connect there.
    pub dial: &'a DialTerms,
    /// Bounds of the relay.
    pub limits: &'a Arc<Limits>,
    /// Counters of the listener on this worker.
    pub cells: &'a Arc<ListenerCells>,
    /// Counters of the upstream on this worker.
    pub worker: &'a WorkerCells,
    /// Index of the upstream in them.
    pub upstream_index: usize,
}

/// How a conversation ended.
#[derive(Debug, thiserror::Error)]
pub enum RawEnd {
    /// No backend took it.
    #[error("no backend: {0}")]
    NoBackend(DialError),
    /// It took place.
    #[error("{0}")]
    Relayed(End),
}

impl RawEnd {
    /// One word for the metric label `outcome` and the access log.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::NoBackend(_) => "no_backend",
            Self::Relayed(end) => end.outcome(),
        }
    }
}

/// What is known of a conversation that is over.
#[derive(Debug)]
pub struct Report {
    /// How it ended.
    pub end: RawEnd,
    /// Which backend had it.
    pub backend: Option<usize>,
    /// Payload bytes from either side.
    pub moved: Moved,
}

/// Connects `front` to a backend and relays until both directions have ended. `rest` was read from the
/// front behind the handshake.
pub async fn serve(
    front: Endpoint,
    rest: Option<Lease>,
    terms: Terms<'_>,
    pool: &Magazine,
) -> Report {
    let cells = terms.worker.upstreams.get(terms.upstream_index);
    let cells = cells.map_or(&[][..], |cells| &cells[..]);
    // Boxed: its state is large and short-lived, the relay's is small and long-lived.
    let dialed = match Box::pin(dial(terms.upstream, terms.dial, pool, cells)).await {
        Ok(dialed) => dialed,
        Err(error) => {
            drop(rest);
            // No close_notify: nothing that the client could take for the backend's own end.
            linger(front.socket()).await;
            return Report {
                end: RawEnd::NoBackend(error),
                backend: None,
                moved: Moved::default(),
            };
        }
    };
    let pick = dialed.pick;
    let mut relay = Relay::new(
        (front, rest),
        (dialed.endpoint, dialed.rest),
        pool.clone(),
        Arc::clone(terms.limits),
        Arc::clone(terms.cells),
    );
    let outcome = (&mut relay).await;
    let moved = relay.moved();
    let (received, sent) = relay.key_updates();
    terms.cells.updates_received.add(received.into());
    terms.cells.updates_sent.add(sent.into());
    let (front, back) = relay.into_endpoints();
    if outcome.abort_back {
        drop(front);
        abort(back.into_socket()).await;
    } else {
        drop(back);
        if !outcome.front_ended {
            linger(front.socket()).await;
        }
    }
    Report {
        end: RawEnd::Relayed(outcome.end),
        backend: Some(pick.index()),
        moved,
    }
}
