//! Bytes both ways between two endpoints, until both directions have ended.
//!
//! A [`Relay`] is one future with two halves ([`half`]). They never wait for each other and share
//! nothing but what one side of a TLS connection has to tell its other side ([`Control`]: answer a key update,
//! send an alert). When nothing moves the relay is some 300 bytes, and no buffer is held.

mod half;
mod watch;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::endpoint::secure::Rest;
use crate::metrics::cells::ListenerCells;
use crate::pool::Magazine;
use crate::tls::TlsError;

pub use half::Control;
use half::{Ended, Half, Shared};
use watch::{Watch, Way};

/// Bounds of a relay, shared by all of a listener's.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes that one read takes from a socket.
    pub read_max: usize,
    /// TLS records that a large buffer holds.
    pub large_records: usize,
    /// Silence in both directions that ends it. Zero: none does.
    pub idle: Duration,
    /// Silence that ends it once one direction has ended. Zero: none does.
    pub half_closed: Duration,
    /// How long a buffer may be kept without progress while others wait for one.
    pub stall: Duration,
    /// Whether a client's end without close_notify becomes a reset towards the backend.
    pub abort_on_truncation: bool,
}

/// Why a relay is over. The direction that first ended in another way than cleanly decides.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// Both directions ended as they should.
    #[error("closed by both sides")]
    Closed,
    /// The client ended TCP without close_notify.
    #[error("client ended without close_notify")]
    Truncated,
    /// The client reset the connection, or could not be written to.
    #[error("client gone: {0}")]
    ClientGone(io::Error),
    /// The backend reset the connection, or could not be written to.
    #[error("backend gone: {0}")]
    BackendGone(io::Error),
    /// The client broke the protocol.
    #[error("client broke the protocol: {0}")]
    ClientTls(TlsError),
    /// A TLS backend broke the protocol.
    #[error("backend broke the protocol: {0}")]
    BackendTls(TlsError),
    /// A TLS backend ended TCP without close_notify.
    #[error("backend ended without close_notify")]
    BackendTruncated,
    /// Nothing moved for as long as the listener allows.
    #[error("idle for too long")]
    Idle,
    /// One direction had ended, and the other was silent for too long.
    #[error("half closed for too long")]
    HalfClosed,
    /// It kept a buffer without progress while others waited for one.
    #[error("kept a buffer without progress while others waited")]
    Stalled,
}

impl End {
    /// One word for the metric label `outcome` and the access log.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Truncated => "truncated",
            Self::ClientGone(_) => "client_gone",
            Self::BackendGone(_) => "backend_gone",
            Self::ClientTls(_) => "client_tls_error",
            Self::BackendTls(_) => "backend_tls_error",
            Self::BackendTruncated => "backend_truncated",
            Self::Idle => "idle_timeout",
            Self::HalfClosed => "half_closed_timeout",
            Self::Stalled => "stalled",
        }
    }
}

/// What a relay has done.
#[derive(Debug)]
pub struct Outcome {
    /// Why it is over.
    pub end: End,
    /// Whether the backend is to see a reset.
    pub abort_back: bool,
    /// Whether the client ended its TCP stream, so that nobody need wait for it.
    pub front_ended: bool,
}

/// Payload bytes that a relay has taken from either side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// From the client.
    pub up: u64,
    /// From the backend.
    pub down: u64,
}

/// See the module. Polled to its end it gives the [`Outcome`]; endpoints and byte counts stay with it.
pub struct Relay {
    front: Endpoint,
    back: Endpoint,
    up: Half,
    down: Half,
    /// What the front's receiving side has for its sending side.
    front_control: Control,
    /// The same for the back.
    back_control: Control,
    /// Whether the way down was the first to end badly.
    down_first: Option<bool>,
    watch: Watch,
    pool: Magazine,
    limits: Arc<Limits>,
    cells: Arc<ListenerCells>,
}

impl Relay {
    /// Joins two endpoints, each with what was read from it already and not opened.
    pub fn new(
        (front, front_rest): (Endpoint, Rest),
        (back, back_rest): (Endpoint, Rest),
        pool: Magazine,
        limits: Arc<Limits>,
        cells: Arc<ListenerCells>,
    ) -> Self {
        Self {
            front,
            back,
            up: Half::new(front_rest, limits.abort_on_truncation),
            down: Half::new(back_rest, false),
            front_control: Control::default(),
            back_control: Control::default(),
            down_first: None,
            watch: Watch::default(),
            pool,
            limits,
            cells,
        }
    }

    /// What has moved so far.
    pub fn moved(&self) -> Moved {
        Moved {
            up: self.up.payload(),
            down: self.down.payload(),
        }
    }

    /// Key updates that were received from and sent to the client.
    pub fn key_updates(&self) -> (u32, u32) {
        (
            self.front_control.updates_received,
            self.front_control.updates_sent,
        )
    }

    /// The endpoints, to close them. Leases are given back.
    pub fn into_endpoints(self) -> (Endpoint, Endpoint) {
        (self.front, self.back)
    }

    /// Both directions as far as they go now; then whether it is over.
    #[inline]
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let (front_in, front_out) = self.front.split();
        let (back_in, back_out) = self.back.split();
        let with = Shared {
            pool: &self.pool,
            limits: &self.limits,
        };
        let tell = (&mut self.front_control, &mut self.back_control);
        let up = self
            .up
            .poll(cx, front_in, back_out, tell, with, &self.cells.up_bytes);
        if self.down_first.is_none() && self.up.ended_badly() {
            self.down_first = Some(false);
        }
        if up.is_ready() && self.up.truncated() && self.limits.abort_on_truncation {
            return Poll::Ready(self.outcome());
        }
        let tell = (&mut self.back_control, &mut self.front_control);
        let down = self
            .down
            .poll(cx, back_in, front_out, tell, with, &self.cells.down_bytes);
        if self.down_first.is_none() && self.down.ended_badly() {
            self.down_first = Some(true);
        }
        let over = up.is_ready() && down.is_ready();
        if over || self.up.source_gone() || self.down.source_gone() {
            Poll::Ready(self.outcome())
        } else {
            Poll::Pending
        }
    }

    fn outcome(&mut self) -> Outcome {
        let abort_back = self.up.truncated() && self.limits.abort_on_truncation;
        let front_ended = self.up.source_ended();
        let up = self.up.take_end();
        let down = self.down.take_end();
        let (up, down) = match self.down_first {
            Some(true) => (None, down),
            Some(false) => (up, None),
            None => (up, down),
        };
        let end = match (up, down) {
            (Some(Ended::SourceTls(e)), _) => End::ClientTls(e),
            (_, Some(Ended::SinkTls(e))) => End::ClientTls(e),
            (Some(Ended::SinkTls(e)), _) | (_, Some(Ended::SourceTls(e))) => End::BackendTls(e),
            (Some(Ended::SourceGone(e)), _) | (_, Some(Ended::SinkGone(e))) => End::ClientGone(e),
            (Some(Ended::SinkGone(e)), _) | (_, Some(Ended::SourceGone(e))) => End::BackendGone(e),
            (Some(Ended::SourceTruncated), _) => End::Truncated,
            (_, Some(Ended::SourceTruncated)) => End::BackendTruncated,
            _ => End::Closed,
        };
        Outcome {
            end,
            abort_back,
            front_ended,
        }
    }
}

impl Future for Relay {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let this = self.get_mut();
        if let Poll::Ready(outcome) = this.advance(cx) {
            return Poll::Ready(outcome);
        }
        let Self {
            front,
            back,
            up,
            down,
            watch,
            pool,
            limits,
            ..
        } = &mut *this;
        let (front, back) = (front.socket(), back.socket());
        let ways = (
            Way {
                half: up,
                source: front,
                sink: back,
            },
            Way {
                half: down,
                source: back,
                sink: front,
            },
        );
        match watch.poll(cx, ways, pool, limits) {
            Poll::Pending => Poll::Pending,
            // The fault says more than the deadline that its alert has missed.
            Poll::Ready(_) if up.faulted() || down.faulted() => Poll::Ready(this.outcome()),
            Poll::Ready(end) => {
                let front_ended = up.source_ended();
                Poll::Ready(Outcome {
                    end,
                    abort_back: false,
                    front_ended,
                })
            }
        }
    }
}
